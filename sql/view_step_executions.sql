-- Moves: none
-- Locks: none
-- Raises: nothing
-- Called by: readers of the seed's names. One row per step that started: started, done or failed.
-- Security: granted with the ledger itself.
create or replace view onceflow.step_executions as
select distinct on (dag_run, ti, epoch, step_key)
       run_id as workflow_id, step_name, inputs_hash,
       case when final and to_state = 'success' then 'done' when final then 'failed' else 'started' end as status,
       output, dag_id, task_id, map_index, step_key, try_number, started_at, at, dag_run, ti
from onceflow.step_ledger where kind <> 'human'
order by dag_run, ti, epoch, step_key, final desc, id desc;
grant select on onceflow.step_executions to onceflow_worker, onceflow_auditor, onceflow_operator;
grant select on onceflow.step_ledger, onceflow.ledger_seal, onceflow.worker, onceflow.dag, onceflow.lane, onceflow.live_key, onceflow.ready, onceflow.timer, onceflow.wait, onceflow.past_wait,
    onceflow.run, onceflow.ti, onceflow.run_key, onceflow.message, onceflow.run_event, onceflow.wake_up, onceflow.engine, onceflow.sealer,
    onceflow.dag_version, onceflow.dag_task, onceflow.join_count, onceflow.pushed, onceflow.import_error, onceflow.slot_pool, onceflow.queued_run, onceflow.active_run, onceflow.backfill, onceflow.callback,
    onceflow.dag_folder, onceflow.dag_file, onceflow.dataset, onceflow.dataset_event, onceflow.dataset_dag_run_queue, onceflow.dag_schedule_dataset_reference,
    onceflow.task_outlet_dataset_reference, onceflow.task_inlet_dataset_reference, onceflow.dataset_alias, onceflow.dag_schedule_dataset_alias_reference, onceflow.unspread_event,
    onceflow.waiting_event, onceflow.dagrun_dataset_event to onceflow_auditor, onceflow_operator;
-- Everything of a lease but its token: whoever has that can end the task.
grant select (ti, run, worker, claim, fence, epoch, try_number, entries, claimed_at, lane, dag_id, run_id, task_id, map_index, host, code_version, queued_at, pool, pool_slots)
    on onceflow.lease to onceflow_auditor, onceflow_operator;
grant select on onceflow.step_ledger, onceflow.worker, onceflow.dag, onceflow.run_key to onceflow_worker;
