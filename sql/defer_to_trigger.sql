-- Moves: running -> deferred
-- Run: running -> running
-- Locks: the lease, the ti
-- Raises: OF001 lease lost; OF005 the task is none of a dag
-- Called by: run_task on the engine's connection, when a task of a dag raised TaskDeferred; its transaction was rolled back. Lease and slot are free afterwards.
-- p_next: {method, kwargs}; p_trigger: {classpath, kwargs, approval?}. p_limit_s: the time limit of the try, which goes on while it waits; p_timeout_s: of the wait.
create or replace function onceflow.defer_to_trigger(
    p_run bigint, p_ti bigint, p_token uuid, p_name text, p_kind text, p_inputs text, p_inputs_hash text, p_next text, p_trigger text,
    p_timeout_s double precision, p_limit_s double precision, p_elapsed_us bigint)
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    l onceflow.lease := onceflow.drop_lease(p_run, p_ti, p_token);
    v_trigger jsonb := p_trigger::jsonb;
    v_asked jsonb := p_trigger::jsonb -> 'approval';
    t onceflow.ti := onceflow.keep_next(l, p_next::jsonb);
    v_now timestamptz := onceflow.now();
    v_timeout timestamptz := v_now + make_interval(secs => p_timeout_s);
    v_limit timestamptz := (t.next_kwargs ->> 'began')::timestamptz + make_interval(secs => p_limit_s);
begin
    perform onceflow.write_entry(l, l.task_id, p_name, p_kind, l.try_number, 'running', 'deferred', false, p_inputs::jsonb, p_inputs_hash,
        jsonb_build_object('trigger', v_trigger, 'next', p_next::jsonb), null, clock_timestamp() - p_elapsed_us * interval '1 microsecond');
    insert into onceflow.trigger (classpath, kwargs, created_date, is_manual, run, ti, pool, pool_slots)
    values (v_trigger ->> 'classpath', v_trigger -> 'kwargs', v_now, v_asked is not null, p_run, p_ti, t.pool, t.pool_slots);
    if v_timeout is not null or v_limit is not null then
        insert into onceflow.timer values (least(v_timeout, v_limit), p_run, p_ti, 'deferral');
        update onceflow.ti set next_kwargs = next_kwargs || jsonb_build_object('ends', case when v_limit <= v_timeout or v_timeout is null then 'limit' else 'timeout' end)
        where run = p_run and id = p_ti;
    end if;
    if v_asked is not null then
        insert into onceflow.approval (run, ti, dag_id, run_id, task_id, map_index, subject, body, options, approvers, asked_at, due_at)
        values (p_run, p_ti, l.dag_id, l.run_id, l.task_id, l.map_index, v_asked ->> 'subject', v_asked ->> 'body',
            array(select jsonb_array_elements_text(v_asked -> 'options')), array(select jsonb_array_elements_text(v_asked -> 'approvers')), v_now, least(v_timeout, v_limit))
        on conflict (run, ti) do update set (subject, body, options, approvers, asked_at, due_at, answer, actor, comment, answered_at) =
            (excluded.subject, excluded.body, excluded.options, excluded.approvers, excluded.asked_at, excluded.due_at, null, null, null, null);
    end if;
end $$;

-- Moves: running -> up_for_reschedule
-- Run: running -> running
-- Locks: the lease, the ti
-- Raises: OF001 lease lost; OF005 the task is none of a dag
-- Called by: run_task on the engine's connection, when a task of a dag asked to be called again later (TaskRescheduled)
create or replace function onceflow.reschedule_task(
    p_run bigint, p_ti bigint, p_token uuid, p_name text, p_kind text, p_inputs text, p_inputs_hash text, p_next text, p_delay_s double precision, p_elapsed_us bigint)
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    l onceflow.lease := onceflow.drop_lease(p_run, p_ti, p_token);
begin
    perform onceflow.write_entry(l, l.task_id, p_name, p_kind, l.try_number, 'running', 'up_for_reschedule', false, p_inputs::jsonb, p_inputs_hash,
        p_next::jsonb, null, clock_timestamp() - p_elapsed_us * interval '1 microsecond');
    perform onceflow.keep_next(l, p_next::jsonb);
    insert into onceflow.timer values (onceflow.now() + make_interval(secs => p_delay_s), p_run, p_ti, 'reschedule');
end $$;

-- How the task goes on in this same try. The try began when it first did.
create or replace function onceflow.keep_next(l onceflow.lease, p_next jsonb) returns onceflow.ti
language plpgsql as $$
declare
    t onceflow.ti;
begin
    update onceflow.ti i set entries = l.entries + 1, start_date = coalesce(i.start_date, l.claimed_at), worker = l.worker, hostname = l.host,
        queued_when = coalesce(l.queued_at, i.queued_when), next_method = p_next ->> 'method',
        next_kwargs = jsonb_build_object('kwargs', p_next -> 'kwargs', 'epoch', l.epoch, 'try', l.try_number - i.rescues,
            'began', coalesce(onceflow.resume_of(i, l.try_number) ->> 'began', l.claimed_at::text))
    where i.run = l.run and i.id = l.ti and i.state is null and i.ix is not null returning * into t;
    if not found then
        perform onceflow.raise_error('OF005', format('task %s of run %s of %s is none of a dag, so it cannot be deferred to a trigger', l.task_id, l.run_id, l.dag_id));
    end if;
    return t;
end $$;

-- How this try of a task goes on, if it has waited: null for one that begins. A retry and a clear begin anew; a rescue goes on where the lost worker was.
create or replace function onceflow.resume_of(t onceflow.ti, p_try int) returns jsonb
language sql stable as $$
    select t.next_kwargs || jsonb_build_object('method', t.next_method,
        'used_s', greatest(0, extract(epoch from onceflow.now() - (t.next_kwargs ->> 'began')::timestamptz)))
    where t.next_method is not null and (t.next_kwargs ->> 'epoch')::int = t.epoch and (t.next_kwargs ->> 'try')::int = p_try - t.rescues
$$;
grant execute on function
    onceflow.defer_to_trigger(bigint, bigint, uuid, text, text, text, text, text, text, double precision, double precision, bigint),
    onceflow.reschedule_task(bigint, bigint, uuid, text, text, text, text, text, double precision, bigint) to onceflow_worker;
