-- Moves: none
-- Locks: none
-- Raises: nothing
-- Called by: every function that moves a state: complete_step, complete_task, fail_task, rescue_tasks, …
-- The one place that inserts into the ledger, but for complete_tasks and start_steps, which insert many at once. Returns false when the step already has its final outcome.

-- sha256 over every field of the entry in this order (v1), each length-prefixed (octets, colon, text; ~ for null), so that no
-- two entries have the same text. Times are UTC microseconds since 1970; jsonb is its own text; final is t or f.
-- One expression of plpgsql: as nested SQL functions it cost 100 us an entry, so it costs 5.
create or replace function onceflow.entry_hash(e onceflow.step_ledger) returns bytea
language plpgsql immutable parallel safe as $$
declare
    v_inputs text := e.inputs::text;
    v_output text := e.output::text;
    v_error text := e.error::text;
    v_started text := ((extract(epoch from e.started_at) * 1000000)::bigint)::text;
    v_at text := ((extract(epoch from e.at) * 1000000)::bigint)::text;
begin
    return sha256(convert_to(concat('v1',
        coalesce(octet_length(e.id::text) || ':' || e.id::text, '~'), coalesce(octet_length(e.dag_run::text) || ':' || e.dag_run::text, '~'),
        coalesce(octet_length(e.ti::text) || ':' || e.ti::text, '~'), coalesce(octet_length(e.dag_id) || ':' || e.dag_id, '~'),
        coalesce(octet_length(e.run_id) || ':' || e.run_id, '~'), coalesce(octet_length(e.task_id) || ':' || e.task_id, '~'),
        coalesce(octet_length(e.map_index::text) || ':' || e.map_index::text, '~'), coalesce(octet_length(e.epoch::text) || ':' || e.epoch::text, '~'),
        coalesce(octet_length(e.step_key) || ':' || e.step_key, '~'), coalesce(octet_length(e.step_name) || ':' || e.step_name, '~'),
        coalesce(octet_length(e.kind) || ':' || e.kind, '~'), coalesce(octet_length(e.try_number::text) || ':' || e.try_number::text, '~'),
        coalesce(octet_length(e.from_state) || ':' || e.from_state, '~'), coalesce(octet_length(e.to_state) || ':' || e.to_state, '~'),
        case when e.final then '1:t' else '1:f' end, coalesce(octet_length(v_inputs) || ':' || v_inputs, '~'),
        coalesce(octet_length(e.inputs_hash) || ':' || e.inputs_hash, '~'), coalesce(octet_length(v_output) || ':' || v_output, '~'),
        coalesce(octet_length(v_error) || ':' || v_error, '~'), coalesce(octet_length(v_started) || ':' || v_started, '~'),
        coalesce(octet_length(v_at) || ':' || v_at, '~'), coalesce(octet_length(e.worker::text) || ':' || e.worker::text, '~'),
        coalesce(octet_length(e.host) || ':' || e.host, '~'), coalesce(octet_length(e.code_version) || ':' || e.code_version, '~'),
        coalesce(octet_length(e.actor) || ':' || e.actor, '~'), coalesce(octet_length(e.fence::text) || ':' || e.fence::text, '~'),
        coalesce(octet_length(e.xid::text) || ':' || e.xid::text, '~'), coalesce(octet_length(e.cluster::text) || ':' || e.cluster::text, '~')), 'UTF8'));
end $$;

-- The entry as it will stand in the ledger.
create or replace function onceflow.make_entry(
    l onceflow.lease, p_key text, p_name text, p_kind text, p_try int, p_from text, p_to text, p_final boolean,
    p_inputs jsonb, p_inputs_hash text, p_output jsonb, p_error jsonb, p_started_at timestamptz, p_actor text, p_cluster bigint)
returns onceflow.step_ledger language plpgsql as $$
declare
    e onceflow.step_ledger;
begin
    e := row(nextval('onceflow.ledger_seq'), l.run, l.ti, l.dag_id, l.run_id, l.task_id, l.map_index, l.epoch, p_key, p_name, p_kind,
        p_try, p_from, p_to, p_final, p_inputs, p_inputs_hash, p_output, p_error, p_started_at, clock_timestamp(),
        l.worker, l.host, l.code_version, p_actor, l.fence, pg_current_xact_id(), p_cluster, null);
    e.hash := onceflow.entry_hash(e);
    return e;
end $$;

create or replace function onceflow.write_entry(
    l onceflow.lease, p_key text, p_name text, p_kind text, p_try int, p_from text, p_to text, p_final boolean,
    p_inputs jsonb, p_inputs_hash text, p_output jsonb, p_error jsonb, p_started_at timestamptz, p_actor text default null)
returns boolean language plpgsql as $$
declare
    e onceflow.step_ledger;
    v_cluster bigint;
begin
    -- The cluster is the one noted, unless the database came to another server or was restored since.
    select case when server_start = pg_postmaster_start_time() and ledger = 'onceflow.step_ledger'::regclass then cluster else onceflow.find_cluster() end
    into v_cluster from onceflow.engine;
    e := onceflow.make_entry(l, p_key, p_name, p_kind, p_try, p_from, p_to, p_final, p_inputs, p_inputs_hash, p_output, p_error, p_started_at, p_actor, v_cluster);
    insert into onceflow.step_ledger select e.*
    on conflict (dag_run, ti, epoch, step_key) where final do nothing;
    return found;
end $$;
grant execute on function onceflow.entry_hash(onceflow.step_ledger) to onceflow_auditor, onceflow_operator;
