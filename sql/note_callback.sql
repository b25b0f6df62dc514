-- Moves: none
-- Locks: only inserts
-- Raises: nothing
-- Called by: whoever ends a task, or puts off its next try, when its dag asks to be called then; close_run with ti 0
create or replace function onceflow.note_callback(p_run bigint, p_ti bigint, p_event text, p_try int default null) returns void
language sql as $$
    insert into onceflow.callback (run, ti, dag_id, event, try_number, due_at)
    select r.id, p_ti, r.dag_id, p_event, coalesce(p_try, t.try_number), onceflow.now()
    from onceflow.run r left join onceflow.ti t on t.run = r.id and t.id = p_ti where r.id = p_run
$$;

-- Moves: none
-- Locks: callbacks (skip locked)
-- Raises: nothing
-- Called by: a worker after the end of a task of a dag with callbacks, and now and then: what is to be called, of the dags it has
-- Who takes one has p_patience_s to call and drop it; then another worker calls it again. So each is called at least once.
create or replace function onceflow.take_callbacks(p_dags text[], p_limit int, p_patience_s double precision) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    v_now timestamptz := onceflow.now();
    v_taken bigint[];
begin
    with taken as (
        update onceflow.callback c set due_at = v_now + make_interval(secs => p_patience_s) where c.id = any(array(
            select d.id from onceflow.callback d where d.due_at <= v_now and d.dag_id = any(p_dags) order by d.id limit p_limit for update skip locked))
        returning c.id
    )
    select array_agg(id) into v_taken from taken;
    return coalesce((
        select jsonb_agg(jsonb_build_object('id', c.id, 'dag_id', c.dag_id, 'event', c.event, 'run', r.id, 'run_id', r.run_id, 'logical_date', r.logical_date,
            'dag_run', jsonb_build_object('params', r.conf, 'run_type', r.run_type, 'data_interval_start', r.data_interval_start, 'data_interval_end', r.data_interval_end,
                'state', r.state),
            'ti', c.ti, 'task_id', t.task_id, 'map_index', t.map_index, 'try_number', c.try_number, 'max_tries', t.max_tries,
            'error', e.error::text) order by c.id)
        from unnest(v_taken) k(id) join onceflow.callback c on c.id = k.id join onceflow.run r on r.id = c.run
        left join onceflow.ti t on t.run = c.run and t.id = c.ti
        left join lateral (select l.error from onceflow.step_ledger l where l.dag_run = t.run and l.ti = t.id and l.step_key = t.task_id and l.try_number = c.try_number
                and l.error is not null
            order by l.id desc limit 1) e on c.event in ('failed', 'up_for_retry')), '[]');
end $$;

-- It was called.
create or replace function onceflow.drop_callback(p_id bigint) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    delete from onceflow.callback where id = p_id
$$;
grant execute on function onceflow.take_callbacks(text[], int, double precision), onceflow.drop_callback(bigint) to onceflow_worker;
