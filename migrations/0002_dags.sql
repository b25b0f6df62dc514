-- Dags: workflows whose graph is known up front.

-- What a dag's file described, each time it described something else. A run goes by the version it was started with.
create table onceflow.dag_version (
    id           bigint generated always as identity primary key,
    dag_id       varchar(250) not null,
    number       integer not null,              -- 1, 2, 3… of its dag
    digest       text not null,                 -- of the plan
    plan         jsonb not null,                -- the serialized dag
    code_version text,                          -- of the file that first described it so
    listens      text[] not null default '{}',  -- after which ends of a run the dag wants to be called
    created_at   timestamptz not null,
    unique (dag_id, number),
    unique (dag_id, digest)
);

-- The plan's tasks as rows, for the statements that create and release tasks. ix follows the edges: upstream ones have lower numbers.
create table onceflow.dag_task (
    version         bigint not null,
    ix              integer not null,
    task_id         varchar(250) not null,
    operator        text not null,
    trigger_rule    text not null,
    upstream        integer[] not null,
    downstream      integer[] not null,
    retries         integer not null,
    weight          integer not null,           -- its priority within a lane, descendants counted as its weight rule says
    queue           varchar(256),
    lane            integer not null,
    pool            varchar(256) not null,
    pool_slots      integer not null,
    is_leaf         boolean not null,           -- the run's state is read from the leaves
    is_joined       boolean not null,           -- more than one task instance stands upstream: it has a join_count
    decides         text,                       -- its output says which tasks go on: branch, short_circuit, short_circuit_all; null = it decides nothing
    is_setup        boolean not null default false,
    is_teardown     boolean not null default false,
    listens         text[] not null default '{}', -- after which events it wants to be called
    mapping         jsonb,                      -- over what it, or its mapped group, is expanded: [[parameter, source], …]; null = not mapped
    map_group       integer,                    -- in a mapped group: the number of the group's first task, which stands for the group
    inside          integer[] not null default '{}', -- of upstream, what is in the same mapped group: instance i waits for their instances i alone
    gate            integer[] not null default '{}', -- all instances of these end before it, or its group, is expanded; counted in the join_count of ti -ix-1
    takes_item      boolean not null default true,   -- its instances have the items as arguments
    executor_config jsonb,
    primary key (version, ix)
);

-- What a task of a living run still waits for: its upstream tasks that have not ended, and what those that have ended came to. The row is
-- gone once the task's trigger rule has decided. The row of ti 0 is the run's own: it ends when no task is left. Mapped tasks whose instances decide one by
-- one have one row for what all instances wait for, that of the first; it stays.
create table onceflow.join_count (
    run             bigint not null,
    ti              bigint not null,
    waiting         integer not null,
    success         integer not null default 0,
    failed          integer not null default 0,
    skipped         integer not null default 0,
    upstream_failed integer not null default 0,
    removed         integer not null default 0,
    primary key (run, ti)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

-- Instances of a task that have ended in one state: one of them, or (map_index null) some of them.
create type onceflow.ended as (ix integer, map_index integer, state text, count integer);

-- What is wrong with a file of dags, or with one dag of it, until it is mended.
create table onceflow.import_error (
    id          integer generated always as identity primary key,
    "timestamp" timestamptz not null,
    filename    varchar(1024) not null,
    dag_id      varchar(250),                   -- null: the file as a whole
    stacktrace  text not null,
    unique nulls not distinct (filename, dag_id)
);

-- Limits. What runs is counted by its leases, so a slot comes back with its lease and none can leak.
create table onceflow.slot_pool (
    id               integer generated always as identity unique,
    pool_name        varchar(256) primary key,
    slots            integer not null check (slots >= -1),  -- -1: no limit
    description      text,
    include_deferred boolean not null default false
);
insert into onceflow.slot_pool (pool_name, slots, description) values
    ('default_pool', 128, 'What names no pool'), ('etl_pool', 32, 'Extract, transform, load'), ('api_pool', 10, 'Calls of outside services');

-- Runs of dags wait here until their dag may have one more; then they get their tasks. The tick admits them, in this order.
create table onceflow.queued_run (
    dag_id       varchar(250) not null,
    logical_date timestamptz not null,
    run          bigint primary key,
    due_at       timestamptz not null,
    backfill     bigint                         -- counts against the limit of its backfill, not of its dag
);
create index queued_run_dag on onceflow.queued_run (dag_id, logical_date, run) where backfill is null;
create index queued_run_backfill on onceflow.queued_run (backfill, logical_date, run) where backfill is not null;
create table onceflow.active_run (
    dag_id   varchar(250) not null,
    run      bigint primary key,
    backfill bigint,
    since    timestamptz not null
);
create index active_run_dag on onceflow.active_run (dag_id) where backfill is null;
create index active_run_backfill on onceflow.active_run (backfill) where backfill is not null;

-- When the next run of a dag comes. A scheduler works it out from `schedule` (timetable, bounds, catchup, as JSON) without the dag's file.
alter table onceflow.dag
    add column schedule            jsonb,                   -- null: its runs are started, none comes by itself
    add column last_interval_start timestamptz,             -- of the last run that came by the schedule
    add column last_interval_end   timestamptz,
    add column planned             bigint not null default 0, -- raised whenever the schedule moves on: what was worked out from an older one is dropped
    add column is_unplanned        boolean not null default false, -- the schedule is new: work it out, paused or not
    add column priority            integer not null default 0,     -- added to that of each run
    add column team                varchar(250),            -- whose it is: teams share the workers; null: nobody's in particular
    add column max_map_length      integer not null default 10000; -- more instances a task is not expanded into
create index dag_due on onceflow.dag (next_dagrun_create_after) where is_active and (not is_paused or is_unplanned);

-- Runs for logical dates from the past, made at once, admitted a few at a time.
create table onceflow.backfill (
    id              bigint generated always as identity primary key,
    key             text not null unique,       -- made by the client: asked again after a lost reply, it is the same backfill
    dag_id          varchar(250) not null,
    from_date       timestamptz not null,       -- logical dates, both included
    to_date         timestamptz not null,
    reprocess       text not null check (reprocess in ('none', 'failed', 'completed')),
    is_reverse      boolean not null,
    max_active_runs integer not null check (max_active_runs > 0),
    on_failure      text not null check (on_failure in ('pause', 'continue')),
    params          jsonb not null,
    priority        integer not null,
    state           text not null check (state in ('running', 'paused', 'cancelled', 'done')),
    reason          text,                       -- why it is paused or cancelled
    total           integer not null,           -- runs of it
    skipped         integer not null,           -- dates that had a run already, and kept it
    actor           text not null,
    created_at      timestamptz not null,
    running_since   timestamptz not null,       -- since it was made, or resumed
    ended_at        timestamptz
);
create unique index backfill_living on onceflow.backfill (dag_id) where state in ('running', 'paused');
alter table onceflow.run add column backfill bigint;
create index run_backfill on onceflow.run (backfill) where backfill is not null;

-- What a task pushed under a key of its own. What it returned is its ledger entry's output.
create table onceflow.pushed (
    run       bigint not null,
    ti        bigint not null,
    key       varchar(512) not null,
    value     jsonb not null,
    pushed_at timestamptz not null,
    primary key (run, ti, key)
);

-- A function of a dag's file that must be called, as a task or run of it has come to something. Whoever calls it drops the row afterwards.
create table onceflow.callback (
    id     bigint generated always as identity primary key,
    run    bigint not null,
    ti     bigint not null,                     -- 0: the run as a whole
    dag_id varchar(250) not null,
    event  text not null,                       -- the state it came to: success, failed, up_for_retry, skipped
    try_number integer,                         -- of the task, then
    due_at timestamptz not null                 -- nobody has it before; put off by whoever takes it
);
create index callback_due on onceflow.callback (due_at);
