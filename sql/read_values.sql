-- Moves: none
-- Locks: none
-- Raises: nothing
-- Called by: run_dag_task, before the task runs: what its arguments refer to; xcom_pull
-- p_wanted: [[task_id, key], …], or [task_id, key, map_index]; the values in that order, null for what is not there. Of a mapped task without an index
-- the list over its instances.
create or replace function onceflow.read_values(p_run bigint, p_wanted text) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
    select coalesce(jsonb_agg((case when w.pair -> 2 is null then onceflow.read_value(r.id, r.version, k.ix, w.pair ->> 1)
        else onceflow.read_one_value(r.id, k.ix, w.pair ->> 1, (w.pair ->> 2)::int) end)::text order by w.no), '[]')
    from onceflow.run r, jsonb_array_elements(p_wanted::jsonb) with ordinality w(pair, no)
    left join onceflow.dag_task k on k.version = (select version from onceflow.run where id = p_run) and k.task_id = w.pair ->> 0
    where r.id = p_run
$$;
grant execute on function onceflow.read_values(bigint, text) to onceflow_worker;

-- What one instance of a task gave under a key.
create or replace function onceflow.read_one_value(p_run bigint, p_ix int, p_key text, p_map_index int) returns jsonb
language sql stable as $$
    select case when p_key = 'return_value' then e.output else coalesce(p.value, onceflow.take_key(e.output, p_key)) end
    from onceflow.ti t
    left join onceflow.step_ledger e on e.dag_run = t.run and e.ti = t.id and e.epoch = t.epoch and e.step_key = t.task_id and e.final
    left join onceflow.pushed p on p.run = t.run and p.ti = t.id and p.key = p_key
    where t.run = p_run and t.ix = p_ix and t.map_index = p_map_index and t.state = 'success'
$$;

-- Moves: none
-- Locks: none
-- Raises: nothing
-- Called by: run_dag_task, before a task that takes what many instances gave: their numbers, in order. It reads the values page by page.
create or replace function onceflow.list_values(p_run bigint, p_task_id text, p_key text) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
    select coalesce(jsonb_agg(t.map_index order by t.map_index), '[]')
    from onceflow.run r join onceflow.dag_task k on k.version = r.version and k.task_id = p_task_id
    join onceflow.ti t on t.run = p_run and t.ix = k.ix and t.map_index >= 0 and t.state = 'success'
    left join onceflow.step_ledger e on e.dag_run = t.run and e.ti = t.id and e.epoch = t.epoch and e.step_key = t.task_id and e.final
    left join onceflow.pushed p on p.run = t.run and p.ti = t.id and p.key = p_key
    where r.id = p_run and case when p_key = 'return_value' then e.output is not null else coalesce(p.value, onceflow.take_key(e.output, p_key)) is not null end
$$;
grant execute on function onceflow.list_values(bigint, text, text) to onceflow_worker;
