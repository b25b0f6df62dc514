-- Moves: none -> queued, none -> scheduled (with a delay)
-- Run: none -> queued
-- Locks: only inserts (it runs in anyone's transaction); waits for another start of the same run id or deduplicate text to commit
-- Raises: OF002 the run id, or the deduplicate text, is that of a run with other arguments, or of another step of the same name; OF004 no such dag; OF008 a bad argument
-- Called by: Client.start, Client.trigger, psql, any application inside its own transaction, start_child
-- interval_start, interval_end: of the data that a dag's run processes; its logical date, when not given. What a dag's priority is, is added.
-- fn: of a step, module:qualname, where several files may have a step of its name.
-- args: an object of named arguments, or an array of positional ones. What is not given (queue, timeout, tries) is as the workflow was declared.
-- deduplicate: while a run of the dag that was started with this text lives, it is answered in place of a new one. A run id that is used up comes
-- first, so that a start repeated after a lost reply finds the run it made, ended or not; one that is not used up stays free when another run is answered.
create or replace function onceflow.start_run(
    dag_id text, args jsonb default '{}', run_id text default null, logical_date timestamptz default null, conf jsonb default null,
    queue text default null, priority int default 0, delay_s double precision default null, timeout_s double precision default null,
    run_type text default 'manual', code_version text default null, max_tries int default null, task_kind text default null,
    actor text default null, parent_run bigint default null, parent_ti bigint default null, notify boolean default true, deduplicate text default null,
    interval_start timestamptz default null, interval_end timestamptz default null, fn text default null)
returns jsonb language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
    v_now timestamptz := onceflow.now();
    v_run bigint := onceflow.new_id();
    v_args jsonb := coalesce(start_run.conf, start_run.args, '{}');
    v_date timestamptz := coalesce(start_run.logical_date, date_trunc('milliseconds', v_now) + (v_run % 1000) * interval '1 microsecond');
    v_run_id text;
    v_hash text := encode(sha256(convert_to(v_args::text, 'UTF8')), 'hex');
    v_lane int;
    v_version bigint;
    v_key onceflow.run_key;
    v_dag onceflow.dag;
    v_alive onceflow.run;
begin
    if jsonb_typeof(v_args) not in ('object', 'array') then
        perform onceflow.raise_error('OF008', format('start_run of %s: args must be a JSON object or array, not %s', start_run.dag_id, jsonb_typeof(v_args)));
    end if;
    if length(start_run.run_id) not between 1 and 250 then
        perform onceflow.raise_error('OF008', format('start_run of %s: run_id must have 1 to 250 characters', start_run.dag_id));
    end if;
    if length(start_run.deduplicate) not between 1 and 250 then
        perform onceflow.raise_error('OF008', format('start_run of %s: deduplicate must have 1 to 250 characters', start_run.dag_id));
    end if;
    select * into v_dag from onceflow.dag d where d.dag_id = start_run.dag_id;
    if not found then
        perform onceflow.raise_error('OF004', format('there is no workflow or dag named %s; start a worker that has it, or check the name', start_run.dag_id));
    end if;
    if start_run.deduplicate is not null and not exists (select from onceflow.run_key k where k.dag_id = start_run.dag_id and k.run_id = start_run.run_id) then
        v_alive := onceflow.take_live_key(start_run.dag_id, start_run.deduplicate, v_run);
        if v_alive.live_hash <> v_hash then
            perform onceflow.raise_error('OF002', format('run %s of %s is alive with deduplicate %s and other arguments', v_alive.run_id, start_run.dag_id,
                quote_literal(start_run.deduplicate)));
        elsif v_alive.id is not null then
            perform onceflow.check_fn(v_alive.id, start_run.fn);
            return jsonb_build_object('run', v_alive.id, 'run_id', v_alive.run_id, 'created', false);
        end if;
    end if;
    loop
        v_run_id := coalesce(start_run.run_id, onceflow.name_run(start_run.run_type, v_date));
        insert into onceflow.run_key values (start_run.dag_id, v_run_id, v_date, v_run, v_hash) on conflict do nothing;
        exit when found;
        select * into v_key from onceflow.run_key k where k.dag_id = start_run.dag_id and k.run_id = v_run_id;
        if found and start_run.run_id is null and start_run.logical_date is null then
            null;   -- a made-up id clashed: take the next microsecond
        elsif found and v_key.args_hash = v_hash then
            perform onceflow.check_fn(v_key.run, start_run.fn);
            -- Another start of this run id has just come in, with another text or none: the text taken above stays free.
            delete from onceflow.live_key k where k.dag_id = start_run.dag_id and k.key = start_run.deduplicate and k.run = v_run;
            return jsonb_build_object('run', v_key.run, 'run_id', v_key.run_id, 'created', false);
        elsif found then
            perform onceflow.raise_error('OF002', format('run id %s of %s is already used by a run with other arguments', v_run_id, start_run.dag_id));
        elsif start_run.logical_date is not null then
            perform onceflow.raise_error('OF002', format('%s already has a run for logical date %s', start_run.dag_id, v_date));
        end if;
        v_date := v_date + interval '1 microsecond';
    end loop;
    queue := coalesce(start_run.queue, v_dag.queue, 'default');
    max_tries := coalesce(start_run.max_tries, v_dag.retries);
    timeout_s := coalesce(start_run.timeout_s, v_dag.timeout_s);
    task_kind := coalesce(start_run.task_kind, case v_dag.kind when 'step' then 'step' else 'body' end);
    if v_dag.kind = 'dag' then v_version := v_dag.version; end if;
    v_lane := onceflow.ensure_lane(start_run.queue, start_run.dag_id, start_run.code_version);
    insert into onceflow.run (id, dag_id, run_id, logical_date, run_type, conf, queue, priority, root, parent_run, parent_ti, code_version, created_at, actor,
        live_key, live_hash, version, timeout_s, data_interval_start, data_interval_end)
    values (v_run, start_run.dag_id, v_run_id, v_date, start_run.run_type, v_args, start_run.queue, start_run.priority + v_dag.priority, case when v_version is null then v_run else 0 end,
        start_run.parent_run, start_run.parent_ti, start_run.code_version, v_now, coalesce(start_run.actor, session_user),
        start_run.deduplicate, case when start_run.deduplicate is not null then v_hash end, v_version, start_run.timeout_s,
        coalesce(start_run.interval_start, case when v_version is not null then v_date end), coalesce(start_run.interval_end, case when v_version is not null then v_date end));
    if v_version is not null then
        insert into onceflow.timer (due_at, run, ti, kind) select l.due_at, v_run, l.no, 'deadline' from onceflow.list_deadlines(v_dag.deadlines, v_date, v_now) l;
        insert into onceflow.queued_run (dag_id, logical_date, run, due_at)
        values (start_run.dag_id, v_date, v_run, v_now + make_interval(secs => coalesce(start_run.delay_s, 0)));
        if start_run.notify then perform pg_notify('onceflow_ready', ''); end if;
        return jsonb_build_object('run', v_run, 'run_id', v_run_id, 'created', true);
    end if;
    insert into onceflow.ti (run, id, task_id, kind, fn, retries, max_tries, lane, rank, logical_date, queued_when, queue)
    values (v_run, v_run, start_run.dag_id, start_run.task_kind, start_run.fn, start_run.max_tries, start_run.max_tries, v_lane, -start_run.priority, v_date, v_now, start_run.queue);
    if start_run.delay_s > 0 then
        insert into onceflow.timer values (v_now + make_interval(secs => start_run.delay_s), v_run, v_run, 'start');
    else
        insert into onceflow.ready (lane, rank, logical_date, run, ti) values (v_lane, -start_run.priority, v_date, v_run, v_run);
        if start_run.notify then perform pg_notify('onceflow_ready', ''); end if;
    end if;
    if start_run.timeout_s > 0 then
        insert into onceflow.timer values (v_now + make_interval(secs => start_run.timeout_s), v_run, v_run, 'run_timeout');
    end if;
    return jsonb_build_object('run', v_run, 'run_id', v_run_id, 'created', true);
end $$;

-- Gives p_run the deduplicate text (null is answered), or answers the living run that has it. It looks before it inserts: so it waits for
-- another start, and never for the end of a run.
create or replace function onceflow.take_live_key(p_dag_id text, p_key text, p_run bigint) returns onceflow.run
language plpgsql as $$
declare
    r onceflow.run;
begin
    loop
        select a.* into r from onceflow.live_key k join onceflow.run a on a.id = k.run where k.dag_id = p_dag_id and k.key = p_key;
        if found then return r; end if;
        insert into onceflow.live_key values (p_dag_id, p_key, p_run) on conflict do nothing;
        if found then return null; end if;
    end loop;
end $$;

-- Is the run, which a start has found, of that step? Its module may be written with more of its path, by whoever imports it otherwise.
create or replace function onceflow.check_fn(p_run bigint, p_fn text) returns void
language plpgsql as $$
declare
    v_fn text;
begin
    select t.fn into v_fn from onceflow.ti t where t.run = p_run and t.id = p_run;
    if substring(v_fn from '[^.:]*:.*') <> substring(p_fn from '[^.:]*:.*') then
        perform onceflow.raise_error('OF002', format('run %s of %s is of step %s, not of %s, which has the same name',
            (select r.run_id from onceflow.run r where r.id = p_run), (select r.dag_id from onceflow.run r where r.id = p_run), v_fn, p_fn));
    end if;
end $$;
grant execute on function onceflow.start_run(text, jsonb, text, timestamptz, jsonb, text, int, double precision, double precision, text, text, int, text, text, bigint, bigint, boolean, text, timestamptz, timestamptz, text)
    to onceflow_worker, onceflow_step, onceflow_operator;
