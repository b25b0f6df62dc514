-- Moves: none
-- Locks: none
-- Raises: OF008 a year that no Python datetime has
-- Called by: start_run, schedule_runs, create_backfill: the id of a run that was given none, scheduled__2026-01-01T06:00:00+00:00
create or replace function onceflow.name_run(p_type text, p_date timestamptz) returns text
language sql stable as $$ select p_type || '__' || onceflow.iso_text(p_date at time zone 'UTC') || '+00:00' $$;
