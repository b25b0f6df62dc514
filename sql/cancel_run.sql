-- Moves: scheduled -> skipped, queued -> skipped, up_for_retry -> skipped, deferred -> skipped, running -> failed
-- Run: queued -> cancelled, running -> cancelled, needs_code -> cancelled
-- Locks: ready, leases, tis, timers, the run, then its children
-- Raises: OF004 no such run; OF005 the run has ended
-- Races: cancelled already: nothing is written
-- Called by: RunHandle.cancel, psql. Open transactions of its steps cannot commit any more; child runs are cancelled too. Of a run
-- that went on with continue_as the last one is cancelled.
create or replace function onceflow.cancel_run(p_run bigint, p_reason text default null, p_actor text default null) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    v_state text;
    v_next bigint;
begin
    select coalesce(state, ''), continued_by into v_state, v_next from onceflow.run where id = p_run;
    if not found then perform onceflow.raise_error('OF004', format('there is no run %s', p_run)); end if;
    if v_state = 'success' and v_next is not null then return onceflow.cancel_run(v_next, p_reason, p_actor); end if;
    if v_state in ('success', 'failed') then
        perform onceflow.raise_error('OF005', format('run %s has ended already (%s); it cannot be cancelled', p_run, v_state));
    end if;
    if not onceflow.end_run_early(p_run, 'cancelled', coalesce(p_reason, 'cancelled'), coalesce(p_actor, session_user)) then
        select state, continued_by into v_state, v_next from onceflow.run where id = p_run;
        if v_state = 'success' and v_next is not null then return onceflow.cancel_run(v_next, p_reason, p_actor); end if;  -- it has just gone on
        if v_state <> 'cancelled' then
            perform onceflow.raise_error('OF005', format('run %s has just ended (%s); it cannot be cancelled', p_run, v_state));
        end if;
    end if;
    return jsonb_build_object('state', 'cancelled');
end $$;

-- Ends a living run from outside: cancelled, or failed by its time limit. False: it has ended already.
create or replace function onceflow.end_run_early(p_run bigint, p_state text, p_reason text, p_actor text) returns boolean
language plpgsql as $$
declare
    v_now timestamptz := onceflow.now();
    v_child bigint;
    v_backfill bigint;
    r onceflow.run;
begin
    -- A claim in flight has its ready row and will make a lease; who holds a lease may put its task back, or begin others: until neither is left.
    -- So the leases come before the tis, and a task that completes meanwhile cannot deadlock with us.
    loop
        delete from onceflow.past_wait where run = p_run;
        delete from onceflow.ready where run = p_run;
        perform onceflow.revoke_leases(p_run, p_reason, p_actor);
        exit when not exists (select from onceflow.ready where run = p_run) and not exists (select from onceflow.lease where run = p_run);
    end loop;
    update onceflow.ti set state = 'skipped', end_date = v_now, error = p_reason where run = p_run and (state is null or state = 'deferred');
    -- What a tick has just queued, and a worker claimed.
    delete from onceflow.ready where run = p_run;
    perform onceflow.revoke_leases(p_run, p_reason, p_actor);
    delete from onceflow.timer where run = p_run;
    delete from onceflow.wait where run = p_run;
    delete from onceflow.trigger where run = p_run;
    delete from onceflow.join_count where run = p_run;
    delete from onceflow.queued_run where run = p_run;
    delete from onceflow.past_wait where run = p_run;
    delete from onceflow.active_run where run = p_run returning backfill into v_backfill;
    update onceflow.run set state = p_state, end_date = v_now, stop_reason = p_reason
    where id = p_run and (state is null or state = 'needs_code') returning * into r;
    if not found then return false; end if;
    if r.version is not null then perform onceflow.release_next_run(r); end if;
    if v_backfill is not null then perform onceflow.note_backfill_failure(p_run, v_backfill); end if;
    if r.live_key is not null then
        delete from onceflow.live_key k where k.dag_id = r.dag_id and k.key = r.live_key and k.run = p_run;
    end if;
    perform onceflow.write_act(p_run, p_state, jsonb_build_object('reason', p_reason), p_actor);
    insert into onceflow.wake_up (kind, target_run) values ('run', p_run);
    perform pg_notify('onceflow_revoked', p_run::text);
    for v_child in select id from onceflow.run where parent_run = p_run and (state is null or state = 'needs_code') order by id loop
        perform onceflow.end_run_early(v_child, 'cancelled', format('its parent run %s ended: %s', p_run, p_reason), p_actor);
    end loop;
    return true;
end $$;

create or replace function onceflow.revoke_leases(p_run bigint, p_reason text, p_actor text) returns void
language plpgsql as $$
declare
    l onceflow.lease;
    v_error jsonb := jsonb_build_object('$error', 'onceflow.errors:RunCancelled', 'message', p_reason, 'args', jsonb_build_array(p_reason));
begin
    for l in select * from onceflow.lease where run = p_run order by ti for update loop
        delete from onceflow.lease where ti = l.ti;
        perform onceflow.write_entry(l, l.task_id, l.task_id, 'body', l.try_number, 'running', 'cancelled', false, null, null, null, v_error, l.claimed_at, p_actor);
        update onceflow.ti set state = 'failed', try_number = l.try_number, entries = l.entries + 1, start_date = coalesce(start_date, l.claimed_at),
            end_date = onceflow.now(), worker = l.worker, hostname = l.host, error = p_reason where run = l.run and id = l.ti;
    end loop;
end $$;

-- A human's act on a run (ti 0), in the same ledger. The actor is who the caller says it is; the login is who called.
create or replace function onceflow.write_act(p_run bigint, p_act text, p_details jsonb, p_actor text) returns void
language plpgsql as $$
declare
    l onceflow.lease;
begin
    update onceflow.run r set acts = acts + 1 where r.id = p_run
    returning id, 0, r.dag_id, r.run_id, '', -1, 0 into l.run, l.ti, l.dag_id, l.run_id, l.task_id, l.map_index, l.epoch;
    perform onceflow.write_entry(l, p_act, p_act, 'human', 0, 'none', p_act, false, p_details || jsonb_build_object('login', session_user), null, null, null,
        null, p_actor);
end $$;
grant execute on function onceflow.cancel_run(bigint, text, text) to onceflow_worker, onceflow_operator;
