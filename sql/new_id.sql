-- Moves: none
-- Locks: none
-- Raises: nothing
-- Called by: start_run, start_task, register_worker
-- Time-ordered by the real clock (partitions must not follow a test's clock): unix ms << 20 | sequence.
create or replace function onceflow.new_id() returns bigint
language sql volatile as $$
    select ((extract(epoch from clock_timestamp()) * 1000)::bigint << 20) | (nextval('onceflow.id_seq') & 1048575)
$$;

create or replace function onceflow.id_at(p_at timestamptz) returns bigint
language sql immutable set search_path = pg_catalog, pg_temp as $$
    select (extract(epoch from p_at) * 1000)::bigint << 20
$$;

create or replace function onceflow.id_time(p_id bigint) returns timestamptz
language sql immutable set search_path = pg_catalog, pg_temp as $$ select to_timestamp((p_id >> 20) / 1000.0) $$;
grant execute on function onceflow.id_at(timestamptz), onceflow.id_time(bigint) to public;
