"""The server process that completes a producing task dies at every write of the completion: event, queue, and consumer's run are there together or not at all."""

from __future__ import annotations

import psycopg

from tests.database import TestDatabase
from tests.sql.dataset_dags import produce, queue, register_dag, register_producer, runs
from tests.sql.engine_calls import Engine, Task

A, B = "s3://a/", "s3://b/"
# A trigger on every table notes the writes of the completion, in order, and ends the session at the one that is named.
TRIGGERS = """
    create table public.noted (no int, relation text);
    create table public.fatal (no int);
    create sequence public.writes;
    create function public.note_or_die() returns trigger language plpgsql security definer as $$
    declare v_no int := nextval('public.writes');
    begin
        if v_no = (select no from public.fatal) then
            perform pg_terminate_backend(pg_backend_pid());
            perform pg_sleep(10);
        end if;
        insert into public.noted values (v_no, tg_table_name || ' ' || tg_when);
        return null;
    end $$;
    do $$ declare r text; begin
        for r in select relname from pg_class where relnamespace = 'onceflow'::regnamespace and relkind in ('r', 'p') and not relispartition loop
            execute format('create trigger a before insert or update or delete on onceflow.%I for each statement execute function public.note_or_die()', r);
            execute format('create trigger b after insert or update or delete on onceflow.%I for each statement execute function public.note_or_die()', r);
        end loop;
    end $$"""
COUNTS = """select (select count(*) from onceflow.dataset_event), (select count(*) from onceflow.waiting_event), (select count(*) from onceflow.dagrun_dataset_event),
    (select count(*) from onceflow.unspread_event), (select count(*) from onceflow.run where dag_id = 'report'), (select count(*) from onceflow.lease)"""


def complete(db: TestDatabase, task: Task) -> None:
    """On a connection of its own, as it may die."""
    text = "select onceflow.complete_task(%s, %s, %s, %s, 'external', '{}', 'h', 'null', 0)"
    with psycopg.connect(db.superuser_dsn, autocommit=True) as conn:
        conn.execute(text, (*task.owner, task.task_id))


def prepare(db: TestDatabase, engine: Engine) -> Task:
    register_dag(engine, "report", by=[A])
    register_dag(engine, "joined", by=[A, B])
    register_producer(engine, "etl", A)
    task = produce(engine, "etl")
    with psycopg.connect(db.superuser_dsn, autocommit=True) as conn:
        conn.execute(TRIGGERS.encode())
    return task


def test_all_or_nothing_at_every_write(db: TestDatabase, one: Engine) -> None:
    """Before and after each statement that writes: nothing is there after the death, everything once the task is completed again."""
    task = prepare(db, one)
    deaths = 0
    while True:
        db.sql("truncate public.noted, public.fatal")
        db.sql("alter sequence public.writes restart")
        db.sql("insert into public.fatal values (%s)", deaths + 1)
        try:
            complete(db, task)
        except psycopg.OperationalError:
            deaths += 1
            assert db.sql(COUNTS) == [(0, 0, 0, 0, 0, 1)], f"after its death at write {deaths}"
            assert queue(one, "report") == queue(one, "joined") == []
            continue
        break
    assert db.sql(COUNTS) == [(1, 1, 1, 0, 1, 0)]
    assert len(runs(one, "report")) == 1 and queue(one, "joined") == [A] and queue(one, "report") == []
    written = {relation.split()[0] for (relation,) in db.sql("select relation from public.noted")}
    assert written >= {
        "lease",
        "step_ledger",
        "ti",
        "dataset_event",
        "waiting_event",
        "dataset_dag_run_queue",
        "run_key",
        "run",
        "queued_run",
        "dagrun_dataset_event",
    }
    assert deaths == db.sql("select max(no) from public.noted")[0][0] > 20
