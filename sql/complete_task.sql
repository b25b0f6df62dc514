-- Moves: running -> success
-- Run: running -> success, running -> running (others of it live), running -> failed (a detached task has)
-- Locks: the lease, the ti, the run
-- Raises: OF001 lease lost; OF003 the step ended its own transaction
-- Called by: run_task, in the transaction of the step's own writes when the task is a transactional step
-- p_pushed: what a task of a dag pushed under keys of its own, {key: value}; what an earlier try or run of it pushed is gone.
create or replace function onceflow.complete_task(
    p_run bigint, p_ti bigint, p_token uuid, p_name text, p_kind text, p_inputs text, p_inputs_hash text, p_output text, p_elapsed_us bigint,
    p_pushed text default null)
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    l onceflow.lease;
begin
    l := onceflow.drop_lease(p_run, p_ti, p_token, concat_ws('/', p_kind, p_output, p_pushed));
    if p_kind in ('transactional', 'sql') then perform onceflow.check_step_transaction(l.token, l.task_id, p_name); end if;
    if not onceflow.write_entry(l, l.task_id, p_name, p_kind, l.try_number, 'running', 'success', true, p_inputs::jsonb, p_inputs_hash, p_output::jsonb, null,
        clock_timestamp() - p_elapsed_us * interval '1 microsecond') then
        perform onceflow.raise_error('OF007', format('task %s of run %s of %s has its outcome in the ledger already', l.task_id, l.run_id, l.dag_id));
    end if;
    if p_pushed is not null then
        delete from onceflow.pushed p where p.run = p_run and p.ti = p_ti;
        insert into onceflow.pushed (run, ti, key, value, pushed_at) select p_run, p_ti, key, value, onceflow.now() from jsonb_each(p_pushed::jsonb);
    end if;
    perform onceflow.end_task(l, 'success', null);
end $$;
grant execute on function onceflow.complete_task(bigint, bigint, uuid, text, text, text, text, text, bigint, text) to onceflow_worker, onceflow_step;
