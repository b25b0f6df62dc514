-- Moves: none
-- Locks: the lease
-- Raises: OF001 the lease is gone or another's
-- Called by: every function that writes for a claimed task, first of all: the fence of the same transaction
-- Counts the entry about to be written, so that a removed entry is missed even before it is sealed.
-- p_token is the lease's token, or, when p_what is given, a proof of it for that purpose (prove_token).
create or replace function onceflow.hold_lease(p_run bigint, p_ti bigint, p_token uuid, p_what text default null) returns onceflow.lease
language plpgsql as $$
declare
    l onceflow.lease;
begin
    update onceflow.lease set entries = entries + 1
    where ti = p_ti and run = p_run and (token = p_token or onceflow.prove_token(token, p_what) = p_token) returning * into l;
    if not found then perform onceflow.raise_lease_lost(p_run, p_ti); end if;
    return l;
end $$;

-- The lease of a step that acts in the midst of its own writes (p_what as above). It is only read: no lock of the engine's may stay while the user's code goes on.
-- The step's completion, in the same transaction, holds it; so outside of a step's transaction an act is refused.
create or replace function onceflow.check_lease(p_run bigint, p_ti bigint, p_token uuid, p_what text) returns onceflow.lease
language plpgsql as $$
declare
    l onceflow.lease;
begin
    select * into l from onceflow.lease where ti = p_ti and run = p_run and (token = p_token or onceflow.prove_token(token, p_what) = p_token);
    if not found then perform onceflow.raise_lease_lost(p_run, p_ti); end if;
    if coalesce(current_setting('onceflow.step', true), '') = '' then perform onceflow.raise_step_split('of ' || l.task_id); end if;
    return l;
end $$;

-- The same for a task that ends here: its lease goes. A proof is for task_id/try_number/p_what.
create or replace function onceflow.drop_lease(p_run bigint, p_ti bigint, p_token uuid, p_what text default null) returns onceflow.lease
language plpgsql as $$
declare
    l onceflow.lease;
begin
    delete from onceflow.lease
    where ti = p_ti and run = p_run and (token = p_token or onceflow.prove_token(token, task_id || '/' || try_number || '/' || p_what) = p_token)
    returning * into l;
    if not found then perform onceflow.raise_lease_lost(p_run, p_ti); end if;
    return l;
end $$;

create or replace function onceflow.raise_lease_lost(p_run bigint, p_ti bigint) returns void
language plpgsql as $$
declare
    v_what text;
    v_why text;
begin
    select format('task %s of run %s of %s', t.task_id, r.run_id, r.dag_id),
           case when r.state = 'cancelled' then 'was cancelled' when t.state is not null then 'has ended elsewhere (' || t.state || ')'
                when t.rescues > 0 then 'was rescued from this worker, which had sent no heartbeat for its lease_s'
                else 'is no longer held by this worker' end
    into v_what, v_why from onceflow.ti t join onceflow.run r on r.id = t.run where t.run = p_run and t.id = p_ti;
    perform onceflow.raise_error('OF001', coalesce(v_what || ' ' || v_why, 'no such task: ' || p_ti)
        || '; its writes were rolled back. If this worker was only slow, raise lease_s or split the step.');
end $$;

-- A transactional step's record must land in the transaction that begin_step opened. The setting holds a mark made of the token, not the token: SQL that
-- runs in the step cannot complete anything by itself.
create or replace function onceflow.check_step_transaction(p_token uuid, p_key text, p_name text) returns void
language plpgsql as $$
begin
    if onceflow.mark_token(p_token, p_key) is distinct from split_part(current_setting('onceflow.step', true), '/', 2) then
        perform onceflow.raise_step_split(p_name);
    end if;
end $$;

-- The same for a group, whose transaction has one mark for all.
create or replace function onceflow.check_mark(p_mark text, p_name text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if p_mark is distinct from current_setting('onceflow.step', true) then perform onceflow.raise_step_split(p_name); end if;
end $$;

create or replace function onceflow.raise_step_split(p_name text) returns void
language plpgsql as $$
begin
    perform onceflow.raise_error('OF003', format('step %s ended its own transaction before the engine could record it: a step must not COMMIT or ROLLBACK. '
        'Use savepoints inside the step, or split it into two steps.', p_name));
end $$;

create or replace function onceflow.mark_token(p_token uuid, p_key text) returns text
language sql immutable as $$ select encode(sha256(convert_to(p_token::text || '/' || p_key, 'UTF8')), 'hex') $$;

-- The application_name of a step's open transaction: it tells whose it is, and proves nothing.
create or replace function onceflow.name_session(p_worker bigint, p_ti bigint, p_key text) returns text
language sql immutable as $$
    select 'onceflow-step:' || p_worker || ':' || left(encode(sha256(convert_to(p_ti || '/' || p_key, 'UTF8')), 'hex'), 16)
$$;

-- The step that runs in this transaction, by the setting <ti>/<mark>/<key>; no row outside of steps, and in a group (its key is empty). A made-up mark
-- finds nothing.
create or replace function onceflow.find_step() returns table (run bigint, ti bigint, step_key text)
language plpgsql stable as $$
declare
    v_step text := current_setting('onceflow.step', true);
    v_ti text := split_part(v_step, '/', 1);
    v_mark text := split_part(v_step, '/', 2);
    v_key text := substr(v_step, length(v_ti) + length(v_mark) + 3);
begin
    if v_ti ~ '^[0-9]{1,19}$' and v_key <> '' then
        return query select l.run, l.ti, v_key from onceflow.lease l where l.ti = v_ti::bigint and onceflow.mark_token(l.token, v_key) = v_mark;
    end if;
end $$;

-- What a statement on a step's connection carries in place of the token: good for one purpose (p_what), since every step may read the statements of all
-- sessions of its role. Its version digit is 8, a token's is 4.
create or replace function onceflow.prove_token(p_token uuid, p_what text) returns uuid
language sql immutable as $$
    select overlay(left(encode(sha256(convert_to(p_token::text || '/' || p_what, 'UTF8')), 'hex'), 32) placing '8' from 13)::uuid
$$;

-- A group commit checks first that no member ended the shared transaction.
grant execute on function onceflow.check_mark(text, text) to onceflow_step;
