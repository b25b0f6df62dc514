-- Moves: none
-- Locks: none
-- Raises: nothing
-- Called by: release_tasks, and whoever decides a task anew: what a branch or short circuit has decided, read from its entry in the ledger
-- The tasks that must not run, whatever their rules say; null where there is no decision. A branch's output names those directly downstream that go
-- on: the others are barred, unless a way leads to them from one that does. A teardown never is. The decision stays as long as the entry counts, so
-- clearing a task below wakes no path that was not taken; a branch that a person marked as successful has decided nothing. Inside a mapped group an
-- instance of a branch decides for the instances beside it; tasks outside go by their rules.
create or replace function onceflow.list_barred(p_run bigint, k onceflow.dag_task, p_map_index int) returns int[]
language plpgsql stable as $$
declare
    v_output jsonb;
    v_barred int[];
begin
    select e.output into v_output from onceflow.ti t
    join onceflow.step_ledger e on e.dag_run = t.run and e.ti = t.id and e.epoch = t.epoch and e.step_key = t.task_id and e.final and e.to_state = 'success' and e.actor is null
    where t.run = p_run and t.ix = k.ix and t.map_index = p_map_index;
    if not found or k.decides is null or (k.decides <> 'branch' and v_output = 'true') then return null; end if;
    v_barred := case k.decides when 'short_circuit_all' then onceflow.list_below(k.version, k.downstream) else k.downstream end;
    return array(
        select d.ix from onceflow.dag_task d where d.version = k.version and d.ix = any(v_barred) and not d.is_teardown and (k.map_group is null or d.map_group = k.map_group)
        except select unnest(onceflow.list_below(k.version, array(
            select c.ix from onceflow.dag_task c where c.version = k.version and c.ix = any(k.downstream) and k.decides = 'branch'
            and (v_output = to_jsonb(c.task_id::text) or v_output @> jsonb_build_array(c.task_id))))));
end $$;

-- What all branches of a run have barred so far, but for those in mapped groups.
create or replace function onceflow.list_all_barred(r onceflow.run) returns int[]
language sql stable as $$
    select coalesce(array_agg(b.ix), '{}') from onceflow.dag_task d join onceflow.ti i on i.run = r.id and i.ix = d.ix and i.state = 'success',
        unnest(onceflow.list_barred(r.id, d, -1)) b(ix)
    where d.version = r.version and d.decides is not null and d.map_group is null
$$;

-- These tasks and all that lie below them.
create or replace function onceflow.list_below(p_version bigint, p_from int[]) returns int[]
language sql stable as $$
    with recursive below as (
        select unnest(p_from) as ix
        union select unnest(d.downstream) from below b join onceflow.dag_task d on d.version = p_version and d.ix = b.ix
    )
    select array(select ix from below)
$$;

-- A teardown whose upstream tasks have all ended: it runs if a setup of it succeeded, or if it has none. In a mapped group, the setup beside it.
create or replace function onceflow.decide_teardown(p_run bigint, k onceflow.dag_task, p_map_index int) returns text
language sql stable as $$
    select case when count(*) = 0 or bool_or(t.state = 'success') then 'run' when bool_and(t.state = 'skipped') then 'skip' else 'upstream_failed' end
    from onceflow.dag_task u join onceflow.ti t on t.run = p_run and t.ix = u.ix
    where u.version = k.version and u.ix = any(k.upstream) and u.is_setup and (u.ix <> all(k.inside) or t.map_index in (-1, p_map_index))
$$;
