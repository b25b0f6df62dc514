-- Moves: none
-- Locks: ready, against everybody, for the moment in which it is written anew
-- Raises: OF008 a bad number; 55P03 when others would have to wait for it longer than 500 ms
-- Called by: onceflow pools ageing, psql
-- A starvation guard: a task that waits gains a point of priority every so many seconds, as long as it is ready; null, as at first: it gains none.
-- All that wait gain at the same rate, so their order is settled when they come: nothing is written while they wait, and claims go by an index.
create or replace function onceflow.set_ageing(every_s double precision) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '500ms' as $$
begin
    if every_s < 0.001 or every_s > 1e9 or every_s = 'NaN' then
        perform onceflow.raise_error('OF008', format('a waiting task gains a point of priority every so many seconds, 0.001 to 1000000000, not %s; null for never', every_s));
    end if;
    lock table onceflow.ready in access exclusive mode;
    update onceflow.engine set ageing_s = every_s;
    execute format('alter table onceflow.ready alter column aged set default %s',
        case when every_s is null then '0' else format('floor(extract(epoch from clock_timestamp()) / %s)::bigint', every_s) end);
    update onceflow.ready set aged = coalesce(floor(extract(epoch from queued_at) / every_s)::bigint, 0);
    return jsonb_build_object('ageing_s', every_s);
end $$;
grant execute on function onceflow.set_ageing(double precision) to onceflow_operator;
