-- Moves: none (inner part: the arrows of complete_task, for many at once)
-- Locks: the tis, the runs; the caller holds the leases
-- Raises: OF001, OF007: then none of it happened, and each runs alone, which tells whose it was
-- Called by: run_batch, complete_group, complete_sql_steps, before they go through what is left one by one
-- Completes those tasks of p_calls that are the whole of a workflow's run, with one statement for all: a third of what complete_task takes for each.
-- p_at: at which place of a call the function's name stands; what is before it is the step's mark. Answers the calls done (counted from 1). What is
-- out of the ordinary (other calls of the same task, too), wrong or in p_busy is left to complete_task, which knows what to do, or to say.
create or replace function onceflow.complete_tasks(p_calls jsonb, p_at int, p_busy bigint[] default '{}') returns int[]
language plpgsql as $$
declare
    v_now timestamptz := onceflow.now();
    v_cluster bigint;
    v_done int[];
    v_written int;
    v_ended bigint[];
    v_closed onceflow.run[];
    v_quiet bigint[];
    v_loud bigint[];
    r onceflow.run;
begin
    if jsonb_array_length(p_calls) < 2 or current_setting('onceflow.detached', true) <> '' then return '{}'; end if;
    v_cluster := onceflow.this_cluster();
    with c as (
        select y.n::int as n, case when p_at = 1 then x ->> 0 end as mark, (x ->> p_at + 1)::bigint as run, (x ->> p_at + 2)::bigint as ti, (x ->> p_at + 3)::uuid as proof,
               x ->> p_at + 4 as name, x ->> p_at + 5 as kind, (x ->> p_at + 6)::jsonb as inputs, x ->> p_at + 7 as inputs_hash, x ->> p_at + 8 as output,
               (x ->> p_at + 9)::bigint * interval '1 microsecond' as elapsed
        from (select x, n, count(*) over (partition by x ->> p_at + 2) as of_ti from jsonb_array_elements(p_calls) with ordinality z(x, n)) y
        where of_ti = 1 and x ->> p_at = 'complete_task' and x ->> p_at + 10 is null
    ), gone as (
        delete from onceflow.lease l using c
        where l.ti = c.ti and l.run = c.run and l.run = l.ti and l.ti <> all(p_busy)
            and (l.token = c.proof or onceflow.prove_token(l.token, l.task_id || '/' || l.try_number || '/' || concat_ws('/', c.kind, c.output)) = c.proof)
            and (c.kind not in ('transactional', 'sql') or onceflow.mark_token(l.token, l.task_id) = split_part(c.mark, '/', 2))
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
        from gone g where t.run = (g.l).run and t.id = (g.l).ti and t.state is null returning t.run
    ), closed as (
        -- As end_run; tis is read under the row's lock here too.
        update onceflow.run n set state = 'success', end_date = v_now from ended e where n.id = e.run and n.tis = 1 and n.state is null returning n
    )
    select (select array_agg(n) from gone), (select count(*) from written), (select array_agg(run order by run) from ended), (select array_agg(n) from closed)
    into v_done, v_written, v_ended, v_closed;
    if v_done is null then return '{}'; end if;
    if v_written <> cardinality(v_done) then perform onceflow.raise_error('OF007', 'a task of this group has its outcome in the ledger already'); end if;
    if v_ended is null or cardinality(v_ended) <> cardinality(v_done) then perform onceflow.raise_error('OF001', 'a task of this group has ended elsewhere'); end if;
    foreach r in array coalesce(v_closed, '{}') loop
        if r.version is null and r.live_key is null and r.parent_run is null and current_setting('transaction_isolation') = 'read committed' then
            v_quiet := v_quiet || r.id;
        else
            perform onceflow.close_run(r);
        end if;
    end loop;
    if v_quiet is not null then
        -- As close_run: who is about to wait for a run holds its lock shared until it commits; the look at what waits is a later statement.
        delete from onceflow.timer where run = any(v_quiet);
        v_loud := array(select k.run from unnest(v_quiet) k(run) where not pg_try_advisory_xact_lock(onceflow.wait_lock('run', k.run, '')));
        insert into onceflow.wake_up (kind, target_run) select 'run', k.run from unnest(v_quiet) k(run)
        where k.run = any(v_loud) or exists (select from onceflow.wait w where w.target_run = k.run and w.kind in ('run', 'event'));
    end if;
    perform onceflow.end_run(k.run, 'success', v_now) from unnest(v_ended) k(run) where k.run <> all(array(select (n).id from unnest(v_closed) n));
    return v_done;
end $$;
