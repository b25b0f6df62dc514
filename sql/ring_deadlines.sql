-- Moves: none
-- Run: queued -> queued, running -> running
-- Locks: timers (skip locked); only inserts
-- Raises: nothing
-- Races: the timer is in another's hands: another tick rings, or the run is just ending
-- Called by: fire_timers
-- A run that lives at its deadline has its dag's callback noted (see note_callback), once: the same statement takes the timer away, and the end of a run takes
-- those of deadlines that were kept.
create or replace function onceflow.ring_deadlines(p_limit int) returns integer
language plpgsql as $$
declare
    v_now timestamptz := onceflow.now();
    v_count integer;
begin
    with rung as (
        delete from onceflow.timer where ctid = any(array(
            select ctid from onceflow.timer where due_at <= v_now and kind = 'deadline' order by due_at limit p_limit for update skip locked)) returning run, ti
    )
    insert into onceflow.callback (run, ti, dag_id, event, try_number, due_at)
    select r.id, 0, r.dag_id, 'deadline', g.ti, v_now from rung g join onceflow.run r on r.id = g.run and r.state is null order by r.id, g.ti;
    get diagnostics v_count = row_count;
    return v_count;
end $$;

-- When a run must have ended, by each deadline of its dag. Null: it has none.
create or replace function onceflow.list_deadlines(p_deadlines jsonb, p_logical_date timestamptz, p_queued_at timestamptz) returns table (no bigint, due_at timestamptz)
language sql immutable as $$
    select e.no, case e.value ->> 'reference' when 'queued_at' then p_queued_at when 'logical_date' then p_logical_date else (e.value ->> 'at')::timestamptz end
        + make_interval(secs => (e.value ->> 'interval_s')::double precision)
    from jsonb_array_elements(p_deadlines) with ordinality e(value, no)
$$;
