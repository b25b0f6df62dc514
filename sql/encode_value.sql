-- Moves: none
-- Locks: none
-- Raises: 0A000 a value that the codec refuses, or that Python reads otherwise: the step is run by Python then, which tells
-- Called by: the text of an SQL step that runs inside Postgres (db/sql_text.py), for each value it answers
-- The ledger's form of a value, the same as what codec.encode makes of it when asyncpg has read it; independent of every setting, and of search_path by
-- RETURN. One function for each type: a column whose type has changed since is written as what it is now.

create or replace function onceflow.refuse_value(p_text text) returns text language plpgsql immutable as $$
begin
    raise exception '% cannot be kept in the ledger as it is', p_text using errcode = '0A000';
end $$;

create or replace function onceflow.tag_value(p_tag text, p_text text) returns jsonb language sql stable
    return case when p_text is not null then jsonb_build_object(p_tag, p_text) end;

create or replace function onceflow.iso_text(v timestamp) returns text language sql immutable
    return case when v between '0001-01-02' and '9999-12-31' then replace(to_char(v, 'YYYY-MM-DD"T"HH24:MI:SS.US'), '.000000', '')
        when v is not null then onceflow.refuse_value(v::text) end;

create or replace function onceflow.encode_value(v boolean) returns jsonb language sql stable return to_jsonb(v);
create or replace function onceflow.encode_value(v smallint) returns jsonb language sql stable return to_jsonb(v);
create or replace function onceflow.encode_value(v integer) returns jsonb language sql stable return to_jsonb(v);
create or replace function onceflow.encode_value(v bigint) returns jsonb language sql stable return to_jsonb(v);
create or replace function onceflow.encode_value(v oid) returns jsonb language sql stable return to_jsonb(v::bigint);
create or replace function onceflow.encode_value(v text) returns jsonb language sql stable return to_jsonb(v);
create or replace function onceflow.encode_value(v bpchar) returns jsonb language sql stable return to_jsonb(v);
create or replace function onceflow.encode_value(v json) returns jsonb language sql stable return to_jsonb(v::text);
create or replace function onceflow.encode_value(v jsonb) returns jsonb language sql stable return to_jsonb(v::text);
create or replace function onceflow.encode_value(v uuid) returns jsonb language sql stable return onceflow.tag_value('$uuid', v::text);
create or replace function onceflow.encode_value(v bytea) returns jsonb language sql stable
    return onceflow.tag_value('$bytes', replace(encode(v, 'base64'), chr(10), ''));
create or replace function onceflow.encode_value(v numeric) returns jsonb language sql stable
    return onceflow.tag_value('$decimal', case when v in ('NaN', 'Infinity', '-Infinity') then onceflow.refuse_value(v::text) else v::text end);
create or replace function onceflow.encode_value(v date) returns jsonb language sql stable
    return onceflow.tag_value('$date', case when v between '0001-01-02' and '9999-12-30' then to_char(v, 'YYYY-MM-DD')
        when v is not null then onceflow.refuse_value(v::text) end);
create or replace function onceflow.encode_value(v time) returns jsonb language sql stable
    return onceflow.tag_value('$time', case when v < '24:00' then replace(to_char(date '2000-01-01' + v, 'HH24:MI:SS.US'), '.000000', '')
        when v is not null then onceflow.refuse_value(v::text) end);
create or replace function onceflow.encode_value(v timestamp) returns jsonb language sql stable
    return onceflow.tag_value('$datetime', onceflow.iso_text(v));
create or replace function onceflow.encode_value(v timestamptz) returns jsonb language sql stable
    return onceflow.tag_value('$datetime', onceflow.iso_text(v at time zone 'UTC') || '+00:00');

-- A whole number keeps its ".0", or it would come back as an int.
create or replace function onceflow.encode_value(v double precision) returns jsonb
language plpgsql immutable strict set search_path = pg_catalog, pg_temp set extra_float_digits = 1 as $$
declare
    n numeric;
begin
    if v in ('NaN', 'Infinity', '-Infinity') then perform onceflow.refuse_value(v::text); end if;
    if abs(v) >= 1e16 or v::text = '-0' then return jsonb_build_object('$float', v::text); end if;
    n := v::text::numeric;
    return (case when scale(n) = 0 then n || '.0' else n::text end)::jsonb;
end $$;
create or replace function onceflow.encode_value(v real) returns jsonb language sql stable return onceflow.encode_value(v::double precision);
grant execute on function onceflow.encode_value(boolean), onceflow.encode_value(smallint), onceflow.encode_value(integer), onceflow.encode_value(bigint), onceflow.encode_value(oid), onceflow.encode_value(text),
    onceflow.encode_value(bpchar), onceflow.encode_value(json), onceflow.encode_value(jsonb), onceflow.encode_value(uuid), onceflow.encode_value(bytea), onceflow.encode_value(numeric),
    onceflow.encode_value(date), onceflow.encode_value(time), onceflow.encode_value(timestamp), onceflow.encode_value(timestamptz), onceflow.encode_value(real), onceflow.encode_value(double precision),
    onceflow.iso_text(timestamp), onceflow.tag_value(text, text), onceflow.refuse_value(text) to onceflow_step, onceflow_worker;
