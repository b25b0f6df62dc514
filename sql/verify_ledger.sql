-- Moves: none
-- Locks: none
-- Raises: nothing
-- Called by: auditors, onceflow ledger verify, tests. No row = nothing is wrong with the ledger, or with that of one run.
-- One snapshot for all of it (stable functions share that of the calling query), so it may run while the engine works.
create or replace function onceflow.verify_ledger(p_run bigint default null)
returns table (problem text, dag_id text, run_id text, step_key text, entry bigint, detail text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    return query select * from onceflow.verify_entries(p_run);
    return query select * from onceflow.verify_counts(p_run);
    return query select * from onceflow.verify_outcomes(p_run);
    return query select * from onceflow.verify_windows(p_run);
    return query select * from onceflow.verify_seals(p_run);
end $$;

-- A table of the engine with its archived months, as a FROM item.
create or replace function onceflow.whole_table(p_name text, p_columns text) returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
    select format('(select %2$s from onceflow.%1$I t%3$s)', p_name, p_columns,
        case when onceflow.is_archived(p_name) then format(' union all select %2$s from onceflow_archive.%1$I t', p_name, p_columns) else '' end)
$$;

-- Is there an archive of that table? (to_regclass would fail for who may not look into its schema.)
create or replace function onceflow.is_archived(p_name text) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
    select exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = 'onceflow_archive' and c.relname = p_name)
$$;

-- Each entry by itself: its hash is that of its fields, and the transaction that it names is the one that wrote its row.
create or replace function onceflow.verify_entries(p_run bigint)
returns table (problem text, dag_id text, run_id text, step_key text, entry bigint, detail text)
language plpgsql stable as $$
begin
    return query execute format($q$
        select case when not e.is_true then 'changed entry' else 'rewritten entry' end, e.dag_id::text, e.run_id::text, e.step_key, e.id,
            case when not e.is_true then 'its hash is not that of its fields'
                else format('transaction %%s wrote this row, not transaction %%s, which the entry names', e.row_xmin, e.xid) end
        from %s e
        where ($1 is null or e.dag_run = $1)
          and (not e.is_true or (e.row_xmin <> e.xid::xid and e.cluster = $2 and not onceflow.is_subtransaction(e.row_xmin, e.xid, e.cluster)))
        order by e.id$q$, onceflow.whole_table('step_ledger', 't.*, t.xmin as row_xmin, '
            't.hash = onceflow.entry_hash(row(t.*)::onceflow.step_ledger) as is_true'))
    using p_run, onceflow.this_cluster();
end $$;

-- Was the row written under a savepoint of the entry's transaction? Then its xmin is later than its xid, and both committed at the same moment;
-- without commit timestamps: it was written before it was sealed.
create or replace function onceflow.is_subtransaction(p_xmin xid, p_xid xid8, p_cluster bigint) returns boolean
language plpgsql stable as $$
declare
    v_full bigint := onceflow.whole_xid(p_xmin);
    v_moment timestamptz;
begin
    if v_full is null or v_full <= p_xid::text::bigint then return false; end if;
    if current_setting('track_commit_timestamp') = 'on' then
        v_moment := pg_xact_commit_timestamp(p_xid::xid);
        if v_moment is not null then return v_moment is not distinct from pg_xact_commit_timestamp(p_xmin); end if;
    end if;
    return v_full < coalesce((select s.xid_next::text::bigint from onceflow.ledger_seal s where s.cluster = p_cluster and s.xid_to > p_xid
        order by s.xid_to limit 1), 9223372036854775807);
end $$;

-- The full 64 bits of a row's xmin, when it is less than 2^31 transactions away; null for the marks of ancient rows.
create or replace function onceflow.whole_xid(p_xmin xid) returns bigint
language sql stable set search_path = pg_catalog, pg_temp as $$
    select case when x >= 3 and n + d >= 3 then n + d end
    from (select x, n, (((x - n) % 4294967296) + 4294967296 + 2147483648) % 4294967296 - 2147483648 as d
          from (select p_xmin::text::bigint as x, pg_snapshot_xmax(pg_current_snapshot())::text::bigint as n) a) b
$$;

-- As many entries as were counted in the transactions that wrote them: of each task (in its row, or in its lease while it runs), and of each run's acts.
create or replace function onceflow.verify_counts(p_run bigint)
returns table (problem text, dag_id text, run_id text, step_key text, entry bigint, detail text)
language plpgsql stable as $$
begin
    return query execute format($q$
        with found as (
            select e.dag_run, e.ti, count(*) as n, min(e.id) as first_id from %1$s e where ($1 is null or e.dag_run = $1) and e.dag_run <> 0 group by 1, 2
        ), counted as (
            select t.run, t.id as ti, t.task_id::text as task_id, coalesce(l.entries, t.entries) as n from %2$s t left join onceflow.lease l on l.ti = t.id
            where $1 is null or t.run = $1
            union all select r.id, 0, null, r.acts from %3$s r where $1 is null or r.id = $1
        )
        select case when c.run is null then 'entry without task' when coalesce(f.n, 0) < c.n then 'removed entry' else 'added entry' end,
            coalesce(r.dag_id, e.dag_id)::text, coalesce(r.run_id, e.run_id)::text, coalesce(c.task_id, e.step_key), f.first_id,
            case when c.run is null then 'the run or task that it belongs to does not exist'
                when c.ti = 0 then format('the run counts %%s acts, the ledger holds %%s', c.n, coalesce(f.n, 0))
                else format('task %%s counts %%s entries, the ledger holds %%s', c.ti, c.n, coalesce(f.n, 0)) end
        from found f full join counted c on c.run = f.dag_run and c.ti = f.ti
        left join %3$s r on r.id = c.run
        left join %1$s e on c.run is null and e.dag_run = f.dag_run and e.id = f.first_id
        where coalesce(f.n, 0) <> c.n or c.run is null$q$,
        onceflow.whole_table('step_ledger', 't.id, t.dag_run, t.ti, t.dag_id, t.run_id, t.step_key'),
        onceflow.whole_table('ti', 't.id, t.run, t.task_id, t.entries'), onceflow.whole_table('run', 't.id, t.dag_id, t.run_id, t.acts'))
    using p_run;
end $$;

-- What has ended says so in the ledger: each task that did has its outcome, and each run that did has its tasks.
create or replace function onceflow.verify_outcomes(p_run bigint)
returns table (problem text, dag_id text, run_id text, step_key text, entry bigint, detail text)
language plpgsql stable as $$
begin
    return query execute format($q$
        select 'missing outcome', r.dag_id::text, r.run_id::text, t.task_id::text, null::bigint, format('task %%s is %%s, and no entry says so', t.id, t.state)
        from %2$s t join %3$s r on r.id = t.run
        where ($1 is null or t.run = $1) and t.state in ('success', 'failed') and not exists (
            select from %1$s e where e.dag_run = t.run and e.ti = t.id and e.epoch = t.epoch and e.step_key = t.task_id
                and (e.final and e.to_state = t.state or t.state = 'failed' and e.to_state = 'cancelled'))
        union all
        select 'missing task', r.dag_id::text, r.run_id::text, null, null, format('the run has %%s tasks, it had %%s', n.found, r.tis)
        from %3$s r cross join lateral (select count(*) as found from %2$s t where t.run = r.id) n
        where ($1 is null or r.id = $1) and r.state in ('success', 'failed', 'cancelled') and n.found <> r.tis$q$,
        onceflow.whole_table('step_ledger', 't.dag_run, t.ti, t.epoch, t.step_key, t.final, t.to_state'),
        onceflow.whole_table('ti', 't.id, t.run, t.task_id, t.state, t.epoch'), onceflow.whole_table('run', 't.id, t.dag_id, t.run_id, t.state, t.tis'))
    using p_run;
end $$;
grant execute on function onceflow.verify_ledger(bigint) to onceflow_worker, onceflow_auditor, onceflow_operator;
