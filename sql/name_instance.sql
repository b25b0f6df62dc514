-- Moves: none
-- Locks: the ti
-- Raises: OF001 the lease is gone or another's
-- Called by: run_dag_task on the engine's connection, for a mapped task with a map_index_template: before it runs, or when its function has ended
-- The instance's name for people, beside its index.
create or replace function onceflow.name_instance(p_run bigint, p_ti bigint, p_token uuid, p_name text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
begin
    perform from onceflow.lease where ti = p_ti and run = p_run and token = p_token;
    if not found then perform onceflow.raise_lease_lost(p_run, p_ti); end if;
    update onceflow.ti set rendered_map_index = left(p_name, 250) where run = p_run and id = p_ti and rendered_map_index is distinct from left(p_name, 250);
end $$;
grant execute on function onceflow.name_instance(bigint, bigint, uuid, text) to onceflow_worker;
