-- Moves: none
-- Run: none -> queued
-- Locks: the dag's advisory lock for datasets is held; its queue rows
-- Raises: nothing
-- Called by: spread_events, spread_own_events
-- A run of a dag whose datasets are all there, unless it is paused or has max_active_runs: then all that has gathered stays, and the first run that may come
-- takes it. The run takes every event that waits for the dag. Null: none was started.
create or replace function onceflow.start_dataset_run(p_dag_id text) returns bigint
language plpgsql as $$
declare
    v_events onceflow.waiting_event[];
    v_run bigint;
    v_from timestamptz;
    v_to timestamptz;
begin
    if p_dag_id <> all(onceflow.list_satisfied(p_dag_id)) then return null; end if;
    v_events := onceflow.take_waiting_events(p_dag_id);
    select min(coalesce(n.data_interval_start, e."timestamp")), max(coalesce(n.data_interval_end, e."timestamp")) into v_from, v_to
    from unnest(v_events) w join onceflow.dataset_event e on e.id = w.event_id and e."timestamp" = w."timestamp"
        left join onceflow.run_key k on k.dag_id = e.source_dag_id and k.run_id = e.source_run_id left join onceflow.run n on n.id = k.run;
    v_run := (onceflow.start_run(p_dag_id, coalesce((select v.plan -> 'params' from onceflow.dag d join onceflow.dag_version v on v.id = d.version where d.dag_id = p_dag_id), '{}'),
        run_type => 'dataset_triggered', actor => 'datasets', notify => false, interval_start => v_from, interval_end => v_to) ->> 'run')::bigint;
    insert into onceflow.dagrun_dataset_event (dag_run, event_id, dag_id, "timestamp") select v_run, w.event_id, w.dag_id, w."timestamp" from unnest(v_events) w;
    return v_run;
end $$;

-- Empties the dag's queue. A queue row without an event was put there by hand: its run takes what came since the dag subscribed and no run of it has.
create or replace function onceflow.take_waiting_events(p_dag_id text) returns onceflow.waiting_event[]
language plpgsql as $$
declare
    v_events onceflow.waiting_event[];
begin
    with queued as (
        delete from onceflow.dataset_dag_run_queue where target_dag_id = p_dag_id returning dataset_id
    ), waiting as (
        delete from onceflow.waiting_event where dag_id = p_dag_id returning *
    ), found as (
        select w.* from waiting w
        union select p_dag_id, e.id, e.dataset_id, e."timestamp" from queued q join onceflow.dag_schedule_dataset_reference s on s.dataset_id = q.dataset_id and s.dag_id = p_dag_id
            join onceflow.dataset_event e on e.dataset_id = q.dataset_id and e."timestamp" >= s.created_at
        where q.dataset_id not in (select w.dataset_id from waiting w) and not exists (select from onceflow.dagrun_dataset_event x where x.dag_id = p_dag_id and x.event_id = e.id)
    )
    select array_agg(row(f.dag_id, f.event_id, f.dataset_id, f."timestamp")::onceflow.waiting_event order by f.event_id) into v_events from found f;
    return coalesce(v_events, '{}');
end $$;

-- The dags with a queue whose datasets are all there, and that may have one more run; of one dag, or of all.
create or replace function onceflow.list_satisfied(p_dag_id text default null) returns text[]
language sql stable as $$
    select coalesce(array_agg(d.dag_id order by d.dag_id), '{}')
    from (select q.target_dag_id, count(*) as count from onceflow.dataset_dag_run_queue q where p_dag_id is null or q.target_dag_id = p_dag_id group by 1 offset 0) g
    join onceflow.dag d on d.dag_id = g.target_dag_id and d.is_active and not d.is_paused and d.datasets_needed <= g.count
    where onceflow.is_satisfied(d, array(
        select s.uri::text from onceflow.dataset_dag_run_queue q join onceflow.dataset s on s.id = q.dataset_id where q.target_dag_id = d.dag_id)) and onceflow.has_room(d)
$$;

create or replace function onceflow.has_room(d onceflow.dag) returns boolean
language sql stable as $$
    select d.version is null or d.max_active_runs > (select count(*) from onceflow.active_run a where a.dag_id = d.dag_id and a.backfill is null)
        + (select count(*) from (select from onceflow.queued_run q where q.dag_id = d.dag_id and q.backfill is null limit d.max_active_runs) w)
$$;

-- A dag that says nothing else waits for everything it is subscribed to.
create or replace function onceflow.is_satisfied(d onceflow.dag, p_uris text[]) returns boolean
language sql stable as $$
    select case when d.dataset_condition is not null then onceflow.decide_condition(d.dataset_condition, p_uris)
        else (select coalesce(bool_and(s.uri = any(p_uris)), false) from onceflow.dag_schedule_dataset_reference f join onceflow.dataset s on s.id = f.dataset_id where f.dag_id = d.dag_id) end
$$;

create or replace function onceflow.decide_condition(p_condition jsonb, p_uris text[]) returns boolean
language plpgsql stable as $$
begin
    return case
        when p_condition ? 'uri' then p_condition ->> 'uri' = any(p_uris)
        when p_condition ? 'alias' then exists (
            select from onceflow.dataset_alias a join onceflow.dataset s on s.id = a.dataset_id where a.alias = p_condition ->> 'alias' and s.uri = any(p_uris))
        when p_condition ? 'any' then exists (select from jsonb_array_elements(p_condition -> 'any') c where onceflow.decide_condition(c, p_uris))
        else not exists (select from jsonb_array_elements(p_condition -> 'all') c where not onceflow.decide_condition(c, p_uris)) end;
end $$;
