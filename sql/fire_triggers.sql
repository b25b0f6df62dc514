-- Moves: deferred -> queued
-- Run: running -> running
-- Locks: tis in order, their triggers
-- Raises: OF008 an event that is no object
-- Races: the task was cleared, cancelled or has timed out, or another triggerer has the trigger by now: it is left alone, and the answer is false
-- Called by: the triggerer, for triggers that have fired: [[id, event], …]. The event, the end of the trigger and the task's place in the queue are one transaction.
create or replace function onceflow.fire_triggers(p_triggerer int, p_events text) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    e record;
    v_fired int[] := '{}';
begin
    for e in
        select g.id, g.run, g.ti, x.event from (select (y ->> 0)::int id, y -> 1 event from jsonb_array_elements(p_events::jsonb) y) x
        join onceflow.trigger g on g.id = x.id and g.triggerer_id = p_triggerer order by g.run, g.ti
    loop
        if onceflow.fire_trigger(e.run, e.ti, e.id, e.event, null) then v_fired := v_fired || e.id; end if;
    end loop;
    return to_jsonb(v_fired);
end $$;

-- One trigger fires, or runs out of time: its task goes on with the event. False: somebody was quicker.
create or replace function onceflow.fire_trigger(p_run bigint, p_ti bigint, p_trigger int, p_event jsonb, p_actor text) returns boolean
language plpgsql as $$
declare
    t onceflow.ti;
    l onceflow.lease;
begin
    select * into t from onceflow.ti where run = p_run and id = p_ti for update;
    delete from onceflow.trigger where run = p_run and ti = p_ti and (id = p_trigger or p_trigger is null);
    if not found then return false; end if;
    delete from onceflow.timer where run = p_run and ti = p_ti and kind = 'deferral';
    update onceflow.ti set entries = entries + 1, next_kwargs = next_kwargs || jsonb_build_object('event', p_event) where run = p_run and id = p_ti;
    select p_run, p_ti, r.dag_id, r.run_id, t.task_id, t.map_index, t.epoch into l.run, l.ti, l.dag_id, l.run_id, l.task_id, l.map_index, l.epoch
    from onceflow.run r where r.id = p_run;
    perform onceflow.write_entry(l, t.task_id, t.task_id, case when p_actor is null then 'engine' else 'human' end, (t.next_kwargs ->> 'try')::int + t.rescues,
        'deferred', 'queued', false, null, null, p_event, null, null, p_actor);
    insert into onceflow.ready (lane, rank, logical_date, run, ti) values (t.lane, t.rank, t.logical_date, p_run, p_ti);
    return true;
end $$;

-- A wait past its time limit, or the try's: the task goes on, and raises what is due.
create or replace function onceflow.time_out_deferral(p_run bigint, p_ti bigint) returns void
language plpgsql as $$
declare
    v_ends text := (select next_kwargs ->> 'ends' from onceflow.ti where run = p_run and id = p_ti);
begin
    if onceflow.fire_trigger(p_run, p_ti, null, jsonb_build_object('$over', v_ends), null) then
        update onceflow.approval set answered_at = onceflow.now() where run = p_run and ti = p_ti and answered_at is null;
    end if;
end $$;
grant execute on function onceflow.fire_triggers(int, text) to onceflow_worker;
