-- Moves: running -> skipped
-- Run: running -> success, running -> failed, running -> running (others of it live)
-- Locks: the lease, the ti, the run
-- Raises: OF001 lease lost; OF005 the task is none of a dag
-- Called by: run_task on the engine's connection, when the task of a dag raised SkipTask; its transaction was rolled back
create or replace function onceflow.skip_task(
    p_run bigint, p_ti bigint, p_token uuid, p_name text, p_kind text, p_inputs text, p_inputs_hash text, p_error text, p_elapsed_us bigint)
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    l onceflow.lease := onceflow.drop_lease(p_run, p_ti, p_token);
begin
    if exists (select from onceflow.ti where run = p_run and id = p_ti and ix is null) then
        perform onceflow.raise_error('OF005', format('task %s of run %s of %s is none of a dag, so it cannot be skipped', l.task_id, l.run_id, l.dag_id));
    end if;
    perform onceflow.write_entry(l, l.task_id, p_name, p_kind, l.try_number, 'running', 'skipped', true, p_inputs::jsonb, p_inputs_hash, null, p_error::jsonb,
        clock_timestamp() - p_elapsed_us * interval '1 microsecond');
    perform onceflow.end_task(l, 'skipped', p_error::jsonb ->> 'message');
end $$;
grant execute on function onceflow.skip_task(bigint, bigint, uuid, text, text, text, text, text, bigint) to onceflow_worker;
