-- Moves: deferred -> queued
-- Run: running -> running, needs_code -> running
-- Locks: the ti, the run when it was stopped
-- Raises: nothing
-- Races: two of its waits come true at once: the second finds it moved already
-- Called by: fire_timers, drain_wake_ups, resume_run
create or replace function onceflow.resume_task(p_run bigint, p_ti bigint) returns boolean
language plpgsql as $$
declare
    t onceflow.ti;
begin
    update onceflow.ti set state = null where run = p_run and id = p_ti and state = 'deferred' returning * into t;
    if not found then return false; end if;
    update onceflow.run set state = null, stop_reason = null where id = p_run and state = 'needs_code';
    delete from onceflow.wait where run = p_run and ti = p_ti;
    delete from onceflow.timer where run = p_run and ti = p_ti and kind = 'wait';
    insert into onceflow.ready (lane, rank, logical_date, run, ti) values (t.lane, t.rank, t.logical_date, p_run, p_ti);
    return true;
end $$;
