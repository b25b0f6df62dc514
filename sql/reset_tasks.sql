-- Moves: running -> no_status, up_for_retry -> no_status, deferred -> no_status, queued -> no_status, success -> no_status, failed -> no_status, skipped -> no_status, upstream_failed -> no_status
-- Run: success -> queued, failed -> queued, cancelled -> queued, running -> running
-- Locks: the tasks' ready rows and leases, the run's advisory lock, the tasks, the run
-- Raises: nothing
-- Called by: clear_tasks, retry_dag_run, mark_task
-- The tasks are as if they had not been tried, and their rules decide anew. What they did stays in the ledger, under an earlier epoch. What runs of them
-- cannot commit any more. p_fresh: what their steps recorded counts no longer either. A run that had ended queues for a place among its dag's runs.
create or replace function onceflow.reset_tasks(p_run bigint, p_tis bigint[], p_fresh boolean, p_why text, p_actor text) returns void
language plpgsql as $$
declare
    r onceflow.run;
begin
    loop
        delete from onceflow.past_wait where run = p_run and ti = any(p_tis);
        delete from onceflow.ready where run = p_run and ti = any(p_tis);
        perform onceflow.restart_leases(p_run, p_tis, p_why, p_actor);
        exit when not exists (select from onceflow.ready where run = p_run and ti = any(p_tis))
            and not exists (select from onceflow.lease where run = p_run and ti = any(p_tis));
    end loop;
    perform pg_advisory_xact_lock(p_run);
    delete from onceflow.timer where run = p_run and ti = any(p_tis);
    delete from onceflow.wait where run = p_run and ti = any(p_tis);
    delete from onceflow.trigger where run = p_run and ti = any(p_tis);
    update onceflow.ti set state = null, epoch = epoch + 1, base_epoch = case when p_fresh then epoch + 1 else base_epoch end, rescues = 0,
        max_tries = try_number + retries, end_date = null, error = null
    where run = p_run and id = any(p_tis);
    select * into r from onceflow.run where id = p_run for update;
    perform onceflow.collapse_maps(r, p_tis);
    if exists (select from onceflow.queued_run where run = p_run) then
        null;  -- opened when it is admitted
    elsif r.state is null then
        perform onceflow.open_run(p_run);
    else
        update onceflow.run set state = null, end_date = null, stop_reason = null where id = p_run;
        insert into onceflow.queued_run (dag_id, logical_date, run, due_at, backfill) values (r.dag_id, r.logical_date, p_run, onceflow.now(),
            (select b.id from onceflow.backfill b where b.id = r.backfill and b.state in ('running', 'paused')));
    end if;
    perform pg_notify('onceflow_ready', '');
end $$;

create or replace function onceflow.restart_leases(p_run bigint, p_tis bigint[], p_why text, p_actor text) returns void
language plpgsql as $$
declare
    l onceflow.lease;
    v_error jsonb := jsonb_build_object('$error', 'onceflow.errors:LeaseLost', 'message', p_why, 'args', jsonb_build_array(p_why));
begin
    for l in select * from onceflow.lease where run = p_run and ti = any(p_tis) order by ti for update loop
        delete from onceflow.lease where ti = l.ti;
        perform onceflow.write_entry(l, l.task_id, l.task_id, 'engine', l.try_number, 'running', 'restarting', false, null, null, null, v_error, l.claimed_at, p_actor);
        update onceflow.ti set try_number = l.try_number, entries = l.entries + 1, start_date = coalesce(start_date, l.claimed_at) where run = l.run and id = l.ti;
        perform pg_notify('onceflow_revoked', p_run::text);
    end loop;
end $$;

-- A mapped task whose upstream runs again is one unexpanded task again; the instances beyond the first come back if they are needed. So are the tasks of a mapped
-- group when what it is expanded over runs again and nothing of the group stands.
create or replace function onceflow.collapse_maps(r onceflow.run, p_tis bigint[]) returns void
language plpgsql as $$
declare
    k onceflow.dag_task;
begin
    for k in
        select distinct d.* from onceflow.ti t join onceflow.dag_task d on d.version = r.version and d.ix = t.ix and d.mapping is not null and d.map_group is null
        where t.run = r.id and t.id = any(p_tis)
          and exists (select from onceflow.ti u where u.run = r.id and u.ix = any(d.upstream) and u.id = any(p_tis))
        union all
        select d.* from onceflow.dag_task g join onceflow.dag_task d on d.version = g.version and d.map_group = g.ix
        where g.version = r.version and g.map_group = g.ix
          and exists (select from onceflow.ti u where u.run = r.id and u.ix = any(g.gate) and u.id = any(p_tis))
          and not exists (select from onceflow.dag_task m join onceflow.ti i on i.run = r.id and i.ix = m.ix where m.version = g.version and m.map_group = g.ix
            and (i.state <> 'removed' or i.state is null and onceflow.is_under_way(r.id, i.id)))
    loop
        update onceflow.ti set state = 'removed', end_date = onceflow.now() where run = r.id and ix = k.ix and map_index > 0;
        update onceflow.ti set map_index = -1, conf = null, state = null, epoch = epoch + (state is not null)::int where run = r.id and ix = k.ix and map_index = 0;
    end loop;
end $$;
