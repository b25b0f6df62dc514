-- Moves: none (a step inside a running task: running -> up_for_retry or failed in the ledger)
-- Locks: the lease
-- Raises: OF001 lease lost; OF007 the step has its outcome already
-- Called by: run_step on the engine's connection, after the step's own transaction was rolled back
create or replace function onceflow.fail_step(
    p_run bigint, p_ti bigint, p_token uuid, p_key text, p_name text, p_kind text, p_try int,
    p_inputs text, p_inputs_hash text, p_error text, p_final boolean, p_delay_s double precision, p_elapsed_us bigint)
returns jsonb language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    l onceflow.lease := onceflow.hold_lease(p_run, p_ti, p_token);
    v_retry_at text := case when not p_final
        then to_char((onceflow.now() + make_interval(secs => p_delay_s)) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"') end;
begin
    if not onceflow.write_entry(l, p_key, p_name, p_kind, p_try, 'running', case when p_final then 'failed' else 'up_for_retry' end, p_final,
        p_inputs::jsonb, p_inputs_hash, case when not p_final then jsonb_build_object('retry_at', v_retry_at) end, p_error::jsonb, clock_timestamp() - p_elapsed_us * interval '1 microsecond') then
        perform onceflow.raise_error('OF007', format('step %s of run %s of %s has its outcome in the ledger already', p_key, l.run_id, l.dag_id));
    end if;
    return to_jsonb(v_retry_at);
end $$;
grant execute on function onceflow.fail_step(bigint, bigint, uuid, text, text, text, int, text, text, text, boolean, double precision, bigint) to onceflow_worker;
