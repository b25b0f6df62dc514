-- Moves: none
-- Run: none -> queued (through spread_own_events)
-- Locks: the run's advisory lock is held; new datasets' rows, then those of spread_own_events
-- Raises: nothing
-- Called by: release_tasks, for a task with outlets whose try has succeeded, in the transaction that ends it
-- An event for each outlet; with what the task said of it (pushed under $outlet_events, and gone from there now). Of an alias, one for each dataset it said
-- the alias stands for.
create or replace function onceflow.emit_outlets(r onceflow.run, k onceflow.dag_task, p_ti bigint, p_map_index int) returns void
language plpgsql as $$
declare
    v_told jsonb;
    o record;
begin
    delete from onceflow.pushed where run = r.id and ti = p_ti and key = '$outlet_events' returning value into v_told;
    for o in
        select u.uri, t.value -> 'extra' as extra, null as alias, u.no from unnest(k.outlets) with ordinality u(uri, no)
            left join jsonb_array_elements(v_told) t on t.value ->> 'uri' = u.uri and t.value ->> 'alias' is null
        union all
        select t.value ->> 'uri', t.value -> 'extra', t.value ->> 'alias', cardinality(k.outlets) + t.no
        from jsonb_array_elements(v_told) with ordinality t(value, no) where t.value ->> 'alias' = any(k.outlet_aliases) order by 4
    loop
        perform onceflow.note_dataset_event(onceflow.find_outlet(o.uri, o.alias), o.uri, nullif(o.extra, 'null'), r.dag_id, k.task_id, r.run_id, p_map_index);
    end loop;
    -- Last, as it locks dags: where tasks of many runs end together, once all of them have.
    if current_setting('onceflow.batched', true) in ('yes', 'emitted') then
        perform set_config('onceflow.batched', 'emitted', true);
    else
        perform onceflow.spread_own_events();
    end if;
end $$;

-- Around the ends of many tasks in one transaction.
create or replace function onceflow.hold_events() returns void
language sql as $$ select set_config('onceflow.batched', 'yes', true) $$;

create or replace function onceflow.spread_held_events() returns void
language plpgsql as $$
declare
    v_has_emitted boolean := current_setting('onceflow.batched', true) = 'emitted';
begin
    perform set_config('onceflow.batched', '', true);
    if v_has_emitted then perform onceflow.spread_own_events(); end if;
end $$;

-- The dataset of an outlet; of an alias it may be new. Whoever runs by the alias runs by that dataset from now on.
create or replace function onceflow.find_outlet(p_uri text, p_alias text) returns bigint
language plpgsql as $$
declare
    v_now timestamptz := onceflow.now();
    v_dataset bigint;
begin
    select id into v_dataset from onceflow.dataset where uri = p_uri;
    if v_dataset is null then
        insert into onceflow.dataset (uri, created_at, updated_at) values (p_uri, v_now, v_now) on conflict (uri) do update set updated_at = v_now returning id into v_dataset;
    end if;
    if p_alias is not null and not exists (select from onceflow.dataset_alias where alias = p_alias and dataset_id = v_dataset) then
        insert into onceflow.dataset_alias values (p_alias, v_dataset) on conflict do nothing;
        insert into onceflow.dag_schedule_dataset_reference (dataset_id, dag_id, created_at, updated_at)
        select v_dataset, s.dag_id, v_now, v_now from onceflow.dag_schedule_dataset_alias_reference s where s.alias = p_alias order by s.dag_id on conflict do nothing;
    end if;
    return v_dataset;
end $$;
