-- Moves: none
-- Locks: the lease
-- Raises: OF001 lease lost; OF007 recorded already
-- Called by: now() and sleep() in a body: the moment comes from the one clock, and is recorded before anybody acts on it
create or replace function onceflow.record_time(
    p_run bigint, p_ti bigint, p_token uuid, p_key text, p_name text, p_inputs text, p_inputs_hash text, p_after_s double precision) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    v_at jsonb := to_jsonb(to_char((onceflow.now() + make_interval(secs => p_after_s)) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'));
begin
    perform onceflow.complete_step(p_run, p_ti, p_token, p_key, p_name, 'engine', 1, p_inputs, p_inputs_hash, v_at::text, 0);
    return v_at;
end $$;
grant execute on function onceflow.record_time(bigint, bigint, uuid, text, text, text, text, double precision) to onceflow_worker;
