-- Moves: none (a step inside a running task: running -> success in the ledger)
-- Locks: the lease; the run when the step has started tasks
-- Raises: OF001 lease lost; OF003 the step ended its own transaction; OF007 the step has its outcome already
-- Called by: run_step, in the transaction of the step's own writes when it is transactional
create or replace function onceflow.complete_step(
    p_run bigint, p_ti bigint, p_token uuid, p_key text, p_name text, p_kind text, p_try int,
    p_inputs text, p_inputs_hash text, p_output text, p_elapsed_us bigint)
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    l onceflow.lease;
begin
    l := onceflow.hold_lease(p_run, p_ti, p_token, concat_ws('/', p_key, p_try, p_kind, p_output));
    if p_kind in ('transactional', 'sql') then perform onceflow.check_step_transaction(l.token, p_key, p_name); end if;
    if not onceflow.write_entry(l, p_key, p_name, p_kind, p_try, 'running', 'success', true, p_inputs::jsonb, p_inputs_hash, p_output::jsonb, null,
        clock_timestamp() - p_elapsed_us * interval '1 microsecond') then
        perform onceflow.raise_error('OF007', format('step %s of run %s of %s has its outcome in the ledger already', p_key, l.run_id, l.dag_id));
    end if;
    perform onceflow.count_detached(p_run);
end $$;
grant execute on function onceflow.complete_step(bigint, bigint, uuid, text, text, text, int, text, text, text, bigint) to onceflow_worker, onceflow_step;
