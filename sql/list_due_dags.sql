-- Moves: none
-- Locks: none
-- Raises: nothing
-- Called by: a scheduler, before it works out the next runs of these dags and calls schedule_runs
-- The dags whose next run may be due, the longest overdue first. With catchup, as long as fewer than p_backlog runs of it wait: years of it come bit by bit.
-- Without, when one more run of it could begin: what comes due meanwhile is left out but for the latest. next_s: until there is another, null when there is none.
create or replace function onceflow.list_due_dags(p_limit int, p_backlog int) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    v_now timestamptz := onceflow.now();
    v_dags jsonb;
begin
    select jsonb_agg(jsonb_build_object('dag_id', x.dag_id, 'planned', x.planned, 'is_paused', x.is_paused, 'schedule', x.schedule::text, 'room', x.room,
        'last_start', x.last_interval_start, 'last_end', x.last_interval_end) order by x.next_dagrun_create_after, x.dag_id) into v_dags
    from (
        select d.*, r.room from onceflow.dag d, lateral (
            select case when (d.schedule ->> 'catchup')::boolean then
                p_backlog - (select count(*) from (select from onceflow.queued_run q where q.dag_id = d.dag_id and q.backfill is null limit p_backlog) w)
            else d.max_active_runs - (select count(*) from (select from onceflow.queued_run q where q.dag_id = d.dag_id and q.backfill is null limit d.max_active_runs) w)
                - (select count(*) from onceflow.active_run a where a.dag_id = d.dag_id and a.backfill is null) end as room) r
        where d.is_active and (not d.is_paused or d.is_unplanned) and d.next_dagrun_create_after <= v_now and (r.room > 0 or d.is_unplanned)
        order by d.next_dagrun_create_after, d.dag_id limit p_limit) x;
    return jsonb_build_object('now', v_now, 'dags', coalesce(v_dags, '[]'), 'next_s', (
        select extract(epoch from min(d.next_dagrun_create_after) - v_now) from onceflow.dag d
        where d.is_active and (not d.is_paused or d.is_unplanned) and d.next_dagrun_create_after > v_now));
end $$;
grant execute on function onceflow.list_due_dags(int, int) to onceflow_worker;
