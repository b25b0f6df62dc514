-- Moves: no_status -> queued, no_status -> success (an EmptyOperator), no_status -> skipped, no_status -> upstream_failed, no_status -> failed (what it is expanded over is no list)
-- Run: running -> success, running -> failed
-- Locks: the run's advisory lock, its join counts
-- Raises: nothing
-- Called by: end_task, for a task of a dag, in the transaction that ends it
-- Whatever the end of one task decides for others of its run. All ends of one run come one after another (the advisory lock, taken last and held to
-- the commit): so no arrival is missed, none counts twice, and the outcome does not depend on their order. p_ti: the task, when it had a try.
create or replace function onceflow.release_tasks(p_run bigint, p_ix int, p_state text, p_ti bigint default null) returns void
language plpgsql as $$
declare
    r onceflow.run;
    k onceflow.dag_task;
    v_index int := -1;
    v_barred int[];
begin
    perform pg_advisory_xact_lock(p_run);
    select * into r from onceflow.run where id = p_run;
    select * into k from onceflow.dag_task where version = r.version and ix = p_ix;
    if k.mapping is not null and p_ti is not null then select map_index into v_index from onceflow.ti where run = p_run and id = p_ti; end if;
    if k.decides is not null and p_state = 'success' then v_barred := onceflow.list_barred(p_run, k, v_index); end if;
    if p_ti is not null and p_state = any(k.listens) then perform onceflow.note_callback(p_run, p_ti, p_state); end if;
    perform onceflow.spread_ends(r, array[row(p_ix, v_index, p_state, 1)::onceflow.ended], v_barred);
    if p_state = 'success' and p_ti is not null and (k.outlets <> '{}' or k.outlet_aliases <> '{}') then perform onceflow.emit_outlets(r, k, p_ti, v_index); end if;
end $$;

-- What has ended counts for what is below it, and what that decides for what is below that. The barred tasks are barred by the first end.
create or replace function onceflow.spread_ends(r onceflow.run, p_ended onceflow.ended[], p_barred int[]) returns void
language plpgsql as $$
declare
    v_ended onceflow.ended[] := p_ended;
    e onceflow.ended;
    k onceflow.dag_task;
    v_at int := 0;
    v_count int := 0;
    v_left int;
begin
    while v_at < cardinality(v_ended) loop
        v_at := v_at + 1;
        e := v_ended[v_at];
        v_count := v_count + e.count;
        for k in select d.* from onceflow.dag_task u join onceflow.dag_task d on d.version = r.version and (d.ix = any(u.downstream) or v_at = 1 and d.ix = any(p_barred))
            where u.version = r.version and u.ix = e.ix and (d.trigger_rule <> 'always' or d.mapping is not null) order by d.ix
        loop
            v_ended := v_ended || onceflow.tell_task(r, k, e, v_at = 1 and k.ix = any(p_barred));
        end loop;
    end loop;
    perform onceflow.release_next_run(r);
    update onceflow.join_count set waiting = waiting - v_count where run = r.id and ti = 0 returning waiting into v_left;
    if v_left = 0 then perform onceflow.end_dag_run(r); end if;
end $$;

-- Something above a task has ended. Answers what has ended of the task because of that.
create or replace function onceflow.tell_task(r onceflow.run, k onceflow.dag_task, e onceflow.ended, p_is_barred boolean) returns onceflow.ended[]
language plpgsql as $$
declare
    t onceflow.ti;
    c onceflow.join_count;
begin
    if k.map_group is not null and exists (select from onceflow.dag_task u where u.version = k.version and u.ix = e.ix and u.map_group = k.map_group) then
        return onceflow.decide_instances(r, k, e.map_index, p_is_barred);
    end if;
    select * into t from onceflow.ti where run = r.id and ix = k.ix and map_index in (-1, 0);
    if k.map_group is null and t.map_index < 0 then
        return case when t.state is null then onceflow.decide_task(r, k, t, e, p_is_barred) end;  -- else its rule has decided before
    end if;
    c := onceflow.count_ended(t, e);
    if t.map_index = 0 and (p_is_barred or c.waiting = 0 or e.count = case e.state when 'success' then c.success when 'failed' then c.failed when 'skipped' then c.skipped
            when 'upstream_failed' then c.upstream_failed else c.removed end) then
        return onceflow.decide_instances(r, k, null, p_is_barred);  -- only the first of a state, and the last of all, can change what a rule says
    elsif e.ix = any(k.gate) and onceflow.pass_gate(r, k, e) then
        return onceflow.open_group(r, k);
    end if;
    return null;
end $$;

-- Has all ended over which a task, or its group, is expanded?
create or replace function onceflow.pass_gate(r onceflow.run, k onceflow.dag_task, e onceflow.ended) returns boolean
language plpgsql as $$
begin
    if e.ix = any(k.gate) then
        update onceflow.join_count set waiting = waiting - e.count where run = r.id and ti = -k.ix - 1;
        delete from onceflow.join_count where run = r.id and ti = -k.ix - 1 and waiting = 0;
    end if;
    return not exists (select from onceflow.join_count where run = r.id and ti = -k.ix - 1);
end $$;

-- What a task's trigger rule says now, carried out.
create or replace function onceflow.decide_task(r onceflow.run, k onceflow.dag_task, t onceflow.ti, e onceflow.ended, p_is_barred boolean) returns onceflow.ended[]
language plpgsql as $$
declare
    v_decision text;
    v_is_open boolean := k.gate = '{}' or onceflow.pass_gate(r, k, e);
begin
    v_decision := case when e.ix = any(k.upstream) then onceflow.count_upstream(t, k, e) when not onceflow.is_under_way(r.id, t.id) then 'wait' end;
    if v_decision is not null and p_is_barred then
        v_decision := 'skip';
    elsif v_decision = 'run' and k.trigger_rule = 'all_done_setup_success' then
        v_decision := onceflow.decide_teardown(r.id, k, -1);
    end if;
    if v_decision is null or v_decision = 'wait' or v_decision = 'run' and not v_is_open then return null; end if;
    delete from onceflow.join_count where run = r.id and ti = t.id;
    v_decision := onceflow.settle_task(r, k, t, v_decision);
    return case when v_decision is not null then array[row(k.ix, -1, v_decision, 1)::onceflow.ended] end;
end $$;

-- What its trigger rule says now that more of its upstream has ended; null: it has decided before.
create or replace function onceflow.count_upstream(t onceflow.ti, k onceflow.dag_task, e onceflow.ended) returns text
language plpgsql as $$
declare
    c onceflow.join_count;
begin
    if k.trigger_rule = 'always' then return 'run'; end if;  -- it was mapped, and waited for its gate only
    c := case when k.is_joined then onceflow.count_ended(t, e) else onceflow.as_count(t, e) end;
    return case when c.run is not null then onceflow.decide_rule(k.trigger_rule, c) end;
end $$;

-- Counts what has ended upstream of a task; the count so far, null where none is kept.
create or replace function onceflow.count_ended(t onceflow.ti, e onceflow.ended) returns onceflow.join_count
language plpgsql as $$
declare
    c onceflow.join_count := onceflow.as_count(t, e);
begin
    update onceflow.join_count j set waiting = j.waiting - e.count, success = j.success + c.success, failed = j.failed + c.failed, skipped = j.skipped + c.skipped,
        upstream_failed = j.upstream_failed + c.upstream_failed, removed = j.removed + c.removed
    where j.run = t.run and j.ti = t.id returning * into c;
    return case when found then c end;
end $$;

create or replace function onceflow.as_count(t onceflow.ti, e onceflow.ended) returns onceflow.join_count
language sql immutable as $$
    select t.run, t.id, 0, case e.state when 'success' then e.count else 0 end, case e.state when 'failed' then e.count else 0 end,
        case e.state when 'skipped' then e.count else 0 end, case e.state when 'upstream_failed' then e.count else 0 end, case e.state when 'removed' then e.count else 0 end
$$;

-- Carries a rule's decision out. Answers the state the task has come to, null when it goes on to run.
create or replace function onceflow.settle_task(r onceflow.run, k onceflow.dag_task, t onceflow.ti, p_decision text) returns text
language plpgsql as $$
declare
    v_state text := case p_decision when 'skip' then 'skipped' else p_decision end;
    v_error text;
begin
    if p_decision = 'run' and k.depends_on_past and k.mapping is null and onceflow.hold_for_past(r, k, array[t.id]) then
        return null;
    elsif p_decision = 'run' and k.operator = 'EmptyOperator' then
        v_state := 'success';  -- nothing to run: no worker is asked
    elsif p_decision = 'run' and k.mapping is null then
        insert into onceflow.ready (lane, rank, logical_date, run, ti) values (t.lane, t.rank, t.logical_date, t.run, t.id);
        return null;
    elsif p_decision = 'run' then
        select e.state, e.error into v_state, v_error from onceflow.expand_task(r, k, t) e;
        if v_state is null then return null; end if;
    end if;
    perform onceflow.end_unrun_task(r, t, v_state, v_error);
    return v_state;
end $$;

-- A task that ends without a try: its rule, or an empty list, has decided. The ledger says so.
create or replace function onceflow.end_unrun_task(r onceflow.run, t onceflow.ti, p_state text, p_error text) returns void
language plpgsql as $$
declare
    l onceflow.lease;
    v_error jsonb := case when p_error is not null then jsonb_build_object('$error', 'onceflow.errors:InvalidArgument', 'message', p_error, 'args', jsonb_build_array(p_error)) end;
begin
    select r.id, t.id, r.dag_id, r.run_id, t.task_id, t.map_index, t.epoch into l.run, l.ti, l.dag_id, l.run_id, l.task_id, l.map_index, l.epoch;
    perform onceflow.write_entry(l, t.task_id, t.task_id, 'engine', t.try_number, 'no_status', p_state, true, null, null, null, v_error, null);
    update onceflow.ti set state = p_state, end_date = onceflow.now(), entries = entries + 1, error = p_error where run = t.run and id = t.id;
    if exists (select from onceflow.dag_task k where k.version = r.version and k.ix = t.ix and p_state = any(k.listens)) then
        perform onceflow.note_callback(t.run, t.id, p_state);
    end if;
end $$;

-- The run's last task has ended. Its state is read from the leaves.
create or replace function onceflow.end_dag_run(r onceflow.run) returns void
language plpgsql as $$
declare
    v_state text := case when exists (
        select from onceflow.ti t left join onceflow.dag_task k on k.version = r.version and k.ix = t.ix
        where t.run = r.id and t.state in ('failed', 'upstream_failed') and (k.is_leaf or t.detached)) then 'failed' else 'success' end;
begin
    delete from onceflow.join_count where run = r.id;
    update onceflow.run set state = v_state, end_date = onceflow.now() where id = r.id and state is null;
    if found then perform onceflow.close_run(r); end if;
end $$;
