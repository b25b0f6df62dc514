-- Moves: none
-- Locks: none
-- Raises: OF004 no such run, or several of that id
-- Called by: RunHandle, step and run handles in bodies: the state, and the output or error once it has ended
create or replace function onceflow.read_run(p_run bigint) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    v_out jsonb;
begin
    select jsonb_build_object('run', r.id::text, 'dag_id', r.dag_id, 'run_id', r.run_id, 'state', d.state, 'output', d.output::text, 'error', d.error::text,
        'stop_reason', coalesce(r.stop_reason, case when d.state = 'failed' and r.version is not null then onceflow.name_failures(r.id) end)) into v_out
    from onceflow.run r join onceflow.dag_run d on d.id = r.id where r.id = p_run;
    if v_out is null then
        perform onceflow.raise_error('OF004', format('run %s is not there: it was archived, or the transaction that starts it has not committed', p_run));
    end if;
    return v_out;
end $$;

-- What went wrong in a run of a dag, in words: its failed tasks with their errors, and how many were not run for it.
create or replace function onceflow.name_failures(p_run bigint) returns text
language sql stable as $$
    select concat_ws('; ', string_agg(format('task %s failed%s', t.task_id || case when t.map_index >= 0 then '[' || t.map_index || ']' else '' end,
        ': ' || left(t.error, 300)), '; ' order by t.ix, t.map_index) filter (where t.state = 'failed' and t.no <= 5),
        case when count(*) filter (where t.state = 'failed') > 5 then count(*) filter (where t.state = 'failed') - 5 || ' more failed' end,
        case when count(*) filter (where t.state = 'upstream_failed') > 0 then count(*) filter (where t.state = 'upstream_failed') || ' did not run for it' end)
    from (select i.*, row_number() over (partition by i.state order by i.ix, i.map_index) as no from onceflow.ti i
          where i.run = p_run and i.state in ('failed', 'upstream_failed')) t
$$;

create or replace function onceflow.read_task(p_run bigint, p_ti bigint) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
    select jsonb_build_object('state', t.state, 'output', l.output::text, 'error', l.error::text, 'stop_reason', t.error)
    from onceflow.ti t left join lateral (
        select * from onceflow.step_ledger l where l.dag_run = t.run and l.ti = t.id and l.epoch = t.epoch and l.step_key = t.task_id and l.final limit 1) l on true
    where t.run = p_run and t.id = p_ti
$$;

-- A run by its id alone, when only one dag has it, or by dag and id.
create or replace function onceflow.find_run(p_dag_id text, p_run_id text) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    v_found jsonb;
begin
    select jsonb_agg(jsonb_build_object('run', run::text, 'dag_id', dag_id, 'run_id', run_id)) into v_found
    from onceflow.run_key where run_id = p_run_id and (p_dag_id is null or dag_id = p_dag_id);
    if v_found is null then
        perform onceflow.raise_error('OF004', format('there is no run %s%s', coalesce(p_dag_id || '/', ''), p_run_id));
    elsif jsonb_array_length(v_found) > 1 then
        perform onceflow.raise_error('OF004', format('several dags have a run %s: %s; name it as DAG/RUN_ID', p_run_id,
            (select string_agg(x ->> 'dag_id', ', ') from jsonb_array_elements(v_found) x)));
    end if;
    return v_found -> 0;
end $$;
grant execute on function onceflow.read_run(bigint), onceflow.read_task(bigint, bigint), onceflow.find_run(text, text) to onceflow_worker, onceflow_operator, onceflow_auditor;
