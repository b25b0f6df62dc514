-- Moves: none (inner part of the arrows that end a task)
-- Locks: the ti, the run
-- Raises: nothing
-- Called by: complete_task, fail_task, rescue_tasks, after the lease went and the entry was written
-- The ti row is written once, here. Whoever awaits this task or its run is looked for by the next tick.
create or replace function onceflow.end_task(l onceflow.lease, p_state text, p_error text) returns void
language plpgsql as $$
declare
    v_now timestamptz := onceflow.now();
    v_parent bigint;
    v_ix int;
    v_is_detached boolean;
    v_is_awaited boolean;
begin
    update onceflow.ti t set state = p_state, try_number = l.try_number, entries = l.entries + 1, start_date = coalesce(t.start_date, l.claimed_at),
        end_date = v_now, queued_when = coalesce(l.queued_at, t.queued_when), worker = l.worker, hostname = l.host, error = p_error
    where t.run = l.run and t.id = l.ti and t.state is null returning t.parent_ti, t.ix, t.detached into v_parent, v_ix, v_is_detached;
    if not found then perform onceflow.raise_lease_lost(l.run, l.ti); end if;
    v_is_awaited := v_parent is not null;
    if v_is_detached then
        -- A step may have handed its handle on. Whoever is about to wait holds this lock shared until it commits; later ones see the end itself.
        v_is_awaited := current_setting('transaction_isolation') <> 'read committed'
            or not pg_try_advisory_xact_lock(onceflow.wait_lock('task', l.run, l.ti::text));
        v_is_awaited := v_is_awaited or exists (select from onceflow.wait w where w.target_run = l.run and w.kind = 'task' and w.target = l.ti::text);
    end if;
    if v_is_awaited then
        insert into onceflow.wake_up (kind, target_run, target) values ('task', l.run, l.ti::text);
    end if;
    if current_setting('onceflow.detached', true) <> '' then
        -- Before the run's row, as in end_run.
        if l.run = l.ti then perform pg_advisory_xact_lock(l.run); else perform pg_advisory_xact_lock_shared(l.run); end if;
        perform onceflow.count_detached(l.run);
    end if;
    if v_ix is not null then
        perform onceflow.release_tasks(l.run, v_ix, p_state, l.ti);
    else
        perform onceflow.end_run(l.run, case when l.run = l.ti then p_state end, v_now);
    end if;
end $$;

-- The run ends with its last task. While its body lives, tasks end side by side and share the run's advisory lock; the body's end waits for those
-- in flight and counts what is left; from then on each end counts down.
create or replace function onceflow.end_run(p_run bigint, p_only_state text, p_now timestamptz) returns void
language plpgsql as $$
declare
    r onceflow.run;
begin
    -- The usual run has one task. tis is read under the row's lock: start_task raises it.
    update onceflow.run set state = p_only_state, end_date = p_now where id = p_run and tis = 1 and state is null and p_only_state is not null returning * into r;
    if found then
        perform onceflow.close_run(r);
    elsif current_setting('transaction_isolation') <> 'read committed' then
        -- The snapshot may be older than the end of another task: the next tick looks.
        insert into onceflow.wake_up (kind, target_run) values ('end', p_run);
    elsif p_only_state is not null then
        perform onceflow.count_living(p_run, p_now);
    else
        perform pg_advisory_xact_lock_shared(p_run);
        if exists (select from onceflow.ti t where t.run = p_run and t.id = p_run and (t.state is null or t.state = 'deferred')) then return; end if;
        update onceflow.run set living = living - 1 where id = p_run and state is null returning * into r;
        if r.living = 0 then
            perform onceflow.finish_run(r, p_now);
        elsif r.id is not null and r.living is null then
            insert into onceflow.wake_up (kind, target_run) values ('end', p_run);  -- its body ended in another isolation level
        end if;
    end if;
end $$;

-- Counts the tasks that live after the body's end; ends the run when there is none. Also for the tick, when a task has ended uncounted.
create or replace function onceflow.count_living(p_run bigint, p_now timestamptz) returns void
language plpgsql as $$
declare
    r onceflow.run;
    v_living int;
begin
    perform pg_advisory_xact_lock(p_run);
    select * into r from onceflow.run where id = p_run and state is null for update;
    if not found or exists (select from onceflow.ti t where t.run = p_run and t.id = p_run and (t.state is null or t.state = 'deferred')) then return; end if;
    select count(*) into v_living from onceflow.ti t where t.run = p_run and (t.state is null or t.state = 'deferred');
    if v_living = 0 then
        perform onceflow.finish_run(r, p_now);
    else
        update onceflow.run set living = v_living where id = p_run;
    end if;
end $$;

-- A run's state is its body's; a detached task (outbox) that failed fails it too.
create or replace function onceflow.finish_run(r onceflow.run, p_now timestamptz) returns void
language plpgsql as $$
begin
    update onceflow.run n set end_date = p_now, living = null, state = (
        select case when t.state = 'failed' or exists (select from onceflow.ti d where d.run = r.id and d.detached and d.state = 'failed') then 'failed'
            else t.state end from onceflow.ti t where t.run = r.id and t.id = r.root)
    where n.id = r.id;
    perform onceflow.close_run(r);
end $$;

-- What a run that has just ended leaves behind goes, and who waits for it is woken.
create or replace function onceflow.close_run(r onceflow.run) returns void
language plpgsql as $$
declare
    v_is_quiet boolean;
    v_backfill bigint;
begin
    if r.version is not null then
        delete from onceflow.active_run where run = r.id returning backfill into v_backfill;
        if v_backfill is not null then perform onceflow.note_backfill_failure(r.id, v_backfill); end if;
        if exists (select from onceflow.dag_version v join onceflow.run n on n.id = r.id and n.state = any(v.listens) where v.id = r.version) then
            perform onceflow.note_callback(r.id, 0, (select state from onceflow.run where id = r.id));
        end if;
    end if;
    if exists (select from onceflow.timer where run = r.id) then
        delete from onceflow.timer where run = r.id;
    end if;
    if r.live_key is not null then
        delete from onceflow.live_key k where k.dag_id = r.dag_id and k.key = r.live_key and k.run = r.id;
    end if;
    -- Does anybody wait for it? Whoever is about to holds this lock shared until it commits; later ones see the end itself.
    v_is_quiet := r.parent_run is null and current_setting('transaction_isolation') = 'read committed' and pg_try_advisory_xact_lock(onceflow.wait_lock('run', r.id, ''));
    if not v_is_quiet or exists (select from onceflow.wait w where w.target_run = r.id and w.kind in ('run', 'event')) then
        insert into onceflow.wake_up (kind, target_run) values ('run', r.id);
    end if;
end $$;
