-- Moves: none
-- Locks: the pool
-- Raises: OF008 a bad name or number
-- Called by: onceflow pools set, psql
-- Makes a pool, or resizes it live: -1 = no limit. Claims count what runs against the new size from then on; nothing that runs is stopped.
create or replace function onceflow.set_pool(pool_name text, slots int, description text default null, include_deferred boolean default null) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    p onceflow.slot_pool;
begin
    if coalesce(length(set_pool.pool_name), 0) not between 1 and 250 or set_pool.slots is null or set_pool.slots < -1 then
        perform onceflow.raise_error('OF008', 'a pool has a name of 1 to 250 characters and 0 or more slots, or -1 for no limit');
    end if;
    insert into onceflow.slot_pool as k (pool_name, slots, description, include_deferred)
    values (set_pool.pool_name, set_pool.slots, set_pool.description, coalesce(set_pool.include_deferred, false))
    on conflict (pool_name) do update set slots = excluded.slots, description = coalesce(excluded.description, k.description),
        include_deferred = coalesce(set_pool.include_deferred, k.include_deferred)
    returning * into p;
    perform pg_notify('onceflow_ready', '');
    return to_jsonb(p);
end $$;

-- Moves: none
-- Locks: the pool
-- Raises: OF004 no such pool; OF005 a dag's tasks use it, or it is the default
-- Called by: onceflow pools delete, psql
create or replace function onceflow.delete_pool(pool_name text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    v_user text;
begin
    select format('task %s of dag %s', k.task_id, d.dag_id) into v_user from onceflow.dag d join onceflow.dag_task k on k.version = d.version
    where k.pool = delete_pool.pool_name and d.is_active limit 1;
    if v_user is not null or delete_pool.pool_name = 'default_pool' then
        perform onceflow.raise_error('OF005', format('pool %s is used by %s; give its tasks another pool first', delete_pool.pool_name,
            coalesce(v_user, 'all tasks that name no pool')));
    end if;
    delete from onceflow.slot_pool p where p.pool_name = delete_pool.pool_name;
    if not found then perform onceflow.raise_error('OF004', format('there is no pool %s', delete_pool.pool_name)); end if;
end $$;
grant execute on function onceflow.set_pool(text, int, text, boolean), onceflow.delete_pool(text) to onceflow_operator;
