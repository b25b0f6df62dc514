-- Moves: none
-- Locks: the folder, its dags by id, new versions' rows
-- Raises: nothing; what is wrong with a file becomes an import error
-- Races: another scheduler has taken the folder over: null, and nothing is saved
-- Called by: scheduler, with what its parser processes found; `p_gone` are files that are there no more
-- Answers the names of those files with which something is wrong.
create or replace function onceflow.save_dag_files(p_folder text, p_owner bigint, p_files text, p_gone text[]) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_file jsonb;
    v_dags text[];
begin
    perform from onceflow.dag_folder where folder = p_folder and owner = p_owner for update;
    if not found then return null; end if;
    perform from onceflow.dag where dag_id in (select d ->> 'dag_id' from jsonb_array_elements(p_files::jsonb) f, jsonb_array_elements(f -> 'dags') d)
    order by dag_id for update;
    with gone as (delete from onceflow.dag_file where folder = p_folder and filename = any(p_gone) returning dags)
    select array_agg(distinct dag_id) into v_dags from gone, unnest(dags) dag_id;
    delete from onceflow.import_error where filename = any(p_gone);
    perform onceflow.close_dags(v_dags);
    for v_file in select f from jsonb_array_elements(p_files::jsonb) f loop
        perform onceflow.save_dag_file(p_folder, v_file);
    end loop;
    return (select coalesce(jsonb_agg(distinct e.filename), '[]') from jsonb_array_elements(p_files::jsonb) f
        join onceflow.import_error e on e.filename = f ->> 'filename' and not e.is_warning);
end $$;

create or replace function onceflow.save_dag_file(p_folder text, p_file jsonb) returns void
language plpgsql as $$
declare
    v_now timestamptz := onceflow.now();
    v_name text := p_file ->> 'filename';
    v_had text[] := coalesce((select dags from onceflow.dag_file where filename = v_name), '{}');
    v_rows jsonb;
    v_ids text[];
begin
    if p_file ->> 'error' is not null then
        -- Its dags stay as they are: what runs goes on, and new runs go by the plan before.
        delete from onceflow.import_error where filename = v_name and dag_id is not null;
        perform onceflow.note_import_error(v_name, null, p_file ->> 'error', false);
        perform onceflow.keep_dag_file(p_folder, p_file, v_had);
        update onceflow.dag set has_import_errors = true where dag_id = any(v_had) and not has_import_errors;
        return;
    end if;
    delete from onceflow.import_error where filename = v_name;
    perform onceflow.note_import_error(v_name, t.dag_id, format('two files declare %s: %s and %s; the first is served. Rename one, or remove it', t.dag_id, t.other, v_name), false)
    from onceflow.list_taken(p_file) t;
    select coalesce(jsonb_agg(d), '[]'), coalesce(array_agg(d ->> 'dag_id'), '{}') into v_rows, v_ids
    from jsonb_array_elements(p_file -> 'dags') d where d ->> 'dag_id' not in (select dag_id from onceflow.list_taken(p_file))
        and (d ->> 'kind' <> 'step' or not exists (select from onceflow.dag g where g.dag_id = d ->> 'dag_id' and g.kind <> 'step' and g.is_active));
    perform onceflow.register_dags(onceflow.leave_known_plans(v_rows)::text, true);
    perform onceflow.keep_dag_file(p_folder, p_file, v_ids);
    update onceflow.dag d set processor_subdir = p_folder, last_parsed_time = v_now,
        has_import_errors = exists (select from onceflow.import_error e where e.filename = v_name and e.dag_id = d.dag_id and not e.is_warning)
    where d.dag_id = any(v_ids);
    perform onceflow.note_sources(v_rows);
    perform onceflow.note_import_error(v_name, w ->> 'dag_id', w ->> 'text', true) from jsonb_array_elements(p_file -> 'warnings') w
    where w ->> 'dag_id' = any(v_ids) and not exists (select from onceflow.import_error where filename = v_name and dag_id = w ->> 'dag_id');
    perform onceflow.close_dags(array(select unnest(v_had) except select unnest(v_ids)));
end $$;

-- What a file declares that another one, which is still there, declares already.
create or replace function onceflow.list_taken(p_file jsonb) returns table (dag_id text, other text)
language sql stable as $$
    select d ->> 'dag_id', g.fileloc from jsonb_array_elements(p_file -> 'dags') d join onceflow.dag g on g.dag_id = d ->> 'dag_id' and g.fileloc <> d ->> 'fileloc'
    where d ->> 'kind' <> 'step' and g.kind <> 'step' and exists (select from onceflow.dag_file f where f.dags @> array[d ->> 'dag_id'] and f.filename <> p_file ->> 'filename')
$$;

-- A dag that no file declares any more is not served: its schedule stops, its runs wait.
create or replace function onceflow.close_dags(p_dags text[]) returns void
language plpgsql as $$
declare
    v_dags text[];
    v_dag text;
begin
    with closed as (
        update onceflow.dag set is_active = false, has_import_errors = false, source = null where dag_id = any(p_dags) and is_active
            and not exists (select from onceflow.dag_file f where f.dags @> array[dag.dag_id::text]) returning dag_id
    )
    select coalesce(array_agg(dag_id order by dag_id), '{}') into v_dags from closed;
    foreach v_dag in array v_dags loop
        perform onceflow.save_datasets(v_dag, null);
    end loop;
end $$;

create or replace function onceflow.keep_dag_file(p_folder text, p_file jsonb, p_dags text[]) returns void
language sql as $$
    insert into onceflow.dag_file (filename, folder, sources, dags, parsed_at, parse_s)
    values (p_file ->> 'filename', p_folder, p_file -> 'sources', p_dags, onceflow.now(), (p_file ->> 'parse_s')::double precision)
    on conflict (filename) do update set folder = excluded.folder, sources = excluded.sources, dags = excluded.dags, parsed_at = excluded.parsed_at, parse_s = excluded.parse_s
$$;

create or replace function onceflow.note_import_error(p_filename text, p_dag_id text, p_text text, p_is_warning boolean) returns void
language sql as $$
    insert into onceflow.import_error ("timestamp", filename, dag_id, stacktrace, is_warning) values (onceflow.now(), p_filename, p_dag_id, p_text, p_is_warning)
    on conflict (filename, dag_id) do update set "timestamp" = excluded."timestamp", stacktrace = excluded.stacktrace, is_warning = excluded.is_warning
    where (import_error.stacktrace, import_error.is_warning) <> (excluded.stacktrace, excluded.is_warning)
$$;

-- The rows without the plans that were read from the same source before: uuid4() in a file must not make a version each time it is read.
create or replace function onceflow.leave_known_plans(p_dags jsonb) returns jsonb
language sql stable as $$
    select coalesce(jsonb_agg(case when g.version is not null and g.source = d ->> 'source' then d - 'plan' else d end), '[]')
    from jsonb_array_elements(p_dags) d left join onceflow.dag g on g.dag_id = d ->> 'dag_id'
$$;

create or replace function onceflow.note_sources(p_dags jsonb) returns void
language sql as $$
    update onceflow.dag g set source = d ->> 'source' from jsonb_array_elements(p_dags) d
    where g.dag_id = d ->> 'dag_id' and d ? 'plan' and g.source is distinct from d ->> 'source'
        and not exists (select from onceflow.import_error e where e.filename = g.fileloc and e.dag_id = g.dag_id and not e.is_warning)
$$;

-- The rows of dags that no living scheduler parses: a worker makes these known itself.
create or replace function onceflow.list_unparsed(p_dags jsonb, p_now timestamptz) returns jsonb
language sql stable as $$
    select coalesce(jsonb_agg(d), '[]') from jsonb_array_elements(p_dags) d
    where not exists (select from onceflow.dag_file f join onceflow.dag_folder o on o.folder = f.folder
        where f.dags @> array[d ->> 'dag_id'] and o.seen_at > p_now - interval '30 s')
$$;
grant execute on function onceflow.save_dag_files(text, bigint, text, text[]) to onceflow_worker;
