-- Tasks that wait for what came of them in the run before.
alter table onceflow.dag_task
    add column depends_on_past     boolean not null default false, -- it is claimable once it has succeeded, or was skipped, in the run before
    add column wait_for_downstream boolean not null default false; -- and what is directly downstream of it there, too
alter table onceflow.dag add column depends_on_past boolean not null default false;  -- a task of it, in some version: later runs may wait for the ends of its runs

-- What the field's tables tell of a dag, its tasks and who runs them.
alter table onceflow.dag
    add column serialized_dag        jsonb,     -- the plan of its present version
    add column last_run_logical_date timestamptz; -- of the last run that its schedule made
alter table onceflow.dag_task add column execution_timeout interval;
alter table onceflow.worker add column unixname varchar(1000);  -- the user whose process it is
alter table onceflow.run alter column creating_job_id type bigint; -- the scheduler that made it; null: somebody started it

-- Task instances whose rules let them run, and which wait for a run before. Tiny.
create table onceflow.past_wait (
    previous bigint not null,                   -- the run they wait for
    run      bigint not null,
    ti       bigint not null,
    ix       integer not null,
    primary key (run, ti)
);
create index past_wait_previous on onceflow.past_wait (previous, run, ix);

-- Until when the runs of a dag should have ended: [{"reference", "at", "interval_s"}, …]. Each living run has a timer for each, whose ti is the deadline's number.
alter table onceflow.dag add column deadlines jsonb;
alter table onceflow.timer drop constraint timer_kind_check,
    add constraint timer_kind_check check (kind in ('start', 'retry', 'wait', 'run_timeout', 'reschedule', 'deferral', 'deadline'));
comment on column onceflow.callback.try_number is 'of the task, then; of a deadline, its number';
