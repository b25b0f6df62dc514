-- Moves: none -> queued
-- Run: none -> queued
-- Locks: only inserts
-- Raises: OF004 no such run or step; OF002 the new id is that of a run that is not this very fork
-- Called by: RunHandle.fork, psql. A new run of the same arguments that takes over every outcome recorded before p_from_key that counts
-- (list_outcomes): successes, and failures that the body has handled.
create or replace function onceflow.fork_run(p_run bigint, p_from_key text, p_run_id text, p_actor text default null) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    r onceflow.run;
    v_new bigint;
    v_first bigint;
    v_out jsonb;
    l onceflow.lease;
    e onceflow.step_ledger;
    v_count integer := 0;
begin
    select * into r from onceflow.run where id = p_run;
    if not found then perform onceflow.raise_error('OF004', format('there is no run %s', p_run)); end if;
    select min(id) into v_first from (
        select id from onceflow.step_ledger where dag_run = p_run and ti = r.root and step_key = p_from_key and final union all
        select id from onceflow.step_ledger where dag_run = p_run and ti = r.root and step_key = p_from_key and not final) entry;
    if v_first is null then
        perform onceflow.raise_error('OF004', format('run %s of %s has no step %s; see its steps with: onceflow ledger show %s', r.run_id, r.dag_id, p_from_key, r.run_id));
    end if;
    v_out := onceflow.start_run(r.dag_id, r.conf, p_run_id, queue => r.queue, priority => r.priority, delay_s => 1e9, timeout_s => r.timeout_s,
        max_tries => (select retries from onceflow.ti where run = p_run and id = r.root), actor => p_actor,
        fn => (select fn from onceflow.ti where run = p_run and id = r.root));
    v_new := (v_out ->> 'run')::bigint;
    if not (v_out ->> 'created')::boolean then
        -- A fork that is asked for again after a lost reply is answered; any other run of that id would be taken for it.
        if not exists (select from onceflow.step_ledger where dag_run = v_new and not final and step_key = 'forked' and kind = 'human'
            and inputs ->> 'from' = r.run_id and inputs ->> 'from_step' = p_from_key) then
            perform onceflow.raise_error('OF002', format('run id %s of %s is already used; give the fork an id of its own', p_run_id, r.dag_id));
        end if;
        return v_out;
    end if;
    select v_new, v_new, r.dag_id, v_out ->> 'run_id', r.dag_id, -1, 0 into l.run, l.ti, l.dag_id, l.run_id, l.task_id, l.map_index, l.epoch;
    for e in select * from onceflow.list_outcomes(p_run, r.root, 2147483647) where id < v_first order by id loop
        perform onceflow.write_entry(l, e.step_key, e.step_name, e.kind, e.try_number, 'forked', e.to_state, true, e.inputs, e.inputs_hash,
            case when e.kind = 'engine' and e.output ? 'task' then jsonb_build_object('run', p_run::text) || e.output else e.output end, e.error, e.started_at,
            coalesce(p_actor, session_user));
        v_count := v_count + 1;
    end loop;
    update onceflow.ti set entries = v_count where run = v_new and id = v_new;
    perform onceflow.write_act(v_new, 'forked', jsonb_build_object('from', r.run_id, 'from_step', p_from_key, 'reused', v_count), coalesce(p_actor, session_user));
    delete from onceflow.timer where run = v_new and kind = 'start';
    insert into onceflow.ready (lane, rank, logical_date, run, ti) select lane, rank, logical_date, run, id from onceflow.ti where run = v_new and id = v_new;
    perform pg_notify('onceflow_ready', '');
    return v_out || jsonb_build_object('reused', v_count);
end $$;
grant execute on function onceflow.fork_run(bigint, text, text, text) to onceflow_worker, onceflow_operator;
