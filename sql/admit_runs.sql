-- Moves: none -> no_status, none -> queued (through plan_runs)
-- Run: queued -> running
-- Locks: advisory (tried only), backfills (skip locked), queued runs (skip locked)
-- Raises: nothing
-- Races: another tick admits runs, or a run is being cancelled: left to that tick, or to the next
-- Called by: run_tick. Runs of dags begin here as far as max_active_runs of their dag, or of their backfill, allows; those of a paused dag wait.
create or replace function onceflow.admit_runs(p_limit int) returns integer
language plpgsql as $$
declare
    v_now timestamptz := onceflow.now();
    v_found bigint[];
    v_runs bigint[];
    v_begun bigint[];
    v_run bigint;
begin
    if not onceflow.has_candidates() or not pg_try_advisory_xact_lock(onceflow.wait_lock('admit', 0, '')) then return 0; end if;
    perform onceflow.end_backfills(v_now);
    v_found := onceflow.find_admissible(v_now, p_limit);
    with taken as (
        delete from onceflow.queued_run where run = any(array(select run from onceflow.queued_run where run = any(v_found) for update skip locked)) returning *
    ), admitted as (
        insert into onceflow.active_run (dag_id, run, backfill, since) select dag_id, run, backfill, v_now from taken returning run
    )
    select coalesce(array_agg(run order by array_position(v_found, run)), '{}') into v_runs from admitted;
    v_begun := array(select a.run from unnest(v_runs) with ordinality a(run, no) where onceflow.is_begun(a.run) order by a.no);
    perform onceflow.plan_runs(array(select a.run from unnest(v_runs) with ordinality a(run, no) where a.run <> all(v_begun) order by a.no));
    foreach v_run in array v_begun loop
        perform onceflow.open_run(v_run);  -- cleared, or retried
    end loop;
    return cardinality(v_runs);
end $$;

-- Was it admitted before, or has somebody set a state of a task of it? Then not all of its tasks are fresh.
create or replace function onceflow.is_begun(p_run bigint) returns boolean
language sql stable as $$
    select exists (select from onceflow.run r where r.id = p_run and r.start_date is not null)
        or exists (select from onceflow.ti t where t.run = p_run and t.state is not null)
$$;

create or replace function onceflow.has_candidates() returns boolean
language sql stable as $$
    select exists (select from onceflow.queued_run) or exists (select from onceflow.backfill where state in ('running', 'paused'))
$$;

-- The runs that may begin now, those that came first first. (Its caller holds the lock under which runs are admitted.) Of a paused backfill, those that were
-- begun before: an operator tries them again.
create or replace function onceflow.find_admissible(p_now timestamptz, p_limit int) returns bigint[]
language plpgsql stable as $$
begin
    return (with recursive named(dag_id) as (
        (select dag_id from onceflow.queued_run where backfill is null order by dag_id limit 1)
        union all
        select (select w.dag_id from onceflow.queued_run w where w.backfill is null and w.dag_id > n.dag_id order by w.dag_id limit 1) from named n where n.dag_id is not null
    ), dags as (
        select d.dag_id, d.max_active_runs - (select count(*) from onceflow.active_run a where a.dag_id = d.dag_id and a.backfill is null) as room
        from named n join onceflow.dag d on d.dag_id = n.dag_id where not d.is_paused
    ), backfills as (
        select b.id, b.is_reverse, b.state, b.max_active_runs - (select count(*) from onceflow.active_run a where a.backfill = b.id) as room
        from onceflow.backfill b join onceflow.dag d on d.dag_id = b.dag_id where b.state in ('running', 'paused') and not d.is_paused
    ), found as (
        select q.* from dags, lateral (
            select w.run, w.due_at, w.logical_date from onceflow.queued_run w where w.dag_id = dags.dag_id and w.backfill is null and w.due_at <= p_now
            order by w.logical_date, w.run limit greatest(dags.room, 0)) q
        union all
        select q.* from backfills b, lateral (
            select w.run, w.due_at, w.logical_date from onceflow.queued_run w
            where w.backfill = b.id and w.due_at <= p_now and (b.state = 'running' or onceflow.is_begun(w.run))
            order by case when b.is_reverse then w.logical_date end desc, w.logical_date, w.run limit greatest(b.room, 0)) q
        union  -- one that an active run waits for (depends_on_past) waits for nobody's end: neither could ever come
        select q.* from (select distinct previous from onceflow.past_wait) p, lateral (
            select w.run, w.due_at, w.logical_date from onceflow.queued_run w join onceflow.dag d on d.dag_id = w.dag_id left join onceflow.backfill b on b.id = w.backfill
            where w.run = p.previous and w.due_at <= p_now and not d.is_paused and (w.backfill is null or b.state = 'running' or onceflow.is_begun(w.run))) q
    )
    select coalesce(array_agg(f.run order by f.due_at, f.logical_date, f.run), '{}')
    from (select * from found order by due_at, logical_date, run limit p_limit) f);
end $$;

-- A backfill is done when none of its runs is left to begin or to end.
create or replace function onceflow.end_backfills(p_now timestamptz) returns void
language plpgsql as $$
begin
    update onceflow.backfill set state = 'done', ended_at = p_now where id = any(array(
        select b.id from onceflow.backfill b where b.state = 'running'
          and not exists (select from onceflow.queued_run q where q.backfill = b.id) and not exists (select from onceflow.active_run a where a.backfill = b.id)
        for update skip locked));
end $$;
