-- Moves: none (an external step inside a running task: none -> started in the ledger)
-- Locks: the lease
-- Raises: OF001 lease lost
-- Called by: run_step before an external step runs, so that a crash reads "started, outcome unknown"
create or replace function onceflow.start_step(
    p_run bigint, p_ti bigint, p_token uuid, p_key text, p_name text, p_kind text, p_try int, p_inputs text, p_inputs_hash text)
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
begin
    perform onceflow.write_entry(onceflow.hold_lease(p_run, p_ti, p_token), p_key, p_name, p_kind, p_try, 'queued', 'started', false,
        p_inputs::jsonb, p_inputs_hash, null, null, clock_timestamp());
end $$;
grant execute on function onceflow.start_step(bigint, bigint, uuid, text, text, text, int, text, text) to onceflow_worker;

-- Moves: none (inner part of run_batch: start_step, for many at once)
-- Locks: the caller holds the leases
-- Raises: nothing
-- Called by: run_batch, before it goes through what is left one by one: complete_tasks says how
create or replace function onceflow.start_steps(p_calls jsonb, p_busy bigint[]) returns int[]
language plpgsql as $$
declare
    v_cluster bigint;
    v_done int[];
begin
    if jsonb_array_length(p_calls) < 2 then return '{}'; end if;
    v_cluster := onceflow.this_cluster();
    with c as (
        select y.n::int as n, (x ->> 1)::bigint as run, (x ->> 2)::bigint as ti, (x ->> 3)::uuid as token, x ->> 4 as key, x ->> 5 as name, x ->> 6 as kind,
               (x ->> 7)::int as try, (x ->> 8)::jsonb as inputs, x ->> 9 as inputs_hash
        from (select x, n, count(*) over (partition by x ->> 2) as of_ti from jsonb_array_elements(p_calls) with ordinality z(x, n)) y
        where of_ti = 1 and x ->> 0 = 'start_step'
    ), held as (
        update onceflow.lease l set entries = l.entries + 1 from c
        where l.ti = c.ti and l.run = c.run and l.token = c.token and l.ti <> all(p_busy) returning l, c.*
    ), written as (
        insert into onceflow.step_ledger select e.*
        from held h, onceflow.make_entry(h.l, h.key, h.name, h.kind, h.try, 'queued', 'started', false, h.inputs, h.inputs_hash, null, null, clock_timestamp(), null, v_cluster) e
    )
    select array_agg(n) into v_done from held;
    return coalesce(v_done, '{}');
end $$;
