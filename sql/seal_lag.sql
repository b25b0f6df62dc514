-- Moves: none
-- Locks: none
-- Raises: nothing
-- Called by: auditors, onceflow doctor: how many entries no seal covers yet, how old the oldest is, and what the sealer waits for
create or replace function onceflow.seal_lag() returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    with open as (
        select e.xid, e.at from onceflow.step_ledger e where e.cluster = onceflow.this_cluster() and e.xid >= onceflow.sealed_to(onceflow.this_cluster())
    ), held as (
        -- The oldest transaction that still runs, in any database of the server, when it holds the oldest open entry back.
        select a.pid, a.datname, a.usename, a.application_name, a.xact_start from pg_stat_activity a
        where a.backend_xid is not null and (select min(o.xid::text::bigint) from open o) >= pg_snapshot_xmin(pg_current_snapshot())::text::bigint
        order by age(a.backend_xid) desc limit 1)
    select jsonb_build_object('unsealed', count(*), 'oldest_at', min(o.at), 'lag_s', extract(epoch from clock_timestamp() - min(o.at)),
        'last_seal', (select to_jsonb(s) - 'root' || jsonb_build_object('hash', encode(s.hash, 'hex')) from onceflow.ledger_seal s order by s.no desc limit 1),
        'held_by', (select to_jsonb(h) from held h))
    from open o
$$;
grant execute on function onceflow.seal_lag() to onceflow_worker, onceflow_auditor, onceflow_operator;
