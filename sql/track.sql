-- Moves: none
-- Locks: the table, for the moment of making the trigger
-- Raises: OF008 a table that cannot be tracked
-- Called by: the owner of a table, once: select onceflow.track('payments'). From then on each row written is recorded with the step that wrote it,
-- exactly and for ever: who_wrote answers 'tracked' after a rewrite, VACUUM FULL, dump and restore, under savepoints and in groups too.
-- To end it: drop trigger onceflow_track on payments;
create or replace function onceflow.track(p_table regclass) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    c pg_class;
begin
    select * into c from pg_class where oid = p_table;
    if c.relkind not in ('r', 'p') or c.relpersistence = 't' or c.relnamespace = 'onceflow'::regnamespace then
        perform onceflow.raise_error('OF008', format('track(%s): only a table of yours can be tracked, '
            'not a view, a temporary table or one of the engine''s', p_table));
    end if;
    if onceflow.key_columns(p_table, '') is null then
        perform onceflow.raise_error('OF008', format('track(%1$s): the table has no primary key, so a write could not be found again by its row. '
            'Give it one: alter table %1$s add primary key (...)', p_table));
    end if;
    execute format('create or replace trigger onceflow_track after insert or update or delete on %s '
        'for each row execute function onceflow.record_write()', p_table);
end $$;

-- The trigger of tracked tables. It runs with our rights, so it calls nothing of the table's owner: texts are made of the key by concat, which uses
-- the types' own output functions, never casts.
create or replace function onceflow.record_write() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
set timezone = 'UTC' set datestyle = 'ISO, MDY' set intervalstyle = 'postgres' set bytea_output = 'hex' set extra_float_digits = 1 as $$
declare
    w onceflow.tracked_write;
    v_columns text := onceflow.key_columns(tg_relid, '($1).');
    v_name text;
begin
    if tg_when <> 'AFTER' or tg_level <> 'ROW' or tg_op not in ('INSERT', 'UPDATE', 'DELETE') then
        perform onceflow.raise_error('OF008', 'record_write is the trigger that onceflow.track(table) makes; it cannot be used otherwise');
    end if;
    if v_columns is not null and tg_op = 'DELETE' then
        execute format('select to_jsonb(array[%s])', v_columns) into w.row_key using old;
    elsif v_columns is not null then
        execute format('select to_jsonb(array[%s])', v_columns) into w.row_key using new;
    end if;
    w.relation := coalesce(pg_partition_root(tg_relid), tg_relid);
    select case when e.server_start = pg_postmaster_start_time() and e.ledger = 'onceflow.step_ledger'::regclass then e.cluster
        else onceflow.find_cluster() end into w.cluster from onceflow.engine e;
    select format('%s.%s', n.nspname, c.relname) into v_name from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = w.relation;
    if not exists (select from onceflow.tracked_table t where t.cluster = w.cluster and t.relation = w.relation and t.table_name = v_name) then
        insert into onceflow.tracked_table values (w.cluster, w.relation, v_name, clock_timestamp()) on conflict do nothing;
    end if;
    select s.run, s.ti, s.step_key into w.dag_run, w.ti, w.step_key from onceflow.find_step() s;
    insert into onceflow.tracked_write (cluster, relation, row_key, op, dag_run, ti, step_key, xid, login, at)
    values (w.cluster, w.relation, w.row_key, tg_op, w.dag_run, w.ti, w.step_key, pg_current_xact_id(), session_user, clock_timestamp());
    return null;
end $$;

-- The columns of a table's primary key, as a list of concat(…) expressions; null when it has none.
create or replace function onceflow.key_columns(p_table oid, p_prefix text) returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
    select string_agg(format('concat(%s%I)', p_prefix, a.attname), ', ' order by k.n)
    from pg_index i cross join lateral unnest(i.indkey::int2[]) with ordinality k(attnum, n)
    join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
    where i.indrelid = p_table and i.indisprimary and k.n <= i.indnkeyatts
$$;

-- The last recorded write of a row: of this very table, or, when the trail came from another cluster, of the table that had this name there last.
create or replace function onceflow.find_tracked(p_table regclass, p_key jsonb, p_cluster bigint) returns onceflow.tracked_write
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    v_root oid := coalesce(pg_partition_root(p_table), p_table);
    v_name text;
    w onceflow.tracked_write;
begin
    select format('%s.%s', n.nspname, c.relname) into v_name from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = v_root;
    select t.* into w from onceflow.tracked_write t
    where hashtextextended(t.row_key::text, 0) = hashtextextended(p_key::text, 0) and t.row_key = p_key
      and case when t.cluster = p_cluster then t.relation = v_root
          else t.relation = (select k.relation from onceflow.tracked_table k where k.cluster = t.cluster and k.table_name = v_name
              order by k.since desc limit 1) end
    order by t.id desc limit 1;
    return w;
end $$;
grant execute on function onceflow.track(regclass), onceflow.record_write() to onceflow_operator;
grant execute on function onceflow.key_columns(oid, text), onceflow.find_tracked(regclass, jsonb, bigint) to onceflow_auditor, onceflow_operator;
grant select on onceflow.tracked_table, onceflow.tracked_write to onceflow_auditor, onceflow_operator;
