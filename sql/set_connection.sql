-- Moves: none
-- Locks: the connection
-- Raises: OF008 a bad name or field
-- Called by: onceflow connections set
-- Makes a connection, or replaces it as a whole. password and extra are encrypted already: {conn_type, host, schema, login, password, port, extra, description}.
create or replace function onceflow.set_connection(p_conn_id text, p_fields text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_fields jsonb := p_fields::jsonb;
begin
    if coalesce(length(p_conn_id), 0) not between 1 and 250 or coalesce(v_fields ->> 'conn_type', '') = '' then
        perform onceflow.raise_error('OF008', 'a connection has a name of 1 to 250 characters and a type, such as postgresql or http');
    end if;
    insert into onceflow.connection (conn_id, conn_type, host, schema, login, password, port, extra, description)
    values (p_conn_id, v_fields ->> 'conn_type', v_fields ->> 'host', v_fields ->> 'schema', v_fields ->> 'login', v_fields ->> 'password',
        (v_fields ->> 'port')::int, nullif(v_fields -> 'extra', 'null'), v_fields ->> 'description')
    on conflict (conn_id) do update set conn_type = excluded.conn_type, host = excluded.host, schema = excluded.schema, login = excluded.login,
        password = excluded.password, port = excluded.port, extra = excluded.extra, description = coalesce(excluded.description, connection.description);
end $$;

-- Moves: none
-- Locks: the connection
-- Raises: OF004 no such connection
-- Called by: onceflow connections delete, psql
create or replace function onceflow.delete_connection(p_conn_id text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    delete from onceflow.connection where conn_id = p_conn_id;
    if not found then perform onceflow.raise_error('OF004', format('there is no connection %s', p_conn_id)); end if;
end $$;
grant execute on function onceflow.set_connection(text, text), onceflow.delete_connection(text) to onceflow_operator;
-- Everything but what is secret: who sets connections cannot read others'.
grant select (id, conn_id, conn_type, host, schema, login, port, description) on onceflow.connection to onceflow_auditor, onceflow_operator;
