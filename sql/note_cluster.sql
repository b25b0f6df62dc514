-- Moves: none
-- Locks: the engine's row, when the database has moved or its server was started anew
-- Raises: nothing
-- Called by: register_worker, seal_ledger. Notes where the database lives now: xids of two places must never be compared.
create or replace function onceflow.note_cluster() returns bigint
language plpgsql as $$
declare
    v_cluster bigint;
begin
    select cluster into v_cluster from onceflow.engine where server_start = pg_postmaster_start_time() and ledger = 'onceflow.step_ledger'::regclass;
    if found then return v_cluster; end if;
    v_cluster := onceflow.find_cluster();
    update onceflow.engine set cluster = v_cluster, ledger = 'onceflow.step_ledger'::regclass, server_start = pg_postmaster_start_time(),
        first_xid = case when cluster = v_cluster then first_xid else pg_current_xact_id() end;
    return v_cluster;
end $$;

-- The name of the place in which xids count. Another server has another identifier; a restore makes another ledger table.
create or replace function onceflow.find_cluster() returns bigint
language sql stable set search_path = pg_catalog, pg_temp as $$
    select system_identifier # 'onceflow.step_ledger'::regclass::oid::bigint from pg_control_system()
$$;

-- The same, without a look into the control file when the one noted still holds.
create or replace function onceflow.this_cluster() returns bigint
language sql stable set search_path = pg_catalog, pg_temp as $$
    select case when server_start = pg_postmaster_start_time() and ledger = 'onceflow.step_ledger'::regclass then cluster else onceflow.find_cluster() end
    from onceflow.engine
$$;
grant execute on function onceflow.find_cluster(), onceflow.this_cluster() to onceflow_auditor, onceflow_operator;
