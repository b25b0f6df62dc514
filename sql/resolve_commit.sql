-- Moves: none
-- Locks: the lease
-- Raises: nothing
-- Called by: run_step and run_task after a connection died around COMMIT: was it committed? Never redo blindly.
-- Waits for a transaction still in flight (it holds the lease row); reads the ledger in a LATER statement; and when nothing is
-- there, gives the lease the token p_new, so that a delayed first attempt cannot land any more, and ends that attempt's session, so
-- that no lock of it stands in the way of the next. Repeated after a lost reply of
-- its own it answers the same; with p_new = p_token it only looks. p_fence: a record of another claim means that the task is
-- another's (superseded). p_try: also a record of that try that is not final; p_is_start: also one that says started.
create or replace function onceflow.resolve_commit(
    p_run bigint, p_ti bigint, p_token uuid, p_epoch int, p_key text, p_fence bigint default null, p_try int default null,
    p_is_start boolean default false, p_new uuid default gen_random_uuid()) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    l onceflow.lease;
    e onceflow.step_ledger;
begin
    select * into l from onceflow.lease where ti = p_ti for update;
    select * into e from onceflow.step_ledger where dag_run = p_run and ti = p_ti and epoch = p_epoch and step_key = p_key and final;
    if not found and p_try is not null then
        select * into e from onceflow.step_ledger
        where dag_run = p_run and ti = p_ti and epoch = p_epoch and step_key = p_key and not final and try_number = p_try and fence = p_fence
            and (to_state = 'started') = p_is_start;
    end if;
    if e.id is not null and (p_fence is null or e.fence = p_fence) then
        return jsonb_build_object('outcome', 'committed', 'state', e.to_state, 'output', e.output::text);
    end if;
    if e.id is not null or l.token is null or l.token not in (p_token, p_new) then return jsonb_build_object('outcome', 'superseded'); end if;
    if l.token <> p_new then update onceflow.lease set token = p_new where ti = p_ti; end if;
    perform onceflow.end_sessions(onceflow.name_session(l.worker, p_ti, p_key));
    return jsonb_build_object('outcome', 'not_committed', 'token', p_new);
end $$;
grant execute on function onceflow.resolve_commit(bigint, bigint, uuid, int, text, bigint, int, boolean, uuid) to onceflow_worker;
