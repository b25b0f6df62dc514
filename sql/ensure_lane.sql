-- Moves: none
-- Locks: a new lane's row
-- Raises: nothing
-- Called by: start_run, register_worker, stop_run, save_plan
create or replace function onceflow.ensure_lane(
    p_queue text, p_dag_id text, p_version text, p_pool text default null, p_pool_slots int default 1, p_task_id text default null)
returns int
language plpgsql as $$
declare
    v_lane int;
begin
    loop
        select id into v_lane from onceflow.lane
        where queue = p_queue and dag_id = p_dag_id and version is not distinct from p_version and pool is not distinct from p_pool
          and pool_slots = p_pool_slots and task_id is not distinct from p_task_id;
        if found then return v_lane; end if;
        insert into onceflow.lane (queue, dag_id, version, pool, pool_slots, task_id) values (p_queue, p_dag_id, p_version, p_pool, p_pool_slots, p_task_id)
        on conflict do nothing;
    end loop;
end $$;
