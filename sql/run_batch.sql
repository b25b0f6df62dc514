-- Moves: those of the functions it calls
-- Locks: the leases (skip locked), by run and ti; then those of the functions it calls, in the same order
-- Raises: the first error of any call: then none of them happened, and the caller sends them one by one; 55P03 when somebody holds a task or run for longer than lock_timeout
-- Races: a lease in another's hands (a step that commits, cancel_run in an open transaction): its calls are answered {"busy": true}, to be sent again
-- Called by: the worker's batcher: completions of many external steps share one commit (group commit without savepoints)
create or replace function onceflow.run_batch(p_calls text) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    v_tis bigint[];
    v_held bigint[];
    v_busy bigint[] := '{}';
    v_calls jsonb := p_calls;
    v_done int[] := '{}';
    v_many bigint[];  -- runs of which several tasks end here
    c record;
    v_out jsonb[] := array_fill(null::jsonb, array[jsonb_array_length(v_calls)]);
    v_one jsonb;
begin
    -- All leases first, then tasks and runs in one order whatever the caller's: two batches never wait for each other in a circle. Nor does a batch
    -- wait for the one lease that somebody keeps.
    v_tis := array(select distinct (x ->> 2)::bigint from jsonb_array_elements(v_calls) x);
    v_held := array(select ti from onceflow.lease where ti = any(v_tis) order by run, ti for update skip locked);
    if cardinality(v_held) < cardinality(v_tis) then
        v_busy := array(select ti from onceflow.lease where ti = any(v_tis) and ti <> all(v_held));  -- the others are gone
    end if;
    if p_calls like '%["start_step"%' then v_done := onceflow.start_steps(v_calls, v_busy); end if;
    if p_calls like '%["complete_task"%' then v_done := v_done || onceflow.complete_tasks(v_calls, 0, v_busy); end if;
    perform onceflow.hold_events();
    if p_calls like '%["complete_task"%' then
        v_many := array(select (x ->> 1)::bigint from jsonb_array_elements(v_calls) with ordinality y(x, n)
            where x ->> 0 = 'complete_task' and n <> all(v_done) group by 1 having count(*) > 1);
    end if;
    for c in select n::int as n, x ->> 0 as name, (x ->> 1)::bigint as run, (x ->> 2)::bigint as ti, (x ->> 3)::uuid as token, x as a
             from jsonb_array_elements(v_calls) with ordinality y(x, n) where n <> all(v_done) order by run, ti, n loop
        v_one := null;
        if c.run = any(v_many) then
            v_many := array_remove(v_many, c.run);
            v_done := v_done || onceflow.complete_instances(v_calls, c.run, v_busy);
        end if;
        continue when c.n = any(v_done);
        if c.ti = any(v_busy) then
            v_out[c.n] := '{"busy": true}';
            continue;
        end if;
        case c.name
            when 'start_step' then
                perform onceflow.start_step(c.run, c.ti, c.token, c.a ->> 4, c.a ->> 5, c.a ->> 6, (c.a ->> 7)::int, c.a ->> 8, c.a ->> 9);
            when 'complete_step' then
                perform onceflow.complete_step(c.run, c.ti, c.token, c.a ->> 4, c.a ->> 5, c.a ->> 6, (c.a ->> 7)::int, c.a ->> 8, c.a ->> 9, c.a ->> 10, (c.a ->> 11)::bigint);
            when 'fail_step' then
                v_one := onceflow.fail_step(c.run, c.ti, c.token, c.a ->> 4, c.a ->> 5, c.a ->> 6, (c.a ->> 7)::int, c.a ->> 8, c.a ->> 9, c.a ->> 10, (c.a ->> 11)::boolean, (c.a ->> 12)::double precision, (c.a ->> 13)::bigint);
            when 'complete_task' then
                perform onceflow.complete_task(c.run, c.ti, c.token, c.a ->> 4, c.a ->> 5, c.a ->> 6, c.a ->> 7, c.a ->> 8, (c.a ->> 9)::bigint, c.a ->> 10);
            when 'skip_task' then
                perform onceflow.skip_task(c.run, c.ti, c.token, c.a ->> 4, c.a ->> 5, c.a ->> 6, c.a ->> 7, c.a ->> 8, (c.a ->> 9)::bigint);
            when 'fail_task' then
                v_one := onceflow.fail_task(c.run, c.ti, c.token, c.a ->> 4, c.a ->> 5, c.a ->> 6, c.a ->> 7, c.a ->> 8, (c.a ->> 9)::boolean, (c.a ->> 10)::double precision, (c.a ->> 11)::bigint);
            else perform onceflow.raise_error('OF008', format('run_batch cannot call %s', c.name));
        end case;
        v_out[c.n] := v_one;
    end loop;
    perform onceflow.spread_held_events();
    return to_jsonb(v_out);
end $$;
grant execute on function onceflow.run_batch(text) to onceflow_worker;
