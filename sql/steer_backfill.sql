-- Moves: none (cancel: those of cancel_run)
-- Run: queued -> cancelled, running -> cancelled (by cancel)
-- Locks: the lock under which runs are admitted, for a cancel; its runs, as cancel_run; the backfill
-- Raises: OF004 no such backfill; OF005 it has ended, or is not what the act needs
-- Called by: Client.pause_backfill, resume_backfill, cancel_backfill; onceflow backfill pause|resume|cancel; psql
-- pause: no more runs of it begin, those that run go on. resume: it goes on. cancel: it ends, with the runs of it that have not ended.
create or replace function onceflow.steer_backfill(p_backfill bigint, p_act text, p_actor text default null) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
declare
    v_actor text := coalesce(p_actor, session_user);
    v_run bigint;
    b onceflow.backfill;
begin
    if p_act is null or p_act not in ('pause', 'resume', 'cancel') then
        perform onceflow.raise_error('OF008', format('a backfill can be told to pause, resume or cancel, not to %s', coalesce(p_act, 'null')));
    end if;
    if p_act = 'cancel' then perform pg_advisory_xact_lock(onceflow.wait_lock('admit', 0, '')); end if;
    select * into b from onceflow.backfill where id = p_backfill;
    if not found then perform onceflow.raise_error('OF004', format('there is no backfill %s; list them with: onceflow backfill list', p_backfill)); end if;
    if p_act = 'cancel' and b.state in ('running', 'paused') then
        -- Runs come before their backfill in the order of locks, and none of it begins meanwhile.
        for v_run in
            select run from onceflow.queued_run where backfill = p_backfill union select run from onceflow.active_run where backfill = p_backfill order by run
        loop
            perform onceflow.end_run_early(v_run, 'cancelled', format('backfill %s was cancelled', p_backfill), v_actor);
        end loop;
    end if;
    update onceflow.backfill set state = case p_act when 'pause' then 'paused' when 'resume' then 'running' else 'cancelled' end,
        reason = case when p_act <> 'resume' then format('%s by %s', case p_act when 'pause' then 'paused' else 'cancelled' end, v_actor) end,
        running_since = case when p_act = 'resume' then onceflow.now() else running_since end,
        ended_at = case when p_act = 'cancel' then onceflow.now() end
    where id = p_backfill and (state = 'running' and p_act <> 'resume' or state = 'paused' and p_act <> 'pause') returning * into b;
    if not found then
        select * into b from onceflow.backfill where id = p_backfill;
        if b.state is distinct from (case p_act when 'pause' then 'paused' when 'resume' then 'running' else 'cancelled' end) then
            perform onceflow.raise_error('OF005', format('backfill %s of %s is %s; it cannot %s any more', b.id, b.dag_id, b.state, p_act));
        end if;
    end if;
    if p_act = 'resume' then perform pg_notify('onceflow_ready', ''); end if;
    return onceflow.describe_backfill(b);
end $$;

-- A run of a backfill has ended: if it failed, the backfill may have to wait for an operator. (In the transaction that makes room for its next run.)
create or replace function onceflow.note_backfill_failure(p_run bigint, p_backfill bigint) returns void
language sql as $$
    update onceflow.backfill b set state = 'paused', reason = format('run %s failed', r.run_id) from onceflow.run r
    where r.id = p_run and r.state = 'failed' and b.id = p_backfill and b.state = 'running' and b.on_failure = 'pause'
$$;
grant execute on function onceflow.steer_backfill(bigint, text, text) to onceflow_worker, onceflow_operator;
