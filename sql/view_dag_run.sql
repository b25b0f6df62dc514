-- Moves: none
-- Locks: none
-- Raises: nothing
-- Called by: everyone who reads runs. "running" = something of it was claimed, once; the run row itself is written at its end.
create or replace view onceflow.dag_run as
select r.id, r.dag_id, r.run_id, r.logical_date,
       coalesce(r.start_date, (select min(t.start_date) from onceflow.ti t where t.run = r.id), (select min(l.claimed_at) from onceflow.lease l where l.run = r.id)) as start_date,
       r.end_date,
       coalesce(r.state, case when r.version is not null then case when r.start_date is null then 'queued' else 'running' end
           when exists (select from onceflow.lease l where l.run = r.id)
           or exists (select from onceflow.ti t where t.run = r.id and t.start_date is not null) then 'running' else 'queued' end)::varchar(50) as state,
       r.run_type, r.conf, r.data_interval_start, r.data_interval_end, r.creating_job_id,
       r.queue, r.priority, r.created_at, r.parent_run, r.stop_reason, r.code_version, r.actor,
       (select l.output from onceflow.step_ledger l join onceflow.ti t on t.run = r.id and t.id = r.root
        where l.dag_run = r.id and l.ti = r.root and l.epoch = t.epoch and l.step_key = t.task_id and l.final and l.to_state = 'success') as output,
       (select l.error from onceflow.step_ledger l join onceflow.ti t on t.run = r.id and t.id = r.root
        where l.dag_run = r.id and l.ti = r.root and l.epoch = t.epoch and l.step_key = t.task_id and l.final and l.to_state = 'failed') as error
from onceflow.run r;
grant select on onceflow.dag_run to onceflow_worker, onceflow_auditor, onceflow_operator;
