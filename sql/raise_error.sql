-- Moves: none
-- Locks: none
-- Raises: what it is told to
-- Called by: every function that refuses
create or replace function onceflow.raise_error(p_state text, p_message text) returns void
language plpgsql as $$
begin
    raise exception using errcode = p_state, message = p_message;
end $$;
grant execute on function onceflow.raise_error(text, text) to public;
