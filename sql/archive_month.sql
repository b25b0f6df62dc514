-- Moves: none
-- Locks: step_ledger, ti, run: access exclusive, for the moment of the detach
-- Raises: OF005 something that lives needs the month; OF008 no such month, or too young; 55P03 when it would make others wait longer than 300 ms
-- Called by: onceflow db archive
-- Moves one month of ended runs into schema onceflow_archive, whole partitions at once, in one transaction. Its tables there are children of
-- onceflow_archive.run, .ti and .step_ledger, so one query reads all archived months; a migration that alters the live tables alters those too.
create or replace function onceflow.archive_month(p_month text, p_days int) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '300ms' as $$
declare
    v_why text;
    v_table text;
    v_name text;
    v_runs bigint;
begin
    perform onceflow.make_archive();
    -- In the order in which the end of a step takes them.
    lock table onceflow.step_ledger, onceflow.ti, onceflow.run in access exclusive mode;
    if to_regclass('onceflow.run_' || p_month) is null or onceflow.month_end(p_month) > onceflow.id_at(onceflow.now() - make_interval(days => p_days)) then
        perform onceflow.raise_error('OF008', format('month %s has no partition, or holds runs younger than %s days', p_month, p_days));
    end if;
    v_why := onceflow.month_in_use(p_month);
    if v_why is not null then perform onceflow.raise_error('OF005', format('month %s stays: %s', p_month, v_why)); end if;
    execute format('select count(*) from onceflow.%I', 'run_' || p_month) into v_runs;
    foreach v_table in array array['step_ledger', 'ti', 'run'] loop
        v_name := v_table || '_' || p_month;
        execute format('alter table onceflow.%I detach partition onceflow.%I', v_table, v_name);
        execute format('alter table onceflow.%I set schema onceflow_archive', v_name);
        execute format('alter table onceflow_archive.%I inherit onceflow_archive.%I', v_name, v_table);
    end loop;
    return jsonb_build_object('month', p_month, 'runs', v_runs);
end $$;

-- The months that have ended p_days ago, oldest first, and why one of them has to stay.
create or replace function onceflow.list_old_months(p_days int) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_before bigint := onceflow.id_at(onceflow.now() - make_interval(days => p_days));
    v_month text;
    v_out jsonb := '[]';
begin
    for v_month in
        select substr(c.relname, 5) from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'onceflow.run'::regclass and c.relname ~ '^run_\d{6}$'
          and onceflow.month_end(substr(c.relname, 5)) <= v_before
        order by 1
    loop
        v_out := v_out || jsonb_build_object('month', v_month, 'in_use', onceflow.month_in_use(v_month));
    end loop;
    return v_out;
end $$;

-- The first id after a month (YYYYMM).
create or replace function onceflow.month_end(p_month text) returns bigint
language sql immutable set search_path = pg_catalog, pg_temp as $$
    select onceflow.id_at(make_timestamp(left(p_month, 4)::int, right(p_month, 2)::int, 1, 0, 0, 0) at time zone 'UTC' + interval '1 month')
$$;

-- What still needs a month: a run of it that lives, or a living run that may ask for one of its runs again. Null = nothing.
create or replace function onceflow.month_in_use(p_month text) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    v_why text;
begin
    execute format($q$
        select coalesce(
            (select format('run %%s of %%s is %%s', run_id, dag_id, coalesce(state, 'alive')) from onceflow.%1$I where state is null or state = 'needs_code' limit 1),
            (select format('run %%s of %%s, which lives, started run %%s', p.run_id, p.dag_id, c.run_id) from onceflow.%1$I c join onceflow.run p on p.id = c.parent_run
             where p.state is null or p.state = 'needs_code' limit 1),
            (select format('a body waits for run %%s of %%s', c.run_id, c.dag_id) from onceflow.wait w join onceflow.%1$I c on c.id = w.target_run limit 1))$q$,
        'run_' || p_month) into v_why;
    return v_why;
end $$;

create or replace function onceflow.make_archive() returns void
language plpgsql as $$
declare
    v_table text;
begin
    if to_regclass('onceflow_archive.step_ledger') is not null then return; end if;
    if to_regnamespace('onceflow_archive') is null then   -- migrate made it, unless an administrator had made schema onceflow before
        create schema onceflow_archive;
    end if;
    foreach v_table in array array['run', 'ti', 'step_ledger'] loop
        execute format('create table onceflow_archive.%I (like onceflow.%I)', v_table, v_table);
        execute format('grant select on onceflow_archive.%I to onceflow_auditor, onceflow_operator', v_table);
    end loop;
    grant usage on schema onceflow_archive to onceflow_auditor, onceflow_operator;
end $$;
grant execute on function onceflow.archive_month(text, int), onceflow.list_old_months(int) to onceflow_operator;
