-- Moves: none
-- Locks: none
-- Raises: nothing
-- Called by: verify_ledger
-- Each seal holds the hash of what it says and of the seal before it; a cluster's windows lie side by side; none is missing, the last one neither.
create or replace function onceflow.verify_seals(p_run bigint)
returns table (problem text, dag_id text, run_id text, step_key text, entry bigint, detail text)
language sql stable as $$
    select 'broken seal', null::text, null::text, null::text, null::bigint,
        case when not c.is_true then format('seal %s: its hash is not that of its fields and of the seal before it', c.no)
            when c.no <> c.last_no + 1 then format('seal %s follows seal %s: those between are gone', c.no, c.last_no)
            else format('seal %s begins at transaction %s, the one before it ends at %s', c.no, c.xid_from, c.last_to) end
    from (
        select s.no, s.xid_from, coalesce(lag(s.no) over (order by s.no), 0) as last_no,
            coalesce(lag(s.xid_to) over (partition by s.cluster order by s.no), '0') as last_to,
            s.hash = onceflow.seal_hash(s, lag(s.hash) over (order by s.no)) as is_true
        from onceflow.ledger_seal s where p_run is null) c
    where not c.is_true or c.no <> c.last_no + 1 or c.xid_from <> c.last_to
    union all
    select 'broken seal', null, null, null, null, format('the last seal is %s, but %s were made', coalesce(max(s.no), 0), e.last_seal)
    from onceflow.sealer e left join onceflow.ledger_seal s on true where p_run is null
    group by e.last_seal having coalesce(max(s.no), 0) <> e.last_seal
$$;

-- Each sealed window holds as many entries as were sealed, with the same hashes. Of one run: the windows that its entries lie in.
create or replace function onceflow.verify_windows(p_run bigint)
returns table (problem text, dag_id text, run_id text, step_key text, entry bigint, detail text)
language plpgsql stable as $$
declare
    v_ledger text := onceflow.whole_table('step_ledger', 't.id, t.dag_run, t.dag_id, t.run_id, t.step_key, t.xid, t.cluster, t.hash');
    v_window text := '(select s.no from onceflow.ledger_seal s where s.cluster = e.cluster and s.xid_to > e.xid order by s.xid_to limit 1)';
    v_placed text;
begin
    v_placed := case when p_run is null then format('select %s as no, e.* from %s e', v_window, v_ledger)
        else format($q$select s.no, e.* from (select distinct %s as no from %s e where e.dag_run = $1) w join onceflow.ledger_seal s on s.no = w.no
            join %2$s e on e.cluster = s.cluster and e.xid >= s.xid_from and e.xid < s.xid_to$q$, v_window, v_ledger) end;
    return query execute format($q$
        with placed as materialized (%s),
        summed as (
            select p.no, count(*) as n, sha256(string_agg(p.hash, ''::bytea order by p.xid, p.id)) as root from placed p where p.no is not null group by p.no)
        select case when coalesce(w.n, 0) < s.entries then 'removed entry' when w.n > s.entries then 'added entry' else 'changed entry' end,
            null::text, null::text, null::text, null::bigint,
            format('seal %%s (transactions %%s to %%s) was made over %%s entries; there are %%s%%s', s.no, s.xid_from, s.xid_to, s.entries, coalesce(w.n, 0),
                case when w.n = s.entries then ' with other hashes' end)
        from onceflow.ledger_seal s left join summed w on w.no = s.no
        where ($1 is null or w.no is not null) and (s.entries <> coalesce(w.n, 0) or s.root <> coalesce(w.root, sha256('')))
        union all
        select 'added entry', p.dag_id::text, p.run_id::text, p.step_key, p.id, 'it names another cluster, all of whose entries were sealed before'
        from placed p where p.no is null and p.cluster <> $2 and exists (select from onceflow.ledger_seal s where s.cluster = $2)$q$, v_placed)
    using p_run, onceflow.this_cluster();
end $$;
