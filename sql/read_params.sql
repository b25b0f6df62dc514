-- Moves: none
-- Locks: none
-- Raises: nothing
-- Called by: Client.trigger and Client.backfill, before they start runs: the defaults and JSON schemas of a dag's params, its schedule, and what time it is
create or replace function onceflow.read_params(p_dag_id text) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('now', onceflow.now(), 'kind', d.kind, 'params', coalesce(v.plan -> 'params', '{}'), 'schemas', coalesce(v.plan -> 'param_schemas', '{}'),
        'schedule', d.schedule)
    from (values (p_dag_id)) a(dag_id) left join onceflow.dag d on d.dag_id = a.dag_id left join onceflow.dag_version v on v.id = d.version
$$;
grant execute on function onceflow.read_params(text) to onceflow_operator, onceflow_worker;
