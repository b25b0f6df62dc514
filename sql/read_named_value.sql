-- Moves: none
-- Locks: none
-- Raises: nothing
-- Called by: a worker, for a template or get_connection and get_variable in a step. Steps' own connections may not: they would read every secret by plain SQL
-- p_kind: connection or variable. What is secret is as it was set, encrypted. Null: there is none of that name.
create or replace function onceflow.read_named_value(p_kind text, p_name text) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select case p_kind
        when 'connection' then (select to_jsonb(c) from onceflow.connection c where c.conn_id = p_name)
        when 'variable' then (select to_jsonb(v) from onceflow.variable v where v.key = p_name) end
$$;

-- Moves: none
-- Locks: none
-- Raises: nothing
-- Called by: run_dag_task, for a task that asks for the last run before its own that succeeded; null: there is none
create or replace function onceflow.read_last_success(p_run bigint) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
    select jsonb_build_object('data_interval_start', n.data_interval_start, 'data_interval_end', n.data_interval_end, 'start_date', n.start_date, 'end_date', n.end_date)
    from onceflow.run r join onceflow.run_key k on k.dag_id = r.dag_id and k.logical_date < r.logical_date
    join onceflow.run n on n.id = k.run and n.state = 'success' and n.run_type <> 'test'
    where r.id = p_run order by k.logical_date desc limit 1
$$;
grant execute on function onceflow.read_named_value(text, text), onceflow.read_last_success(bigint) to onceflow_worker;
