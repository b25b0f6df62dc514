-- Moves: queued -> running
-- Run: queued -> running, running -> running
-- Locks: ready rows (skip locked), then inserts leases
-- Raises: nothing
-- Races: rows locked by another claim are passed over
-- Called by: claim_tasks, for one lane. The ctid array keeps the plan an index scan at any depth (15-20 times a join).
create or replace function onceflow.take_ready(
    p_worker onceflow.worker, p_claim bigint, p_lane onceflow.lane, p_bound onceflow.ready, p_limit int)
returns jsonb language plpgsql as $$
declare
    v_rows tid[];
begin
    if p_lane.max_in_run is null then
        v_rows := array(
            select r.ctid from onceflow.ready r
            where r.lane = p_lane.id and (p_bound.lane is null or (r.place, r.logical_date, r.seq) <= (p_bound.place, p_bound.logical_date, p_bound.seq))
            order by r.place, r.logical_date, r.seq limit p_limit for update skip locked);
    else
        v_rows := onceflow.pick_within_runs(p_lane, p_limit);
    end if;
    return onceflow.lease_rows(p_worker, p_claim, p_lane, v_rows);
end $$;

-- These rows of ready, locked by the caller, become leases. The clock is read after their limits were looked at: whatever has made room had ended by then.
create or replace function onceflow.lease_rows(p_worker onceflow.worker, p_claim bigint, p_lane onceflow.lane, p_rows tid[]) returns jsonb
language plpgsql as $$
declare
    v_now timestamptz := onceflow.now();
    v_tis bigint[];
begin
    with taken as (
        delete from onceflow.ready where ctid = any(p_rows) returning run, ti, queued_at
    ), leased as (
        insert into onceflow.lease (ti, run, worker, claim, epoch, try_number, entries, claimed_at, lane, dag_id, run_id, task_id, map_index, host, code_version,
            queued_at, pool, pool_slots)
        select t.id, t.run, p_worker.id, p_claim, t.epoch, t.try_number + 1, t.entries, v_now, t.lane, r.dag_id, r.run_id, t.task_id, t.map_index,
               p_worker.host, p_worker.code_versions ->> r.dag_id, k.queued_at, p_lane.pool, p_lane.pool_slots
        from taken k cross join lateral (select * from onceflow.ti where run = k.run and id = k.ti and state is null offset 0) t
        cross join lateral (select * from onceflow.run where id = k.run offset 0) r  -- offset 0: see describe_leases
        returning ti
    )
    select array_agg(ti) into v_tis from leased;
    return coalesce(onceflow.describe_leases(v_tis), '[]');
end $$;

-- Rows of a lane whose task may run only so many times at once in one run (the caller holds the lock of all limits).
create or replace function onceflow.pick_within_runs(p_lane onceflow.lane, p_limit int) returns tid[]
language sql as $$
    select array(
        select r.ctid from onceflow.ready r where r.ctid = any(array(
            select c.ctid from (
                select f.ctid, f.place, f.logical_date, f.seq, row_number() over (partition by f.run order by f.place, f.logical_date, f.seq)
                    + (select count(*) from onceflow.lease l where l.pool = p_lane.pool and l.dag_id = p_lane.dag_id and l.task_id = p_lane.task_id and l.run = f.run) as no
                from onceflow.ready f where f.lane = p_lane.id) c
            where c.no <= p_lane.max_in_run order by c.place, c.logical_date, c.seq limit p_limit))
        order by r.place, r.logical_date, r.seq for update skip locked)
$$;

-- What a worker must know of a claimed task to run it.
create or replace function onceflow.describe_leases(p_tis bigint[]) returns jsonb
language sql stable as $$
    select jsonb_agg(jsonb_build_object(
        'ti', l.ti, 'run', l.run, 'dag_id', l.dag_id, 'run_id', l.run_id, 'task_id', l.task_id, 'map_index', l.map_index, 'kind', t.kind, 'fn', t.fn,
        'token', l.token, 'fence', l.fence, 'epoch', l.epoch, 'try_number', l.try_number, 'max_tries', t.max_tries + t.rescues, 'entries', l.entries,
        'queue', r.queue, 'code_version', coalesce(l.code_version, r.code_version), 'is_awaited', t.parent_ti is not null or t.detached or r.parent_run is not null or t.ix is not null,
        'logical_date', r.logical_date, 'args', coalesce(t.conf, case when t.ix is null then r.conf else '{}' end)::text)
        || case when t.ix is null then '{}' else jsonb_build_object('dag_run', jsonb_build_object('params', r.conf, 'run_type', r.run_type,
            'data_interval_start', r.data_interval_start, 'data_interval_end', r.data_interval_end)) end
        || case when t.next_method is null then '{}' else jsonb_build_object('resume', onceflow.resume_of(row(t.*)::onceflow.ti, l.try_number)) end
        order by t.rank, t.logical_date, l.fence)
    -- offset 0: a plan made while there were few leases must not read all of them for each of p_tis later.
    from unnest(p_tis) k(ti) cross join lateral (select * from onceflow.lease where ti = k.ti offset 0) l
    cross join lateral (select * from onceflow.ti where run = l.run and id = l.ti offset 0) t cross join lateral (select * from onceflow.run where id = l.run offset 0) r
$$;
