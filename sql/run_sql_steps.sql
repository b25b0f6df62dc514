-- Moves: running -> success
-- Run: running -> success, running -> running (others of it live), running -> failed (a detached task has)
-- Locks: what the steps' own SQL locks; then those of complete_sql_steps
-- Raises: OF001 lease lost; OF003; OF007; any error of a step's SQL: of none of the steps anything stays then
-- Called by: run_sql, on a steps' connection whose session is clean: one SQL step, or a group, runs, is recorded and commits in one round trip
-- Answers their outputs, and leaves the session clean. It has no SET clause, as a step's SQL runs under its login's settings: so names are qualified
-- here, and none is looked up by the search_path that a step's SQL has left. Neither that SQL nor another session can read p_steps.
create or replace function onceflow.run_sql_steps(p_steps jsonb, p_session text, p_limit int) returns jsonb
language plpgsql as $$
declare
    v_count int := pg_catalog.jsonb_array_length(p_steps);
    v_is_last boolean;
    v_output text;
    v_outputs text[];
    v_started timestamptz[];
    s record;
begin
    for i in 1 .. v_count loop
        v_is_last := i OPERATOR(pg_catalog.=) v_count;
        select * into s from pg_catalog.jsonb_to_record(p_steps OPERATOR(pg_catalog.->) (i OPERATOR(pg_catalog.-) 1)) s(
            text pg_catalog.text, answers boolean, args pg_catalog.text[], moments timestamp[], mark pg_catalog.text);
        perform pg_catalog.set_config('application_name', p_session, true), pg_catalog.set_config('onceflow.step', s.mark, true);
        v_started[i] := pg_catalog.clock_timestamp();
        v_output := '[]';
        if s.answers then
            execute s.text into v_output using s.args, s.moments;
        else
            execute s.text using s.args, s.moments;
        end if;
        v_outputs[i] := v_output;
        if v_is_last then set constraints all immediate; end if;
        reset session authorization; reset all; unlisten *; execute 'close all'; discard temp; discard sequences;
        perform pg_catalog.pg_advisory_unlock_all();
    end loop;
    perform pg_catalog.set_config('application_name', p_session, true);
    perform onceflow.complete_sql_steps(p_steps, v_outputs, v_started, p_limit);
    return pg_catalog.to_jsonb(v_outputs);
end $$;
grant execute on function onceflow.run_sql_steps(jsonb, text, int) to onceflow_worker, onceflow_step;
