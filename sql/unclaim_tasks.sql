-- Moves: running -> queued
-- Run: running -> queued, running -> running
-- Locks: leases, by id
-- Raises: nothing
-- Races: a lease already rescued or ended is passed over
-- Called by: worker when it drains; heartbeat for leases the worker does not know of. No try is burnt.
create or replace function onceflow.unclaim_tasks(p_worker bigint, p_tokens uuid[]) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    v_count integer;
begin
    with held as (
        select ti, token from onceflow.lease where worker = p_worker and token = any(p_tokens) order by ti for update skip locked
    ), gone as (
        delete from onceflow.lease l using held h where l.ti = h.ti and l.token = h.token returning l.run, l.ti, l.entries
    ), noted as (
        update onceflow.ti t set entries = g.entries from gone g where t.run = g.run and t.id = g.ti and t.state is null returning t.lane, t.rank, t.logical_date, t.run, t.id
    ), put as (
        insert into onceflow.ready (lane, rank, logical_date, run, ti) select lane, rank, logical_date, run, id from noted returning 1
    )
    select count(*) into v_count from put;
    return v_count;
end $$;
grant execute on function onceflow.unclaim_tasks(bigint, uuid[]) to onceflow_worker;
