-- Moves: those of the functions it calls
-- Locks: timers (skip locked), then those of the functions it calls; it waits for nobody's transaction, but 100 ms for what somebody may be about to leave
-- Raises: nothing
-- Called by: any process, about once a second, and at the time it answered last: due timers, wake-ups, runs of dags, rescues, seals, partitions
create or replace function onceflow.run_tick(p_limit int default 500, p_max_rescues int default 5) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
    v_now timestamptz := onceflow.now();
    e onceflow.engine;
    v_last timestamptz;
    v_least double precision;
    v_most double precision;
    v_may_rescue boolean := true;
    v_is_minute boolean := false;
    v_expiry timestamptz;
    v_readied integer;
    v_rescued integer := 0;
begin
    select * into e from onceflow.engine;
    v_last := e.last_tick_at;
    -- Only whoever holds a lease can be rescued.
    select min(k.lease_s), max(k.lease_s) into v_least, v_most from onceflow.worker k where exists (select from onceflow.lease where worker = k.id);
    if v_last < v_now - make_interval(secs => least(0.5, v_least / 8)) or v_last > v_now then
        -- Nobody ticked for long: the database or all workers were away, so silence proves nothing about any one worker.
        update onceflow.engine set last_tick_at = v_now, no_rescue_before = greatest(no_rescue_before,
            pg_postmaster_start_time() + make_interval(secs => coalesce(v_most, 0)),
            case when v_now - last_tick_at > make_interval(secs => least(5, v_least / 2)) or last_tick_at > v_now
                then v_now + make_interval(secs => coalesce(v_most, 0)) end)
        where one in (select one from onceflow.engine for update skip locked) returning * into e;
        v_may_rescue := found;  -- else another tick is just finding out
        v_is_minute := v_may_rescue and date_trunc('minute', v_now) <> date_trunc('minute', v_last);
        perform onceflow.seal_ledger(5, 1);
        if v_may_rescue and extract(epoch from v_now)::bigint / 5 <> extract(epoch from v_last)::bigint / 5 then
            perform onceflow.find_missed_waits(e.looked_run, e.looked_ti, p_limit);
            perform onceflow.find_missed_past(p_limit);
        end if;
    end if;
    v_readied := onceflow.fire_timers(p_limit) + onceflow.drain_wake_ups(p_limit) + onceflow.spread_soon(p_limit) + onceflow.admit_soon(p_limit / 5);
    if v_may_rescue and v_now > e.no_rescue_before then
        v_rescued := onceflow.rescue_tasks(p_limit, p_max_rescues);
    end if;
    -- Next: at the first timer, when the first lease runs out, and often enough to notice a silence of half a lease.
    select min(x.at) into v_expiry from onceflow.worker k, greatest(k.heartbeat_at + make_interval(secs => k.lease_s), e.no_rescue_before) x(at)
    where x.at > v_now and exists (select from onceflow.lease where worker = k.id);
    if v_is_minute then perform onceflow.mark_orphans(); end if;
    if v_is_minute and onceflow.lack_partitions() then
        begin
            perform onceflow.make_partitions();
        exception when lock_not_available then
            null;   -- two months are left to try again in
        end;
    end if;
    return jsonb_build_object('readied', v_readied, 'rescued', v_rescued, 'next_s', least(v_least / 4, extract(epoch from v_expiry - onceflow.now()),
        (select extract(epoch from min(due_at) - onceflow.now()) from onceflow.timer where due_at > v_now),  -- those before are in others' hands
        case when v_readied >= p_limit then 0 when exists (select from onceflow.wake_up) then 0.05 end),
        'tracks', exists (select from pg_trigger where tgname = 'onceflow_track'));
end $$;
-- None are admitted in this tick when somebody keeps a part of one of them for longer than 100 ms.
create or replace function onceflow.admit_soon(p_limit int) returns integer
language plpgsql set lock_timeout = '100ms' as $$
begin
    return onceflow.admit_runs(p_limit);
exception when lock_not_available then
    return 0;
end $$;
grant execute on function onceflow.run_tick(int, int) to onceflow_worker;
