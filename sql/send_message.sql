-- Moves: none
-- Locks: only inserts
-- Raises: OF004 no such run
-- Races: the same key sent before: nothing is written
-- Called by: Client.send, send() in a body or a step, psql, anyone's own transaction. Delivered to recv() once; the tick wakes the receiver.
create or replace function onceflow.send_message(p_run bigint, p_topic text, p_body text, p_key text default null, p_notify boolean default true) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
begin
    if not exists (select from onceflow.run where id = p_run) then
        perform onceflow.raise_error('OF004', format('there is no run %s to send to', p_run));
    end if;
    if p_key is not null then
        insert into onceflow.message_key values (p_run, p_key) on conflict do nothing;
        if not found then return false; end if;
    end if;
    insert into onceflow.message (run, topic, body, key, sent_at) values (p_run, coalesce(p_topic, ''), p_body::jsonb, p_key, onceflow.now());
    insert into onceflow.wake_up (kind, target_run, target) values ('message', p_run, coalesce(p_topic, ''));
    if p_notify then perform pg_notify('onceflow_ready', ''); end if;
    return true;
end $$;

-- Moves: none (a step inside a running task)
-- Locks: the lease
-- Raises: OF001 lease lost; OF004 no such run; OF007 sent already
-- Called by: send() in a body: the message and its record commit together.
create or replace function onceflow.send_from_step(
    p_run bigint, p_ti bigint, p_token uuid, p_key text, p_inputs text, p_inputs_hash text, p_to_run bigint, p_topic text, p_body text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
begin
    perform onceflow.complete_step(p_run, p_ti, p_token, p_key, 'send', 'engine', 1, p_inputs, p_inputs_hash, 'null', 0);
    perform onceflow.send_message(p_to_run, p_topic, p_body, null, false);
end $$;

-- Moves: none (a step inside a running task)
-- Locks: the message (skip locked), the lease
-- Raises: OF001 lease lost; OF007 received already
-- Races: no message is there: nothing is written
-- Called by: recv() in a body: takes the oldest message and records it in one transaction. Null: none is there.
create or replace function onceflow.receive_message(
    p_run bigint, p_ti bigint, p_token uuid, p_key text, p_inputs text, p_inputs_hash text, p_topic text) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    v_body jsonb;
begin
    delete from onceflow.message where id = (select id from onceflow.message where run = p_run and topic = p_topic order by id limit 1 for update skip locked)
    returning body into v_body;
    if not found then return null; end if;
    perform onceflow.complete_step(p_run, p_ti, p_token, p_key, 'recv', 'engine', 1, p_inputs, p_inputs_hash, v_body::text, 0);
    return jsonb_build_object('body', v_body);
end $$;

-- Moves: none
-- Locks: the message (skip locked), until the step's transaction ends
-- Raises: OF001 lease lost; OF003 not in the step's transaction
-- Races: no message is there: nothing is written
-- Called by: recv(topic, timeout=0) inside a transactional step: the message is gone when, and only when, the step's transaction commits. Null: none is there.
create or replace function onceflow.take_message(p_run bigint, p_ti bigint, p_token uuid, p_topic text) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    v_body jsonb;
begin
    perform onceflow.check_lease(p_run, p_ti, p_token, 'take/' || p_topic);
    delete from onceflow.message where id = (select id from onceflow.message where run = p_run and topic = p_topic order by id limit 1 for update skip locked)
    returning body into v_body;
    return case when v_body is not null then jsonb_build_object('body', v_body) end;
end $$;

-- Moves: none (a step inside a running task)
-- Locks: the event, the lease: in the order of a step that sets it in its own transaction
-- Raises: OF001 lease lost; OF007 set already
-- Called by: set_event() in a body: the value and its record commit together.
create or replace function onceflow.set_run_event(
    p_run bigint, p_ti bigint, p_token uuid, p_key text, p_inputs text, p_inputs_hash text, p_event text, p_value text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
begin
    perform onceflow.put_event(p_run, p_event, p_value);
    perform onceflow.complete_step(p_run, p_ti, p_token, p_key, 'set_event', 'engine', 1, p_inputs, p_inputs_hash, 'null', 0);
end $$;

-- Moves: none
-- Locks: the event, until the step's transaction ends
-- Raises: OF001 lease lost; OF003 not in the step's transaction
-- Called by: set_event() inside a transactional step: others see the value when, and only when, the step's transaction commits.
create or replace function onceflow.set_event_in_step(p_run bigint, p_ti bigint, p_token uuid, p_event text, p_value text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
begin
    perform onceflow.check_lease(p_run, p_ti, p_token, concat_ws('/', 'event', p_event, p_value));
    perform onceflow.put_event(p_run, p_event, p_value);
end $$;

create or replace function onceflow.put_event(p_run bigint, p_event text, p_value text) returns void
language plpgsql as $$
begin
    insert into onceflow.run_event values (p_run, p_event, p_value::jsonb, onceflow.now())
    on conflict (run, key) do update set value = excluded.value, at = excluded.at;
    insert into onceflow.wake_up (kind, target_run, target) values ('event', p_run, p_event);
end $$;
create or replace function onceflow.read_run_event(p_run bigint, p_event text) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
    select jsonb_build_object('value', value) from onceflow.run_event where run = p_run and key = p_event
$$;
grant execute on function onceflow.send_message(bigint, text, text, text, boolean), onceflow.read_run_event(bigint, text) to onceflow_worker, onceflow_step, onceflow_operator;
grant execute on function onceflow.send_from_step(bigint, bigint, uuid, text, text, text, bigint, text, text),
    onceflow.receive_message(bigint, bigint, uuid, text, text, text, text), onceflow.set_run_event(bigint, bigint, uuid, text, text, text, text, text) to onceflow_worker;
grant execute on function onceflow.take_message(bigint, bigint, uuid, text), onceflow.set_event_in_step(bigint, bigint, uuid, text, text) to onceflow_worker, onceflow_step;
