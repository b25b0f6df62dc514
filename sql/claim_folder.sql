-- Moves: none
-- Locks: the folder's row
-- Raises: nothing
-- Races: a folder that another scheduler parses, and was seen within the lease: false
-- Called by: scheduler, before it parses and every few seconds while it does
create or replace function onceflow.claim_folder(p_folder text, p_owner bigint, p_host text, p_pid int, p_lease_s double precision) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_now timestamptz := onceflow.now();
begin
    insert into onceflow.dag_folder (folder, owner, host, pid, seen_at) values (p_folder, p_owner, p_host, p_pid, v_now)
    on conflict (folder) do update set owner = excluded.owner, host = excluded.host, pid = excluded.pid, seen_at = v_now
    where dag_folder.owner = excluded.owner or dag_folder.seen_at < v_now - make_interval(secs => p_lease_s);
    return found;
end $$;

-- At its end it lets another have the folder at once.
create or replace function onceflow.leave_folder(p_folder text, p_owner bigint) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
    update onceflow.dag_folder set seen_at = '-infinity' where folder = p_folder and owner = p_owner
$$;

-- What is known of the folder's files, as {filename: {sources, dags, is_broken}}.
create or replace function onceflow.list_dag_files(p_folder text) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(jsonb_object_agg(f.filename, jsonb_build_object('sources', f.sources, 'is_broken',
        exists (select from onceflow.import_error e where e.filename = f.filename and not e.is_warning))), '{}')
    from onceflow.dag_file f where f.folder = p_folder
$$;
grant execute on function onceflow.claim_folder(text, bigint, text, int, double precision) to onceflow_worker;
grant execute on function onceflow.leave_folder(text, bigint) to onceflow_worker;
grant execute on function onceflow.list_dag_files(text) to onceflow_worker;
