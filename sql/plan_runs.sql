-- Moves: none -> no_status, none -> queued, no_status -> queued
-- Run: queued -> running, queued -> success (a dag without tasks)
-- Locks: only inserts, and the runs
-- Raises: nothing
-- Called by: admit_runs. Runs get their tasks, unless they have them already, and begin: a few statements for all of them together.
-- offset 0: each look-up goes by its key, also in a plan that was made while the tables were empty; otherwise each tick reads all runs of the past.
create or replace function onceflow.plan_runs(p_runs bigint[]) returns void
language plpgsql as $$
declare
    v_now timestamptz := onceflow.now();
    r onceflow.run;
begin
    if p_runs = '{}' then return; end if;
    perform onceflow.make_tasks(array(select a.run from unnest(p_runs) a(run) where not exists (select from onceflow.ti t where t.run = a.run offset 0)));
    update onceflow.run set start_date = v_now where id = any(p_runs);
    insert into onceflow.timer select v_now + make_interval(secs => coalesce(n.timeout_s, d.timeout_s)), n.id, 0, 'run_timeout'
    from onceflow.run n cross join lateral (select * from onceflow.dag where dag_id = n.dag_id offset 0) d where n.id = any(p_runs) and coalesce(n.timeout_s, d.timeout_s) > 0;
    insert into onceflow.join_count (run, ti, waiting)
    select n.id, i.id, cardinality(d.upstream) - cardinality(d.inside)
    from onceflow.run n cross join lateral (select * from onceflow.dag_task where version = n.version offset 0) d
    cross join lateral (select id from onceflow.ti where run = n.id and ix = d.ix offset 0) i
    where n.id = any(p_runs) and d.is_joined and d.trigger_rule <> 'always'
    union all select n.id, -d.ix - 1, cardinality(d.gate)
    from onceflow.run n cross join lateral (select * from onceflow.dag_task where version = n.version offset 0) d where n.id = any(p_runs) and d.gate <> '{}'
    union all select n.id, 0, n.tis from onceflow.run n where n.id = any(p_runs);
    insert into onceflow.ready (lane, rank, logical_date, run, ti)
    select i.lane, i.rank, i.logical_date, n.id, i.id
    from unnest(p_runs) with ordinality a(run, no) cross join lateral (select * from onceflow.run where id = a.run offset 0) n
    cross join lateral (select * from onceflow.dag_task where version = n.version offset 0) d
    cross join lateral (select * from onceflow.ti where run = n.id and ix = d.ix offset 0) i
    where d.mapping is null and d.operator <> 'EmptyOperator' and not d.depends_on_past and (d.upstream = '{}' or d.trigger_rule = 'always') order by a.no, i.rank, d.ix;
    for r in
        select n.* from unnest(p_runs) with ordinality a(run, no) cross join lateral (select * from onceflow.run where id = a.run offset 0) n
        where n.tis = 0 or exists (select from onceflow.dag_task d where d.version = n.version and onceflow.is_settled_first(d)) order by a.no
    loop
        perform onceflow.settle_roots(r);
    end loop;
end $$;

-- Every task of the plans of runs that have none.
create or replace function onceflow.make_tasks(p_runs bigint[]) returns void
language plpgsql as $$
begin
    insert into onceflow.ti (run, id, task_id, kind, ix, retries, max_tries, lane, rank, logical_date, pool, pool_slots, queue, operator, executor_config)
    select n.id, onceflow.new_id(), d.task_id, 'task', d.ix, d.retries, d.retries, d.lane, -n.priority - d.weight, n.logical_date, d.pool, d.pool_slots,
        coalesce(d.queue, n.queue), d.operator, d.executor_config
    from unnest(p_runs) with ordinality a(run, no) cross join lateral (select * from onceflow.run where id = a.run offset 0) n
    cross join lateral (select * from onceflow.dag_task where version = n.version offset 0) d order by a.no, d.ix;
    update onceflow.run n set tis = (select count(*) from onceflow.dag_task d where d.version = n.version) where n.id = any(p_runs);
end $$;

-- Is it, or its mapped group, expanded as the run begins, or has it nothing to wait for and nothing to do?
create or replace function onceflow.is_settled_first(k onceflow.dag_task) returns boolean
language sql immutable as $$
    select case when k.map_group is not null then k.ix = k.map_group and k.gate = '{}'
        else (k.mapping is not null or k.operator = 'EmptyOperator' or k.depends_on_past) and (k.upstream = '{}' or k.trigger_rule = 'always') and k.gate = '{}' end
$$;

-- The first tasks that no worker is asked for: they are expanded, or have nothing to do.
create or replace function onceflow.settle_roots(r onceflow.run) returns void
language plpgsql as $$
declare
    k onceflow.dag_task;
    t onceflow.ti;
    v_state text;
begin
    for k in select d.* from onceflow.dag_task d where d.version = r.version and onceflow.is_settled_first(d) order by d.ix loop
        if k.map_group is not null then
            perform onceflow.spread_ends(r, coalesce(onceflow.open_group(r, k), '{}'), null);
            continue;
        end if;
        select * into t from onceflow.ti where run = r.id and ix = k.ix and map_index = -1 and state is null;
        continue when not found;
        v_state := onceflow.settle_task(r, k, t, 'run');
        if v_state is not null then perform onceflow.release_tasks(r.id, k.ix, v_state); end if;
    end loop;
    if r.tis = 0 then perform onceflow.end_dag_run(r); end if;
end $$;
