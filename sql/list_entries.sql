-- Moves: none
-- Locks: none
-- Raises: nothing
-- Called by: RunHandle.steps, onceflow ledger show: a run's entries in the order they were written
create or replace function onceflow.list_entries(p_run bigint) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
    select coalesce(jsonb_agg(jsonb_build_object('id', id, 'task_id', task_id, 'map_index', map_index, 'step_key', step_key, 'step_name', step_name, 'kind', kind,
        'try_number', try_number, 'from_state', from_state, 'to_state', to_state, 'inputs', inputs, 'output', output, 'error', error, 'started_at', started_at,
        'at', at, 'worker', worker::text, 'host', host, 'code_version', code_version, 'actor', actor, 'xid', xid::text, 'hash', encode(hash, 'hex')) order by id), '[]')
    from (select * from onceflow.step_ledger where dag_run = p_run and final union all  -- each half has its own index
        select * from onceflow.step_ledger where dag_run = p_run and not final) entry
$$;
grant execute on function onceflow.list_entries(bigint) to onceflow_worker, onceflow_operator, onceflow_auditor;
