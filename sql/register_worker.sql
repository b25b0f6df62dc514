-- Moves: none
-- Locks: new lanes' rows
-- Raises: nothing
-- Called by: worker at its start; Client before its first start of a workflow (register_dags)
-- Makes the worker known, with its dags, and answers the lanes it may claim from. Runs stopped for lack of just this code are woken.
-- p_is_test: the worker of one test on a real database, which is gone in a moment. It changes no dag that is known, and wakes nobody.
create or replace function onceflow.register_worker(
    p_worker bigint, p_host text, p_pid int, p_queues text[], p_lease_s double precision, p_dags text, p_is_test boolean default false,
    p_unixname text default null)
returns jsonb language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_now timestamptz := onceflow.now();
begin
    -- What a scheduler parses is its business, workers go by it; where none is alive, workers tell of their dags themselves.
    perform onceflow.register_dags(onceflow.leave_known_plans(onceflow.list_unparsed(p_dags::jsonb, v_now))::text, not p_is_test);
    if not p_is_test then perform onceflow.note_sources(onceflow.list_unparsed(p_dags::jsonb, v_now)); end if;
    insert into onceflow.worker (id, host, pid, queues, lease_s, started_at, heartbeat_at, unixname, code_versions)
    select p_worker, p_host, p_pid, p_queues, p_lease_s, v_now, v_now, p_unixname,
        coalesce(jsonb_object_agg(d ->> 'dag_id', d ->> 'code_version'), '{}') from jsonb_array_elements(p_dags::jsonb) d
    on conflict (id) do update set heartbeat_at = v_now, ended_at = null, queues = excluded.queues, code_versions = excluded.code_versions;
    perform onceflow.note_cluster();
    perform onceflow.ensure_lane(q, d ->> 'dag_id', v)
    from unnest(p_queues) q, jsonb_array_elements(p_dags::jsonb) d, unnest(array[null, d ->> 'code_version']) v where not d ? 'plan';
    -- A run that is just stopping for lack of code sees this worker, or this sees the run: see stop_run.
    perform pg_advisory_xact_lock(onceflow.wait_lock('code', 0, ''));
    insert into onceflow.wake_up (kind, target_run, target)
    select 'code', 0, d ->> 'dag_id' || '@' || (d ->> 'code_version') from jsonb_array_elements(p_dags::jsonb) d
    where not p_is_test and exists (select from onceflow.wait w where w.kind = 'code' and w.target_run = 0 and w.target = d ->> 'dag_id' || '@' || (d ->> 'code_version'));
    return jsonb_build_object('lanes', to_jsonb(onceflow.list_lanes(p_worker)));
end $$;

-- What a worker may claim from: its queues, its dags, any version or its own.
create or replace function onceflow.list_lanes(p_worker bigint) returns int[]
language sql stable as $$
    select coalesce(array_agg(l.id order by l.id), '{}') from onceflow.worker w join onceflow.lane l
        on l.queue = any(w.queues) and w.code_versions ? l.dag_id and (l.version is null or l.version = w.code_versions ->> l.dag_id)
    where w.id = p_worker
$$;

-- A dag that comes by a schedule is paused at first, unless it says otherwise.
create or replace function onceflow.register_dags(p_dags text, p_update boolean default true) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    insert into onceflow.dag (dag_id, kind, is_paused, fileloc, description, code_version, last_parsed_time, retries, timeout_s, queue)
    select d ->> 'dag_id', coalesce(d ->> 'kind', 'workflow'), coalesce((d ->> 'is_paused')::boolean, 'object' in (jsonb_typeof(d -> 'plan' -> 'schedule'), jsonb_typeof(d -> 'plan' -> 'condition')), false), d ->> 'fileloc', d ->> 'description',
           d ->> 'code_version', onceflow.now(), coalesce((d ->> 'retries')::int, 0), (d ->> 'timeout_s')::double precision, d ->> 'queue'
    from jsonb_array_elements(p_dags::jsonb) d order by d ->> 'dag_id'
    on conflict (dag_id) do update
    set kind = excluded.kind, fileloc = excluded.fileloc, description = excluded.description, code_version = excluded.code_version,
        last_parsed_time = excluded.last_parsed_time, is_active = true, retries = excluded.retries, timeout_s = excluded.timeout_s, queue = excluded.queue
    where p_update and (dag.kind, dag.fileloc, dag.description, dag.code_version, dag.is_active, dag.retries, dag.timeout_s, dag.queue)
        is distinct from (excluded.kind, excluded.fileloc, excluded.description, excluded.code_version, true, excluded.retries, excluded.timeout_s, excluded.queue);
    update onceflow.dag t set max_map_length = (d ->> 'max_map_length')::int from jsonb_array_elements(p_dags::jsonb) d
    where p_update and t.dag_id = d ->> 'dag_id' and t.max_map_length <> (d ->> 'max_map_length')::int;
    perform onceflow.save_plan(d ->> 'dag_id', d -> 'plan', d ->> 'code_version', p_update)
    from jsonb_array_elements(p_dags::jsonb) d where d ? 'plan' order by d ->> 'dag_id';
end $$;
grant execute on function onceflow.register_worker(bigint, text, int, text[], double precision, text, boolean, text) to onceflow_worker;
grant execute on function onceflow.register_dags(text, boolean) to onceflow_worker, onceflow_operator;
