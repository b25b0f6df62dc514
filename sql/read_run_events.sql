-- Moves: none
-- Locks: none
-- Raises: nothing
-- Called by: a worker, for a task of a run that datasets started
-- The events that the run has taken, in order: exactly those, each taken by no other run of the dag.
create or replace function onceflow.read_run_events(p_run bigint) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(jsonb_agg(jsonb_build_object('uri', s.uri, 'extra', e.extra, 'timestamp', e."timestamp", 'source_dag_id', e.source_dag_id, 'source_task_id', e.source_task_id,
        'source_run_id', e.source_run_id, 'source_map_index', e.source_map_index) order by e."timestamp", e.id), '[]')
    from onceflow.dagrun_dataset_event x join onceflow.dataset_event e on e.id = x.event_id and e."timestamp" = x."timestamp" join onceflow.dataset s on s.id = e.dataset_id
    where x.dag_run = p_run
$$;
grant execute on function onceflow.read_run_events(bigint) to onceflow_worker;
