-- Moves: no_status -> queued
-- Run: running -> running
-- Locks: advisory (tried only), the waits for the run (skip locked)
-- Raises: nothing
-- Races: a later run is just about to wait for this one, or is being cleared or cancelled: the next tick looks
-- Called by: whoever has ended tasks of a run (spread_ends, open_run, end_run_early, mark_task), in the same transaction
-- Tasks of later runs that waited for what has ended here can be claimed. The lock is held to the commit: who decides meanwhile whether to wait sees that it
-- is taken (hold_for_past). A task without work that has waited is given to a worker like any other: nobody but its own run's lock may settle it.
create or replace function onceflow.release_next_run(r onceflow.run) returns void
language plpgsql as $$
begin
    if not exists (select from onceflow.dag d where d.dag_id = r.dag_id and d.depends_on_past) then return; end if;
    if current_setting('transaction_isolation') = 'read committed' and pg_try_advisory_xact_lock(onceflow.wait_lock('past', r.id, '')) then
        perform onceflow.release_waiting(r.id);
    else
        insert into onceflow.wake_up (kind, target_run) values ('past', r.id);
    end if;
end $$;

-- Moves: no_status -> queued
-- Run: running -> running
-- Locks: the waits for the run (skip locked); the caller holds the advisory lock
-- Raises: nothing
-- Races: who waits is in another's hands: left alone, find_missed_past looks again
-- Called by: release_next_run, drain_wake_ups
create or replace function onceflow.release_waiting(p_previous bigint) returns void
language plpgsql as $$
declare
    w record;
begin
    for w in
        select p.run, p.ix, k from (select distinct run, ix from onceflow.past_wait where previous = p_previous) p
        join onceflow.run n on n.id = p.run join onceflow.dag_task k on k.version = n.version and k.ix = p.ix order by p.run, p.ix
    loop
        continue when not onceflow.is_past_met(p_previous, w.k);
        with gone as (
            delete from onceflow.past_wait where ctid = any(array(
                select ctid from onceflow.past_wait where previous = p_previous and run = w.run and ix = w.ix for update skip locked)) returning run, ti
        )
        insert into onceflow.ready (lane, rank, logical_date, run, ti)
        select t.lane, t.rank, t.logical_date, t.run, t.id from gone g join onceflow.ti t on t.run = g.run and t.id = g.ti and t.state is null order by t.map_index;
    end loop;
end $$;

-- Releases are quick, this look is the guarantee: whoever waits for a run before is looked at again.
create or replace function onceflow.find_missed_past(p_limit int) returns void
language sql as $$
    insert into onceflow.wake_up (kind, target_run)
    select 'past', p.previous from (select distinct previous from onceflow.past_wait) p order by random() limit p_limit
$$;
