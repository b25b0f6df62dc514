-- Moves: running -> queued (leases the worker does not know of, through unclaim_tasks)
-- Run: running -> queued, running -> running
-- Locks: the worker's row, then leases
-- Raises: nothing
-- Races: a lease that is ending or being written for is passed over
-- Called by: the worker's heartbeat thread. p_tis, p_tokens: what it holds (a token may be new since); p_claim: the last claim whose reply it has seen.
-- Answers the tokens it no longer owns (cancelled, rescued). A lease of a later claim is still on its way to the worker.
create or replace function onceflow.heartbeat(p_worker bigint, p_tis bigint[], p_tokens uuid[], p_claim bigint) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    v_now timestamptz := onceflow.now();
    v_unknown uuid[];
    v_revoked uuid[];
begin
    update onceflow.worker set heartbeat_at = v_now where id = p_worker and ended_at is null;
    select array_agg(token) into v_unknown from onceflow.lease where worker = p_worker and claim <= p_claim and not ti = any(p_tis);
    if v_unknown is not null then perform onceflow.unclaim_tasks(p_worker, v_unknown); end if;
    select array_agg(t) into v_revoked from unnest(p_tokens) t
    where not exists (select from onceflow.lease l where l.worker = p_worker and l.token = t);
    return jsonb_build_object('revoked', coalesce(to_jsonb(v_revoked), '[]'), 'unclaimed', coalesce(cardinality(v_unknown), 0),
        'lanes', to_jsonb(onceflow.list_lanes(p_worker)));
end $$;

-- Moves: running -> queued
-- Run: running -> queued, running -> running
-- Locks: leases, then the worker's row
-- Raises: nothing
-- Races: a lease that is ending or being written for is passed over
-- Called by: worker when it has drained. It ends in good order: nothing of it needs a rescue.
create or replace function onceflow.end_worker(p_worker bigint) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
begin
    perform onceflow.unclaim_tasks(p_worker, (select array_agg(token) from onceflow.lease where worker = p_worker));
    update onceflow.worker set ended_at = onceflow.now() where id = p_worker;
end $$;
grant execute on function onceflow.heartbeat(bigint, bigint[], uuid[], bigint), onceflow.end_worker(bigint) to onceflow_worker;
