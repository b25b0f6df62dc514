-- Waiting without a slot: tasks of dags that have given their lease back until something happens, and who looks for it.

-- Processes that run triggers. Dead ones lose theirs to others.
create table onceflow.triggerer (
    id           integer generated always as identity primary key,
    host         text not null,
    pid          integer not null,
    lease_s      double precision not null,
    started_at   timestamptz not null,
    heartbeat_at timestamptz not null,
    ended_at     timestamptz
);

-- What a deferred task waits for. Whoever deletes the row has fired it: so it fires once. Its task has no state and no lease meanwhile.
create table onceflow.trigger (
    id           integer generated always as identity primary key,
    classpath    varchar(1000) not null,
    kwargs       jsonb not null,
    created_date timestamptz not null,
    triggerer_id integer,                       -- who runs it
    is_manual    boolean not null default false, -- no triggerer runs it: a person answers
    run          bigint not null,
    ti           bigint not null,
    pool         varchar(256) not null,         -- for pools that count what is deferred
    pool_slots   integer not null,
    unique (run, ti)
);
create index trigger_triggerer on onceflow.trigger (triggerer_id, id) where not is_manual;
create index trigger_pool on onceflow.trigger (pool);

-- How a task that waited goes on: the method to call, and what it has to know. It holds for one try (see resume_of).
alter table onceflow.ti
    add column next_method varchar(1000),
    add column next_kwargs jsonb;

alter table onceflow.timer drop constraint timer_kind_check,
    add constraint timer_kind_check check (kind in ('start', 'retry', 'wait', 'run_timeout', 'reschedule', 'deferral'));

-- What people are asked. The answer, or the lack of one, is the event of the task's trigger, and stands in the ledger.
create table onceflow.approval (
    run        bigint not null,
    ti         bigint not null,
    dag_id     varchar(250) not null,
    run_id     varchar(250) not null,
    task_id    varchar(250) not null,
    map_index  integer not null,
    subject    text not null,
    body       text,
    options    text[] not null,
    approvers  text[] not null default '{}',    -- names of people, or of roles as role:name; none = anybody with the right
    asked_at   timestamptz not null,
    due_at     timestamptz,
    answer     text,                            -- null: not yet, or never
    actor      text,
    comment    text,
    answered_at timestamptz,
    primary key (run, ti)
);
create index approval_open on onceflow.approval (asked_at) where answered_at is null;
