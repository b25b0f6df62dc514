-- Moves: none
-- Locks: none
-- Raises: nothing
-- Called by: onceflow doctor, onceflow datasets show
-- The dags that run by datasets and for which something has gathered, and why no run of them has taken it: inactive, paused, missing (datasets that have told of
-- nothing since its last run), max_active_runs, unsubscribed (a queue row for a dag that runs by no dataset), tick (the next one makes the run). Of the dag
-- that is named, also when nothing has gathered.
create or replace function onceflow.list_dataset_waits(p_dag_id text default null)
returns table (dag_id text, reason text, datasets text[], missing text[], events int, queue_age_s double precision, active int, max_active_runs int)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    v_now timestamptz := onceflow.now();
begin
    return query
    select g.dag_id::text,
        case when d.dag_id is null or d.dataset_condition is null and g.wanted = '{}' then 'unsubscribed' when not d.is_active then 'inactive' when d.is_paused then 'paused'
            when not onceflow.is_satisfied(d, g.uris) then 'missing' when not onceflow.has_room(d) then 'max_active_runs' else 'tick' end,
        g.uris, array(select unnest(g.wanted) except select unnest(g.uris) order by 1),
        (select count(*)::int from onceflow.waiting_event w where w.dag_id = g.dag_id), extract(epoch from v_now - g.oldest)::double precision,
        (select count(*)::int from onceflow.active_run a where a.dag_id = g.dag_id and a.backfill is null)
            + (select count(*)::int from onceflow.queued_run q where q.dag_id = g.dag_id and q.backfill is null), d.max_active_runs
    from (
        select n.dag_id, array(select s.uri::text from onceflow.dataset_dag_run_queue q join onceflow.dataset s on s.id = q.dataset_id where q.target_dag_id = n.dag_id order by 1) as uris,
            array(select s.uri::text from onceflow.dag_schedule_dataset_reference f join onceflow.dataset s on s.id = f.dataset_id where f.dag_id = n.dag_id order by 1) as wanted,
            (select min(q.created_at) from onceflow.dataset_dag_run_queue q where q.target_dag_id = n.dag_id) as oldest
        from (select distinct q.target_dag_id as dag_id from onceflow.dataset_dag_run_queue q where p_dag_id is null or q.target_dag_id = p_dag_id
              union select f.dag_id from onceflow.dag_schedule_dataset_reference f where f.dag_id = p_dag_id) n) g
    left join onceflow.dag d on d.dag_id = g.dag_id order by g.oldest nulls last, g.dag_id;
end $$;
grant execute on function onceflow.list_dataset_waits(text) to onceflow_worker, onceflow_auditor, onceflow_operator;
