-- Moves: running -> deferred, running -> queued (a wait is over already)
-- Locks: the lease, the ti, advisory per target (shared)
-- Raises: OF001 lease lost; OF008 no wait given
-- Called by: run_task when every branch of a body sits in a durable wait. Lease and slot are free afterwards.
create or replace function onceflow.defer_task(p_run bigint, p_ti bigint, p_token uuid, p_waits text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    l onceflow.lease := onceflow.drop_lease(p_run, p_ti, p_token);
    v_waits jsonb := p_waits::jsonb;
    v_over boolean;
    v_due timestamptz;
    t onceflow.ti;
    u record;
begin
    if jsonb_array_length(v_waits) = 0 then
        perform onceflow.raise_error('OF008', format('task %s of run %s of %s cannot wait for nothing: it would never go on', l.task_id, l.run_id, l.dag_id));
    end if;
    perform onceflow.write_entry(l, l.task_id, l.task_id, 'body', l.try_number, 'running', 'deferred', false, null, null, v_waits, null, l.claimed_at);
    update onceflow.ti set state = 'deferred', entries = l.entries + 1, start_date = coalesce(start_date, l.claimed_at)
    where run = p_run and id = p_ti returning * into t;
    insert into onceflow.wait (run, ti, kind, target_run, target)
    select p_run, p_ti, w ->> 'kind', (w ->> 'target_run')::bigint, w ->> 'target' from jsonb_array_elements(v_waits) w where w ->> 'kind' <> 'time';
    for u in
        select onceflow.wait_lock(kind, target_run, target) h from onceflow.wait where run = p_run and ti = p_ti
        union select onceflow.wait_lock('run', target_run, '') from onceflow.wait where run = p_run and ti = p_ti and kind = 'event' order by h
    loop
        perform pg_advisory_xact_lock_shared(u.h);
    end loop;
    select bool_or(onceflow.is_wait_over(p_run, w ->> 'kind', (w ->> 'target_run')::bigint, w ->> 'target')),
           min(case when w ->> 'kind' = 'time' then (w ->> 'target')::timestamptz end)
    into v_over, v_due from jsonb_array_elements(v_waits) w;
    if v_over then
        perform onceflow.resume_task(p_run, p_ti);
    elsif v_due is not null then
        insert into onceflow.timer values (v_due, p_run, p_ti, 'wait');
    end if;
end $$;

-- Moves: running -> deferred
-- Run: running -> needs_code
-- Locks: the lease, the ti, the run, advisory code (shared)
-- Raises: OF001 lease lost
-- Called by: run_task when the ledger was written by other code: the named stop, until a worker has that code. Holds no slot.
create or replace function onceflow.stop_run(p_run bigint, p_ti bigint, p_token uuid, p_version text, p_error text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    l onceflow.lease := onceflow.drop_lease(p_run, p_ti, p_token);
    r onceflow.run;
    v_now timestamptz := onceflow.now();
begin
    perform onceflow.write_entry(l, l.task_id, l.task_id, 'body', l.try_number, 'running', 'needs_code', false, null, null, null, p_error::jsonb, l.claimed_at);
    select * into r from onceflow.run where id = p_run;
    update onceflow.ti set state = 'deferred', entries = l.entries + 1, start_date = coalesce(start_date, l.claimed_at), lane = onceflow.ensure_lane(r.queue, r.dag_id, p_version)
    where run = p_run and id = p_ti;
    insert into onceflow.wait (run, ti, kind, target_run, target) values (p_run, p_ti, 'code', 0, r.dag_id || '@' || p_version);
    update onceflow.run set state = 'needs_code', code_version = p_version, stop_reason = p_error::jsonb ->> 'message' where id = p_run and state is null;
    -- A worker with that code may be there already, or be registering right now.
    perform pg_advisory_xact_lock_shared(onceflow.wait_lock('code', 0, ''));
    if exists (select from onceflow.worker w where w.ended_at is null and w.code_versions ->> r.dag_id = p_version
               and w.heartbeat_at > v_now - make_interval(secs => w.lease_s)) then
        insert into onceflow.wake_up (kind, target_run, target) values ('code', 0, r.dag_id || '@' || p_version);
    end if;
end $$;
grant execute on function onceflow.defer_task(bigint, bigint, uuid, text), onceflow.stop_run(bigint, bigint, uuid, text, text) to onceflow_worker;
