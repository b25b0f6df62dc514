-- Moves: none -> no_status, success -> no_status, failed -> no_status, skipped -> no_status, upstream_failed -> no_status (what is processed again)
-- Run: none -> queued, success -> queued, failed -> queued, cancelled -> queued
-- Locks: advisory per dag; inserts; the runs it processes again, as reset_tasks; waits for another start of the same logical date to commit
-- Raises: OF002 a backfill of the dag lives; OF004 no such dag; OF008 a bad option
-- Called by: Client.backfill, onceflow dags backfill, psql. p_dates: [[logical date, interval start, interval end], …], as the dag's timetable gives them.
-- All of it or nothing. The runs wait in queued_run until admit_runs admits them under the backfill's own limit. A date that has a run keeps it, unless p_reprocess
-- says otherwise: failed (and cancelled) ones, or completed ones (those and the successful) run again as a whole; those that live are left alone.
create or replace function onceflow.create_backfill(
    p_dag_id text, p_key text, p_from timestamptz, p_to timestamptz, p_dates jsonb, p_reprocess text default 'none', p_is_reverse boolean default false,
    p_max_active_runs int default 1, p_on_failure text default 'pause', p_params jsonb default '{}', p_priority int default -1000000, p_actor text default null)
returns jsonb language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
declare
    v_now timestamptz := onceflow.now();
    v_actor text := coalesce(p_actor, session_user);
    v_count int := jsonb_array_length(p_dates);
    v_made int := 0;
    v_again int := 0;
    v_version bigint;
    b onceflow.backfill;
begin
    perform onceflow.check_backfill(p_reprocess, p_max_active_runs, p_on_failure, p_params);
    select version into v_version from onceflow.dag where dag_id = p_dag_id and kind = 'dag' and version is not null;
    if not found then perform onceflow.raise_error('OF004', format('there is no dag named %s', p_dag_id)); end if;
    if p_is_reverse and exists (select from onceflow.dag_task where version = v_version and depends_on_past) then
        perform onceflow.raise_error('OF008', format('a backfill of %s cannot go in reverse: a task of it has depends_on_past, so each run waits for the one before', p_dag_id));
    end if;
    perform pg_advisory_xact_lock(onceflow.wait_lock('backfill', 0, p_dag_id));
    select * into b from onceflow.backfill where key = p_key;
    if found then return onceflow.describe_backfill(b); end if;
    select * into b from onceflow.backfill where dag_id = p_dag_id and state in ('running', 'paused');
    if found then
        perform onceflow.raise_error('OF002', format('backfill %s of %s is %s; wait for it, or cancel it with: onceflow backfill cancel %s', b.id, p_dag_id, b.state, b.id));
    end if;
    insert into onceflow.backfill (key, dag_id, from_date, to_date, reprocess, is_reverse, max_active_runs, on_failure, params, priority, state, total, skipped, actor, created_at, running_since)
    values (p_key, p_dag_id, p_from, p_to, p_reprocess, p_is_reverse, p_max_active_runs, p_on_failure, p_params, p_priority, 'running', 0, 0, v_actor, v_now, v_now) returning * into b;
    if p_reprocess <> 'none' then v_again := onceflow.reprocess_runs(b, p_dates); end if;
    for i in 0 .. v_count - 1 by 100 loop
        v_made := v_made + onceflow.make_backfill_runs(b, v_version, jsonb_path_query_array(p_dates, '$[$i to $j]', jsonb_build_object('i', i, 'j', i + 99)));
    end loop;
    update onceflow.backfill set total = v_made + v_again, skipped = v_count - v_made - v_again, state = case when v_made + v_again = 0 then 'done' else 'running' end,
        ended_at = case when v_made + v_again = 0 then v_now end
    where id = b.id returning * into b;
    perform pg_notify('onceflow_ready', '');
    return onceflow.describe_backfill(b);
end $$;

create or replace function onceflow.check_backfill(p_reprocess text, p_max_active_runs int, p_on_failure text, p_params jsonb) returns void
language plpgsql as $$
begin
    if p_reprocess is null or p_reprocess not in ('none', 'failed', 'completed') then
        perform onceflow.raise_error('OF008', format('reprocess cannot be %s; write none, failed or completed', coalesce(quote_literal(p_reprocess), 'null')));
    elsif p_on_failure is null or p_on_failure not in ('pause', 'continue') then
        perform onceflow.raise_error('OF008', format('on_failure cannot be %s; write pause or continue', coalesce(quote_literal(p_on_failure), 'null')));
    elsif p_max_active_runs is null or p_max_active_runs < 1 then
        perform onceflow.raise_error('OF008', format('max_active_runs must be at least 1, not %s', coalesce(p_max_active_runs::text, 'null')));
    elsif jsonb_typeof(p_params) is distinct from 'object' then
        perform onceflow.raise_error('OF008', 'params must be a JSON object');
    end if;
end $$;

create or replace function onceflow.describe_backfill(b onceflow.backfill) returns jsonb
language sql stable as $$ select jsonb_build_object('backfill', b.id, 'dag_id', b.dag_id, 'state', b.state, 'total', b.total, 'skipped', b.skipped) $$;

-- New runs of the dates that have none, with all of their tasks.
create or replace function onceflow.make_backfill_runs(b onceflow.backfill, p_version bigint, p_dates jsonb) returns int
language plpgsql as $$
declare
    v_params jsonb := coalesce((select v.plan -> 'params' from onceflow.dag_version v where v.id = p_version), '{}') || b.params;
    v_hash text := encode(sha256(convert_to(v_params::text, 'UTF8')), 'hex');
    v_runs bigint[];
begin
    with coming as materialized (
        select onceflow.new_id() as run, (d.value ->> 0)::timestamptz as logical_date, (d.value ->> 1)::timestamptz as interval_start, (d.value ->> 2)::timestamptz as interval_end
        from jsonb_array_elements(p_dates) with ordinality d(value, no) order by d.no
    ), keyed as (
        insert into onceflow.run_key (dag_id, run_id, logical_date, run, args_hash)
        select b.dag_id, onceflow.name_run('backfill', logical_date), logical_date, run, v_hash from coming on conflict do nothing returning run
    ), made as (
        insert into onceflow.run (id, dag_id, run_id, logical_date, run_type, conf, priority, root, version, created_at, actor, data_interval_start, data_interval_end, backfill)
        select c.run, b.dag_id, onceflow.name_run('backfill', c.logical_date), c.logical_date, 'backfill', v_params, b.priority, 0, p_version, b.created_at, b.actor,
            c.interval_start, c.interval_end, b.id
        from coming c join keyed k on k.run = c.run returning id
    ), queued as (
        insert into onceflow.queued_run (dag_id, logical_date, run, due_at, backfill)
        select b.dag_id, c.logical_date, c.run, b.created_at, b.id from coming c join keyed k on k.run = c.run
    )
    select coalesce(array_agg(id order by id), '{}') into v_runs from made;
    perform onceflow.make_tasks(v_runs);
    return cardinality(v_runs);
end $$;

-- The runs that these dates have already and that have ended as p_reprocess says, all of their tasks anew.
create or replace function onceflow.reprocess_runs(b onceflow.backfill, p_dates jsonb) returns int
language plpgsql as $$
declare
    v_why text := format('processed again by backfill %s', b.id);
    v_count int := 0;
    r onceflow.run;
begin
    for r in
        select n.* from jsonb_array_elements(p_dates) d join onceflow.run_key k on k.dag_id = b.dag_id and k.logical_date = (d.value ->> 0)::timestamptz
        join onceflow.run n on n.id = k.run
        where n.version is not null and (n.state in ('failed', 'cancelled') or n.state = 'success' and b.reprocess = 'completed') order by n.id
    loop
        update onceflow.run set backfill = b.id, priority = b.priority, conf = coalesce(conf, '{}') || b.params where id = r.id;
        perform onceflow.write_act(r.id, 'reprocessed', jsonb_build_object('backfill', b.id, 'state', r.state), b.actor);
        perform onceflow.reset_tasks(r.id, array(select i.id from onceflow.ti i where i.run = r.id and i.ix is not null and i.state is distinct from 'removed' order by i.id),
            true, v_why, b.actor);
        update onceflow.ti i set rank = -b.priority - d.weight from onceflow.dag_task d where i.run = r.id and d.version = r.version and d.ix = i.ix;
        v_count := v_count + 1;
    end loop;
    return v_count;
end $$;
grant execute on function onceflow.create_backfill(text, text, timestamptz, timestamptz, jsonb, text, boolean, int, text, jsonb, int, text) to onceflow_worker, onceflow_operator;
