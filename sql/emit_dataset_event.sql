-- Moves: none
-- Locks: only inserts (it runs in anyone's transaction)
-- Raises: OF004 no such dataset
-- Called by: psql, any application inside its own transaction, onceflow datasets emit
-- Says that a dataset was written; what is told commits with whatever else the transaction does, or not at all. The next tick gives the event to the dags that
-- wait for it, so an open transaction keeps nobody from anything. Answers the event's id. notify => false: many in a row need no more than one to wake the tick.
create or replace function onceflow.emit_dataset_event(uri text, extra jsonb default null, notify boolean default true) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    v_dataset bigint;
begin
    select d.id into v_dataset from onceflow.dataset d where d.uri = emit_dataset_event.uri;
    if not found then
        perform onceflow.raise_error('OF004', format('there is no dataset %s; a dag that names it in outlets=, inlets= or schedule= makes it known: check the URI, or load the dag first',
            coalesce(quote_literal(emit_dataset_event.uri), 'null')));
    end if;
    if emit_dataset_event.notify then perform pg_notify('onceflow_ready', ''); end if;
    return onceflow.note_dataset_event(v_dataset, emit_dataset_event.uri, emit_dataset_event.extra, null, null, null, -1);
end $$;

create or replace function onceflow.note_dataset_event(
    p_dataset bigint, p_uri text, p_extra jsonb, p_dag_id text, p_task_id text, p_run_id text, p_map_index int) returns bigint
language plpgsql as $$
declare
    v_now timestamptz := onceflow.now();
    v_event bigint;
begin
    insert into onceflow.dataset_event (dataset_id, dataset_uri, extra, source_dag_id, source_task_id, source_run_id, source_map_index, "timestamp")
    values (p_dataset, p_uri, p_extra, p_dag_id, p_task_id, p_run_id, p_map_index, v_now) returning id into v_event;
    insert into onceflow.unspread_event (event_id, dataset_id, "timestamp") values (v_event, p_dataset, v_now);
    return v_event;
end $$;
grant execute on function onceflow.emit_dataset_event(text, jsonb, boolean) to onceflow_worker, onceflow_step, onceflow_operator;
