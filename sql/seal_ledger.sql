-- Moves: none
-- Locks: the sealer's row (skip locked): one sealer at a time, and no role but ours can stand in its way
-- Raises: nothing
-- Races: another sealer is at work: nothing is sealed here
-- Called by: run_tick (at most every p_every_s seconds, one window), psql, onceflow doctor's advice
-- Chains windows of settled entries: every transaction below the oldest one still running has ended, so a window up to there is
-- complete for ever. Windows of a cluster lie side by side; none is skipped, a big backlog is sealed window by window.
create or replace function onceflow.seal_ledger(p_every_s double precision default 0, p_windows int default 1000, p_size int default 10000) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_cluster bigint;
    s onceflow.ledger_seal;
    v_old record;
    v_settled xid8;
    v_seals integer := 0;
    v_entries bigint := 0;
    v_count bigint;
begin
    perform from onceflow.sealer for update skip locked;
    if not found then return jsonb_build_object('seals', 0, 'entries', 0, 'busy', true); end if;
    v_cluster := onceflow.note_cluster();
    select * into s from onceflow.ledger_seal order by no desc limit 1;
    if s.sealed_at > clock_timestamp() - make_interval(secs => p_every_s) and s.entries < p_size then
        return jsonb_build_object('seals', 0, 'entries', 0);
    end if;
    v_settled := pg_snapshot_xmin(pg_current_snapshot());
    -- Restored or moved: what other clusters had left unsealed is sealed first, then this one begins visibly with a seal of its own.
    if s.cluster is distinct from v_cluster then
        for v_old in
            select e.cluster, max(e.xid) as last_xid from onceflow.step_ledger e
            where e.cluster <> v_cluster and e.xid >= onceflow.sealed_to(e.cluster) group by e.cluster order by e.cluster
        loop
            loop
                v_count := onceflow.seal_window(v_old.cluster, (v_old.last_xid::text::bigint + 1)::text::xid8, p_size, false);
                exit when v_count = 0;
                v_seals := v_seals + 1;
                v_entries := v_entries + v_count;
            end loop;
        end loop;
        if s.cluster is not null or v_seals > 0 then
            v_count := onceflow.seal_window(v_cluster, v_settled, p_size, true);
            v_seals := v_seals + 1;
            v_entries := v_entries + v_count;
        end if;
    end if;
    for i in 1 .. p_windows loop
        v_count := onceflow.seal_window(v_cluster, v_settled, p_size, false);
        exit when v_count = 0;
        v_seals := v_seals + 1;
        v_entries := v_entries + v_count;
    end loop;
    return jsonb_build_object('seals', v_seals, 'entries', v_entries);
end $$;

-- Up to which xid (without it) a cluster's entries are sealed.
create or replace function onceflow.sealed_to(p_cluster bigint) returns xid8
language sql stable as $$
    select coalesce((select s.xid_to from onceflow.ledger_seal s where s.cluster = p_cluster order by s.xid_to desc limit 1), '0')
$$;

-- Seals the next window of a cluster, at most p_size entries (more only when one transaction wrote more), and answers how many.
create or replace function onceflow.seal_window(p_cluster bigint, p_settled xid8, p_size int, p_even_empty boolean) returns bigint
language plpgsql as $$
declare
    s onceflow.ledger_seal;
    v_first xid8;
    v_cut xid8;
    v_previous bytea;
begin
    s.cluster := p_cluster;
    s.xid_from := onceflow.sealed_to(p_cluster);
    s.xid_to := p_settled;
    -- Later than every transaction, and every subtransaction of one, that has ended: what is sealed was not written after it.
    s.xid_next := pg_snapshot_xmax(pg_current_snapshot());
    select xid into v_first from onceflow.step_ledger
    where cluster = p_cluster and xid >= s.xid_from and xid < s.xid_to order by xid limit 1;
    if not found and not p_even_empty then return 0; end if;
    select xid into v_cut from onceflow.step_ledger
    where cluster = p_cluster and xid >= s.xid_from and xid < s.xid_to order by xid offset p_size limit 1;
    if v_cut is not null then
        s.xid_to := case when v_cut = v_first then (v_first::text::bigint + 1)::text::xid8 else v_cut end;
    end if;
    select count(*), sha256(coalesce(string_agg(hash, ''::bytea order by xid, id), '')) into s.entries, s.root from onceflow.step_ledger
    where cluster = p_cluster and xid >= s.xid_from and xid < s.xid_to;
    select no, hash into s.no, v_previous from onceflow.ledger_seal order by no desc limit 1;
    s.no := coalesce(s.no, 0) + 1;
    s.sealed_at := clock_timestamp();
    s.hash := onceflow.seal_hash(s, v_previous);
    insert into onceflow.ledger_seal select s.*;
    update onceflow.sealer set last_seal = s.no;
    return s.entries;
end $$;

-- sha256 over every field of a seal and the hash of the seal before it (v1), each length-prefixed as in entry_hash.
create or replace function onceflow.seal_hash(s onceflow.ledger_seal, p_previous bytea) returns bytea
language plpgsql immutable parallel safe as $$
declare
    v_at text := ((extract(epoch from s.sealed_at) * 1000000)::bigint)::text;
begin
    return sha256(convert_to(concat('v1', length(s.no::text) || ':' || s.no, length(s.xid_from::text) || ':' || s.xid_from,
        length(s.xid_to::text) || ':' || s.xid_to, length(s.xid_next::text) || ':' || s.xid_next, length(s.cluster::text) || ':' || s.cluster,
        length(s.entries::text) || ':' || s.entries, '64:' || encode(s.root, 'hex'), length(v_at) || ':' || v_at,
        coalesce('64:' || encode(p_previous, 'hex'), '~')), 'UTF8'));
end $$;
grant execute on function onceflow.seal_ledger(double precision, int, int) to onceflow_worker, onceflow_operator;
grant execute on function onceflow.seal_hash(onceflow.ledger_seal, bytea) to onceflow_auditor, onceflow_operator;
