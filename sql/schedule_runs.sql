-- Moves: none
-- Run: none -> queued
-- Locks: the dags (skip locked), then only inserts; waits for another start of the same run id or logical date to commit
-- Raises: nothing
-- Races: another scheduler holds the dag's row, or has moved its schedule on since this was worked out: left alone. A logical date that has a run keeps it
-- Called by: a scheduler, for all due dags together. p_plans: [{dag_id, planned, runs: [[logical date, interval start, interval end], …], next, error}, …].
-- Makes the runs and moves the schedules on in one transaction: no two schedulers make two runs of a tick, and none is lost. Of a paused dag no run is made.
-- error: why a timetable does not say when its next run comes; the dag is looked at again after a minute.
create or replace function onceflow.schedule_runs(p_plans text, p_scheduler bigint default null) returns integer language plpgsql security definer
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
    v_now timestamptz := onceflow.now();
    v_made integer;
begin
    with plan as materialized (
        select * from jsonb_to_recordset(p_plans::jsonb) x(dag_id text, planned bigint, runs jsonb, next timestamptz, error text)
    ), held as materialized (
        select d.dag_id, d.version, d.priority, d.is_paused, d.fileloc, d.deadlines, p.runs, p.next, p.error
        from plan p join onceflow.dag d on d.dag_id = p.dag_id and d.planned = p.planned order by d.dag_id for update of d skip locked
    ), coming as materialized (
        select onceflow.new_id() as run, h.dag_id, h.version, h.priority, onceflow.name_run('scheduled', (r.value ->> 0)::timestamptz) as run_id,
            (r.value ->> 0)::timestamptz as logical_date, (r.value ->> 1)::timestamptz as interval_start, (r.value ->> 2)::timestamptz as interval_end, v.plan -> 'params' as params,
            h.deadlines
        from held h join onceflow.dag_version v on v.id = h.version, jsonb_array_elements(h.runs) with ordinality r(value, no) where not h.is_paused order by h.dag_id, r.no
    ), keyed as (
        insert into onceflow.run_key (dag_id, run_id, logical_date, run, args_hash)
        select dag_id, run_id, logical_date, run, encode(sha256(convert_to(coalesce(params, '{}')::text, 'UTF8')), 'hex') from coming on conflict do nothing returning run
    ), made as (
        insert into onceflow.run (id, dag_id, run_id, logical_date, run_type, conf, priority, root, version, created_at, actor, data_interval_start, data_interval_end, creating_job_id)
        select c.run, c.dag_id, c.run_id, c.logical_date, 'scheduled', coalesce(c.params, '{}'), c.priority, 0, c.version, v_now, 'schedule', c.interval_start, c.interval_end, p_scheduler
        from coming c join keyed k on k.run = c.run
    ), queued as (
        insert into onceflow.queued_run (dag_id, logical_date, run, due_at)
        select c.dag_id, c.logical_date, c.run, v_now from coming c join keyed k on k.run = c.run returning run
    ), timed as (
        insert into onceflow.timer (due_at, run, ti, kind)
        select l.due_at, c.run, l.no, 'deadline' from coming c join keyed k on k.run = c.run, onceflow.list_deadlines(c.deadlines, c.logical_date, v_now) l
    ), moved as (
        update onceflow.dag d set planned = d.planned + 1, is_unplanned = false,
            next_dagrun_create_after = case when h.error is null then h.next else v_now + interval '1 minute' end,
            last_run_logical_date = case when h.is_paused then d.last_run_logical_date else coalesce((h.runs -> -1 ->> 0)::timestamptz, d.last_run_logical_date) end,
            last_interval_start = case when h.is_paused then d.last_interval_start else coalesce((h.runs -> -1 ->> 1)::timestamptz, d.last_interval_start) end,
            last_interval_end = case when h.is_paused then d.last_interval_end else coalesce((h.runs -> -1 ->> 2)::timestamptz, d.last_interval_end) end
        from held h where d.dag_id = h.dag_id
    ), told as (
        insert into onceflow.import_error ("timestamp", filename, dag_id, stacktrace)
        select v_now, coalesce(h.fileloc, ''), h.dag_id, h.error from held h where h.error is not null
        on conflict (filename, dag_id) do update set "timestamp" = excluded."timestamp", stacktrace = excluded.stacktrace
    )
    select count(*) into v_made from queued;
    return v_made;
end $$;
grant execute on function onceflow.schedule_runs(text, bigint) to onceflow_worker;
