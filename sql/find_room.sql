-- Moves: none
-- Locks: none (its caller holds the lock of all limits)
-- Raises: nothing
-- Called by: claim_tasks, before it takes from a lane of a dag
-- How many more tasks of the lane may run now. What runs is what has a lease; a completion that has not committed still counts, so no limit is
-- exceeded at any instant. A pool that does not exist any more has no room.
create or replace function onceflow.find_room(p_lane onceflow.lane, out room int, out is_pool_full boolean)
language plpgsql as $$
declare
    v_slots int;
    v_used int;
    v_counts_deferred boolean;
begin
    select slots, include_deferred into v_slots, v_counts_deferred from onceflow.slot_pool where pool_name = p_lane.pool;
    if v_slots = -1 then
        room := 2147483647;
    else
        select coalesce(sum(l.pool_slots), 0) into v_used from onceflow.lease l where l.pool = p_lane.pool;
        if v_counts_deferred then
            select v_used + coalesce(sum(g.pool_slots), 0) into v_used from onceflow.trigger g where g.pool = p_lane.pool;
        end if;
        room := (coalesce(v_slots, 0) - v_used) / p_lane.pool_slots;
    end if;
    is_pool_full := room <= 0;
    if is_pool_full then return; end if;
    select least(room, d.max_active_tasks - (select count(*) from onceflow.lease l where l.pool is not null and l.dag_id = d.dag_id)) into room
    from onceflow.dag d where d.dag_id = p_lane.dag_id;
    if p_lane.max_tis is not null and room > 0 then
        select least(room, p_lane.max_tis - count(*)) into room
        from onceflow.lease l where l.pool is not null and l.dag_id = p_lane.dag_id and l.task_id = p_lane.task_id;
    end if;
end $$;
