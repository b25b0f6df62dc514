-- Moves: none
-- Locks: none
-- Raises: nothing
-- Called by: everyone who reads tasks. "running" = a lease exists; "queued" = it lies in ready. job_id: the worker whose try it is, which claimed it, so that
-- it is queued_by_job_id as well: nothing stands between a claimable task and who runs it.
create or replace view onceflow.task_instance as
select r.dag_id, t.task_id, r.run_id, t.map_index,
       coalesce(t.start_date, l.claimed_at) as start_date, t.end_date,
       extract(epoch from t.end_date - t.start_date)::double precision as duration,
       coalesce(t.state, case when l.ti is not null then 'running'
           when g.id is not null then 'deferred' when m.kind = 'retry' then 'up_for_retry' when m.kind = 'reschedule' then 'up_for_reschedule'
           when m.kind is not null then 'scheduled' when q.ti is not null or t.ix is null then 'queued' else 'no_status' end)::varchar(20) as state,
       coalesce(l.try_number, t.try_number) as try_number, t.max_tries,
       coalesce(l.host, t.hostname)::varchar(1000) as hostname, w.unixname, coalesce(l.worker, t.worker) as job_id,
       t.pool, t.pool_slots, t.queue, -t.rank as priority_weight, t.operator, coalesce(t.queued_when, l.queued_at, q.queued_at) as queued_when, coalesce(l.worker, t.worker) as queued_by_job_id, w.pid,
       t.executor_config, case when t.state is null then t.next_method end as next_method, case when t.state is null then t.next_kwargs end as next_kwargs, g.id as trigger_id,
       t.logical_date, case when m.kind = 'retry' then m.due_at end as next_retry_at, t.error,
       t.id, t.run, t.ix, t.kind, t.fn, t.epoch, t.rescues, t.detached, coalesce(l.worker, t.worker) as worker, t.rendered_map_index,
       k.trigger_rule, k.execution_timeout
from onceflow.ti t
join onceflow.run r on r.id = t.run
left join onceflow.dag_task k on k.version = r.version and k.ix = t.ix
left join onceflow.lease l on l.ti = t.id
left join onceflow.worker w on w.id = coalesce(l.worker, t.worker)
left join lateral (select y.ti, y.queued_at from onceflow.ready y where y.run = t.run and y.ti = t.id limit 1) q on t.state is null and l.ti is null
left join lateral (select kind, due_at from onceflow.timer m where m.run = t.run and m.ti = t.id and m.kind in ('start', 'retry', 'reschedule') limit 1) m on true
left join onceflow.trigger g on g.run = t.run and g.ti = t.id;
grant select on onceflow.task_instance to onceflow_worker, onceflow_auditor, onceflow_operator;
