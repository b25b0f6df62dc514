-- Moves: none
-- Locks: none
-- Raises: nothing
-- Called by: everyone who asks where data comes from and where it goes
-- A row for each dataset that a task reads and each that it writes. It reads its inlets; where it names none, the datasets by which its dag runs. One side is null
-- where the other has nothing beside it.
create or replace view onceflow.dataset_lineage as
select s.uri as source_uri, s.classification as source_classification, coalesce(i.dag_id, o.dag_id) as dag_id, coalesce(i.task_id, o.task_id) as task_id,
       t.uri as target_uri, t.classification as target_classification
from (
    select n.dataset_id, n.dag_id, n.task_id from onceflow.task_inlet_dataset_reference n
    union
    select f.dataset_id, f.dag_id, w.task_id from onceflow.dag_schedule_dataset_reference f join onceflow.task_outlet_dataset_reference w on w.dag_id = f.dag_id
    where not exists (select from onceflow.task_inlet_dataset_reference n where n.dag_id = w.dag_id and n.task_id = w.task_id)
) i full join onceflow.task_outlet_dataset_reference o on o.dag_id = i.dag_id and o.task_id = i.task_id
left join onceflow.dataset s on s.id = i.dataset_id left join onceflow.dataset t on t.id = o.dataset_id;
grant select on onceflow.dataset_lineage to onceflow_worker, onceflow_auditor, onceflow_operator;
