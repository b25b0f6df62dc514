-- Moves: deferred -> queued
-- Run: running -> running, needs_code -> running, running -> success (left by an end in another isolation level), running -> failed
-- Locks: wake-ups (skip locked), advisory per target, tis in order; what somebody keeps from it for longer than 100 ms it leaves
-- Raises: nothing
-- Races: wake-ups, tis and runs in another's hands are passed over: their wake-ups stay for the next tick
-- Called by: run_tick
-- A waiter that is just deferring itself holds its targets' advisory locks shared until it commits: either we see its wait
-- here, or it sees the fact there. So no wake-up is lost.
create or replace function onceflow.drain_wake_ups(p_limit int) returns integer
language plpgsql as $$
declare
    v_ups onceflow.wake_up[];
    v_held bigint[] := '{}';
    u record;
    v_now timestamptz := onceflow.now();
    v_count integer := 0;
begin
    with due as (
        delete from onceflow.wake_up where ctid = any(array(select ctid from onceflow.wake_up order by id limit p_limit for update skip locked)) returning *)
    select array_agg(d) into v_ups from due d;
    if v_ups is null then return 0; end if;
    for u in select distinct onceflow.wait_lock(w.kind, w.target_run, w.target) h from unnest(v_ups) w order by h loop
        if not pg_try_advisory_xact_lock(u.h) and not (v_held = '{}' and onceflow.lock_soon(u.h)) then v_held := v_held || u.h; end if;
    end loop;
    if v_held <> '{}' then
        insert into onceflow.wake_up (kind, target_run, target)
        select d.kind, d.target_run, d.target from unnest(v_ups) d where onceflow.wait_lock(d.kind, d.target_run, d.target) = any(v_held);
        select array_agg(d) into v_ups from unnest(v_ups) d where onceflow.wait_lock(d.kind, d.target_run, d.target) <> all(v_held);
    end if;
    for u in
        select w.run, w.ti, array_agg(d) ups from unnest(v_ups) d
        join onceflow.wait w on w.target_run = d.target_run and (w.kind = d.kind and w.target = d.target or d.kind = 'run' and w.kind = 'event')
        group by w.run, w.ti order by w.run, w.ti
    loop
        -- In the hands of another tick, or of somebody who cancels the run: no tick waits for them, the next one looks again.
        perform from onceflow.ti where run = u.run and id = u.ti for update skip locked;
        if not found then
            insert into onceflow.wake_up (kind, target_run, target) select d.kind, d.target_run, d.target from unnest(u.ups) d;
        elsif onceflow.resume_task(u.run, u.ti) then
            v_count := v_count + 1;
        end if;
    end loop;
    for u in select distinct d.target_run from unnest(v_ups) d join onceflow.run r on r.id = d.target_run and r.continued_by is not null
        where d.kind = 'message' order by 1
    loop
        if not onceflow.forward_soon(u.target_run) then
            insert into onceflow.wake_up (kind, target_run, target) values ('message', u.target_run, '');
        end if;
    end loop;
    -- Tasks that ended in a transaction of another isolation level could not see whether they were the last.
    for u in select distinct target_run from unnest(v_ups) where kind = 'end' order by target_run loop
        if not onceflow.end_soon(u.target_run, v_now) then
            insert into onceflow.wake_up (kind, target_run) values ('end', u.target_run);
        end if;
    end loop;
    for u in select distinct target_run from unnest(v_ups) where kind = 'past' order by target_run loop
        perform onceflow.release_waiting(u.target_run);
    end loop;
    return v_count;
end $$;

-- The tick waits for nobody's transaction: these give up before a deadlock would be noticed, and answer whether it is done.
create or replace function onceflow.lock_soon(p_key bigint) returns boolean
language plpgsql set lock_timeout = '100ms' as $$
begin
    perform pg_advisory_xact_lock(p_key);
    return true;
exception when lock_not_available then
    return false;
end $$;

create or replace function onceflow.forward_soon(p_run bigint) returns boolean
language plpgsql set lock_timeout = '100ms' as $$
begin
    perform onceflow.forward_messages(p_run);
    return true;
exception when lock_not_available then
    return false;
end $$;

create or replace function onceflow.end_soon(p_run bigint, p_now timestamptz) returns boolean
language plpgsql set lock_timeout = '100ms' as $$
begin
    perform onceflow.count_living(p_run, p_now);
    return true;
exception when lock_not_available then
    return false;
end $$;

-- The key of the advisory lock under which a fact and a body about to wait for it meet.
create or replace function onceflow.wait_lock(p_kind text, p_target_run bigint, p_target text) returns bigint
language sql immutable as $$ select hashtextextended(p_kind || '/' || p_target_run || '/' || p_target, 0) $$;

-- Is what a body waits for there? kind time: target is the moment.
create or replace function onceflow.is_wait_over(p_run bigint, p_kind text, p_target_run bigint, p_target text) returns boolean
language sql stable as $$
    select case p_kind
        when 'time' then p_target::timestamptz <= onceflow.now()
        when 'task' then coalesce((select t.state is not null and t.state <> 'deferred' from onceflow.ti t where t.run = p_target_run and t.id = p_target::bigint), true)
        when 'run' then not exists (select from onceflow.run r where r.id = p_target_run and (r.state is null or r.state = 'needs_code'))
        when 'message' then exists (select from onceflow.message m where m.run = p_run and m.topic = p_target)
        when 'event' then exists (select from onceflow.run_event v where v.run = p_target_run and v.key = p_target)
             or not exists (select from onceflow.run r where r.id = p_target_run and (r.state is null or r.state = 'needs_code'))
        else false end
$$;

-- Wake-ups are quick, this look is the guarantee: whoever's wait is over is woken again. Bodies may wait in great numbers, so each look takes the next
-- few of them, and begins anew after the last.
create or replace function onceflow.find_missed_waits(p_after_run bigint, p_after_ti bigint, p_limit int) returns void
language plpgsql as $$
declare
    v_runs bigint[];
    v_tis bigint[];
begin
    select array_agg(x.run), array_agg(x.ti) into v_runs, v_tis from (
        select distinct w.run, w.ti from onceflow.wait w where (w.run, w.ti) > (p_after_run, p_after_ti) order by w.run, w.ti limit p_limit) x;
    insert into onceflow.wake_up (kind, target_run, target)
    select distinct w.kind, w.target_run, w.target from unnest(v_runs, v_tis) x(run, ti) join onceflow.wait w on w.run = x.run and w.ti = x.ti
    where w.kind <> 'code' and onceflow.is_wait_over(w.run, w.kind, w.target_run, w.target);
    update onceflow.engine set (looked_run, looked_ti) = (
        select coalesce(v_runs[p_limit], 0), coalesce(v_tis[p_limit], 0));
end $$;

-- For a worker whose bodies wait in memory: one call for all. Waits are [{run, kind, target_run, target}, …]; answers booleans.
create or replace function onceflow.check_waits(p_waits text) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
    select coalesce(jsonb_agg(onceflow.is_wait_over((w ->> 'run')::bigint, w ->> 'kind', (w ->> 'target_run')::bigint, w ->> 'target') order by n), '[]')
    from jsonb_array_elements(p_waits::jsonb) with ordinality x(w, n)
$$;
grant execute on function onceflow.check_waits(text) to onceflow_worker;
