-- Moves: running -> queued, running -> failed (after max_rescues)
-- Run: running -> running, running -> failed, running -> success (its body did without it)
-- Locks: workers and leases (skip locked), tis, runs; a run that somebody keeps from it for longer than 100 ms it leaves
-- Raises: nothing
-- Races: a lease being completed right now, and what is in another's hands, is passed over
-- Called by: run_tick of any process. Takes the tasks of workers without a heartbeat for their lease; uses no retry.
create or replace function onceflow.rescue_tasks(p_limit int, p_max_rescues int) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_now timestamptz := onceflow.now();
    w record;
    l onceflow.lease;
    v_held bigint[] := '{}';
    v_count integer := 0;
begin
    for w in
        select k.id, k.host, k.lease_s from onceflow.worker k
        where k.heartbeat_at < v_now - make_interval(secs => k.lease_s) and exists (select from onceflow.lease where worker = k.id)
        order by k.id for update of k skip locked  -- its heartbeat may be on its way in
    loop
        perform onceflow.end_sessions('onceflow-step:' || w.id || ':');
        for l in select * from onceflow.lease where worker = w.id order by run, ti limit p_limit for update skip locked loop
            continue when l.run = any(v_held);
            if onceflow.rescue_soon(l, format('worker %s on %s sent no heartbeat for %s s; the try is lost, its open transaction was rolled back', w.id, w.host, w.lease_s), p_max_rescues)
            then v_count := v_count + 1;
            else v_held := v_held || l.run;
            end if;
        end loop;
    end loop;
    return v_count;
end $$;

-- False: somebody holds a part of its run, and nothing was done.
create or replace function onceflow.rescue_soon(l onceflow.lease, p_why text, p_max_rescues int) returns boolean
language plpgsql set lock_timeout = '100ms' as $$
begin
    perform onceflow.rescue_task(l, p_why, p_max_rescues);
    return true;
exception when lock_not_available then
    return false;
end $$;

create or replace function onceflow.rescue_task(l onceflow.lease, p_why text, p_max_rescues int) returns void
language plpgsql as $$
declare
    t onceflow.ti;
    v_error jsonb := jsonb_build_object('$error', 'onceflow.errors:WorkerLost', 'message', p_why, 'args', jsonb_build_array(p_why), 'because', '[]'::jsonb);
begin
    delete from onceflow.lease where ti = l.ti and token = l.token;
    select * into t from onceflow.ti where run = l.run and id = l.ti;
    if t.rescues >= p_max_rescues then
        perform onceflow.write_entry(l, l.task_id, l.task_id, t.kind, l.try_number, 'running', 'failed', true, null, null, null, v_error, l.claimed_at);
        perform onceflow.end_task(l, 'failed', p_why);
        return;
    end if;
    perform onceflow.write_entry(l, l.task_id, l.task_id, t.kind, l.try_number, 'running', 'rescued', false, null, null, null, v_error, l.claimed_at);
    update onceflow.ti set try_number = l.try_number, rescues = rescues + 1, entries = l.entries + 1, start_date = coalesce(start_date, l.claimed_at), error = p_why
    where run = l.run and id = l.ti;
    insert into onceflow.ready (lane, rank, logical_date, run, ti) values (t.lane, t.rank, t.logical_date, l.run, l.ti);
end $$;

-- A stopped process, or a connection lost at one end only, keeps its transaction, and its locks on users' rows, open: end these sessions of
-- steps before another tries.
create or replace function onceflow.end_sessions(p_prefix text) returns void
language plpgsql as $$
begin
    perform pg_terminate_backend(pid) from pg_stat_activity where starts_with(application_name, p_prefix);
exception when insufficient_privilege then
    null;   -- idle_in_transaction_session_timeout (step_idle_s) ends it later
end $$;
