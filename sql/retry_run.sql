-- Moves: failed -> queued, skipped -> queued, deferred -> queued (of a stopped run), success -> queued (the body)
-- Run: failed -> running, cancelled -> running, cancelled -> queued (nothing of it was claimed yet), needs_code -> running
-- Locks: its tis, the run; waits for another start of its deduplicate text to commit
-- Raises: OF002 another run lives with its deduplicate text; OF004 no such run; OF005 the run is alive or succeeded
-- Called by: RunHandle.retry, RunHandle.resume, psql. Every success in the ledger is reused; what the failure came from runs again, child
-- runs too. A failure that the body has handled stays as it is recorded (list_outcomes). The run's time limit begins anew.
-- A run stopped for lack of code goes on with any code: whoever calls this has decided that.
create or replace function onceflow.retry_run(p_run bigint, p_actor text default null) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    v_now timestamptz := onceflow.now();
    r onceflow.run;
    v_other onceflow.run;
    v_again integer;
    v_child bigint;
    v_any_lane int;
    v_handled text[];   -- tasks, by id, and child runs, by run id
begin
    perform from onceflow.ti where run = p_run and (id = p_run or state <> 'success') order by id for update;
    select * into r from onceflow.run where id = p_run for update;
    if not found then perform onceflow.raise_error('OF004', format('there is no run %s', p_run)); end if;
    if r.state is null or r.state = 'success' then
        perform onceflow.raise_error('OF005', format('run %s of %s is %s; only a failed, cancelled or stopped run can be tried again', r.run_id, r.dag_id,
            coalesce(r.state, 'alive')));
    end if;
    if r.live_key is not null then
        v_other := onceflow.take_live_key(r.dag_id, r.live_key, p_run);
        if v_other.id <> p_run then
            perform onceflow.raise_error('OF002', format('run %s of %s cannot be tried again while run %s is alive: both have deduplicate %s. Wait for it, or cancel it',
                r.run_id, r.dag_id, v_other.run_id, quote_literal(r.live_key)));
        end if;
    end if;
    if r.version is not null then return onceflow.retry_dag_run(r, coalesce(p_actor, session_user)); end if;
    if r.state = 'needs_code' then v_any_lane := onceflow.ensure_lane(r.queue, r.dag_id, null); end if;
    update onceflow.run set state = null, end_date = null, stop_reason = null, living = null, code_version = case when state <> 'needs_code' then code_version end
    where id = p_run;
    if r.timeout_s > 0 and not exists (select from onceflow.timer where run = p_run and kind = 'run_timeout') then
        insert into onceflow.timer values (v_now + make_interval(secs => r.timeout_s), p_run, p_run, 'run_timeout');
    end if;
    delete from onceflow.wait where run = p_run;
    v_handled := array(select o.inputs ->> 'of' from onceflow.ti t, onceflow.list_outcomes(p_run, r.root, t.epoch + 1) o
        where t.run = p_run and t.id = r.root and o.kind = 'engine' and o.step_name = 'result' and o.to_state = 'failed');
    with again as (
        update onceflow.ti set state = null, epoch = epoch + 1, rescues = 0, max_tries = try_number + retries, end_date = null, error = null,
            lane = coalesce(v_any_lane, lane)
        where run = p_run and (id = r.root or state <> 'success' and not id::text = any(v_handled)) returning *
    ), put as (
        insert into onceflow.ready (lane, rank, logical_date, run, ti) select lane, rank, logical_date, run, id from again returning 1
    )
    select count(*) into v_again from put;
    perform onceflow.write_act(p_run, 'retried', jsonb_build_object('state', r.state, 'tasks', v_again), coalesce(p_actor, session_user));
    for v_child in
        with recursive handled as (
            select id, continued_by from onceflow.run where parent_run = p_run and run_id = any(v_handled)
            union select n.id, n.continued_by from handled h join onceflow.run n on n.id = h.continued_by)
        select id from onceflow.run where parent_run = p_run and state in ('failed', 'cancelled', 'needs_code') and id not in (select id from handled) order by id
    loop
        perform onceflow.retry_run(v_child, p_actor);
    end loop;
    perform pg_notify('onceflow_ready', '');
    return jsonb_build_object('state', 'queued', 'tasks', v_again);
end $$;
-- Of a dag: what failed, what failed because of it, and what was never tried because the run was cancelled. Every success stands.
create or replace function onceflow.retry_dag_run(r onceflow.run, p_actor text) returns jsonb
language plpgsql as $$
declare
    v_tis bigint[];
begin
    select coalesce(array_agg(t.id order by t.id), '{}') into v_tis from onceflow.ti t
    where t.run = r.id and t.ix is not null and (t.state in ('failed', 'upstream_failed')
        or t.state = 'skipped' and not exists (select from onceflow.step_ledger e
            where e.dag_run = r.id and e.ti = t.id and e.epoch = t.epoch and e.step_key = t.task_id and e.final));
    perform onceflow.write_act(r.id, 'retried', jsonb_build_object('state', r.state, 'tasks', cardinality(v_tis)), p_actor);
    perform onceflow.reset_tasks(r.id, v_tis, false, format('retried by %s', p_actor), p_actor);
    return jsonb_build_object('state', 'queued', 'tasks', cardinality(v_tis));
end $$;
grant execute on function onceflow.retry_run(bigint, text) to onceflow_worker, onceflow_operator;
