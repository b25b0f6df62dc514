-- Moves: those of reset_tasks
-- Run: success -> queued, failed -> queued, running -> running
-- Locks: those of reset_tasks, run by run
-- Raises: OF004 no such dag; OF008 a bad regular expression
-- Called by: Client.clear, onceflow tasks clear, psql
-- Tasks of a dag's runs run again: by run, by logical date (both ends included), by a regular expression on task ids, with what is up- or downstream of them, the
-- failed ones only, one mapped instance. dry_run shows what would run again. History (tries, ledger) stays.
create or replace function onceflow.clear_tasks(
    dag_id text, run_id text default null, start_date timestamptz default null, end_date timestamptz default null, task_regex text default null,
    upstream boolean default false, downstream boolean default false, only_failed boolean default false, map_index int default null,
    dry_run boolean default false, actor text default null)
returns table (cleared_run_id text, task_id text, cleared_map_index int, state text)
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_column
declare
    r onceflow.run;
    v_tis bigint[];
begin
    perform from onceflow.dag d where d.dag_id = clear_tasks.dag_id and d.kind = 'dag';
    if not found then perform onceflow.raise_error('OF004', format('there is no dag %s', clear_tasks.dag_id)); end if;
    perform onceflow.check_regex(clear_tasks.task_regex);
    for r in
        select n.* from onceflow.run n where n.dag_id = clear_tasks.dag_id and n.version is not null and n.start_date is not null
          and (clear_tasks.run_id is null or n.run_id = clear_tasks.run_id) and (clear_tasks.start_date is null or n.logical_date >= clear_tasks.start_date)
          and (clear_tasks.end_date is null or n.logical_date <= clear_tasks.end_date)
        order by n.id
    loop
        v_tis := onceflow.select_tasks(r, clear_tasks.task_regex, clear_tasks.upstream, clear_tasks.downstream, clear_tasks.only_failed, clear_tasks.map_index);
        return query select r.run_id::text, i.task_id::text, i.map_index, i.state::text from onceflow.task_instance i where i.run = r.id and i.id = any(v_tis) order by i.ix, i.map_index;
        if not clear_tasks.dry_run and v_tis <> '{}' then
            perform onceflow.write_act(r.id, 'cleared', jsonb_build_object('tasks', (select jsonb_agg(i.task_id order by i.ix, i.map_index) from onceflow.ti i where i.run = r.id and i.id = any(v_tis))),
                coalesce(clear_tasks.actor, session_user));
            perform onceflow.reset_tasks(r.id, v_tis, true, format('cleared by %s', coalesce(clear_tasks.actor, session_user)), coalesce(clear_tasks.actor, session_user));
        end if;
    end loop;
end $$;

-- The instances of a run that were meant. What has not been decided yet needs no clearing.
create or replace function onceflow.select_tasks(r onceflow.run, p_regex text, p_upstream boolean, p_downstream boolean, p_only_failed boolean, p_map_index int)
returns bigint[] language sql stable as $$
    with recursive named as (
        select d.ix, d.upstream, d.downstream, 0 as way from onceflow.dag_task d where d.version = r.version and (p_regex is null or d.task_id ~ p_regex)
    ), reached(ix, way) as (
        select ix, 0 from named
        union
        select d.ix, w.way from reached x join (values (1), (-1)) w(way) on x.way in (0, w.way) and (w.way = 1 and p_downstream or w.way = -1 and p_upstream)
        join onceflow.dag_task u on u.version = r.version and u.ix = x.ix
        join onceflow.dag_task d on d.version = r.version and d.ix = any(case when w.way = 1 then u.downstream else u.upstream end)
    )
    select coalesce(array_agg(i.id order by i.id), '{}') from onceflow.ti i
    where i.run = r.id and i.ix in (select ix from reached) and i.state is distinct from 'removed'
      and (i.state is not null or onceflow.is_under_way(r.id, i.id))
      and (p_map_index is null or i.map_index = p_map_index or i.ix not in (select ix from named) and not exists (  -- beside it in a mapped group, too
        select from named n join onceflow.dag_task a on a.version = r.version and a.ix = n.ix
        join onceflow.dag_task b on b.version = r.version and b.ix = i.ix and b.map_group = a.map_group))
      and (not p_only_failed or i.state in ('failed', 'upstream_failed'))
$$;

create or replace function onceflow.check_regex(p_regex text) returns void
language plpgsql immutable as $$
begin
    perform '' ~ p_regex;
exception when invalid_regular_expression then
    perform onceflow.raise_error('OF008', format('task_regex %s is no regular expression: %s', quote_literal(p_regex), sqlerrm));
end $$;
grant execute on function onceflow.clear_tasks(text, text, timestamptz, timestamptz, text, boolean, boolean, boolean, int, boolean, text) to onceflow_worker, onceflow_operator;
