-- Moves: none
-- Locks: none
-- Raises: nothing
-- Called by: every function; the only clock. Tests replace its body; no setting can move it.
create or replace function onceflow.now() returns timestamptz
language sql volatile parallel safe as $$ select clock_timestamp() $$;
grant execute on function onceflow.now() to public;
