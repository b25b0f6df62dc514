-- Moves: none
-- Locks: the variable
-- Raises: OF008 a bad name
-- Called by: onceflow variables set, psql (what is not secret)
-- Makes a variable, or replaces its value. p_is_encrypted: the value is a Fernet token.
create or replace function onceflow.set_variable(p_key text, p_val text, p_is_encrypted boolean default false, p_description text default null) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if coalesce(length(p_key), 0) not between 1 and 250 or p_val is null or p_is_encrypted is null then
        perform onceflow.raise_error('OF008', 'a variable has a name of 1 to 250 characters and a value');
    end if;
    insert into onceflow.variable (key, val, is_encrypted, description) values (p_key, p_val, p_is_encrypted, p_description)
    on conflict (key) do update set val = excluded.val, is_encrypted = excluded.is_encrypted, description = coalesce(excluded.description, variable.description);
end $$;

-- Moves: none
-- Locks: the variable
-- Raises: OF004 no such variable
-- Called by: onceflow variables delete, psql
create or replace function onceflow.delete_variable(p_key text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    delete from onceflow.variable where key = p_key;
    if not found then perform onceflow.raise_error('OF004', format('there is no variable %s', p_key)); end if;
end $$;

-- Moves: none
-- Locks: none
-- Raises: nothing
-- Called by: onceflow variables list|get: the values of those that are not secret
create or replace function onceflow.list_variables() returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(jsonb_agg(jsonb_build_object('key', v.key, 'val', case when not v.is_encrypted then v.val end, 'is_encrypted', v.is_encrypted,
        'description', v.description) order by v.key), '[]') from onceflow.variable v
$$;
grant execute on function onceflow.set_variable(text, text, boolean, text), onceflow.delete_variable(text) to onceflow_operator;
grant execute on function onceflow.list_variables() to onceflow_auditor, onceflow_operator;
grant select (id, key, is_encrypted, description) on onceflow.variable to onceflow_auditor, onceflow_operator;
