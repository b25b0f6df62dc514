-- Moves: none
-- Locks: the dag, a new version's rows
-- Raises: nothing; a pool that does not exist, or has fewer slots than a task needs, becomes an import error
-- Called by: register_dags, for each dag a process has read from its file
-- A plan that differs from the dag's present one becomes a version of it; one seen before is gone back to. New runs go by it, living ones by theirs.
create or replace function onceflow.save_plan(p_dag_id text, p_plan jsonb, p_code_version text, p_update boolean) returns bigint
language plpgsql as $$
declare
    v_digest text := encode(sha256(convert_to(p_plan::text, 'UTF8')), 'hex');
    v_version bigint;
begin
    if onceflow.refuse_plan(p_dag_id, p_plan) then return null; end if;
    select v.id into v_version from onceflow.dag d join onceflow.dag_version v on v.id = d.version where d.dag_id = p_dag_id and (v.digest = v_digest or not p_update);
    if found then
        if p_update then perform onceflow.save_datasets(p_dag_id, p_plan); end if;  -- its file may have been gone
        return v_version;
    end if;
    perform from onceflow.dag where dag_id = p_dag_id for update;
    select id into v_version from onceflow.dag_version where dag_id = p_dag_id and digest = v_digest;
    if not found then
        insert into onceflow.dag_version (dag_id, number, digest, plan, code_version, listens, created_at)
        select p_dag_id, coalesce(max(number), 0) + 1, v_digest, p_plan, p_code_version, array(select jsonb_array_elements_text(p_plan -> 'listens')), onceflow.now() from onceflow.dag_version where dag_id = p_dag_id
        returning id into v_version;
        perform onceflow.save_plan_tasks(v_version, p_dag_id, p_plan);
    end if;
    perform onceflow.save_schedule(p_dag_id, p_plan, v_version);
    perform onceflow.save_datasets(p_dag_id, p_plan);
    return v_version;
end $$;

-- What the dag's row says of its plan. A new schedule goes on from the last interval of the old one, as soon as a scheduler has looked at it.
create or replace function onceflow.save_schedule(p_dag_id text, p_plan jsonb, p_version bigint) returns void
language sql as $$
    update onceflow.dag d set version = p_version, max_active_runs = coalesce((p_plan ->> 'max_active_runs')::int, d.max_active_runs),
        max_active_tasks = coalesce((p_plan ->> 'max_active_tasks')::int, d.max_active_tasks), schedule_interval = p_plan ->> 'schedule_interval',
        timetable_description = p_plan ->> 'timetable_description', tags = p_plan -> 'tags', owners = p_plan ->> 'owner',
        priority = coalesce((p_plan ->> 'priority')::int, 0), team = p_plan ->> 'team', schedule = s.new,
        serialized_dag = p_plan, deadlines = p_plan -> 'deadlines',
        next_dagrun_create_after = case when s.new is null then null when s.new = d.schedule then d.next_dagrun_create_after else onceflow.now() end,
        is_unplanned = s.new is not null and (d.is_unplanned or s.new is distinct from d.schedule),
        planned = d.planned + (s.new is distinct from d.schedule)::int,
        depends_on_past = d.depends_on_past or exists (select from onceflow.dag_task k where k.version = p_version and k.depends_on_past)
    from (select nullif(p_plan -> 'schedule', 'null') as new) s where d.dag_id = p_dag_id
$$;

-- What could never run is refused by name at once, as an import error of the dag; the plan it had before stays.
create or replace function onceflow.refuse_plan(p_dag_id text, p_plan jsonb) returns boolean
language plpgsql as $$
declare
    v_fault text;
    v_file text := (select coalesce(fileloc, '') from onceflow.dag where dag_id = p_dag_id);
begin
    select case when p.pool_name is null then format('task %s of dag %s names the pool %s, which does not exist; make it with: onceflow pools set %s SLOTS',
            t ->> 'task_id', p_dag_id, t ->> 'pool', t ->> 'pool')
        else format('task %s of dag %s needs %s slots, but the pool %s has %s', t ->> 'task_id', p_dag_id, t ->> 'pool_slots', p.pool_name, p.slots) end into v_fault
    from jsonb_array_elements(p_plan -> 'tasks') t left join onceflow.slot_pool p on p.pool_name = t ->> 'pool'
    where p.pool_name is null or (p.slots >= 0 and (t ->> 'pool_slots')::int > p.slots) order by (t ->> 'ix')::int limit 1;
    if v_fault is null then
        delete from onceflow.import_error where filename = v_file and dag_id = p_dag_id;
        return false;
    end if;
    insert into onceflow.import_error ("timestamp", filename, dag_id, stacktrace) values (onceflow.now(), v_file, p_dag_id, v_fault)
    on conflict (filename, dag_id) do update set "timestamp" = excluded."timestamp", stacktrace = excluded.stacktrace
    where import_error.stacktrace <> excluded.stacktrace;
    return true;
end $$;

create or replace function onceflow.save_plan_tasks(p_version bigint, p_dag_id text, p_plan jsonb) returns void
language sql as $$
    insert into onceflow.dag_task (version, ix, task_id, operator, trigger_rule, upstream, downstream, retries, weight, queue, lane, pool, pool_slots, is_leaf,
        is_joined, decides, is_setup, is_teardown, listens, mapping, map_group, inside, gate, takes_item, executor_config, depends_on_past, wait_for_downstream,
        execution_timeout, outlets, outlet_aliases)
    select p_version, (t ->> 'ix')::int, t ->> 'task_id', t ->> 'operator', t ->> 'trigger_rule', u.list, array(select jsonb_array_elements_text(t -> 'downstream')::int),
        (t ->> 'retries')::int, (t ->> 'weight')::int, t ->> 'queue', 
        onceflow.ensure_lane(coalesce(t ->> 'queue', 'default'), p_dag_id, null, t ->> 'pool', (t ->> 'pool_slots')::int,
            case when coalesce(t ->> 'max_tis', t ->> 'max_in_run') is not null then t ->> 'task_id' end), t ->> 'pool',
        (t ->> 'pool_slots')::int, (t ->> 'is_leaf')::boolean,
        case when g.map_group is not null then cardinality(u.list) > cardinality(g.inside)
            else cardinality(u.list) > 1 or exists (select from jsonb_array_elements(p_plan -> 'tasks') m where (m ->> 'ix')::int = any(u.list) and m ? 'mapping') end,
        t ->> 'decides', coalesce((t ->> 'is_setup')::boolean, false), coalesce((t ->> 'is_teardown')::boolean, false),
        array(select jsonb_array_elements_text(t -> 'listens')), t -> 'mapping', g.map_group, g.inside,
        -- Other rules wait for all that is upstream anyway.
        case when g.map_group = (t ->> 'ix')::int or g.map_group is null and t ->> 'trigger_rule' in ('one_success', 'one_failed', 'one_done', 'always') then array(
            select distinct (m -> 1 ->> 'ix')::int from jsonb_array_elements(t -> 'mapping') m where m -> 1 ? 'ix' order by 1) else '{}' end,
        coalesce((t ->> 'takes_item')::boolean, true), t -> 'executor_config',
        coalesce((t ->> 'depends_on_past')::boolean, false), coalesce((t ->> 'wait_for_downstream')::boolean, false),
        make_interval(secs => (t ->> 'timeout_s')::double precision),
        array(select jsonb_array_elements_text(t -> 'outlets')), array(select jsonb_array_elements_text(t -> 'outlet_aliases'))
    from jsonb_array_elements(p_plan -> 'tasks') t,
        lateral (select array(select jsonb_array_elements_text(t -> 'upstream')::int order by 1) as list) u,
        lateral (select (t ->> 'map_group')::int as map_group, array(
            select (m ->> 'ix')::int from jsonb_array_elements(p_plan -> 'tasks') m where (m ->> 'ix')::int = any(u.list) and m ->> 'map_group' = t ->> 'map_group') as inside) g
    order by 2;
    update onceflow.lane l set max_tis = (t ->> 'max_tis')::int, max_in_run = (t ->> 'max_in_run')::int
    from jsonb_array_elements(p_plan -> 'tasks') t where l.dag_id = p_dag_id and l.task_id = t ->> 'task_id'
$$;
