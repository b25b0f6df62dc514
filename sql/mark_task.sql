-- Moves: running -> success, failed -> success, skipped -> success, upstream_failed -> success, queued -> success, no_status -> success, success -> failed, running -> failed, running -> skipped, failed -> skipped
-- Run: failed -> queued, success -> queued, running -> running
-- Locks: those of reset_tasks
-- Raises: OF004 no such task; OF008 a state that nobody may set
-- Called by: Client.mark, onceflow tasks mark, psql
-- A person's word in place of a try: the task has this state from now on. What had failed because of it decides anew.
create or replace function onceflow.mark_task(run bigint, task_id text, state text, map_index int default -1, actor text default null) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_column
declare
    r onceflow.run;
    t onceflow.ti;
    l onceflow.lease;
    v_below bigint[];
    v_actor text := coalesce(mark_task.actor, session_user);
begin
    if mark_task.state not in ('success', 'failed', 'skipped') then
        perform onceflow.raise_error('OF008', format('a task can be marked success, failed or skipped, not %s', mark_task.state));
    end if;
    select * into r from onceflow.run n where n.id = mark_task.run;
    select * into t from onceflow.ti i where i.run = mark_task.run and i.task_id = mark_task.task_id and i.map_index = mark_task.map_index and i.ix is not null;
    if not found then
        perform onceflow.raise_error('OF004', format('run %s has no task %s with map index %s', mark_task.run, mark_task.task_id, mark_task.map_index));
    end if;
    with recursive below(ix) as (
        select unnest(d.downstream) from onceflow.dag_task d where d.version = r.version and d.ix = t.ix
        union select unnest(d.downstream) from below b join onceflow.dag_task d on d.version = r.version and d.ix = b.ix)
    select array_agg(i.id order by i.id) into v_below from onceflow.ti i
    where i.run = r.id and i.ix in (select ix from below) and i.state in ('upstream_failed', 'skipped')
      and (t.map_index < 0 or i.map_index in (t.map_index, -1) or not exists (  -- in a mapped group, those beside it
        select from onceflow.dag_task a join onceflow.dag_task b on b.version = a.version and b.map_group = a.map_group
        where a.version = r.version and a.ix = t.ix and b.ix = i.ix)) and exists (
        select from onceflow.step_ledger e  -- its rule decided so, not a try of its own
        where e.dag_run = i.run and e.ti = i.id and e.epoch = i.epoch and e.step_key = i.task_id and e.final and e.kind = 'engine');
    perform onceflow.write_act(r.id, 'marked', jsonb_build_object('task', t.task_id, 'map_index', t.map_index, 'state', mark_task.state), v_actor);
    perform onceflow.hold_back(r.id, t.id, v_actor);
    select * into t from onceflow.ti i where i.run = r.id and i.id = t.id;
    select r.id, t.id, r.dag_id, r.run_id, t.task_id, t.map_index, t.epoch + 1 into l.run, l.ti, l.dag_id, l.run_id, l.task_id, l.map_index, l.epoch;
    perform onceflow.write_entry(l, t.task_id, t.task_id, 'human', t.try_number, coalesce(t.state, 'no_status'), mark_task.state, true, null, null, null, null, null, v_actor);
    update onceflow.ti i set state = mark_task.state, epoch = l.epoch, entries = i.entries + 1, end_date = onceflow.now() where i.run = r.id and i.id = t.id;
    perform onceflow.release_next_run(r);
    perform onceflow.reset_tasks(r.id, coalesce(v_below, '{}'), false, format('task %s was marked %s', t.task_id, mark_task.state), v_actor);
end $$;

-- Takes one task out of whatever it is about to do.
create or replace function onceflow.hold_back(p_run bigint, p_ti bigint, p_actor text) returns void
language plpgsql as $$
begin
    loop
        delete from onceflow.past_wait where run = p_run and ti = p_ti;
        delete from onceflow.ready where run = p_run and ti = p_ti;
        perform onceflow.restart_leases(p_run, array[p_ti], format('marked by %s', p_actor), p_actor);
        exit when not exists (select from onceflow.ready where run = p_run and ti = p_ti) and not exists (select from onceflow.lease where run = p_run and ti = p_ti);
    end loop;
    perform pg_advisory_xact_lock(p_run);
    delete from onceflow.timer where run = p_run and ti = p_ti;
    delete from onceflow.wait where run = p_run and ti = p_ti;
    delete from onceflow.trigger where run = p_run and ti = p_ti;
end $$;
grant execute on function onceflow.mark_task(bigint, text, text, int, text) to onceflow_worker, onceflow_operator;
