-- Moves: none -> queued, none -> scheduled (with a delay)
-- Locks: the lease of the caller, the run; inside a transactional step nothing, it only inserts
-- Raises: OF001 lease lost; OF003 not in the step's transaction; OF007 the start is recorded already
-- Called by: step.start(...) inside a body, or inside a transactional step (detached: the outbox; its key is p_key null)
create or replace function onceflow.start_task(
    p_run bigint, p_ti bigint, p_token uuid, p_key text, p_name text, p_fn text, p_inputs text, p_inputs_hash text, p_max_tries int, p_delay_s double precision default null)
returns jsonb language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    v_now timestamptz := onceflow.now();
    v_id bigint := onceflow.new_id();
    v_index int := -1;
    l onceflow.lease;
    t onceflow.ti;
begin
    if p_key is null then
        -- The task is counted when the step completes: that locks the run.
        l := onceflow.check_lease(p_run, p_ti, p_token, concat_ws('/', 'start', p_fn, p_inputs));
        perform set_config('onceflow.detached', concat_ws(',', nullif(current_setting('onceflow.detached', true), ''), v_id), true);
    else
        l := onceflow.hold_lease(p_run, p_ti, p_token);
        update onceflow.run set tis = tis + 1, living = living + 1 where id = p_run returning tis - 2 into v_index;
    end if;
    insert into onceflow.ti (run, id, task_id, map_index, kind, fn, retries, max_tries, lane, rank, logical_date, conf, parent_ti, detached, queued_when, queue)
    select p_run, v_id, p_name, v_index, 'step', p_fn, p_max_tries, p_max_tries, lane, rank, logical_date, p_inputs::jsonb, case when p_key is not null then p_ti end,
        p_key is null, v_now, queue
    from onceflow.ti where run = p_run and id = p_ti returning * into t;
    if p_key is not null and not onceflow.write_entry(l, p_key, p_name, 'engine', 1, 'running', 'success', true, p_inputs::jsonb, p_inputs_hash,
            jsonb_build_object('task', v_id::text), null, v_now) then
        perform onceflow.raise_error('OF007', format('start %s of run %s has its outcome in the ledger already', p_key, l.run_id));
    end if;
    if p_delay_s > 0 then
        insert into onceflow.timer values (v_now + make_interval(secs => p_delay_s), p_run, v_id, 'start');
    else
        insert into onceflow.ready (lane, rank, logical_date, run, ti) values (t.lane, t.rank, t.logical_date, p_run, v_id);
    end if;
    return jsonb_build_object('task', v_id::text);
end $$;

-- Moves: none -> queued
-- Run: none -> queued
-- Locks: the lease of the caller; waits for another start of the same run id or deduplicate text to commit
-- Raises: OF001 lease lost; OF002 the run id is taken, or a run with its deduplicate text lives; OF004 no such dag; OF007 the start is recorded already; OF008
-- Called by: workflow.start(...) inside a body.
-- A child run, recorded in its parent's ledger in the transaction that creates it.
create or replace function onceflow.start_child(
    p_run bigint, p_ti bigint, p_token uuid, p_key text, p_name text, p_dag_id text, p_args text, p_inputs_hash text, p_run_id text, p_queue text,
    p_max_tries int, p_task_kind text, p_deduplicate text default null)
returns jsonb language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    l onceflow.lease := onceflow.hold_lease(p_run, p_ti, p_token);
    v_out jsonb := onceflow.make_child(l, p_key, p_dag_id, p_args, p_run_id, p_queue, p_max_tries, p_task_kind, p_deduplicate);
begin
    if not onceflow.write_entry(l, p_key, p_name, 'engine', 1, 'running', 'success', true, p_args::jsonb, p_inputs_hash, v_out, null, clock_timestamp()) then
        perform onceflow.raise_error('OF007', format('start %s of run %s has its outcome in the ledger already', p_key, l.run_id));
    end if;
    return v_out;
end $$;

-- Moves: none -> queued
-- Run: none -> queued
-- Locks: only inserts; waits for another start of the same run id or deduplicate text to commit
-- Raises: OF001 lease lost; OF002 the run id is taken, or a run with its deduplicate text lives; OF003 not in the step's transaction; OF004 no such dag; OF008
-- Called by: workflow.start(...) inside a transactional step: the child run is there when, and only when, the step's transaction commits.
create or replace function onceflow.start_child_in_step(
    p_run bigint, p_ti bigint, p_token uuid, p_key text, p_dag_id text, p_args text, p_queue text, p_max_tries int, p_task_kind text, p_deduplicate text default null)
returns jsonb language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
begin
    return onceflow.make_child(onceflow.check_lease(p_run, p_ti, p_token, concat_ws('/', 'child', p_key, p_dag_id, p_args)),
        p_key, p_dag_id, p_args, null, p_queue, p_max_tries, p_task_kind, p_deduplicate);
end $$;

-- The child's id is made from the parent's, the key of the start and the task's number: two dags may have runs of one id, and two tasks of a run
-- steps of one key; and a step that is tried again starts the same run. With a deduplicate text it may be a run that lives already.
create or replace function onceflow.make_child(
    l onceflow.lease, p_key text, p_dag_id text, p_args text, p_run_id text, p_queue text, p_max_tries int, p_task_kind text, p_deduplicate text)
returns jsonb language plpgsql as $$
declare
    v_key text := case when length(p_key) <= 60 then p_key else right(p_key, 43) || '-' || to_hex(hashtextextended(p_key, 0)) end;
    v_out jsonb;
    v_queue text;
begin
    select r.queue into v_queue from onceflow.run r where r.id = l.run and r.run_type = 'test';   -- what a test starts is run by the worker that tests
    v_out := onceflow.start_run(p_dag_id, p_args::jsonb, coalesce(p_run_id, left(l.run_id, 150) || '.' || v_key || '.' || l.ti),
        queue => coalesce(v_queue, p_queue, 'default'), run_type => case when v_queue is null then 'manual' else 'test' end,
        parent_run => l.run, parent_ti => l.ti, max_tries => p_max_tries, task_kind => p_task_kind, notify => false, deduplicate => p_deduplicate);
    if (v_out ->> 'run')::bigint = l.run then
        perform onceflow.raise_error('OF008', format('run %s of %s would start itself: it is the living run with deduplicate %s', l.run_id, l.dag_id, quote_literal(p_deduplicate)));
    end if;
    return jsonb_build_object('run', v_out ->> 'run', 'run_id', v_out ->> 'run_id', 'dag_id', p_dag_id);
end $$;
grant execute on function onceflow.start_task(bigint, bigint, uuid, text, text, text, text, text, int, double precision) to onceflow_worker, onceflow_step;
grant execute on function onceflow.start_child(bigint, bigint, uuid, text, text, text, text, text, text, text, int, text, text) to onceflow_worker;
grant execute on function onceflow.start_child_in_step(bigint, bigint, uuid, text, text, text, text, int, text, text) to onceflow_worker, onceflow_step;
