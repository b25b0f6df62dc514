-- Moves: running -> up_for_retry, running -> queued (a retry without delay), running -> failed
-- Run: running -> running, running -> failed, running -> success (its body did without it)
-- Locks: the lease, the ti, the run
-- Raises: OF001 lease lost
-- Called by: run_task on the engine's connection, after the step's transaction was rolled back
-- Python proposes a retry and its delay; whether a try is left is decided here. A body that is tried again begins a new epoch: what
-- succeeded in it is reused, what failed in it runs again.
create or replace function onceflow.fail_task(
    p_run bigint, p_ti bigint, p_token uuid, p_name text, p_kind text, p_inputs text, p_inputs_hash text, p_error text,
    p_retry boolean, p_delay_s double precision, p_elapsed_us bigint)
returns jsonb language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    v_now timestamptz := onceflow.now();
    l onceflow.lease := onceflow.drop_lease(p_run, p_ti, p_token);
    t onceflow.ti;
    v_again boolean;
begin
    select * into t from onceflow.ti where run = p_run and id = p_ti;
    v_again := p_retry and l.try_number <= t.max_tries + t.rescues;
    perform onceflow.write_entry(l, l.task_id, p_name, p_kind, l.try_number, 'running', case when v_again then 'up_for_retry' else 'failed' end,
        not v_again, p_inputs::jsonb, p_inputs_hash, null, p_error::jsonb, clock_timestamp() - p_elapsed_us * interval '1 microsecond');
    if not v_again then
        perform onceflow.end_task(l, 'failed', p_error::jsonb ->> 'message');
        return jsonb_build_object('state', 'failed');
    end if;
    update onceflow.ti set try_number = l.try_number, entries = l.entries + 1, start_date = coalesce(start_date, l.claimed_at),
        worker = l.worker, hostname = l.host, error = p_error::jsonb ->> 'message', epoch = epoch + (p_kind = 'body')::int
    where run = p_run and id = p_ti;
    if exists (select from onceflow.run r join onceflow.dag_task k on k.version = r.version and k.ix = t.ix where r.id = p_run and 'up_for_retry' = any(k.listens)) then
        perform onceflow.note_callback(p_run, p_ti, 'up_for_retry', l.try_number);
    end if;
    if p_delay_s > 0 then
        insert into onceflow.timer values (v_now + make_interval(secs => p_delay_s), p_run, p_ti, 'retry');
    else
        insert into onceflow.ready (lane, rank, logical_date, run, ti) values (t.lane, t.rank, t.logical_date, p_run, p_ti);
    end if;
    return jsonb_build_object('state', 'up_for_retry');
end $$;
grant execute on function onceflow.fail_task(bigint, bigint, uuid, text, text, text, text, text, boolean, double precision, bigint) to onceflow_worker;
