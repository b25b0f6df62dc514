-- Moves: no_status -> queued (once for each item)
-- Locks: inserts; the join counts of its run (the caller holds the run's advisory lock, or the run is new)
-- Raises: nothing
-- Called by: settle_task, in the transaction that ended the last of what it is mapped over
-- Makes a mapped task's instances, all in one statement, each with its own arguments. Answers no state when there are some; else what becomes of the
-- task: skipped for an empty list, failed with the reason for what is no list, and what follows from a source that gave nothing.
create or replace function onceflow.expand_task(r onceflow.run, k onceflow.dag_task, t onceflow.ti, out state text, out error text)
language plpgsql as $$
declare
    v_items jsonb[];
begin
    select i.items, i.state, i.error into v_items, expand_task.state, expand_task.error from onceflow.list_items(r, k) i;
    if expand_task.state is not null then return; end if;
    perform onceflow.make_instances(r, k, t, v_items);
    if k.depends_on_past and onceflow.hold_for_past(r, k, array(select i.id from onceflow.ti i where i.run = t.run and i.ix = t.ix and i.state is null)) then return; end if;
    insert into onceflow.ready (lane, rank, logical_date, run, ti)
    select i.lane, i.rank, i.logical_date, i.run, i.id from onceflow.ti i where i.run = t.run and i.ix = t.ix and i.state is null order by i.map_index;
end $$;

-- One instance for each item; the task itself becomes the first. Those that were removed when the map shrank come back.
create or replace function onceflow.make_instances(r onceflow.run, k onceflow.dag_task, t onceflow.ti, p_items jsonb[]) returns void
language plpgsql as $$
declare
    v_count int := cardinality(p_items);
    v_new int;
begin
    update onceflow.ti set map_index = 0, conf = case when k.takes_item then p_items[1] end where run = r.id and id = t.id;
    update onceflow.ti i set state = null, epoch = i.epoch + 1, base_epoch = i.epoch + 1, max_tries = i.try_number + i.retries, end_date = null, error = null,
        conf = case when k.takes_item then p_items[i.map_index + 1] end
    where i.run = r.id and i.ix = t.ix and i.state = 'removed' and i.map_index between 1 and v_count - 1;  -- from before it was cleared
    insert into onceflow.ti (run, id, task_id, map_index, kind, ix, retries, max_tries, lane, rank, logical_date, conf, pool, pool_slots, queue, operator, executor_config)
    select t.run, onceflow.new_id(), t.task_id, a.no - 1, t.kind, t.ix, t.retries, t.max_tries, t.lane, t.rank, t.logical_date, case when k.takes_item then a.item end,
        t.pool, t.pool_slots, t.queue, t.operator, t.executor_config
    from unnest(p_items) with ordinality a(item, no)
    where a.no > 1 and not exists (select from onceflow.ti i where i.run = r.id and i.ix = t.ix and i.map_index = a.no - 1) order by a.no;
    get diagnostics v_new = row_count;
    update onceflow.run set tis = tis + v_new where id = r.id;
    update onceflow.join_count j set waiting = waiting + v_count - 1
    where j.run = r.id and (j.ti = 0
        or j.ti in (select i.id from onceflow.dag_task d join onceflow.ti i on i.run = r.id and i.ix = d.ix and i.map_index in (-1, 0)
            where d.version = r.version and d.ix = any(k.downstream) and k.ix <> all(d.inside))
        or j.ti in (select -d.ix - 1 from onceflow.dag_task d where d.version = r.version and d.ix = any(k.downstream) and k.ix = any(d.gate)));
end $$;

-- The arguments of each instance: the cross product over the mapped parameters, the first one slowest. Or no items, and the state that the task comes to.
create or replace function onceflow.list_items(r onceflow.run, k onceflow.dag_task, out items jsonb[], out state text, out error text)
language plpgsql as $$
declare
    v_most int := (select max_map_length from onceflow.dag where dag_id = r.dag_id);
    v_name text;
    v_source jsonb;
    v_list jsonb;
begin
    select case when bool_or(t.state in ('failed', 'upstream_failed')) then 'upstream_failed' when bool_or(t.state in ('skipped', 'removed')) then 'skipped' end into list_items.state
    from jsonb_array_elements(k.mapping) m join onceflow.ti t on t.run = r.id and t.ix = (m -> 1 ->> 'ix')::int and t.map_index = -1;
    items := array['{}'::jsonb];
    for v_name, v_source in select m ->> 0, m -> 1 from jsonb_array_elements(k.mapping) with ordinality a(m, no) order by no loop
        exit when list_items.state is not null;
        v_list := onceflow.as_list(coalesce(v_source -> 'literal', onceflow.read_value(r.id, r.version, (v_source ->> 'ix')::int, v_source ->> 'key')));
        error := onceflow.refuse_items(k, v_name, v_list, cardinality(items), v_most);
        if error is not null then
            list_items.state := 'failed';
        elsif v_list = '[]' then
            list_items.state := 'skipped';
        else
            select array_agg(a.item || case when v_name = '' then e.value - '$order' else jsonb_build_object(v_name, e.value) end order by a.no, e.no) into items
            from unnest(items) with ordinality a(item, no), jsonb_array_elements(v_list) with ordinality e(value, no);
        end if;
    end loop;
end $$;

-- Why a task cannot be expanded over a value; null: it can.
create or replace function onceflow.refuse_items(k onceflow.dag_task, p_name text, p_list jsonb, p_so_far int, p_most int) returns text
language sql immutable as $$
    select case
        when p_list is null then format('task %s is expanded over %s, which is neither a list nor a dict; give it one, or leave it out of expand()', k.task_id,
            coalesce(nullif(p_name, ''), 'expand_kwargs'))
        when p_name = '' and exists (select from jsonb_array_elements(p_list) e where jsonb_typeof(e) <> 'object'
                or exists (select from jsonb_object_keys(case when jsonb_typeof(e) = 'object' then e else '{}' end) key where key like '$%' and key <> '$order'))
            then format('task %s: expand_kwargs takes a list of dicts, each with the names of parameters for keys; something else is in the list', k.task_id)
        when jsonb_array_length(p_list) * p_so_far::bigint > p_most
            then format('task %s would be expanded into %s instances, more than max_map_length (%s); expand it over fewer items, or raise that setting', k.task_id,
                jsonb_array_length(p_list) * p_so_far::bigint, p_most)
    end
$$;

-- A value as a list of what it is expanded into; a dict gives (key, value) pairs. Null: it cannot be expanded.
create or replace function onceflow.as_list(p_value jsonb) returns jsonb
language sql immutable as $$
    select case
        when jsonb_typeof(p_value) = 'array' then p_value
        when jsonb_typeof(p_value) <> 'object' then null
        when p_value ? '$tuple' then p_value -> '$tuple'
        when p_value ? '$dict' then (select coalesce(jsonb_agg(jsonb_build_object('$tuple', pair)), '[]') from jsonb_array_elements(p_value -> '$dict') pair)
        when p_value ? '$order' then (
            select coalesce(jsonb_agg(jsonb_build_object('$tuple', jsonb_build_array(key, p_value -> key)) order by no), '[]')
            from jsonb_array_elements_text(p_value -> '$order') with ordinality o(key, no))
        when exists (select from jsonb_object_keys(p_value) key where key like '$%') then null
        else (select coalesce(jsonb_agg(jsonb_build_object('$tuple', jsonb_build_array(key, value)) order by key), '[]') from jsonb_each(p_value))
    end
$$;

-- What a task of the run gave under a key; of a mapped task the list over its instances that have succeeded, in their order. Null: nothing yet.
create or replace function onceflow.read_value(p_run bigint, p_version bigint, p_ix int, p_key text) returns jsonb
language plpgsql stable as $$
declare
    v_is_mapped boolean;
    v_values jsonb;
begin
    select mapping is not null into v_is_mapped from onceflow.dag_task where version = p_version and ix = p_ix;
    select jsonb_agg(v.value order by v.map_index) into v_values from (
        select t.map_index, case when p_key = 'return_value' then e.output else coalesce(p.value, onceflow.take_key(e.output, p_key)) end as value
        from onceflow.ti t
        left join onceflow.step_ledger e on e.dag_run = t.run and e.ti = t.id and e.epoch = t.epoch and e.step_key = t.task_id and e.final
        left join onceflow.pushed p on p.run = t.run and p.ti = t.id and p.key = p_key
        where t.run = p_run and t.ix = p_ix and t.state = 'success') v
    where v.value is not null;
    return case when v_is_mapped then coalesce(v_values, '[]') else v_values -> 0 end;
end $$;

-- One key of what a task returned as a dict; null where there is none.
create or replace function onceflow.take_key(p_value jsonb, p_key text) returns jsonb
language sql immutable as $$ select case when jsonb_typeof(p_value) = 'object' and p_key not like '$%' then p_value -> p_key end $$;
