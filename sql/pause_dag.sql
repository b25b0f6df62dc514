-- Moves: none
-- Locks: the dag
-- Raises: OF004 no such dag
-- Called by: Client.pause, Client.unpause, onceflow dags pause|unpause, psql
-- Of a paused dag or workflow nothing new is scheduled, begun or claimed; what runs goes on. Unpaused, a dag with catchup gets every run it missed, without
-- catchup the latest. Answers whether it was otherwise before.
create or replace function onceflow.pause_dag(p_dag_id text, p_is_paused boolean) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_was boolean;
begin
    select is_paused into v_was from onceflow.dag where dag_id = p_dag_id for update;
    if not found then perform onceflow.raise_error('OF004', format('there is no workflow or dag named %s', p_dag_id)); end if;
    update onceflow.dag set is_paused = p_is_paused where dag_id = p_dag_id and is_paused <> p_is_paused;
    if v_was and not p_is_paused then perform pg_notify('onceflow_ready', ''); end if;
    return v_was <> p_is_paused;
end $$;
grant execute on function onceflow.pause_dag(text, boolean) to onceflow_worker, onceflow_operator;
