-- The tables of the engine. Ids of runs are time-ordered bigints (unix milliseconds << 20 | sequence); run, ti and
-- step_ledger are partitioned by the id of the run, so that all that belongs to a run lies in partitions of one month,
-- unique keys hold within a run, look-ups prune, and archiving drops whole partitions.
-- No foreign keys on hot tables (20-33 % of throughput); no index mentions a state (99.9 % HOT updates).

create sequence onceflow.id_seq;          -- the low 20 bits of ids
create sequence onceflow.fence_seq;       -- new on every claim
create sequence onceflow.ready_seq;       -- order of arrival within a lane
create sequence onceflow.ledger_seq;      -- entry ids

-- One row: what the engine knows of itself. cluster names the place in which xids count: the system identifier of the server,
-- xor the oid of the ledger table, so that it is another one after a restore too. Filled at the end of this file.
create table onceflow.engine (
    one              boolean primary key default true check (one),
    cluster          bigint not null,
    ledger           oid not null,
    first_xid        xid8 not null,             -- no older transaction of this cluster wrote here
    server_start     timestamptz not null,
    last_tick_at     timestamptz not null,
    no_rescue_before timestamptz not null,
    looked_run       bigint not null default 0, -- up to which body that waits the tick has looked for lost wake-ups
    looked_ti        bigint not null default 0,
    ageing_s         double precision           -- a task that waits gains a point of priority in each so many seconds; null: it gains none
);

-- One row, held by whoever seals: an operator's open transaction may, and the tick must not wait for its own row.
create table onceflow.sealer (
    one       boolean primary key default true check (one),
    last_seal bigint not null default 0         -- seals cut off at the end are missed
);

create table onceflow.dag (
    dag_id                   varchar(250) primary key,
    kind                     text not null default 'workflow' check (kind in ('workflow', 'dag', 'step')),
    is_paused                boolean not null default true,
    is_active                boolean not null default true,
    fileloc                  varchar(2000),
    owners                   varchar(2000),
    description              text,
    schedule_interval        text,
    timetable_description    text,
    tags                     jsonb,
    max_active_runs          integer not null default 16,
    max_active_tasks         integer not null default 16,
    has_import_errors        boolean not null default false,
    next_dagrun_create_after timestamptz,
    last_parsed_time         timestamptz,
    processor_subdir         varchar(2000),
    code_version             text,
    retries                  integer not null default 0,    -- of its body; a start may say otherwise, as with timeout_s and queue
    timeout_s                double precision,
    queue                    varchar(256),
    version                  bigint,                    -- the plan that new runs go by; null for a workflow
    created_at               timestamptz not null default clock_timestamp()
);

-- Where a claimable task queues: nobody claims from a lane whose code it lacks. version null = any version.
-- Tasks of dags have limits, and all tasks of a lane the same: pool null = none. task_id only where a task has a limit of its own.
create table onceflow.lane (
    id         integer generated always as identity primary key,
    queue      varchar(256) not null,
    dag_id     varchar(250) not null,
    version    text,
    pool       varchar(256),
    pool_slots integer not null default 1,
    task_id    varchar(250),
    max_tis    integer,                         -- running at once: of the task, in all runs
    max_in_run integer,                         -- and in one run
    unique nulls not distinct (queue, dag_id, version, pool, pool_slots, task_id)
);

-- Run ids are idempotency keys for ever: this small table outlives the archive.
create table onceflow.run_key (
    dag_id       varchar(250) not null,
    run_id       varchar(250) not null,
    logical_date timestamptz not null,
    run          bigint not null,
    args_hash    text not null,
    primary key (dag_id, run_id),
    unique (dag_id, logical_date)
);

create table onceflow.run (
    id                  bigint not null,
    dag_id              varchar(250) not null,
    run_id              varchar(250) not null,
    logical_date        timestamptz not null,
    run_type            varchar(50) not null default 'manual',
    state               varchar(50),            -- null while it lives: ready, lease, timer and wait tell more
    conf                jsonb,
    queue               varchar(256) not null default 'default',
    priority            integer not null default 0,
    root                bigint not null,        -- the ti of the body; 0: its tasks are those of a dag
    version             bigint,                 -- of the dag, whose plan it goes by; null for a workflow
    tis                 integer not null default 1,
    living              integer,                -- tasks still to end after its body has, counted down; null while the body lives
    acts                integer not null default 0, -- ledger entries of the run itself (ti 0): a removed one is missed
    parent_run          bigint,
    parent_ti           bigint,
    continued_by        bigint,                 -- the run in which its body went on with continue_as
    code_version        text,                   -- of the worker that claimed it first, or pinned by whoever started it
    stop_reason         text,                   -- why it is stopped, cancelled or timed out
    created_at          timestamptz not null,
    start_date          timestamptz,            -- of a dag's run: when it got its tasks
    end_date            timestamptz,
    data_interval_start timestamptz,
    data_interval_end   timestamptz,
    creating_job_id     integer,
    actor               text,
    timeout_s           double precision,       -- its time limit, which begins anew with retry_run
    live_key            text,                   -- the deduplicate text it was started with; null for most
    live_hash           text,                   -- of the arguments of that start: continue_as changes the run's own
    primary key (id)
) partition by range (id);

-- The deduplicate texts of living runs: one living run of a dag for each. A start inserts here, a run's end deletes.
create table onceflow.live_key (
    dag_id varchar(250) not null,
    key    text not null,
    run    bigint not null,
    primary key (dag_id, key)
);

create table onceflow.ti (
    run             bigint not null,
    id              bigint not null,
    task_id         varchar(250) not null,
    map_index       integer not null default -1,
    rendered_map_index varchar(250),            -- its name for people, by map_index_template
    kind            text not null,              -- body, step, task (of a dag)
    ix              integer,                    -- the task's number in the dag's plan
    fn              text,                       -- what to run: module:qualname of the step; null = the dag's own body
    state           varchar(20),                -- null while it lives
    epoch           integer not null default 0, -- raised by retry_run and clear_tasks; a step has one outcome per epoch
    base_epoch      integer not null default 0, -- successes of earlier epochs no longer count (clear_tasks)
    try_number      integer not null default 0, -- tries ended
    retries         integer not null default 0, -- the step's policy
    max_tries       integer not null default 0, -- the last try number that may still be followed by a retry
    rescues         integer not null default 0,
    entries         integer not null default 0, -- ledger entries of this ti: a removed one is missed
    lane            integer not null,
    rank            integer not null default 0, -- minus the priority
    logical_date    timestamptz not null,
    conf            jsonb,
    parent_ti       bigint,
    detached        boolean not null default false, -- begun inside a transaction of a step (outbox): nobody awaits it
    queued_when     timestamptz,
    start_date      timestamptz,
    end_date        timestamptz,
    worker          bigint,
    hostname        varchar(1000),
    pid             integer,
    pool            varchar(256) not null default 'default_pool',
    pool_slots      integer not null default 1,
    queue           varchar(256),
    operator        varchar(1000),
    executor_config jsonb,
    error           text,
    primary key (run, id)
) partition by range (run);

create unique index ti_task on onceflow.ti (run, ix, map_index) where ix is not null;
create index run_parent on onceflow.run (parent_run) where parent_run is not null;

-- What is claimable. Tiny: a claimed row is gone.
create table onceflow.ready (
    lane         integer not null,
    rank         integer not null,
    logical_date timestamptz not null,
    seq          bigint not null default nextval('onceflow.ready_seq'),
    run          bigint not null,
    ti           bigint not null,
    queued_at    timestamptz not null default clock_timestamp(),
    aged         bigint not null default 0,     -- points of priority by which whoever came at time 0 is ahead of it: set_ageing makes the default grow
    place        bigint not null generated always as (rank + aged) stored
) with (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
create index ready_order on onceflow.ready (lane, place, logical_date, seq);
create index ready_behind on onceflow.ready (lane, place, logical_date, seq) where rank > 500000;  -- of low priority: backfills
create index ready_run on onceflow.ready (run, ti);

-- What runs: "running" means that a lease exists.
create table onceflow.lease (
    ti           bigint primary key,
    run          bigint not null,
    worker       bigint not null,
    claim        bigint not null,               -- the worker's own number of the claim
    fence        bigint not null default nextval('onceflow.fence_seq'),
    token        uuid not null default gen_random_uuid(),
    epoch        integer not null,
    try_number   integer not null,              -- this try
    entries      integer not null,
    claimed_at   timestamptz not null,
    lane         integer not null,
    dag_id       varchar(250) not null,
    run_id       varchar(250) not null,
    task_id      varchar(250) not null,
    map_index    integer not null,
    host         text not null,
    code_version text,
    queued_at    timestamptz,                   -- since when it was claimable
    pool         varchar(256),                  -- of a dag's task: what its pool and its limits count
    pool_slots   integer not null default 1
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
create index lease_worker on onceflow.lease (worker);
create index lease_run on onceflow.lease (run);
create index lease_pool on onceflow.lease (pool, dag_id, task_id) where pool is not null;

-- What waits for a time: delayed starts, retries, sleeping bodies, time limits of runs.
create table onceflow.timer (
    due_at timestamptz not null,
    run    bigint not null,
    ti     bigint not null,
    kind   text not null check (kind in ('start', 'retry', 'wait', 'run_timeout'))
);
create index timer_due on onceflow.timer (due_at);
create index timer_run on onceflow.timer (run, ti);

-- What a deferred body waits for, besides times: a task or run to end, a message, an event, a worker with the right code.
create table onceflow.wait (
    run        bigint not null,
    ti         bigint not null,
    kind       text not null check (kind in ('task', 'run', 'message', 'event', 'code')),
    target_run bigint not null,
    target     text not null default ''
);
create index wait_target on onceflow.wait (target_run, kind, target);
create index wait_run on onceflow.wait (run, ti);

-- "Look whether somebody waits for this": inserted by whoever made it true, drained by the tick.
create table onceflow.wake_up (
    id         bigint generated always as identity primary key,
    kind       text not null,
    target_run bigint not null,
    target     text not null default ''
);

create table onceflow.message (
    id      bigint generated always as identity primary key,
    run     bigint not null,                    -- to whom
    topic   text not null default '',
    body    jsonb not null,
    key     text,                               -- the sender's idempotency key
    sent_at timestamptz not null
);
create index message_run on onceflow.message (run, topic, id);

-- Message keys are remembered beyond the message's consumption, or a late duplicate would be delivered again.
create table onceflow.message_key (
    run bigint not null,
    key text not null,
    primary key (run, key)
);

create table onceflow.run_event (
    run   bigint not null,
    key   text not null,
    value jsonb not null,
    at    timestamptz not null,
    primary key (run, key)
);

create table onceflow.worker (
    id           bigint primary key,
    host         text not null,
    pid          integer not null,
    queues       text[] not null,
    lease_s      double precision not null,
    started_at   timestamptz not null,
    heartbeat_at timestamptz not null,
    ended_at     timestamptz,
    code_versions jsonb not null default '{}',   -- dag_id -> version
    login        text not null default session_user
);

-- The ledger: append-only. One entry per try of a step, and per human act.
create table onceflow.step_ledger (
    id           bigint not null default nextval('onceflow.ledger_seq'),
    dag_run      bigint not null,               -- id of the run; 0 for an act that belongs to no run
    ti           bigint not null,
    dag_id       varchar(250) not null,
    run_id       varchar(250) not null,
    task_id      varchar(250) not null,
    map_index    integer not null,
    epoch        integer not null,
    step_key     text not null,                 -- path of scopes, name, occurrence: stable over replays
    step_name    text not null,
    kind         text not null,                 -- transactional, external, sql, body, engine, human
    try_number   integer not null,
    from_state   text not null,
    to_state     text not null,
    final        boolean not null,              -- the one outcome of its step
    inputs       jsonb,
    inputs_hash  text,
    output       jsonb,
    error        jsonb,
    started_at   timestamptz,
    at           timestamptz not null,
    worker       bigint,
    host         text,
    code_version text,
    actor        text,
    fence        bigint,
    xid          xid8 not null,
    cluster      bigint not null,
    hash         bytea not null
) partition by range (dag_run);
create unique index step_ledger_outcome on onceflow.step_ledger (dag_run, ti, epoch, step_key) where final;
create index step_ledger_ti on onceflow.step_ledger (dag_run, ti) where not final;
create index step_ledger_xid on onceflow.step_ledger (xid);

-- Chain of windows of committed entries: each seal covers all entries of the cluster with xid_from <= xid < xid_to.
create table onceflow.ledger_seal (
    no        bigint primary key,
    xid_from  xid8 not null,
    xid_to    xid8 not null,
    xid_next  xid8 not null,                    -- later than any transaction that had ended when it was sealed
    cluster   bigint not null,
    entries   bigint not null,
    root      bytea not null,                   -- sha256 over the entries' hashes in the order of (xid, id)
    hash      bytea not null,                   -- over the previous seal's hash and all of the above
    sealed_at timestamptz not null
);
create index ledger_seal_window on onceflow.ledger_seal (cluster, xid_to);

-- The trail of track(table): which step wrote which row. Survives what a row's xmin does not: rewrites, dump and restore.
create table onceflow.tracked_table (
    cluster    bigint not null,
    relation   oid not null,                    -- of the table (of the root, for a partition) in that cluster
    table_name text not null,
    since      timestamptz not null,
    primary key (cluster, relation, table_name)
);
create table onceflow.tracked_write (
    id       bigint generated always as identity primary key,
    cluster  bigint not null,
    relation oid not null,
    row_key  jsonb,                             -- the primary key's values, as texts; null when the table has none any more
    op       text not null,                     -- INSERT, UPDATE, DELETE
    dag_run  bigint,                            -- null: written outside of any step, or by one of a group
    ti       bigint,
    step_key text,
    xid      xid8 not null,
    login    text not null,
    at       timestamptz not null
);
create index tracked_write_row on onceflow.tracked_write (hashtextextended(row_key::text, 0), id);

create table onceflow.run_default partition of onceflow.run default;
create table onceflow.ti_default partition of onceflow.ti default;
create table onceflow.step_ledger_default partition of onceflow.step_ledger default;

insert into onceflow.engine (cluster, ledger, first_xid, server_start, last_tick_at, no_rescue_before)
select system_identifier # 'onceflow.step_ledger'::regclass::oid::bigint, 'onceflow.step_ledger'::regclass::oid, pg_current_xact_id(),
       pg_postmaster_start_time(), clock_timestamp(), clock_timestamp() from pg_control_system();
insert into onceflow.sealer default values;
