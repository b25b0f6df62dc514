-- Moves: none
-- Run: running -> running
-- Locks: advisory, shared (tried only); only inserts
-- Raises: nothing
-- Called by: settle_task, expand_task, settle_instances, for tasks whose rule has said "run"
-- Must they wait for the run before? Then they do, in past_wait, until release_next_run lets them go. The lock is that under which an end in the run before
-- looks for who waits for it: when it cannot be had, somebody is just ending a task there, and the next tick looks once more. So no release is lost, and
-- neither run ever waits for the other's transaction.
create or replace function onceflow.hold_for_past(r onceflow.run, k onceflow.dag_task, p_tis bigint[]) returns boolean
language plpgsql as $$
declare
    v_previous bigint := onceflow.find_previous_run(r);
    v_is_sure boolean;
begin
    if v_previous is null then return false; end if;
    v_is_sure := current_setting('transaction_isolation') = 'read committed' and pg_try_advisory_xact_lock_shared(onceflow.wait_lock('past', v_previous, ''));
    if onceflow.is_past_met(v_previous, k) then return false; end if;
    insert into onceflow.past_wait (previous, run, ti, ix) select v_previous, r.id, a.ti, k.ix from unnest(p_tis) a(ti);
    if not v_is_sure then insert into onceflow.wake_up (kind, target_run) values ('past', v_previous); end if;
    return true;
end $$;

-- The run before, by logical date; null: it is the first. As in Airflow, runs of a dag with catchup pass over manual ones. A test is neither before nor after another.
create or replace function onceflow.find_previous_run(r onceflow.run) returns bigint
language sql stable as $$
    select n.id from onceflow.run_key p join onceflow.run n on n.id = p.run
    where p.dag_id = r.dag_id and p.logical_date < r.logical_date and r.run_type <> 'test' and n.run_type <> 'test' and n.version is not null
      and (n.run_type <> 'manual' or not coalesce((select (v.plan -> 'schedule' ->> 'catchup')::boolean from onceflow.dag_version v where v.id = r.version), false))
    order by p.logical_date desc limit 1
$$;

-- Has the task succeeded there, or was skipped, and with wait_for_downstream what is directly below it, too? A run whose plan does not have the task, or that
-- ended before it got its tasks, holds nobody up.
create or replace function onceflow.is_past_met(p_previous bigint, k onceflow.dag_task) returns boolean
language sql stable as $$
    select not exists (
        select from onceflow.run n join onceflow.dag_task x on x.version = n.version and x.task_id = k.task_id
        join onceflow.dag_task d on d.version = n.version and (d.ix = x.ix or k.wait_for_downstream and d.ix = any(x.downstream))
        where n.id = p_previous and (
            exists (select from onceflow.ti t where t.run = n.id and t.ix = d.ix and (t.state is null or t.state not in ('success', 'skipped', 'removed')))
            or n.state is null and not exists (select from onceflow.ti t where t.run = n.id and t.ix = d.ix)))
$$;
