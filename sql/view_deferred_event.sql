-- Moves: none
-- Locks: none
-- Raises: nothing
-- Called by: everyone who asks what tasks have waited for, and what came of it. Read from the ledger, so it stays.
create or replace view onceflow.deferred_event as
select e.id, e.dag_id, e.task_id, e.run_id, e.map_index, e.try_number, e.output -> 'trigger' ->> 'classpath' as classpath, e.output -> 'trigger' -> 'kwargs' as kwargs,
       e.output -> 'next' ->> 'method' as next_method, e.at as created_at, f.output as event, f.at as fired_at, f.actor,
       case when f.id is null and g.id is not null then 'waiting' when f.id is null then 'dropped' when f.output ? '$over' then 'timed_out'
           when f.output ? '$error' then 'failed' else 'fired' end as state, g.id as trigger_id
from onceflow.step_ledger e
left join lateral (
    select f.* from onceflow.step_ledger f where f.dag_run = e.dag_run and f.ti = e.ti and f.id > e.id and not f.final and f.epoch = e.epoch
    order by f.id limit 1) f on f.from_state = 'deferred'
left join onceflow.trigger g on g.run = e.dag_run and g.ti = e.ti
    and not exists (select from onceflow.step_ledger n where n.dag_run = e.dag_run and n.ti = e.ti and n.id > e.id and not n.final)
where e.to_state = 'deferred' and not e.final and e.output ? 'trigger';
grant select on onceflow.deferred_event to onceflow_worker, onceflow_auditor, onceflow_operator;
