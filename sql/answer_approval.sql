-- Moves: deferred -> queued
-- Run: running -> running
-- Locks: the ti, its trigger
-- Raises: OF004 nothing of the kind is asked; OF005 it was answered, or its time is over; OF008 no such answer, or somebody who is not asked
-- Called by: Client.approve, onceflow approvals, psql
-- A person's decision: the task goes on with it in the same transaction. There is one: of two answers, or an answer and the time limit, the first counts.
create or replace function onceflow.answer_approval(run bigint, task_id text, answer text, actor text default null, comment text default null, map_index int default -1,
    roles text[] default '{}')
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_column
declare
    a onceflow.approval;
    v_actor text := coalesce(answer_approval.actor, session_user);
begin
    select * into a from onceflow.approval p
    where p.run = answer_approval.run and p.task_id = answer_approval.task_id and p.map_index = answer_approval.map_index;
    if not found then
        perform onceflow.raise_error('OF004', format('run %s asks nothing in task %s with map index %s', answer_approval.run, answer_approval.task_id, answer_approval.map_index));
    end if;
    if answer_approval.answer is null or answer_approval.answer <> all(a.options) then
        perform onceflow.raise_error('OF008', format('%s is no answer to %s; it is one of %s', coalesce(answer_approval.answer, 'null'), a.subject, array_to_string(a.options, ', ')));
    end if;
    if a.approvers <> '{}' and v_actor <> all(a.approvers) and not a.approvers && array(select 'role:' || x from unnest(answer_approval.roles) x) then
        perform onceflow.raise_error('OF008', format('%s is not asked in task %s; those who are: %s', v_actor, a.task_id, array_to_string(a.approvers, ', ')));
    end if;
    if not onceflow.fire_trigger(a.run, a.ti, null, jsonb_build_object('answer', answer_approval.answer, 'actor', v_actor, 'comment', answer_approval.comment, 'login', session_user), v_actor) then
        perform onceflow.raise_error('OF005', format('task %s of run %s is not waiting for an answer any more', a.task_id, a.run_id));
    end if;
    update onceflow.approval p set answer = answer_approval.answer, actor = v_actor, comment = answer_approval.comment, answered_at = onceflow.now()
    where p.run = a.run and p.ti = a.ti;
    perform pg_notify('onceflow_ready', '');
end $$;
grant execute on function onceflow.answer_approval(bigint, text, text, text, text, int, text[]) to onceflow_worker, onceflow_operator;
grant select on onceflow.approval to onceflow_worker, onceflow_auditor, onceflow_operator;
