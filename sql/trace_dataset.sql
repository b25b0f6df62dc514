-- Moves: none
-- Locks: none
-- Raises: nothing
-- Called by: psql, whoever must say where data went
-- After: view_dataset_lineage
-- Every task that reads a dataset, or what was made of it, with what it wrote; the nearest first. A circle is followed once.
create or replace function onceflow.trace_dataset(p_uri text)
returns table (depth int, source_uri text, dag_id text, task_id text, target_uri text, target_classification text)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    with recursive found(depth, source_uri, dag_id, task_id, target_uri, target_classification, path) as (
        select 1, l.source_uri::text, l.dag_id::text, l.task_id::text, l.target_uri::text, l.target_classification::text, array[l.source_uri::text]
        from onceflow.dataset_lineage l where l.source_uri = p_uri
        union all
        select f.depth + 1, l.source_uri::text, l.dag_id::text, l.task_id::text, l.target_uri::text, l.target_classification::text, f.path || l.source_uri::text
        from found f join onceflow.dataset_lineage l on l.source_uri = f.target_uri where f.target_uri <> all(f.path)
    )
    select min(f.depth), f.source_uri, f.dag_id, f.task_id, f.target_uri, f.target_classification from found f group by 2, 3, 4, 5, 6 order by 1, 2, 3, 4, 5
$$;
grant execute on function onceflow.trace_dataset(text) to onceflow_worker, onceflow_auditor, onceflow_operator;
