-- What another Postgres needs so that steps may write there exactly once: @step(database="name"). Install with
-- `onceflow db outpost NAME`. One row per step: who may commit it (token), and what it gave (output).
create schema if not exists onceflow_outpost;

create table if not exists onceflow_outpost.step (
    ti        bigint not null,
    epoch     integer not null,
    step_key  text not null,
    fence     bigint not null,      -- of the lease of the task that tries
    token     uuid not null,        -- of the attempt that may commit
    output    text,                 -- null until it is committed
    xid       xid8,
    raised_at timestamptz not null default clock_timestamp(),
    done_at   timestamptz,
    primary key (ti, epoch, step_key)
);

-- Committed before the step's transaction begins: from now on only this attempt may commit. Answers what is recorded already, in this epoch or
-- since p_base: a run that is tried again may have been cancelled between the commit here and its entry in the ledger.
-- Waits for an attempt that is just committing.
drop function if exists onceflow_outpost.raise_fence(bigint, int, text, bigint, uuid);
create or replace function onceflow_outpost.raise_fence(p_ti bigint, p_base int, p_epoch int, p_key text, p_fence bigint, p_token uuid) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    s onceflow_outpost.step;
begin
    if p_epoch > 0 then
        update onceflow_outpost.step set token = p_token where ti = p_ti and epoch < p_epoch and step_key = p_key and done_at is null;
        select * into s from onceflow_outpost.step
        where ti = p_ti and epoch >= p_base and epoch < p_epoch and step_key = p_key and done_at is not null order by epoch desc limit 1;
        if found then return jsonb_build_object('done', true, 'output', s.output); end if;
    end if;
    insert into onceflow_outpost.step as o (ti, epoch, step_key, fence, token) values (p_ti, p_epoch, p_key, p_fence, p_token)
    on conflict (ti, epoch, step_key) do update set fence = excluded.fence, token = excluded.token, raised_at = clock_timestamp()
    where o.done_at is null and o.fence <= excluded.fence;
    select * into s from onceflow_outpost.step where ti = p_ti and epoch = p_epoch and step_key = p_key;
    if s.done_at is null and s.token <> p_token then
        raise exception using errcode = 'OF001', message = format('step %s of task %s is being run by a later claim', p_key, p_ti);
    end if;
    return jsonb_build_object('done', s.done_at is not null, 'output', s.output);
end $$;

-- In the transaction of the step's own writes: the effect and this record commit together, or neither.
create or replace function onceflow_outpost.record_step(p_ti bigint, p_epoch int, p_key text, p_token uuid, p_output text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if current_setting('onceflow.step', true) is distinct from p_token::text then
        raise exception using errcode = 'OF003', message = format('step %s ended its own transaction before the engine could record it', p_key);
    end if;
    update onceflow_outpost.step set output = p_output, xid = pg_current_xact_id(), done_at = clock_timestamp()
    where ti = p_ti and epoch = p_epoch and step_key = p_key and token = p_token and done_at is null;
    if not found then
        raise exception using errcode = 'OF001', message = format('step %s of task %s went to a later attempt; its writes were rolled back', p_key, p_ti);
    end if;
end $$;
revoke execute on all functions in schema onceflow_outpost from public;
