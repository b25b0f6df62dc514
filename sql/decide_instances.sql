-- Moves: no_status -> queued, no_status -> success (an EmptyOperator), no_status -> skipped, no_status -> upstream_failed
-- Locks: inserts (the caller holds the run's advisory lock, or the run is new)
-- Raises: nothing
-- Called by: tell_task, open_group, open_run: for an expanded task whose instances decide one by one
-- Its instances (or one) whose rule has not decided yet. What is outside their mapped group counts for all alike and is in the join count of the first; of
-- what is inside, an instance looks at those with its own index, of which there are few. Answers those that have ended.
create or replace function onceflow.decide_instances(r onceflow.run, k onceflow.dag_task, p_map_index int, p_is_barred boolean) returns onceflow.ended[]
language plpgsql as $$
declare
    c onceflow.join_count;
    v_decision text;
    v_tis bigint[] := onceflow.list_undecided(r.id, k.ix, p_map_index);
    v_ended onceflow.ended[];
begin
    if v_tis = '{}' then return null; end if;
    select j.* into c from onceflow.ti i join onceflow.join_count j on j.run = r.id and j.ti = i.id where i.run = r.id and i.ix = k.ix and i.map_index = 0;
    if not found then c := row(r.id, 0, 0, 0, 0, 0, 0, 0); end if;
    for v_decision, v_tis in
        select d.decision, array_agg(d.id) from (
            select i.id, case when p_is_barred then 'skip' when k.upstream = '{}' then 'run' else onceflow.decide_rule(k.trigger_rule, row(r.id, 0, c.waiting + n.waiting,
                c.success + n.success, c.failed + n.failed, c.skipped + n.skipped, c.upstream_failed + n.upstream_failed, c.removed + n.removed)::onceflow.join_count) end as decision
            from unnest(v_tis) a(id) join onceflow.ti i on i.run = r.id and i.id = a.id, lateral (
                select (count(*) filter (where u.state is null or u.state = 'deferred'))::int as waiting, (count(*) filter (where u.state = 'success'))::int as success,
                    (count(*) filter (where u.state = 'failed'))::int as failed, (count(*) filter (where u.state = 'skipped'))::int as skipped,
                    (count(*) filter (where u.state = 'upstream_failed'))::int as upstream_failed, (count(*) filter (where u.state = 'removed'))::int as removed
                from onceflow.ti u where u.run = r.id and u.ix = any(k.inside) and u.ix is not null and u.map_index in (-1, i.map_index)) n) d
        where d.decision <> 'wait' group by 1 order by 1
    loop
        v_ended := v_ended || onceflow.settle_instances(r, k, p_map_index, v_tis, v_decision);
    end loop;
    return v_ended;
end $$;

-- Its instances, or the one, whose rule has not decided.
create or replace function onceflow.list_undecided(p_run bigint, p_ix int, p_map_index int) returns bigint[]
language plpgsql stable as $$
begin
    if p_map_index is not null then
        return array(select i.id from onceflow.ti i where i.run = p_run and i.ix = p_ix and i.map_index = p_map_index and i.map_index >= 0 and i.state is null
            and not onceflow.is_under_way(p_run, i.id));
    end if;
    return array(select i.id from onceflow.ti i where i.run = p_run and i.ix = p_ix and i.map_index >= 0 and i.state is null
        except select ti from onceflow.ready where run = p_run except select ti from onceflow.lease where run = p_run except select ti from onceflow.timer where run = p_run
        except select ti from onceflow.past_wait where run = p_run);
end $$;

-- Carries one decision out for many instances of a task.
create or replace function onceflow.settle_instances(r onceflow.run, k onceflow.dag_task, p_map_index int, p_tis bigint[], p_decision text) returns onceflow.ended[]
language plpgsql as $$
declare
    t onceflow.ti;
    v_state text;
    v_ended onceflow.ended[];
begin
    for v_state, p_tis in
        select case when s.decision = 'run' and k.operator = 'EmptyOperator' then 'success' when s.decision = 'skip' then 'skipped' else s.decision end, array_agg(s.id order by s.no)
        from (select i.id, a.no, case when p_decision = 'run' and k.trigger_rule = 'all_done_setup_success' then onceflow.decide_teardown(r.id, k, i.map_index)
                else p_decision end as decision
            from unnest(p_tis) with ordinality a(id, no) join onceflow.ti i on i.run = r.id and i.id = a.id) s
        group by 1
    loop
        continue when v_state in ('run', 'success') and k.depends_on_past and onceflow.hold_for_past(r, k, p_tis);
        if v_state = 'run' then
            insert into onceflow.ready (lane, rank, logical_date, run, ti)
            select i.lane, i.rank, i.logical_date, i.run, i.id from onceflow.ti i where i.run = r.id and i.id = any(p_tis) order by i.map_index;
            continue;
        end if;
        for t in select i.* from onceflow.ti i where i.run = r.id and i.id = any(p_tis) order by i.map_index loop
            perform onceflow.end_unrun_task(r, t, v_state, null);
        end loop;
        v_ended := v_ended || row(k.ix, p_map_index, v_state, cardinality(p_tis))::onceflow.ended;
    end loop;
    return v_ended;
end $$;
