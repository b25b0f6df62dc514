-- Moves: none
-- Locks: the rows it deletes (skip locked)
-- Raises: OF008 no such table
-- Called by: onceflow db clean, again and again until it answers 0
-- Deletes, at most p_limit rows of one table, what runs that ended (and are older than p_days), and workers that ended, left behind.
create or replace function onceflow.clean_leftovers(p_table text, p_days int, p_limit int default 10000) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_now timestamptz := onceflow.now();
    v_before bigint := onceflow.id_at(v_now - make_interval(days => p_days));
    v_count integer;
begin
    if p_table in ('message', 'message_key', 'run_event') then
        -- No run row any more: it was archived.
        execute format($q$
            delete from onceflow.%1$I where ctid = any(array(
                select m.ctid from onceflow.%1$I m left join onceflow.run r on r.id = m.run
                where m.run < $1 and (r.id is null or r.state in ('success', 'failed', 'cancelled')) limit $2 for update of m skip locked))$q$, p_table)
        using v_before, p_limit;
    elsif p_table = 'pushed' then
        -- What tasks gave each other stays as long as their run: until it is archived.
        delete from onceflow.pushed where ctid = any(array(
            select p.ctid from onceflow.pushed p left join onceflow.run r on r.id = p.run where p.run < v_before and r.id is null limit p_limit for update of p skip locked));
    elsif p_table = 'callback' then
        -- No worker has its dag any more.
        delete from onceflow.callback where ctid = any(array(select c.ctid from onceflow.callback c where c.run < v_before limit p_limit for update skip locked));
    elsif p_table = 'dataset_event' then
        -- Not what waits for its run. Which run took it goes with it.
        with gone as (
            delete from onceflow.dataset_event where (tableoid, ctid) in (
                select e.tableoid, e.ctid from onceflow.dataset_event e where e."timestamp" < v_now - make_interval(days => p_days)
                    and not exists (select from onceflow.waiting_event w where w.event_id = e.id) and not exists (select from onceflow.unspread_event u where u.event_id = e.id)
                limit p_limit for update skip locked) returning id
        ), unlinked as (
            delete from onceflow.dagrun_dataset_event x using gone g where x.event_id = g.id
        )
        select count(*) into v_count from gone;
        return v_count;
    elsif p_table = 'approval' then
        delete from onceflow.approval where ctid = any(array(
            select a.ctid from onceflow.approval a left join onceflow.run r on r.id = a.run where a.run < v_before and r.id is null limit p_limit for update of a skip locked));
    elsif p_table = 'triggerer' then
        delete from onceflow.triggerer where ctid = any(array(
            select g.ctid from onceflow.triggerer g
            where coalesce(g.ended_at, g.heartbeat_at) < v_now - make_interval(days => p_days) and not exists (select from onceflow.trigger t where t.triggerer_id = g.id)
            limit p_limit for update skip locked));
    elsif p_table = 'worker' then
        delete from onceflow.worker where ctid = any(array(
            select w.ctid from onceflow.worker w
            where coalesce(w.ended_at, w.heartbeat_at) < v_now - make_interval(days => p_days) and not exists (select from onceflow.lease l where l.worker = w.id)
            limit p_limit for update skip locked));
    else
        perform onceflow.raise_error('OF008', format('table %s cannot be cleaned; message, message_key, run_event, pushed, callback, dataset_event, approval, triggerer and worker can', p_table));
    end if;
    get diagnostics v_count = row_count;
    return v_count;
end $$;
grant execute on function onceflow.clean_leftovers(text, int, int) to onceflow_operator;
