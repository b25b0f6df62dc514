-- Moves: none
-- Locks: new datasets' rows, by URI; the dag's advisory lock for datasets when its subscriptions change
-- Raises: nothing
-- Called by: save_plan, in the transaction that makes a plan the dag's present one; close_dags, for dags that are gone (p_plan is null)
-- What a plan says of datasets, as rows. A dag that runs by a dataset no more loses what waits for it there in this same transaction.
create or replace function onceflow.save_datasets(p_dag_id text, p_plan jsonb) returns void
language plpgsql as $$
declare
    v_now timestamptz := onceflow.now();
begin
    if p_plan is not null and not p_plan ? 'datasets' and not exists (select from onceflow.dag where dag_id = p_dag_id and dataset_condition is not null)
        and not exists (select from onceflow.task_outlet_dataset_reference where dag_id = p_dag_id)
        and not exists (select from onceflow.task_inlet_dataset_reference where dag_id = p_dag_id) then return; end if;
    insert into onceflow.dataset (uri, extra, classification, created_at, updated_at)
    select d ->> 'uri', nullif(d -> 'extra', 'null'), d ->> 'classification', v_now, v_now from jsonb_array_elements(p_plan -> 'datasets') d
    where not exists (select from onceflow.dataset s where s.uri = d ->> 'uri') order by 1 on conflict do nothing;
    update onceflow.dataset s set extra = coalesce(nullif(d -> 'extra', 'null'), s.extra), classification = coalesce(d ->> 'classification', s.classification), updated_at = v_now, is_orphaned = false
    from jsonb_array_elements(p_plan -> 'datasets') d
    where s.uri = d ->> 'uri' and (s.is_orphaned or s.extra is distinct from coalesce(nullif(d -> 'extra', 'null'), s.extra)
        or s.classification is distinct from coalesce(d ->> 'classification', s.classification));
    perform onceflow.save_subscriptions(p_dag_id, nullif(p_plan -> 'condition', 'null'), v_now);
    with wanted as (
        select distinct s.id as dataset_id, t ->> 'task_id' as task_id from jsonb_array_elements(p_plan -> 'tasks') t, jsonb_array_elements_text(t -> 'outlets') u join onceflow.dataset s on s.uri = u
    ), dropped as (
        delete from onceflow.task_outlet_dataset_reference r where r.dag_id = p_dag_id and (r.dataset_id, r.task_id::text) not in (select w.dataset_id, w.task_id from wanted w)
    )
    insert into onceflow.task_outlet_dataset_reference select w.dataset_id, p_dag_id, w.task_id, v_now, v_now from wanted w on conflict do nothing;
    with wanted as (
        select distinct s.id as dataset_id, t ->> 'task_id' as task_id from jsonb_array_elements(p_plan -> 'tasks') t, jsonb_array_elements_text(t -> 'inlets') u join onceflow.dataset s on s.uri = u
    ), dropped as (
        delete from onceflow.task_inlet_dataset_reference r where r.dag_id = p_dag_id and (r.dataset_id, r.task_id::text) not in (select w.dataset_id, w.task_id from wanted w)
    )
    insert into onceflow.task_inlet_dataset_reference select w.dataset_id, p_dag_id, w.task_id, v_now, v_now from wanted w on conflict do nothing;
end $$;

create or replace function onceflow.save_subscriptions(p_dag_id text, p_condition jsonb, p_now timestamptz) returns void
language plpgsql as $$
declare
    v_aliases text[] := array(select distinct a #>> '{}' from jsonb_path_query(p_condition, 'strict $.**.alias') a order by 1);
    v_wanted bigint[];
begin
    update onceflow.dag set dataset_condition = p_condition, datasets_needed = onceflow.count_needed(p_condition)
    where dag_id = p_dag_id and dataset_condition is distinct from p_condition;
    delete from onceflow.dag_schedule_dataset_alias_reference where dag_id = p_dag_id and alias <> all(v_aliases);
    insert into onceflow.dag_schedule_dataset_alias_reference select a, p_dag_id from unnest(v_aliases) a on conflict do nothing;
    v_wanted := array(select s.id from onceflow.dataset s where s.uri in (select u #>> '{}' from jsonb_path_query(p_condition, 'strict $.**.uri') u)
        union select a.dataset_id from onceflow.dataset_alias a where a.alias = any(v_aliases) order by 1);
    if v_wanted = array(select dataset_id from onceflow.dag_schedule_dataset_reference where dag_id = p_dag_id order by 1) then return; end if;
    perform pg_advisory_xact_lock(onceflow.wait_lock('dataset', 0, p_dag_id));
    delete from onceflow.dag_schedule_dataset_reference where dag_id = p_dag_id and dataset_id <> all(v_wanted);
    insert into onceflow.dag_schedule_dataset_reference select w, p_dag_id, p_now, p_now from unnest(v_wanted) w on conflict do nothing;
    delete from onceflow.dataset_dag_run_queue where target_dag_id = p_dag_id and dataset_id <> all(v_wanted);
    delete from onceflow.waiting_event where dag_id = p_dag_id and dataset_id <> all(v_wanted);
end $$;

-- With how few datasets a condition may be met: spares the tick a look at the dags that lack some.
create or replace function onceflow.count_needed(p_condition jsonb) returns int
language plpgsql immutable as $$
begin
    return coalesce(case
        when p_condition ? 'any' then (select min(onceflow.count_needed(c)) from jsonb_array_elements(p_condition -> 'any') c)
        when p_condition ? 'all' then (select greatest(count(distinct c ->> 'uri'), max(onceflow.count_needed(c))) from jsonb_array_elements(p_condition -> 'all') c) end, 1);
end $$;

-- Datasets that no dag names any more, or again. Somebody else's rows are left to the next look.
create or replace function onceflow.mark_orphans() returns void
language plpgsql as $$
declare
    v_now timestamptz := onceflow.now();
begin
    update onceflow.dataset d set is_orphaned = not d.is_orphaned, updated_at = v_now where d.id = any(array(
        select s.id from onceflow.dataset s where s.is_orphaned = (
            exists (select from onceflow.dag_schedule_dataset_reference r where r.dataset_id = s.id)
            or exists (select from onceflow.task_outlet_dataset_reference r where r.dataset_id = s.id)
            or exists (select from onceflow.task_inlet_dataset_reference r where r.dataset_id = s.id)
            or exists (select from onceflow.dataset_alias a where a.dataset_id = s.id and exists (
                select from onceflow.dag_task k join onceflow.dag g on g.version = k.version and g.is_active where a.alias = any(k.outlet_aliases))))
        for update skip locked));
end $$;
