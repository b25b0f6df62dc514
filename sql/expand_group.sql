-- Moves: no_status -> skipped, no_status -> upstream_failed, no_status -> failed (of what it is expanded over nothing can be made)
-- Locks: inserts; the join counts of its run (the caller holds the run's advisory lock, or the run is new)
-- Raises: nothing
-- Called by: open_group, open_run. k: the group's first task
-- All that a mapped group is expanded over has ended: each task of it gets its instances, whose rules have decided nothing yet. Where there is no item the
-- group ends as a whole. Answers what has ended.
create or replace function onceflow.expand_group(r onceflow.run, k onceflow.dag_task) returns onceflow.ended[]
language plpgsql as $$
declare
    g onceflow.dag_task;
    t onceflow.ti;
    v_items jsonb[];
    v_state text;
    v_error text;
    v_own text;
    v_ended onceflow.ended[];
begin
    select i.items, i.state, i.error into v_items, v_state, v_error from onceflow.list_items(r, k) i;
    for g in select d.* from onceflow.dag_task d where d.version = r.version and d.map_group = k.map_group order by d.ix loop
        select * into t from onceflow.ti where run = r.id and ix = g.ix and map_index = -1 and state is null;
        continue when not found;  -- somebody has set its state
        if v_state is null then
            perform onceflow.make_instances(r, g, t, v_items);
        else
            v_own := case when v_state = 'failed' and g.inside <> '{}' then 'upstream_failed' else v_state end;
            perform onceflow.end_unrun_task(r, t, v_own, case when v_own = 'failed' then v_error end);
            v_ended := v_ended || row(g.ix, -1, v_own, 1)::onceflow.ended;
        end if;
    end loop;
    return v_ended;
end $$;

-- Expands a mapped group and lets the rules of its instances decide. Answers what has ended.
create or replace function onceflow.open_group(r onceflow.run, k onceflow.dag_task) returns onceflow.ended[]
language plpgsql as $$
declare
    g onceflow.dag_task;
    v_ended onceflow.ended[] := onceflow.expand_group(r, k);
    v_barred int[] := onceflow.list_all_barred(r);
begin
    for g in select d.* from onceflow.dag_task d where d.version = r.version and d.map_group = k.map_group order by d.ix loop
        v_ended := v_ended || onceflow.decide_instances(r, g, null, g.ix = any(v_barred));
    end loop;
    return v_ended;
end $$;
