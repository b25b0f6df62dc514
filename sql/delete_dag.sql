-- Moves: none
-- Locks: the dag
-- Raises: OF004 no such dag; OF005 its file is still there, or a run of it has not ended
-- Called by: operators, once a dag's file is gone for good. Runs and the ledger stay; so do its versions, by which its runs went.
create or replace function onceflow.delete_dag(p_dag_id text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_dag onceflow.dag;
    v_run text;
begin
    select * into v_dag from onceflow.dag where dag_id = p_dag_id for update;
    if not found then perform onceflow.raise_error('OF004', format('there is no dag %s', p_dag_id)); end if;
    if v_dag.is_active then
        perform onceflow.raise_error('OF005', format('dag %s is still declared in %s; remove it there first, or a scheduler would bring it back', p_dag_id, v_dag.fileloc));
    end if;
    select run_id into v_run from onceflow.run where dag_id = p_dag_id and state is null limit 1;
    if found then perform onceflow.raise_error('OF005', format('run %s of dag %s has not ended; cancel it first', v_run, p_dag_id)); end if;
    delete from onceflow.import_error where dag_id = p_dag_id;
    perform onceflow.save_datasets(p_dag_id, null);
    delete from onceflow.dag where dag_id = p_dag_id;
end $$;
grant execute on function onceflow.delete_dag(text) to onceflow_operator;
