-- The roles of Onceflow. Run as the login user on every migrate, before everything else; safe to repeat.
-- Roles belong to the whole cluster, so another database may have made them already, or be making them right now.
-- No role here has a password: an administrator who lets onceflow_step log in over a network sets one.

do $$
declare
    v_role text;
begin
    foreach v_role in array array['onceflow_owner', 'onceflow_worker', 'onceflow_step', 'onceflow_auditor', 'onceflow_operator'] loop
        if not exists (select from pg_catalog.pg_roles where rolname = v_role) then
            begin
                execute pg_catalog.format('create role %I %s', v_role, case v_role when 'onceflow_step' then 'login' else 'nologin' end);
            exception when unique_violation or duplicate_object then
                raise notice 'role % was made by another migrate just now', v_role;
            end;
        end if;
    end loop;
end
$$;

-- The login must be able to become the owner. From PostgreSQL 16 on, making a role gives ADMIN OPTION but not SET.
do $$
declare
    v_can_set boolean;
    v_is_16 boolean := pg_catalog.current_setting('server_version_num')::integer >= 160000;
begin
    v_can_set := pg_catalog.pg_has_role(current_user, 'onceflow_owner', case when v_is_16 then 'SET' else 'MEMBER' end);
    if not v_can_set then
        execute pg_catalog.format('grant onceflow_owner to %I %s', current_user, case when v_is_16 then 'with set true' else '' end);
    end if;
end
$$;

do $$
begin
    if not pg_catalog.has_database_privilege('onceflow_owner', pg_catalog.current_database(), 'CREATE') then
        execute pg_catalog.format('grant create on database %I to onceflow_owner', pg_catalog.current_database());
    end if;
exception when insufficient_privilege then
    raise notice 'onceflow_owner may not create schemas in this database; only its own schema is needed';
end
$$;

-- Global (no IN SCHEMA): only then does it take the built-in EXECUTE for PUBLIC away. Run as the owner itself, since the
-- login may hold the membership without INHERIT.
do $$
begin
    set local role onceflow_owner;
    alter default privileges for role onceflow_owner revoke execute on functions from public;
    set local role none;
end
$$;

-- To end the sessions of lost workers, and to see what blocks them. Without it rescue still works, by the fence alone.
do $$
declare
    v_role text;
begin
    foreach v_role in array array['pg_signal_backend', 'pg_read_all_stats'] loop
        if not pg_catalog.pg_has_role('onceflow_owner', v_role, 'MEMBER') then
            begin
                execute pg_catalog.format('grant %I to onceflow_owner', v_role);
            exception when insufficient_privilege then
                raise notice 'onceflow_owner is not a member of %: this login may not grant it', v_role;
            end;
        end if;
    end loop;
end
$$;
