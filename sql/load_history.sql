-- Moves: none
-- Locks: none
-- Raises: nothing
-- Called by: run_task before it replays a body: everything recorded, in one query
-- Per step: its outcome that counts, and how many tries it has had in this epoch.
create or replace function onceflow.load_history(p_run bigint, p_ti bigint) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
    with t as (select run, id, epoch, base_epoch, task_id from onceflow.ti where run = p_run and id = p_ti),
    tried as (
        select l.step_key, jsonb_build_object('try_number', max(l.try_number), 'failures', count(*) filter (where l.to_state = 'up_for_retry'),
            'retry_at', (array_agg(l.output ->> 'retry_at' order by l.id desc) filter (where l.to_state = 'up_for_retry'))[1]) tries
        from t join onceflow.step_ledger l on l.dag_run = p_run and l.ti = p_ti
        where not l.final and l.epoch = t.epoch and l.step_key <> t.task_id and l.to_state in ('up_for_retry', 'started') group by 1)
    select jsonb_build_object(
        'outcomes', (select coalesce(jsonb_agg(jsonb_build_object('key', step_key, 'name', step_name, 'kind', kind, 'state', to_state, 'inputs_hash', inputs_hash,
            'inputs', inputs::text, 'output', output::text, 'error', error::text, 'code_version', code_version) order by id), '[]') from onceflow.list_outcomes(p_run, p_ti, (select epoch from t))),
        'tries', (select coalesce(jsonb_object_agg(step_key, tries), '{}') from tried),
        'base_epoch', (select base_epoch from t))
$$;

-- The outcomes in a task's ledger that count in an epoch, one for each step: its latest success, else its failure, unless an earlier epoch ended by
-- it: a body names, in its own failure (because), the failures that it came from, and these run again. What it has seen and handled stays
-- as it was seen. A failure that names nothing may come from all before it.
create or replace function onceflow.list_outcomes(p_run bigint, p_ti bigint, p_epoch int) returns setof onceflow.step_ledger
language sql stable as $$
    with t as (select run, id, base_epoch, task_id from onceflow.ti where run = p_run and id = p_ti),
    failure as (
        select b.epoch, b.error -> 'because' as keys from t join onceflow.step_ledger b on b.dag_run = p_run and b.ti = p_ti and b.step_key = t.task_id
        where b.final and b.to_state = 'failed' and b.epoch < p_epoch
        union all
        select b.epoch, b.error -> 'because' from t join onceflow.step_ledger b on b.dag_run = p_run and b.ti = p_ti and b.step_key = t.task_id
        where not b.final and b.to_state = 'up_for_retry' and b.epoch < p_epoch)
    select distinct on (l.step_key) l.* from t join onceflow.step_ledger l on l.dag_run = p_run and l.ti = p_ti
    where l.final and l.epoch between t.base_epoch and p_epoch and l.step_key <> t.task_id and (l.to_state = 'success' or not exists (
        select from failure f where f.epoch >= l.epoch and (f.keys is null or exists (
            select from jsonb_array_elements_text(f.keys) k where l.step_key = k or starts_with(l.step_key, k || '/')))))
    order by l.step_key, (l.to_state = 'success') desc, l.epoch desc
$$;
grant execute on function onceflow.load_history(bigint, bigint) to onceflow_worker;
