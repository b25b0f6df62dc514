-- Moves: no_status -> queued, no_status -> success, no_status -> skipped, no_status -> upstream_failed
-- Run: running -> running, running -> success, running -> failed
-- Locks: the run's join counts (the caller holds the run's advisory lock)
-- Raises: nothing
-- Called by: admit_runs, for a run that has its tasks already; reset_tasks
-- Takes stock of a run: counts anew what each undecided task waits for, and decides what can be decided.
create or replace function onceflow.open_run(p_run bigint) returns void
language plpgsql as $$
declare
    r onceflow.run;
    k onceflow.dag_task;
    v_ended onceflow.ended[];
    v_barred int[];
begin
    perform pg_advisory_xact_lock(p_run);
    select * into r from onceflow.run where id = p_run;
    delete from onceflow.join_count where run = p_run;
    insert into onceflow.join_count (run, ti, waiting) select p_run, 0, count(*) from onceflow.ti where run = p_run and (state is null or state = 'deferred');
    v_barred := onceflow.list_all_barred(r);  -- a branch's decision holds for what is cleared below it
    for k in select d.* from onceflow.dag_task d where d.version = r.version order by d.ix loop
        v_ended := case when k.ix = k.map_group then onceflow.reopen_group(r, k) end;
        if k.map_group is not null or exists (select from onceflow.ti where run = p_run and ix = k.ix and map_index = 0) then
            v_ended := v_ended || onceflow.reopen_instances(r, k, k.ix = any(v_barred));
        else
            v_ended := v_ended || onceflow.reopen_task(r, k, k.ix = any(v_barred));
        end if;
        -- Those below are counted when their turn comes: only the run's own count learns of these ends.
        update onceflow.join_count set waiting = waiting - (select sum(e.count) from unnest(v_ended) e) where run = p_run and ti = 0 and cardinality(v_ended) > 0;
    end loop;
    perform onceflow.release_next_run(r);
    if exists (select from onceflow.join_count where run = p_run and ti = 0 and waiting = 0) then perform onceflow.end_dag_run(r); end if;
end $$;

create or replace function onceflow.reopen_task(r onceflow.run, k onceflow.dag_task, p_is_barred boolean) returns onceflow.ended[]
language plpgsql as $$
declare
    t onceflow.ti;
    c onceflow.join_count;
    v_decision text;
begin
    select * into t from onceflow.ti i where i.run = r.id and i.ix = k.ix and i.map_index = -1 and i.state is null and not onceflow.is_under_way(r.id, i.id);
    if not found then return null; end if;
    c := onceflow.count_upstreams(t, k);
    v_decision := case when p_is_barred then 'skip' when k.upstream = '{}' then 'run' else onceflow.decide_rule(k.trigger_rule, c) end;
    if v_decision = 'run' and k.trigger_rule = 'all_done_setup_success' then v_decision := onceflow.decide_teardown(r.id, k, -1); end if;
    if v_decision = 'wait' or v_decision = 'run' and onceflow.is_gated(r.id, k) then
        if k.is_joined and k.trigger_rule <> 'always' then insert into onceflow.join_count select c.*; end if;
        perform onceflow.close_gate(r.id, k);
        return null;
    end if;
    v_decision := onceflow.settle_task(r, k, t, v_decision);
    return case when v_decision is not null then array[row(k.ix, -1, v_decision, 1)::onceflow.ended] end;
end $$;

-- A mapped group of which a task is not expanded: it is, when it can be.
create or replace function onceflow.reopen_group(r onceflow.run, k onceflow.dag_task) returns onceflow.ended[]
language plpgsql as $$
begin
    if not exists (select from onceflow.dag_task g join onceflow.ti i on i.run = r.id and i.ix = g.ix and i.map_index = -1 and i.state is null
        where g.version = k.version and g.map_group = k.ix) then return null; end if;
    if not onceflow.is_gated(r.id, k) then return onceflow.expand_group(r, k); end if;
    perform onceflow.close_gate(r.id, k);
    return null;
end $$;

-- An expanded task, or one of a mapped group. The decisions of branches inside the group hold too, each for its own instances.
create or replace function onceflow.reopen_instances(r onceflow.run, k onceflow.dag_task, p_is_barred boolean) returns onceflow.ended[]
language plpgsql as $$
declare
    v_index int;
    v_ended onceflow.ended[];
begin
    insert into onceflow.join_count select c.* from onceflow.ti t, onceflow.count_upstreams(t, k) c
    where t.run = r.id and t.ix = k.ix and t.map_index in (-1, 0) and k.trigger_rule <> 'always' and cardinality(k.upstream) > cardinality(k.inside)
      and exists (select from onceflow.ti i where i.run = r.id and i.ix = k.ix and i.state is null and not onceflow.is_under_way(r.id, i.id));
    for v_index in
        select i.map_index from onceflow.dag_task d join onceflow.ti i on i.run = r.id and i.ix = d.ix and i.map_index >= 0 and i.state = 'success'
        where d.version = k.version and d.map_group = k.map_group and d.decides is not null and k.ix = any(onceflow.list_barred(r.id, d, i.map_index))
    loop
        v_ended := v_ended || onceflow.decide_instances(r, k, v_index, true);
    end loop;
    return v_ended || onceflow.decide_instances(r, k, null, p_is_barred);
end $$;

-- Lives anything yet over which it, or its group, is expanded?
create or replace function onceflow.is_gated(p_run bigint, k onceflow.dag_task) returns boolean
language sql stable as $$
    select exists (select from onceflow.ti u where u.run = p_run and u.ix = any(k.gate) and (u.state is null or u.state = 'deferred'))
$$;

create or replace function onceflow.close_gate(p_run bigint, k onceflow.dag_task) returns void
language sql as $$
    insert into onceflow.join_count (run, ti, waiting) select p_run, -k.ix - 1, count(*) from onceflow.ti u
    where u.run = p_run and u.ix = any(k.gate) and (u.state is null or u.state = 'deferred') having count(*) > 0
$$;

-- Has its rule decided already: is it claimable, running, or waiting for a time?
create or replace function onceflow.is_under_way(p_run bigint, p_ti bigint) returns boolean
language sql stable as $$
    select exists (select from onceflow.ready where run = p_run and ti = p_ti) or exists (select from onceflow.lease where ti = p_ti)
        or exists (select from onceflow.timer where run = p_run and ti = p_ti) or exists (select from onceflow.trigger where run = p_run and ti = p_ti)
        or exists (select from onceflow.past_wait where run = p_run and ti = p_ti)
$$;

-- What its upstream tasks have come to by now; of a task in a mapped group, those outside of it.
create or replace function onceflow.count_upstreams(t onceflow.ti, k onceflow.dag_task) returns onceflow.join_count
language sql stable as $$
    select t.run, t.id, (count(*) filter (where u.state is null or u.state = 'deferred'))::int, (count(*) filter (where u.state = 'success'))::int,
        (count(*) filter (where u.state = 'failed'))::int, (count(*) filter (where u.state = 'skipped'))::int,
        (count(*) filter (where u.state = 'upstream_failed'))::int, (count(*) filter (where u.state = 'removed' and u.map_index < 0))::int
    from onceflow.ti u where u.run = t.run and u.ix = any(k.upstream) and u.ix <> all(k.inside)
$$;
