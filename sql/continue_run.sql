-- Moves: running -> success, none -> queued (the run that goes on)
-- Run: running -> success, running -> running (others of it live), running -> failed (a detached task has), none -> queued
-- Locks: the lease, the ti, the run
-- Raises: OF001 lease lost; OF004; OF002
-- Called by: continue_as(...) in a body: this run ends, a fresh one with new arguments and an empty history follows, and takes over its messages
create or replace function onceflow.continue_run(
    p_run bigint, p_ti bigint, p_token uuid, p_name text, p_inputs text, p_inputs_hash text, p_args text, p_elapsed_us bigint) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    r onceflow.run;
    v_retries int;
    v_next jsonb;
    v_base text;
    v_no int;
    v_run_id text;
begin
    select * into r from onceflow.run where id = p_run;
    select retries into v_retries from onceflow.ti where run = p_run and id = p_ti;
    v_base := regexp_replace(r.run_id, '~\d{1,9}(\.\d+)?$', '');
    v_no := coalesce((regexp_match(r.run_id, '~(\d{1,9})(\.\d+)?$'))[1]::int, 1) + 1;
    -- The second id is nobody else's: an id in use belongs to other work, whatever its arguments.
    foreach v_run_id in array array[case when length(v_base) <= 240 then v_base || '~' || v_no end, left(v_base, 220) || '~' || v_no || '.' || p_run] loop
        continue when v_run_id is null or exists (select from onceflow.run_key k where k.dag_id = r.dag_id and k.run_id = v_run_id);
        v_next := onceflow.start_run(r.dag_id, p_args::jsonb, v_run_id, queue => r.queue, priority => r.priority,
            parent_run => r.parent_run, parent_ti => r.parent_ti, actor => r.actor, notify => false, timeout_s => r.timeout_s, max_tries => v_retries,
            run_type => case r.run_type when 'test' then 'test' else 'manual' end);
        exit when (v_next ->> 'created')::boolean;
    end loop;
    if (v_next ->> 'created')::boolean is not true then
        perform onceflow.raise_error('OF002', format('run %s of %s cannot go on: a run %s is there already', r.run_id, r.dag_id, v_run_id));
    end if;
    v_next := jsonb_build_object('$continued', jsonb_build_object('run', v_next ->> 'run', 'run_id', v_next ->> 'run_id'));
    perform onceflow.complete_task(p_run, p_ti, p_token, p_name, 'body', p_inputs, p_inputs_hash, v_next::text, p_elapsed_us);
    update onceflow.run set continued_by = (v_next -> '$continued' ->> 'run')::bigint where id = p_run;
    if r.live_key is not null then
        -- The text goes on with the run, and so does what it was compared with: the arguments of the first start.
        update onceflow.run set live_key = r.live_key, live_hash = r.live_hash where id = (v_next -> '$continued' ->> 'run')::bigint;
        insert into onceflow.live_key values (r.dag_id, r.live_key, (v_next -> '$continued' ->> 'run')::bigint)
        on conflict (dag_id, key) do update set run = excluded.run;
    end if;
    perform onceflow.forward_messages(p_run);
    return v_next;
end $$;

-- Messages not yet received go on to the run that goes on; the tick does it for those sent to the old one later. Keys hold for both.
create or replace function onceflow.forward_messages(p_run bigint) returns void
language plpgsql as $$
declare
    v_next bigint;
begin
    select continued_by into v_next from onceflow.run where id = p_run;
    insert into onceflow.message_key select v_next, key from onceflow.message_key where run = p_run on conflict do nothing;
    with moved as (
        update onceflow.message set run = v_next where run = p_run returning topic
    )
    insert into onceflow.wake_up (kind, target_run, target) select distinct 'message', v_next, topic from moved;
end $$;
grant execute on function onceflow.continue_run(bigint, bigint, uuid, text, text, text, text, bigint) to onceflow_worker;
