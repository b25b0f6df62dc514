-- Moves: those of complete_task, for a step that is the task itself
-- Locks: the leases, by run and ti; then those of complete_task and complete_step, in the same order
-- Raises: OF001 lease lost; OF003 a step ended its own transaction; OF007 a step has its outcome already; 0A000 an output is longer than p_limit
-- Called by: run_sql_steps, in the transaction of the steps' own SQL
-- What SQL will answer is not known when the call is made, so a proof is good for any output of its try; it comes in a parameter, which no SQL of
-- other sessions can read. whole: the step is the task itself.
create or replace function onceflow.complete_sql_steps(p_steps jsonb, p_outputs text[], p_started timestamptz[], p_limit int) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    v_token uuid;
    v_elapsed_us bigint;
    v_done int[];
    s record;
begin
    -- All leases first, as complete_group and run_batch take them: none waits for the other in a circle.
    perform from onceflow.lease where ti = any(array(select (x ->> 'ti')::bigint from jsonb_array_elements(p_steps) x)) order by run, ti for update;
    v_done := case when jsonb_array_length(p_steps) = 1 then '{}' else onceflow.complete_tasks((
        select jsonb_agg(jsonb_build_array(x ->> 'mark', case when (x ->> 'whole')::boolean and octet_length(p_outputs[y.n::int]) <= p_limit then 'complete_task' end, l.run, l.ti, l.token,
            x ->> 'name', 'sql', x ->> 'inputs', x ->> 'inputs_hash', p_outputs[y.n::int], (extract(epoch from clock_timestamp() - p_started[y.n::int]) * 1000000)::bigint, null) order by y.n)
        from jsonb_array_elements(p_steps) with ordinality y(x, n) left join onceflow.lease l on l.ti = (x ->> 'ti')::bigint and l.run = (x ->> 'run')::bigint
            and onceflow.prove_token(l.token, concat_ws('/', x ->> 'key', x ->> 'try', 'in postgres')) = (x ->> 'proof')::uuid), 1) end;
    perform onceflow.hold_events();
    for s in select k.*, y.n::int as n from jsonb_array_elements(p_steps) with ordinality y(x, n), jsonb_to_record(y.x) k(mark text,
                 run bigint, ti bigint, proof uuid, key text, name text, try int, inputs text, inputs_hash text, whole boolean)
             where y.n <> all(v_done) order by k.run, k.ti, y.n loop
        if octet_length(p_outputs[s.n]) > p_limit then perform onceflow.refuse_value('an output of this length'); end if;
        select l.token into v_token from onceflow.lease l
        where l.ti = s.ti and l.run = s.run and onceflow.prove_token(l.token, concat_ws('/', s.key, s.try, 'in postgres')) = s.proof;
        if not found then perform onceflow.raise_lease_lost(s.run, s.ti); end if;
        v_elapsed_us := extract(epoch from clock_timestamp() - p_started[s.n]) * 1000000;
        perform set_config('onceflow.step', s.mark, true);
        if s.whole then
            perform onceflow.complete_task(s.run, s.ti, v_token, s.name, 'sql', s.inputs, s.inputs_hash, p_outputs[s.n], v_elapsed_us);
        else
            perform onceflow.complete_step(s.run, s.ti, v_token, s.key, s.name, 'sql', s.try, s.inputs, s.inputs_hash, p_outputs[s.n], v_elapsed_us);
        end if;
    end loop;
    perform onceflow.spread_held_events();
end $$;
grant execute on function onceflow.complete_sql_steps(jsonb, text[], timestamptz[], int) to onceflow_worker, onceflow_step;
