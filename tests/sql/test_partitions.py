"""Partitions by the id of the run: made ahead, in UTC, without holding anybody up; rows land where they belong."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from onceflow.db.migrate import migrate
from tests.database import TestDatabase
from tests.sql.engine_calls import Engine

TABLES = ("run", "ti", "step_ledger")
BY_TIME = ("dataset_event",)
LEAVES = "select relname from pg_class where relnamespace = 'onceflow'::regnamespace and relispartition and relkind = 'r' and relname ~ '_[0-9]{6}$' order by 1"


def leaves(db: TestDatabase, table: str) -> list[str]:
    """The months for which the table has a partition."""
    return [name.removeprefix(f"{table}_") for (name,) in db.sql(LEAVES) if name.startswith(f"{table}_2")]


def coming(db: TestDatabase) -> list[str]:
    """This month and the next two."""
    rows = db.sql("select to_char((clock_timestamp() at time zone 'UTC') + make_interval(months => i), 'YYYYMM') from generate_series(0, 2) i order by 1")
    return [r[0] for r in rows]


def test_a_new_database_has_its_partitions(db: TestDatabase, one: Engine) -> None:
    """migrate makes this month's and the next two's, so what is written lies in a month's leaf and the default ones stay empty."""
    assert all(leaves(db, table) == coming(db) for table in TABLES + BY_TIME)
    one.complete(one.start_and_claim())
    for table in TABLES:
        assert db.sql(f"select count(*) from onceflow.{table}_default") == [(0,)]
        assert db.sql(f"select distinct tableoid::regclass::text from onceflow.{table}") == [(f"onceflow.{table}_{coming(db)[0]}",)]


def test_migrating_again_changes_nothing(db: TestDatabase) -> None:
    """A second migrate is a no-op, with partitions and all."""
    before = db.sql(LEAVES)
    assert not migrate(db.superuser_dsn).is_changed
    assert db.sql(LEAVES) == before


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Pacific/Kiritimati", "Asia/Kolkata"])
def test_months_follow_each_other_in_every_time_zone(db: TestDatabase, zone: str) -> None:
    """Whatever the session's time zone, each month from April to the next year's March is made once, with no gap and no overlap."""
    db.sql(f"set time zone '{zone}'")
    for month in range(12):
        at = datetime(2030 + (month + 3) // 12, 1 + (month + 3) % 12, 1, tzinfo=UTC)
        assert db.sql("select onceflow.make_partitions(%s, 3)", at)[0][0] == (12 if month == 0 else 4)
    for table in TABLES + BY_TIME:
        made = [name for name in leaves(db, table) if name >= "203004"]
        assert made == [f"{2030 + i // 12}{1 + i % 12:02}" for i in range(3, 17)]


def test_ids_of_a_month_land_in_its_leaf(db: TestDatabase) -> None:
    """Over the turn of the year, the last id of December and the first of January lie in their own partitions."""
    db.sql("select onceflow.make_partitions(timestamptz '2030-12-31 23:59:59+00', 3)")
    insert = """insert into onceflow.run (id, dag_id, run_id, logical_date, root, created_at)
        select onceflow.id_at(%s) + %s, 'd', 'r', now(), 0, now() returning tableoid::regclass::text"""
    assert db.sql(insert, "2031-01-01 00:00:00+00", -1) == [("onceflow.run_203012",)]
    assert db.sql(insert, "2031-01-01 00:00:00+00", 0) == [("onceflow.run_203101",)]
    assert db.sql(insert, "2031-01-31 23:59:59.999+00", 1048575) == [("onceflow.run_203101",)]
    assert db.sql(insert, "2031-02-01 00:00:00+00", 0) == [("onceflow.run_203102",)]


def test_new_ids_belong_to_this_month(db: TestDatabase) -> None:
    """An id tells its moment, and ids of later calls are greater."""
    assert db.sql("select abs(extract(epoch from clock_timestamp() - onceflow.id_time(onceflow.new_id()))) < 1") == [(True,)]
    ids = [r[0] for r in db.sql("select onceflow.new_id() from generate_series(1, 1000)")]
    assert len(set(ids)) == 1000


def drop_next_month(db: TestDatabase) -> str:
    """As if the tick had not run for a month."""
    month = coming(db)[1]
    for table in TABLES:
        db.sql(f"drop table onceflow.{table}_{month}")
    db.sql("update onceflow.engine set last_tick_at = last_tick_at - interval '2 minutes'")
    return month


def test_the_tick_makes_what_lacks(db: TestDatabase, one: Engine) -> None:
    """A month of the coming two that lacks is made by the next tick."""
    month = drop_next_month(db)
    one.tick()
    assert all(month in leaves(db, table) for table in TABLES)


def test_a_long_reader_does_not_stop_the_engine(db: TestDatabase, one: Engine, two: Engine) -> None:
    """While a dump reads the ledger the tick does its other work, gives the partitions up soon, and makes them later."""
    month = drop_next_month(db)
    two.begin()
    two.sql("select count(*) from onceflow.step_ledger")
    run = one.start(delay_s=10)
    db.sql("update onceflow.timer set due_at = due_at - interval '1 hour'")
    assert one.later(one.tick).result(20)["readied"] == 1
    assert one.claim_one().run == run
    assert month not in leaves(db, "step_ledger")
    two.commit()
    db.sql("update onceflow.engine set last_tick_at = last_tick_at - interval '2 minutes'")
    one.tick()
    assert all(month in leaves(db, table) for table in TABLES)


def test_rows_in_a_default_partition_stop_nothing(db: TestDatabase, one: Engine) -> None:
    """If nobody made a month in time its rows stay in the default partition, and the other months are made."""
    month = coming(db)[0]
    for table in TABLES:
        db.sql(f"drop table onceflow.{table}_{month}")
    task = one.start_and_claim()
    assert db.sql("select count(*) from onceflow.run_default") == [(1,)]
    drop_next_month(db)
    one.tick()
    one.complete(task)
    assert leaves(db, "run") == coming(db)[1:]
    assert db.sql("select state from onceflow.run") == [("success",)]
