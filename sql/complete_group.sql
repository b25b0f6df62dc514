-- Moves: those of the functions it calls
-- Locks: the leases, by run and ti; then those of the functions it calls, in the same order
-- Raises: 55P03 somebody keeps one of the leases: each member waits for its own then; OF003 the group's transaction is not the one it began; the first error of any member: then none of it happened, and each runs alone
-- Called by: the worker's group commit, on the connection on which the members' functions have written, in their transaction
-- p_calls: [[mark, function, run, ti, proof, its other arguments…], …], a member each.
create or replace function onceflow.complete_group(p_mark text, p_calls text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set lock_timeout = '1s' as $$
declare
    v_calls jsonb := p_calls;
    v_done int[];
    c record;
begin
    perform onceflow.check_mark(p_mark, 'of a group');
    -- All leases first, as run_batch takes them: neither waits for the other in a circle.
    perform from onceflow.lease where ti = any(array(select (x ->> 3)::bigint from jsonb_array_elements(v_calls) x)) order by run, ti for update;
    v_done := onceflow.complete_tasks(v_calls, 1);
    perform onceflow.hold_events();
    for c in select x ->> 0 as mark, x ->> 1 as name, (x ->> 2)::bigint as run, (x ->> 3)::bigint as ti, (x ->> 4)::uuid as proof, x as a
             from jsonb_array_elements(v_calls) with ordinality y(x, n) where n <> all(v_done) order by run, ti, n loop
        perform set_config('onceflow.step', c.mark, true);
        case c.name
            when 'complete_step' then
                perform onceflow.complete_step(c.run, c.ti, c.proof, c.a ->> 5, c.a ->> 6, c.a ->> 7, (c.a ->> 8)::int, c.a ->> 9, c.a ->> 10, c.a ->> 11, (c.a ->> 12)::bigint);
            when 'complete_task' then
                perform onceflow.complete_task(c.run, c.ti, c.proof, c.a ->> 5, c.a ->> 6, c.a ->> 7, c.a ->> 8, c.a ->> 9, (c.a ->> 10)::bigint, c.a ->> 11);
            else perform onceflow.raise_error('OF008', format('complete_group cannot call %s', c.name));
        end case;
    end loop;
    perform onceflow.spread_held_events();
end $$;

-- A transaction of steps holds a cursor over this WITH HOLD, which PostgreSQL reads to its end at COMMIT: so no COMMIT but the engine's, which closes
-- the cursor first, commits their writes. Whatever else says COMMIT undoes them. The setting's third part names the step; in a group it is empty.
create or replace function onceflow.refuse_commit() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform onceflow.raise_step_split(coalesce(nullif(substring(current_setting('onceflow.step', true) from '^[^/]*/[^/]*/(.*)$'), ''), 'of a group'));
end $$;
grant execute on function onceflow.complete_group(text, text), onceflow.refuse_commit() to onceflow_step;
