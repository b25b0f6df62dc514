-- Moves: none
-- Locks: none
-- Raises: OF004 there is no such dag, or no such task in it
-- Called by: ExternalTaskSensor: [[name, state], …] of a run by its logical date, or of tasks of it. Empty while there is no such run; state null while it is under way.
create or replace function onceflow.read_external(p_dag_id text, p_logical_date timestamptz, p_task_ids text[]) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    d onceflow.dag;
    r onceflow.run;
    v_missing text;
begin
    select * into d from onceflow.dag where dag_id = p_dag_id;
    if not found then perform onceflow.raise_error('OF004', format('there is no dag %s to wait for', p_dag_id)); end if;
    select x into v_missing from unnest(p_task_ids) x
    where d.version is not null and not exists (select from onceflow.dag_task k where k.version = d.version and k.task_id = x) limit 1;
    if v_missing is not null then perform onceflow.raise_error('OF004', format('dag %s has no task %s to wait for', p_dag_id, v_missing)); end if;
    select n.* into r from onceflow.run_key k join onceflow.run n on n.id = k.run where k.dag_id = p_dag_id and k.logical_date = p_logical_date;
    if not found then return '[]'; end if;
    if p_task_ids = '{}' then return jsonb_build_array(jsonb_build_array('run ' || r.run_id, r.state)); end if;
    return coalesce((select jsonb_agg(jsonb_build_array('task ' || x.name, x.state) order by x.name) from (
        -- of a mapped task, all instances
        select w.name, case when count(*) filter (where t.state is null or t.state = 'deferred') > 0 then null
            when count(distinct t.state) = 1 then min(t.state) when bool_or(t.state = 'failed') then 'failed'
            when bool_or(t.state = 'upstream_failed') then 'upstream_failed' else 'success' end as state
        from unnest(p_task_ids) w(name) join onceflow.ti t on t.run = r.id and t.task_id = w.name and (t.state <> 'removed' or t.state is null) group by w.name) x), '[]');
end $$;
grant execute on function onceflow.read_external(text, timestamptz, text[]) to onceflow_worker;
