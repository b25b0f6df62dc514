-- Moves: none
-- Locks: advisory (make_partitions); the four tables and their default partitions, access exclusive, for a moment: gives up soon
-- Raises: 55P03 when readers or writers would have to wait for it longer than 200 ms
-- Called by: migrate; run_tick as its last act, once a minute while one of the next two months lacks
-- Makes the partitions of this month and the next two, by the real clock. Storage parameters sit on the leaves.
create or replace function onceflow.make_partitions(p_from timestamptz default clock_timestamp(), p_months int default 3)
returns integer language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '200ms' as $$
declare
    v_month timestamp;  -- in UTC, whatever the session's time zone
    v_name text;
    v_table text;
    v_made integer := 0;
begin
    perform pg_advisory_xact_lock(hashtext('onceflow.make_partitions'));
    for i in 0 .. p_months - 1 loop
        v_month := date_trunc('month', p_from at time zone 'UTC') + make_interval(months => i);
        foreach v_table in array array['step_ledger', 'ti', 'run', 'dataset_event'] loop  -- in the order in which the end of a task takes them
            v_name := format('%s_%s', v_table, to_char(v_month, 'YYYYMM'));
            continue when to_regclass('onceflow.' || v_name) is not null;
            begin
                execute format('create table onceflow.%I partition of onceflow.%I for values from (%s) to (%s)%s', v_name, v_table,
                    onceflow.find_bound(v_table, v_month), onceflow.find_bound(v_table, v_month + interval '1 month'),
                    case when v_table in ('run', 'ti') then ' with (fillfactor = 50)'
                        when v_table = 'dataset_event' then ' with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.02)' else '' end);
                v_made := v_made + 1;
            exception when check_violation then
                -- Nobody made it in time, and rows of the month went to the default partition: they stay there.
                raise warning 'partition onceflow.% cannot be made: onceflow.%_default holds rows of that month', v_name, v_table;
            end;
        end loop;
    end loop;
    return v_made;
end $$;
grant execute on function onceflow.make_partitions(timestamptz, int) to onceflow_worker;

-- Where a month begins: runs and what belongs to them go by the run's id, events of datasets by their time.
create or replace function onceflow.find_bound(p_table text, p_month timestamp) returns text
language sql stable as $$
    select case p_table when 'dataset_event' then quote_literal(p_month at time zone 'UTC') else onceflow.id_at(p_month at time zone 'UTC')::text end
$$;

-- Does a coming month lack? Of the present one it is too late to ask.
create or replace function onceflow.lack_partitions() returns boolean
language sql stable as $$
    select exists (select from generate_series(1, 2) i where to_regclass('onceflow.run_' || to_char(
        (clock_timestamp() at time zone 'UTC') + make_interval(months => i), 'YYYYMM')) is null)
$$;
