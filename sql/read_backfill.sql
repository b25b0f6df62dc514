-- Moves: none
-- Locks: none
-- Raises: OF004 no such backfill
-- Called by: Backfill.progress, onceflow backfill show: a backfill, how far its runs have come, and when it will have ended if it goes on as since it was made or resumed
create or replace function onceflow.read_backfill(p_backfill bigint) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
declare
    v_now timestamptz := onceflow.now();
    b onceflow.backfill;
    v_counts jsonb;
    v_ended int;
    v_lately int;
begin
    select * into b from onceflow.backfill where id = p_backfill;
    if not found then perform onceflow.raise_error('OF004', format('there is no backfill %s; list them with: onceflow backfill list', p_backfill)); end if;
    select jsonb_build_object('success', count(*) filter (where r.state = 'success'), 'failed', count(*) filter (where r.state = 'failed'),
            'cancelled', count(*) filter (where r.state = 'cancelled'), 'running', count(*) filter (where r.state is null and a.run is not null),
            'queued', count(*) filter (where r.state is null and a.run is null)),
        count(r.state), count(*) filter (where r.state is not null and r.end_date >= b.running_since)
    into v_counts, v_ended, v_lately
    from onceflow.run r left join onceflow.active_run a on a.run = r.id where r.backfill = p_backfill;
    return to_jsonb(b) - 'key' || jsonb_build_object('backfill', b.id) || v_counts || jsonb_build_object(
        'is_dag_paused', (select d.is_paused from onceflow.dag d where d.dag_id = b.dag_id),
        'eta_s', case when b.state = 'running' and v_lately > 0 then round(extract(epoch from v_now - b.running_since) * (b.total - v_ended) / v_lately, 1) end);
end $$;

-- What create_backfill would do: of each date new, again, or skip, and the run that it has already.
create or replace function onceflow.preview_backfill(p_dag_id text, p_dates jsonb, p_reprocess text) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(jsonb_agg(jsonb_build_object('logical_date', d.value -> 0, 'interval_start', d.value -> 1, 'interval_end', d.value -> 2,
        'run_id', coalesce(k.run_id, onceflow.name_run('backfill', (d.value ->> 0)::timestamptz)), 'state', n.state,
        'action', case when k.run is null then 'new' when n.state in ('failed', 'cancelled') and p_reprocess <> 'none' or n.state = 'success' and p_reprocess = 'completed'
            then 'again' else 'skip' end) order by d.no), '[]')
    from jsonb_array_elements(p_dates) with ordinality d(value, no)
    left join onceflow.run_key k on k.dag_id = p_dag_id and k.logical_date = (d.value ->> 0)::timestamptz
    left join onceflow.dag_run n on n.id = k.run
$$;
grant execute on function onceflow.read_backfill(bigint) to onceflow_worker, onceflow_operator, onceflow_auditor;
grant execute on function onceflow.preview_backfill(text, jsonb, text) to onceflow_worker, onceflow_operator;
