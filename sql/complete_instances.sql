-- Moves: none (inner part: the arrows of complete_task, for many at once)
-- Locks: the tis, the run's advisory lock, its join counts; the caller holds the leases
-- Raises: OF001, OF007: then none of it happened, and each runs alone, which tells whose it was
-- Called by: run_batch, when it comes to a run of which it has several completions
-- Completes those calls that are instances of mapped tasks of this run, of whose end nobody asks more than that it counts: one statement for all, and what is
-- below a task hears once how many of it have ended. Answers the calls done (counted from 1). All else is left to complete_task.
create or replace function onceflow.complete_instances(p_calls jsonb, p_run bigint, p_busy bigint[]) returns int[]
language plpgsql as $$
declare
    v_now timestamptz := onceflow.now();
    v_cluster bigint := onceflow.this_cluster();
    v_version bigint;
    v_done int[];
    v_written int;
    v_ended onceflow.ended[];
    r onceflow.run;
begin
    select version into v_version from onceflow.run where id = p_run;
    if v_version is null or current_setting('onceflow.detached', true) <> '' then return '{}'; end if;
    with c as (
        select y.n::int as n, (x ->> 2)::bigint as ti, (x ->> 3)::uuid as proof, x ->> 4 as name, x ->> 5 as kind, (x ->> 6)::jsonb as inputs, x ->> 7 as inputs_hash,
               x ->> 8 as output, (x ->> 9)::bigint * interval '1 microsecond' as elapsed
        from (select x, n, count(*) over (partition by x ->> 2) as of_ti from jsonb_array_elements(p_calls) with ordinality z(x, n) where (x ->> 1)::bigint = p_run) y
        where of_ti = 1 and x ->> 0 = 'complete_task' and x ->> 5 = 'external' and x ->> 10 is null
    ), fit as materialized (
        select c.* from c cross join lateral (select * from onceflow.ti where run = p_run and id = c.ti and state is null offset 0) t
        cross join lateral (select * from onceflow.dag_task where version = v_version and ix = t.ix offset 0) k
        where t.map_index >= 0 and t.parent_ti is null and not t.detached and k.map_group is null and k.decides is null and 'success' <> all(k.listens)
            and k.outlets = '{}' and k.outlet_aliases = '{}'
    ), gone as (
        delete from onceflow.lease l using fit c
        where l.ti = c.ti and l.run = p_run and l.ti <> all(p_busy)
            and (l.token = c.proof or onceflow.prove_token(l.token, l.task_id || '/' || l.try_number || '/' || concat_ws('/', c.kind, c.output)) = c.proof)
        returning l, c.*
    ), written as (
        insert into onceflow.step_ledger select e.*
        from gone g, onceflow.make_entry(g.l, (g.l).task_id, g.name, g.kind, (g.l).try_number, 'running', 'success', true, g.inputs, g.inputs_hash, g.output::jsonb, null,
            clock_timestamp() - g.elapsed, null, v_cluster) e
        on conflict (dag_run, ti, epoch, step_key) where final do nothing returning 1
    ), ended as (
        -- As end_task.
        update onceflow.ti t set state = 'success', try_number = (g.l).try_number, entries = (g.l).entries + 1, start_date = coalesce(t.start_date, (g.l).claimed_at),
            end_date = v_now, queued_when = coalesce((g.l).queued_at, t.queued_when), worker = (g.l).worker, hostname = (g.l).host, error = null
        from gone g where t.run = p_run and t.id = (g.l).ti and t.state is null returning t.ix
    )
    select (select array_agg(n) from gone), (select count(*) from written),
        (select array_agg(row(e.ix, null, 'success', e.count)::onceflow.ended order by e.ix) from (select ix, count(*)::int as count from ended group by ix) e)
    into v_done, v_written, v_ended;
    if v_done is null then return '{}'; end if;
    if v_written <> cardinality(v_done) then perform onceflow.raise_error('OF007', 'a task of this group has its outcome in the ledger already'); end if;
    if (select sum(e.count) from unnest(v_ended) e) is distinct from cardinality(v_done) then
        perform onceflow.raise_error('OF001', 'a task of this group has ended elsewhere');
    end if;
    perform pg_advisory_xact_lock(p_run);
    select * into r from onceflow.run where id = p_run;
    perform onceflow.spread_ends(r, v_ended, null);
    return v_done;
end $$;
