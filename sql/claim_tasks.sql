-- Moves: queued -> running
-- Run: queued -> running, running -> running
-- Locks: the lock of all limits (where a dag's tasks are claimable), ready rows (skip locked), then inserts leases
-- Raises: nothing
-- Races: another worker takes the same rows first: it gets fewer, possibly none
-- Called by: worker. Idempotent by (worker, claim): repeated after a lost reply (p_again) it answers what it gave.
-- Global order over the lanes: place (the priority, and the age where set_ageing has switched that on), logical date, arrival. Where dags have teams, each
-- team's in that order, and the teams in turn.
create or replace function onceflow.claim_tasks(p_worker bigint, p_claim bigint, p_lanes int[], p_limit int, p_again boolean default false)
returns jsonb language plpgsql security definer
set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan as $$
declare
    v_now timestamptz := onceflow.now();
    v_worker onceflow.worker;
    v_lanes int[];
    v_limited boolean;
    v_teams boolean;
    v_out jsonb := '[]';
    v_left int := p_limit;
begin
    select * into v_worker from onceflow.worker where id = p_worker;
    if p_again then
        select onceflow.describe_leases(array_agg(ti)) into v_out from onceflow.lease where worker = p_worker and claim = p_claim;
        if v_out is not null then return v_out; end if;
        v_out := '[]';
    end if;
    -- A worker that is late with its heartbeat takes nothing new: it may be about to be rescued.
    if v_worker.id is null or v_worker.ended_at is not null or v_worker.heartbeat_at < v_now - make_interval(secs => v_worker.lease_s) then
        return v_out;
    end if;
    with recursive l(lane) as (
        (select r.lane from onceflow.ready r order by r.lane limit 1)
        union all
        select (select r.lane from onceflow.ready r where r.lane > l.lane order by r.lane limit 1) from l where l.lane is not null)
    select array_agg(l.lane) into v_lanes from l where l.lane = any(p_lanes);
    -- Tasks of a paused dag wait; what runs of it goes on.
    select array_agg(l.id), bool_or(l.pool is not null), bool_or(d.team is not null) into v_lanes, v_limited, v_teams
    from onceflow.lane l join onceflow.dag d on d.dag_id = l.dag_id where l.id = any(v_lanes) and not d.is_paused;
    -- What a crash loses of a claim is nobody's loss: no completion of it can be on disk before it.
    perform set_config('synchronous_commit', 'off', true);
    -- One claim after another counts what the limits leave.
    if v_limited then
        perform pg_advisory_xact_lock(onceflow.wait_lock('limits', 0, ''));
        -- What comes behind all other work (a backfill's) has the first place in every tenth claim: endless other work cannot keep it waiting for ever.
        if p_claim % 10 = 0 then
            v_out := onceflow.take_behind(v_worker, p_claim, v_lanes);
            v_left := v_left - jsonb_array_length(v_out);
        end if;
    end if;
    if v_teams then return v_out || onceflow.take_in_turn(v_worker, p_claim, v_lanes, v_left); end if;
    return v_out || onceflow.take_lanes(v_worker, p_claim, v_lanes, v_left);
end $$;
grant execute on function onceflow.claim_tasks(bigint, bigint, int[], int, boolean) to onceflow_worker;

-- From these lanes, in the global order: from the lane with the best head while its rows come first.
create or replace function onceflow.take_lanes(p_worker onceflow.worker, p_claim bigint, p_lanes int[], p_limit int) returns jsonb
language plpgsql as $$
declare
    v_lanes int[] := p_lanes;
    v_lane onceflow.lane;
    v_limited int[];
    v_room int;
    v_heads onceflow.ready[];
    v_bound onceflow.ready;
    v_floor onceflow.ready;
    v_taken jsonb;
    v_out jsonb := '[]';
    v_left int := p_limit;
begin
    while v_left > 0 and cardinality(v_lanes) > 0 loop
        if cardinality(v_lanes) = 1 then
            v_lane.id := v_lanes[1];
            v_bound := null;
        else
            -- The first lane, and the head of the second, up to which its rows come first.
            v_heads := array(
                select h.r from unnest(v_lanes) l(lane), lateral (
                    select r from onceflow.ready r
                    where r.lane = l.lane and (v_floor.lane is null or (r.place, r.logical_date, r.seq) >= (v_floor.place, v_floor.logical_date, v_floor.seq))
                    order by r.place, r.logical_date, r.seq limit 1) h(r)
                order by (h.r).place, (h.r).logical_date, (h.r).seq limit 2);
            exit when v_heads = '{}';
            v_lane.id := v_heads[1].lane;
            v_bound := v_heads[2];
        end if;
        select * into v_lane from onceflow.lane where id = v_lane.id;
        v_room := v_left;
        if v_lane.pool is not null then
            select least(v_left, f.room), case when f.is_pool_full then array(select id from onceflow.lane where pool = v_lane.pool) else array[v_lane.id] end
            into v_room, v_limited from onceflow.find_room(v_lane) f;
            if v_room <= 0 then
                -- The head of a full pool holds up what is behind it in that pool, or small tasks would pass a big one by for ever.
                v_lanes := array(select l from unnest(v_lanes) l where l <> all(v_limited));
                continue;
            end if;
        end if;
        v_taken := onceflow.take_ready(p_worker, p_claim, v_lane, v_bound, v_room);
        v_out := v_out || v_taken;
        v_left := v_left - jsonb_array_length(v_taken);
        if v_lane.max_in_run is not null then
            v_lanes := array_remove(v_lanes, v_lane.id);  -- it has given what its runs allow
            continue;
        end if;
        exit when v_bound.lane is null and v_room = v_left + jsonb_array_length(v_taken);  -- no other lane has any: this one has given what it could
        if v_taken = '[]' then
            exit when v_bound.lane is null;
            v_floor := v_bound;  -- all before it is in other workers' hands
        end if;
    end loop;
    return v_out;
end $$;

-- One task of those that come behind all other work, if its limits have room for it and its pool's head waits for none.
create or replace function onceflow.take_behind(p_worker onceflow.worker, p_claim bigint, p_lanes int[]) returns jsonb
language plpgsql as $$
declare
    v_lane onceflow.lane;
    v_rows tid[];
    v_held text[];
begin
    for v_lane in
        select l.* from onceflow.lane l cross join lateral (
            select * from onceflow.ready r where r.lane = l.id and r.rank > 500000 order by r.place, r.logical_date, r.seq limit 1) h
        where l.id = any(p_lanes) and l.pool is not null order by h.place, h.logical_date, h.seq
    loop
        v_held := coalesce(v_held, onceflow.list_held_pools(p_lanes));
        continue when v_lane.pool = any(v_held) or (select f.room <= 0 from onceflow.find_room(v_lane) f);
        v_rows := array(
            select r.ctid from onceflow.ready r where r.lane = v_lane.id and r.rank > 500000 and (v_lane.max_in_run is null or v_lane.max_in_run > (
                select count(*) from onceflow.lease l where l.pool = v_lane.pool and l.dag_id = v_lane.dag_id and l.task_id = v_lane.task_id and l.run = r.run))
            order by r.place, r.logical_date, r.seq limit 1 for update skip locked);
        if v_rows <> '{}' then return onceflow.lease_rows(p_worker, p_claim, v_lane, v_rows); end if;
    end loop;
    return '[]';
end $$;

-- The pools whose head, the first of all that is ready for them, needs more slots than are free.
create or replace function onceflow.list_held_pools(p_lanes int[]) returns text[]
language plpgsql as $$
declare
    v_lane onceflow.lane;
    v_held text[] := '{}';
begin
    for v_lane in
        select distinct on (l.pool) l.* from onceflow.lane l cross join lateral (
            select * from onceflow.ready r where r.lane = l.id order by r.place, r.logical_date, r.seq limit 1) h
        where l.id = any(p_lanes) and l.pool is not null order by l.pool, h.place, h.logical_date, h.seq
    loop
        if (select f.is_pool_full from onceflow.find_room(v_lane) f) then v_held := v_held || v_lane.pool::text; end if;
    end loop;
    return v_held;
end $$;

-- Each next slot for the team of which the fewest tasks run, among those that have any ready; dags without a team are one more team.
create or replace function onceflow.take_in_turn(p_worker onceflow.worker, p_claim bigint, p_lanes int[], p_limit int) returns jsonb
language plpgsql as $$
declare
    v_held text[] := onceflow.list_held_pools(p_lanes);
    v_teams text[];
    v_running int[];
    v_quotas int[];
    v_dry text[];
    v_taken jsonb;
    v_out jsonb := '[]';
    v_left int := p_limit;
begin
    select array_agg(x.team), array_agg(x.running) into v_teams, v_running from (
        select t.team, coalesce(c.running, 0) as running from (
            select distinct coalesce(d.team, '') as team from onceflow.lane l join onceflow.dag d on d.dag_id = l.dag_id where l.id = any(p_lanes)) t
        left join (
            select coalesce(d.team, '') as team, count(*)::int as running from onceflow.lease e join onceflow.dag d on d.dag_id = e.dag_id group by 1) c on c.team = t.team
        order by 2, random()) x;  -- of equals no one is always the first
    while v_left > 0 and cardinality(v_teams) > 0 loop
        v_quotas := array(
            select count(q.no)::int from generate_subscripts(v_running, 1) i left join (
                select r.no from unnest(v_running) with ordinality r(running, no), generate_series(0, v_left - 1) more
                order by r.running + more, r.no limit v_left) q on q.no = i group by i order by i);
        v_dry := '{}';
        for i in 1 .. cardinality(v_teams) loop
            continue when v_quotas[i] = 0;
            v_taken := onceflow.take_lanes(p_worker, p_claim, array(
                select l.id from onceflow.lane l join onceflow.dag d on d.dag_id = l.dag_id
                where l.id = any(p_lanes) and coalesce(d.team, '') = v_teams[i] and (l.pool is null or l.pool <> all(v_held))), v_quotas[i]);
            v_out := v_out || v_taken;
            v_left := v_left - jsonb_array_length(v_taken);
            v_running[i] := v_running[i] + jsonb_array_length(v_taken);
            if jsonb_array_length(v_taken) < v_quotas[i] then v_dry := v_dry || v_teams[i]; end if;
        end loop;
        exit when v_dry = '{}';
        select array_agg(t.team order by t.no), array_agg(t.running order by t.no) into v_teams, v_running
        from unnest(v_teams, v_running) with ordinality t(team, running, no) where t.team <> all(v_dry);
    end loop;
    return v_out;
end $$;
