-- Moves: none
-- Run: none -> queued (through start_dataset_run)
-- Locks: advisory per consuming dag, in the order of their names: tried only; unspread events (skip locked), then only what start_dataset_run takes
-- Raises: nothing
-- Races: a dag that somebody has in hand, or whose queue row somebody keeps in an open transaction: its events stay for the next tick
-- Called by: run_tick (spread_soon)
-- Gives each event to the dags that run by its dataset, and starts a run of each dag whose datasets are all there, if it may have one. All who do that for a
-- dag hold its lock from before they look until they commit: so no event is missed, and none counts twice. Answers how many runs it started.
create or replace function onceflow.spread_events(p_limit int) returns integer
language plpgsql as $$
declare
    v_events onceflow.unspread_event[];
    v_dag text;
    v_held text[] := '{}';
    v_runs integer := 0;
begin
    if exists (select from onceflow.unspread_event) then
        v_events := array(select u from onceflow.unspread_event u order by u.event_id limit p_limit for update skip locked);
        foreach v_dag in array onceflow.list_consumers(v_events) loop
            if not pg_try_advisory_xact_lock(onceflow.wait_lock('dataset', 0, v_dag)) then v_held := v_held || v_dag; end if;
        end loop;
        v_events := array(select u from unnest(v_events) u where not exists (
            select from onceflow.dag_schedule_dataset_reference s where s.dataset_id = u.dataset_id and s.dag_id = any(v_held)));
        perform onceflow.queue_events(v_events, onceflow.list_consumers(v_events));
        delete from onceflow.unspread_event where event_id = any(array(select u.event_id from unnest(v_events) u));
    end if;
    foreach v_dag in array onceflow.list_satisfied() loop
        exit when v_runs >= p_limit / 5;  -- the others with the next tick
        if pg_try_advisory_xact_lock(onceflow.wait_lock('dataset', 0, v_dag)) and onceflow.start_dataset_run(v_dag) is not null then v_runs := v_runs + 1; end if;
    end loop;
    return v_runs;
end $$;

-- None in this tick when somebody keeps a part of it for longer than 100 ms.
create or replace function onceflow.spread_soon(p_limit int) returns integer
language plpgsql set lock_timeout = '100ms' as $$
begin
    if not exists (select from onceflow.unspread_event) and not exists (select from onceflow.dataset_dag_run_queue) then return 0; end if;
    return onceflow.spread_events(p_limit);
exception when lock_not_available then
    return 0;
end $$;

-- The events that this very transaction has told, last thing before its commit. It waits for others that have a dag in hand, in the order of the dags' names.
create or replace function onceflow.spread_own_events() returns void
language plpgsql as $$
declare
    v_events onceflow.unspread_event[];
    v_dags text[];
    v_dag text;
begin
    -- In another isolation level the snapshot may be older than what others gave the dag: the tick does it.
    if current_setting('transaction_isolation') <> 'read committed' then return; end if;
    v_events := array(select u from onceflow.unspread_event u where u.xid = pg_current_xact_id() order by u.event_id);
    v_dags := onceflow.list_consumers(v_events);
    foreach v_dag in array v_dags loop
        perform pg_advisory_xact_lock(onceflow.wait_lock('dataset', 0, v_dag));
    end loop;
    perform onceflow.queue_events(v_events, v_dags);
    delete from onceflow.unspread_event where event_id = any(array(select u.event_id from unnest(v_events) u));
    foreach v_dag in array v_dags[:100] loop  -- of more, the tick starts the rest: no task takes seconds to complete
        perform onceflow.start_dataset_run(v_dag);
    end loop;
end $$;

create or replace function onceflow.list_consumers(p_events onceflow.unspread_event[]) returns text[]
language sql stable as $$
    select coalesce(array_agg(s.dag_id order by s.dag_id), '{}') from (
        select distinct s.dag_id from unnest(p_events) u join onceflow.dag_schedule_dataset_reference s on s.dataset_id = u.dataset_id) s
$$;

-- The caller holds the dags' locks. Who has unsubscribed meanwhile gets nothing; nor does a dag get an event that a run of it has taken already.
create or replace function onceflow.queue_events(p_events onceflow.unspread_event[], p_dags text[]) returns void
language plpgsql as $$
declare
    v_now timestamptz := onceflow.now();
begin
    with given as (
        insert into onceflow.waiting_event (dag_id, event_id, dataset_id, "timestamp")
        select s.dag_id, u.event_id, u.dataset_id, u."timestamp"
        from unnest(p_events) u join onceflow.dag_schedule_dataset_reference s on s.dataset_id = u.dataset_id and s.dag_id = any(p_dags)
        where not exists (select from onceflow.dagrun_dataset_event x where x.dag_id = s.dag_id and x.event_id = u.event_id)
        on conflict do nothing returning dag_id, dataset_id
    )
    insert into onceflow.dataset_dag_run_queue (dataset_id, target_dag_id, created_at)
    select distinct g.dataset_id, g.dag_id, v_now from given g order by g.dag_id, g.dataset_id on conflict do nothing;
end $$;
