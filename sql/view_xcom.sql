-- Moves: none
-- Locks: none
-- Raises: nothing
-- Called by: everyone who reads what tasks of dags gave each other: what they returned lies in their ledger entries, what they pushed in pushed.
-- value: JSON text in UTF-8, as the codec writes it. Nothing returned (null) is no value.
create or replace view onceflow.xcom as
select r.dag_id, t.task_id, r.run_id, 'return_value'::varchar(512) as key, convert_to(e.output::text, 'UTF8') as value, e.at as "timestamp", t.map_index
from onceflow.run r join onceflow.ti t on t.run = r.id and t.ix is not null and t.state = 'success'
join onceflow.step_ledger e on e.dag_run = t.run and e.ti = t.id and e.epoch = t.epoch and e.step_key = t.task_id and e.final and e.output <> 'null'
union all
select r.dag_id, t.task_id, r.run_id, p.key, convert_to(p.value::text, 'UTF8'), p.pushed_at, t.map_index
from onceflow.pushed p join onceflow.run r on r.id = p.run join onceflow.ti t on t.run = p.run and t.id = p.ti and t.state = 'success';
grant select on onceflow.xcom to onceflow_worker, onceflow_auditor, onceflow_operator;
