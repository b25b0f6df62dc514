-- Moves: scheduled -> queued, up_for_retry -> queued, up_for_reschedule -> queued, deferred -> queued
-- Run: queued -> queued, running -> running
-- Locks: tis, then their timers (skip locked both); runs past their limit through time_out_run
-- Raises: nothing
-- Races: tis and timers in another's hands are passed over: no tick waits, so it cannot deadlock with those who come to the timers last
-- Called by: run_tick
create or replace function onceflow.fire_timers(p_limit int) returns integer
language plpgsql as $$
declare
    v_now timestamptz := onceflow.now();
    v_count integer := 0;
    v_held integer := 0;
    m onceflow.timer;
    v_run bigint;
begin
    for m in
        with due as (
            select ctid, run, ti from onceflow.timer where due_at <= v_now and kind not in ('run_timeout', 'deadline') order by due_at limit p_limit
        ), held as materialized (
            select d.ctid from (select * from due order by run, ti) d, lateral (select from onceflow.ti where run = d.run and id = d.ti for update skip locked) t
        ), gone as (
            delete from onceflow.timer where ctid = any(array(
                select ctid from onceflow.timer where ctid = any(array(select ctid from held)) for update skip locked)) returning *
        )
        select * from gone order by run, ti
    loop
        if m.kind = 'wait' then
            perform onceflow.resume_task(m.run, m.ti);
        elsif m.kind = 'deferral' then
            perform onceflow.time_out_deferral(m.run, m.ti);
        else
            insert into onceflow.ready (lane, rank, logical_date, run, ti)
            select lane, rank, logical_date, run, id from onceflow.ti where run = m.run and id = m.ti and state is null for update;
        end if;
        v_count := v_count + 1;
    end loop;
    for v_run in select run from onceflow.timer where due_at <= v_now and kind = 'run_timeout' order by random() limit p_limit loop
        if onceflow.time_out_run(v_run) then v_count := v_count + 1; else v_held := v_held + 1; end if;
        exit when v_held = 3;
    end loop;
    return v_count + onceflow.ring_deadlines(p_limit);
end $$;

-- Moves: scheduled -> skipped, queued -> skipped, up_for_retry -> skipped, deferred -> skipped, running -> failed
-- Run: queued -> failed, running -> failed, needs_code -> failed
-- Locks: as cancel_run, for at most 100 ms
-- Raises: nothing
-- Races: somebody holds a part of the run: false, and the next tick tries again; it has ended: nothing is written
-- Called by: fire_timers, for a run past its time limit. It gives up sooner than a deadlock is noticed.
create or replace function onceflow.time_out_run(p_run bigint) returns boolean
language plpgsql set lock_timeout = '100ms' as $$
begin
    perform onceflow.end_run_early(p_run, 'failed', 'the run exceeded its timeout', 'engine');
    return true;
exception when lock_not_available then
    return false;
end $$;
