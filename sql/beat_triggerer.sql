-- Moves: none
-- Locks: none
-- Raises: nothing
-- Called by: a triggerer when it starts; answers its id
create or replace function onceflow.register_triggerer(p_host text, p_pid int, p_lease_s double precision) returns int
language sql security definer set search_path = pg_catalog, pg_temp as $$
    insert into onceflow.triggerer (host, pid, lease_s, started_at, heartbeat_at)
    select p_host, p_pid, p_lease_s, onceflow.now(), onceflow.now() returning id
$$;

-- Moves: none
-- Locks: the triggerer, then triggers (skip locked)
-- Raises: nothing
-- Races: triggers that another triggerer is just taking are passed over
-- Called by: a triggerer, several times within its lease. It takes up to p_room triggers: those nobody has, and those of triggerers that are gone. Answers what it
-- took, and which of p_held are still its own. A triggerer that came too late is told so (is_known false), and has lost all.
create or replace function onceflow.beat_triggerer(p_triggerer int, p_held int[], p_room int) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    v_now timestamptz := onceflow.now();
    v_gone int[];
    v_taken jsonb;
begin
    update onceflow.triggerer set heartbeat_at = v_now where id = p_triggerer and ended_at is null;
    if not found then return jsonb_build_object('is_known', false); end if;
    v_gone := array(select g.id from onceflow.triggerer g where g.id <> p_triggerer and (g.ended_at is not null or g.heartbeat_at < v_now - make_interval(secs => g.lease_s))
        and exists (select from onceflow.trigger t where t.triggerer_id = g.id and not t.is_manual));
    with free as (
        select id from onceflow.trigger where not is_manual and (triggerer_id is null or triggerer_id = any(v_gone)) order by id limit p_room for update skip locked
    ), taken as (
        update onceflow.trigger t set triggerer_id = p_triggerer from free where t.id = free.id returning t.id, t.classpath, t.kwargs
    )
    select jsonb_agg(jsonb_build_object('id', id, 'classpath', classpath, 'kwargs', kwargs) order by id) into v_taken from taken;
    return jsonb_build_object('is_known', true, 'taken', coalesce(v_taken, '[]'),
        'kept', (select coalesce(jsonb_agg(t.id), '[]') from onceflow.trigger t where t.id = any(p_held) and t.triggerer_id = p_triggerer));
end $$;

-- Moves: none
-- Locks: the triggerer, its triggers
-- Raises: nothing
-- Called by: a triggerer that ends: others take its triggers at once
create or replace function onceflow.end_triggerer(p_triggerer int) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    update onceflow.triggerer set ended_at = onceflow.now() where id = p_triggerer and ended_at is null;
    update onceflow.trigger set triggerer_id = null where triggerer_id = p_triggerer;
end $$;
grant execute on function onceflow.register_triggerer(text, int, double precision), onceflow.beat_triggerer(int, int[], int), onceflow.end_triggerer(int) to onceflow_worker;
grant select on onceflow.trigger, onceflow.triggerer to onceflow_worker, onceflow_auditor, onceflow_operator;
