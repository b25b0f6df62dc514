-- Moves: none
-- Locks: none
-- Raises: OF008 not a table whose rows have a ctid
-- Called by: auditors: select w.* from payments p, onceflow.who_wrote(p.tableoid, p.ctid) w
-- Runs with the caller's rights, on the table and on the ledger. Always answers at least one row for a row that is there; how says why:
--   exact           the row was written by the transaction that the entry names
--   group           the same, but that transaction recorded several steps: it was one of these
--   subtransaction  written under a savepoint of the step: both ids committed at the same moment, and no other recorded transaction did
--   tracked         track(table) recorded the write
--   unknown         none of these; with at and xid when track(table) recorded a write outside of any step
create or replace function onceflow.who_wrote(p_table regclass, p_ctid tid)
returns table (dag_id text, run_id text, task_id text, map_index int, step_key text, step_name text, try_number int, at timestamptz,
    worker bigint, host text, code_version text, xid xid8, how text)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    v_xmin xid;
    v_key jsonb;
    v_cluster bigint := onceflow.this_cluster();
    v_xid xid8;
    w onceflow.tracked_write;
begin
    select r.row_xmin, r.row_key into v_xmin, v_key from onceflow.read_row(p_table, p_ctid) r;
    if not found then return; end if;
    v_xid := onceflow.row_xid(p_table, v_xmin);
    if v_key is not null then w := onceflow.find_tracked(p_table, v_key, v_cluster); end if;
    -- The trail knows more than the row's xmin, and the transaction of both is one: then it names the step even in a group.
    if w.xid = v_xid and w.cluster = v_cluster then
        return query select * from onceflow.list_writers(w.xid, w.cluster, w.dag_run, w.ti, w.step_key, 'tracked');
        if found then return; end if;
    end if;
    return query select * from onceflow.list_writers(v_xid, v_cluster, null, null, null, 'exact');
    if found then return; end if;
    if w.id is not null then
        return query select * from onceflow.list_writers(w.xid, w.cluster, w.dag_run, w.ti, w.step_key, 'tracked');
    else
        return query select * from onceflow.list_writers(onceflow.find_parent_xid(v_xid, v_cluster), v_cluster, null, null, null, 'subtransaction');
    end if;
    if found then return; end if;
    at := w.at;
    xid := w.xid;
    how := 'unknown';
    return next;
end $$;

-- A row's xmin, and the values of its primary key when its table is tracked. With settings that make texts of values the same for everybody.
create or replace function onceflow.read_row(p_table regclass, p_ctid tid) returns table (row_xmin xid, row_key jsonb)
language plpgsql stable set search_path = pg_catalog, pg_temp
set timezone = 'UTC' set datestyle = 'ISO, MDY' set intervalstyle = 'postgres' set bytea_output = 'hex' set extra_float_digits = 1 as $$
declare
    v_columns text;
begin
    if not exists (select from pg_class where oid = p_table and relkind in ('r', 'm', 't')) then
        perform onceflow.raise_error('OF008', format('who_wrote(%s): only a table''s own rows have a ctid; '
            'pass the row''s tableoid: who_wrote(t.tableoid, t.ctid)', p_table));
    end if;
    if exists (select from pg_trigger where tgrelid = p_table and tgname = 'onceflow_track') then
        v_columns := onceflow.key_columns(p_table, 't.');
    end if;
    return query execute format('select t.xmin, %s from only %s t where t.ctid = $1', coalesce('to_jsonb(array[' || v_columns || '])', 'null::jsonb'), p_table)
    using p_ctid;
end $$;

-- The full id of the transaction that wrote a row; null where it cannot be told. In a cluster that has used up its 2^32 ids, a frozen row may
-- carry the same 32 bits from a round before; only a table made since the ledger was is known to hold no row so old.
create or replace function onceflow.row_xid(p_table regclass, p_xmin xid) returns xid8
language sql stable set search_path = pg_catalog, pg_temp as $$
    select case when x.whole < 4294967296 + 3
            or x.whole - 4294967296 < e.first_xid::text::bigint - 2147483648 and p_table::oid > e.ledger then x.whole::text::xid8 end
    from onceflow.whole_xid(p_xmin) x(whole), onceflow.engine e
$$;

-- The entries of steps that a transaction recorded: of steps that write, else the act of a human; of one step, when it is known.
create or replace function onceflow.list_writers(p_xid xid8, p_cluster bigint, p_run bigint, p_ti bigint, p_key text, p_how text)
returns table (dag_id text, run_id text, task_id text, map_index int, step_key text, step_name text, try_number int, at timestamptz,
    worker bigint, host text, code_version text, xid xid8, how text)
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    v_query text := $q$
        select x.dag_id::text, x.run_id::text, x.task_id::text, x.map_index, x.step_key, x.step_name, x.try_number, x.at, x.worker, x.host,
            x.code_version, x.xid, case when count(*) over () > 1 then 'group' else $6 end
        from (
            select e.*, dense_rank() over (order by e.kind = 'human') as choice from onceflow.step_ledger e
            where e.xid = $1 and e.cluster = $2 and ($3 is null or e.dag_run = $3 and e.ti = $4 and e.step_key = $5)
              and (e.kind in ('transactional', 'sql', 'external') and e.to_state = 'success' or e.kind = 'human')) x
        where x.choice = 1 order by x.id$q$;
begin
    if p_xid is null then return; end if;
    return query execute v_query using p_xid, p_cluster, p_run, p_ti, p_key, p_how;
    if not found and onceflow.is_archived('step_ledger') then
        return query execute replace(v_query, 'onceflow.step_ledger', 'onceflow_archive.step_ledger') using p_xid, p_cluster, p_run, p_ti, p_key, p_how;
    end if;
end $$;

-- The recorded transaction whose subtransaction p_xid was. The ids of one transaction commit at one moment, the parent's is the lowest; so of the
-- 2,000 recorded transactions before it exactly one may have that moment.
create or replace function onceflow.find_parent_xid(p_xid xid8, p_cluster bigint) returns xid8
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    v_moment timestamptz;
    v_found xid8[];
begin
    if current_setting('track_commit_timestamp') <> 'on' then return null; end if;
    v_moment := pg_xact_commit_timestamp(p_xid::xid);
    if v_moment is null then return null; end if;
    execute format($q$
        select array_agg(distinct w.xid) from (
            select e.xid from %s e where e.xid < $1 and e.xid > greatest($1::text::bigint - 2147483648, 0)::text::xid8 and e.cluster = $2
            order by e.xid desc limit 2000) w
        where pg_xact_commit_timestamp(w.xid::xid) = $3$q$, onceflow.whole_table('step_ledger', 't.xid, t.cluster')) into v_found
    using p_xid, p_cluster, v_moment;
    return case when cardinality(v_found) = 1 then v_found[1] end;
end $$;
grant execute on function onceflow.who_wrote(regclass, tid), onceflow.read_row(regclass, tid), onceflow.row_xid(regclass, xid), onceflow.whole_xid(xid),
    onceflow.whole_table(text, text), onceflow.is_archived(text), onceflow.find_parent_xid(xid8, bigint),
    onceflow.list_writers(xid8, bigint, bigint, bigint, text, text)
    to onceflow_auditor, onceflow_operator;
