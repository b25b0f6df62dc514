-- Moves: none
-- Locks: none
-- Raises: OF008 an unknown rule or state
-- Called by: psql, tests; decide_rule by release_tasks
-- What a task's trigger rule says of its upstream tasks: run, skip, upstream_failed or wait. It depends on which states occur, never on their
-- order, and is given as soon as no later arrival can change it.
create or replace function onceflow.decide_trigger_rule(rule text, upstream_states text[]) returns text
language plpgsql immutable security definer set search_path = pg_catalog, pg_temp as $$
declare
    c onceflow.join_count;
begin
    select count(*) filter (where s = 'success'), count(*) filter (where s = 'failed'), count(*) filter (where s = 'skipped'),
           count(*) filter (where s = 'upstream_failed'), count(*) filter (where s = 'removed'),
           count(*) filter (where s is null or s not in ('success', 'failed', 'skipped', 'upstream_failed', 'removed'))
    into c.success, c.failed, c.skipped, c.upstream_failed, c.removed, c.waiting from unnest(decide_trigger_rule.upstream_states) s;
    if cardinality(decide_trigger_rule.upstream_states) = 0 then return 'run'; end if;
    return onceflow.decide_rule(decide_trigger_rule.rule, c);
end $$;
grant execute on function onceflow.decide_trigger_rule(text, text[]) to public;

create or replace function onceflow.decide_rule(p_rule text, c onceflow.join_count) returns text
language plpgsql immutable as $$
declare
    v_bad boolean := c.failed + c.upstream_failed > 0;
    v_wait boolean := c.waiting > 0;
    v_only_skipped boolean := c.skipped > 0 and not v_bad and c.success + c.removed = 0;
begin
    return case p_rule
        when 'all_success' then case when v_bad then 'upstream_failed' when v_wait then 'wait' when c.skipped > 0 then 'skip' else 'run' end
        when 'all_failed' then case when c.success + c.skipped > 0 then 'skip' when v_wait then 'wait' else 'run' end
        when 'all_done' then case when v_wait then 'wait' else 'run' end
        when 'all_done_min_one_success' then
            case when c.skipped > 0 then 'skip' when v_wait then 'wait' when c.success > 0 then 'run' else 'upstream_failed' end
        when 'one_success' then case when c.success > 0 then 'run' when v_wait then 'wait' when v_only_skipped then 'skip' else 'upstream_failed' end
        when 'one_failed' then case when v_bad then 'run' when v_wait then 'wait' else 'skip' end
        when 'one_done' then case when c.success + c.failed > 0 then 'run' when v_wait then 'wait' else 'skip' end
        when 'none_failed' then case when v_bad then 'upstream_failed' when v_wait then 'wait' else 'run' end
        when 'none_failed_min_one_success' then case when v_bad then 'upstream_failed' when v_wait then 'wait' when c.success > 0 then 'run'
            when v_only_skipped then 'skip' else 'upstream_failed' end
        when 'none_skipped' then case when c.skipped > 0 then 'skip' when v_wait then 'wait' else 'run' end
        when 'all_skipped' then case when c.success > 0 or v_bad then 'skip' when v_wait then 'wait' else 'run' end
        when 'all_done_setup_success' then case when v_wait then 'wait' else 'run' end  -- decide_teardown looks at its setups
        when 'always' then 'run'
        else onceflow.raise_error('OF008', format('there is no trigger rule %s', p_rule))::text
    end;
end $$;
