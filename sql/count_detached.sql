-- Moves: none
-- Locks: the run, when the transaction has started tasks of it
-- Raises: nothing
-- Called by: complete_step, end_task: counts and numbers the tasks that this transaction's steps have started (start_task without a key)
create or replace function onceflow.count_detached(p_run bigint) returns void
language plpgsql as $$
declare
    v_listed text := nullif(current_setting('onceflow.detached', true), '');
    v_tis bigint[];
    v_first int;
begin
    if v_listed is null then return; end if;
    select array_agg(t.id order by t.id) into v_tis from onceflow.ti t
    where t.run = p_run and t.id = any(string_to_array(v_listed, ',')::bigint[]) and t.detached and t.map_index = -1;
    if v_tis is null then return; end if;
    update onceflow.run set tis = tis + cardinality(v_tis), living = living + cardinality(v_tis) where id = p_run returning tis - cardinality(v_tis) - 1 into v_first;
    update onceflow.ti t set map_index = v_first + k.n - 1 from unnest(v_tis) with ordinality k(id, n) where t.run = p_run and t.id = k.id;
end $$;
