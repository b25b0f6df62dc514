"""Schedules and backfills with real schedulers, workers, clients and commands."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from onceflow import AsyncClient, InvalidArgument
from onceflow.cli.app import app
from onceflow.engine.due_runs import Made
from onceflow.engine.scheduler import Scheduler
from onceflow.settings import Settings
from tests.engine.local_worker import Engine, load_flows, wait_until
from tests.processes import WorkerProcess, start_process, worker_environment

DAGS = Path(__file__).parent / "flows" / "schedule_flows.py"
TICKS = "select logical_date, run_type, state from onceflow.dag_run where dag_id = 'ticking' order by logical_date"


@pytest.fixture
def scheduler(engine: Engine) -> Iterator[Callable[[], WorkerProcess]]:
    """Starts a scheduler on the module's database; ended with the test."""
    started: list[WorkerProcess] = []

    def start() -> WorkerProcess:
        command = [sys.executable, "-m", "onceflow", "scheduler", "--dags", str(DAGS)]
        env = {**worker_environment(engine.db), "ONCEFLOW_POLL_S": "0.2"}
        started.append(start_process(command, env=env, log=engine.folder / f"scheduler-{len(started)}.log"))
        wait_until(lambda: "scheduler ready" in started[-1].log_text())
        return started[-1]

    yield start
    for one in started:
        print(one.log_text()[-3000:])
        one.end()


@pytest.fixture
def cli(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs `onceflow …` on the module's database; its JSON, or its text."""
    for name in [name for name in os.environ if name.startswith("ONCEFLOW_")]:
        monkeypatch.delenv(name)

    def run(*args: object, code: int = 0) -> Any:
        result = CliRunner().invoke(app, [str(arg) for arg in args], env={"ONCEFLOW_DSN": engine.db.app_dsn})
        assert result.exit_code == code, result.output
        return json.loads(result.stdout) if "--json" in args and code == 0 else result.stdout + result.stderr

    return run


def test_schedulers_come_and_go_and_every_tick_has_one_run(engine: Engine, scheduler: Callable[[], WorkerProcess]) -> None:
    """An every-second schedule, two schedulers, both frozen for three seconds: no storm, no run twice; paused, nothing more comes."""
    first, second = scheduler(), scheduler()
    wait_until(lambda: engine.db.sql("select is_paused from onceflow.dag where dag_id = 'ticking'") == [(True,)])
    assert engine.db.sql(TICKS) == []
    assert engine.client.unpause("ticking") is True
    wait_until(lambda: len(engine.db.sql(TICKS)) >= 4)
    before = len(engine.db.sql(TICKS))
    first.stop()
    second.stop()
    frozen = engine.db.sql("select clock_timestamp()")[0][0]
    wait_until(lambda: engine.db.sql("select clock_timestamp() > %s", frozen + timedelta(seconds=3))[0][0])
    first.resume()
    second.resume()
    wait_until(lambda: len(engine.db.sql(TICKS)) > before + 1)
    assert engine.client.pause("ticking") is True
    rows = engine.db.sql(TICKS)
    dates = [logical_date for logical_date, _, _ in rows]
    assert all(moment.microsecond == 0 for moment in dates) and {kind for _, kind, _ in rows} == {"scheduled"}
    missed = max(later - earlier for earlier, later in itertools.pairwise(dates))
    assert timedelta(seconds=2) <= missed  # what came due meanwhile, but for the latest, is left out
    assert engine.db.sql("select count(*) = count(distinct logical_date) from onceflow.run where dag_id = 'ticking'") == [(True,)]


def test_a_trigger_finds_the_data_interval(engine: Engine) -> None:
    """By hand: the last complete interval; with the date of a scheduled run, that run's. In Python and by name; the task sees it. A run by name with bad params is refused."""
    daily = load_flows("schedule_flows").daily
    engine.client.unpause("daily")
    date_ = datetime(2026, 7, 1, 4, tzinfo=UTC)
    run = engine.client.trigger("daily", logical_date=date_, params={"n": 3})
    assert run.result(20) == "success"
    assert engine.effects(run) == ["2026-07-01T04:00:00+00:00 2026-07-02T04:00:00+00:00"]
    now = engine.client.trigger(daily)
    assert now.result(20) == "success"
    (start, end), (at,) = (
        (datetime.fromisoformat(text) for text in engine.effects(now)[0].split()),
        engine.db.sql("select created_at from onceflow.run where id = %s", now.run)[0],
    )
    assert timedelta(hours=23) <= end - start <= timedelta(hours=25) and end <= at < end + timedelta(hours=25)
    with pytest.raises(InvalidArgument, match="param 'n'"):
        engine.client.trigger("daily", params={"n": "three"})


def test_commands_show_pause_and_fill(engine: Engine, cli: Callable[..., Any]) -> None:
    """dags show, pause, unpause and backfill; backfill list, show, pause, resume, cancel: as JSON and as text."""
    shown = cli("dags", "show", "daily", "--json")
    assert (shown["schedule_interval"], shown["owners"], shown["tags"], shown["max_active_runs"]) == ("0 6 * * *", "ann", ["fx"], 16)
    assert len(shown["next_runs"]) == 3 and "the interval" not in shown and "Europe/Berlin" in cli("dags", "show", "daily")
    cli("dags", "unpause", "daily")
    assert cli("dags", "pause", "daily", "--json") == {"dag_id": "daily", "is_paused": True, "changed": True}
    assert cli("dags", "pause", "daily") == "daily is already paused\n"
    assert next(row for row in cli("dags", "list", "--json") if row["dag_id"] == "daily")["is_paused"] is True
    span = ("--start-date", "2026-03-28", "--end-date", "2026-03-30")
    dates = cli("dags", "backfill", "daily", *span, "--dry-run", "--json")
    assert [line["logical_date"] for line in dates] == [f"2026-03-{day}T0{hour}:00:00+00:00" for day, hour in ((28, 5), (29, 4), (30, 4))]
    made = cli("dags", "backfill", "daily", *span, "--params", '{"n": 5}', "--max-active-runs", 3, "--json")
    assert (made["total"], made["state"], made["is_dag_paused"], made["queued"]) == (3, "running", True, 3)
    number = made["backfill"]
    assert "dag daily is paused" in cli("backfill", "show", number)
    assert cli("backfill", "pause", number) == f"backfill {number} of daily is paused\n"
    assert cli("backfill", "resume", number, "--json")["state"] == "running"
    assert "RunConflict" in cli("dags", "backfill", "daily", *span, code=2)
    cli("dags", "unpause", "daily")
    wait_until(lambda: cli("backfill", "show", number, "--json")["state"] == "done")
    assert f"[{'#' * 40}] 3 of 3 runs" in cli("backfill", "show", number)
    assert [row["state"] for row in cli("backfill", "list", "daily", "--json")] == ["done"]
    assert "InvalidTransition" in cli("backfill", "cancel", number, code=2)
    again = cli("dags", "backfill", "daily", *span)
    assert "0 runs, 3 dates keep the run they have" in again
    assert "NotFound" in cli("backfill", "show", 999, code=2) and "NotFound" in cli("dags", "pause", "nobody", code=2)
    assert "is not JSON" in cli("dags", "backfill", "daily", *span, "--params", "{", code=2)
    conf = engine.db.sql("select distinct conf from onceflow.dag_run where dag_id = 'daily' and run_type = 'backfill'")
    assert conf == [({"n": 5},)]


async def use_async_client(engine: Engine) -> None:
    async with AsyncClient(engine.db.app_dsn) as client:
        assert await client.pause("brief") is True and await client.unpause("brief") is True
        made = await client.backfill("brief", "2026-02-01", datetime(2026, 2, 3), max_active_runs=2)
        assert (await made.progress()).total == made.total == 3
        await made.pause()
        assert await made.state() == "paused"
        await made.resume()
        await (await client.find_backfill(made.id)).cancel()
        assert (await made.progress()).state == "cancelled"
        assert [line["action"] for line in await client.preview_backfill("brief", "2026-02-01", "2026-02-04", reprocess="failed")][-1] == "new"


def test_the_async_client_fills_as_well(engine: Engine) -> None:
    """The same methods, with await."""
    asyncio.run(use_async_client(engine))


def test_a_scheduler_for_backfills_only_makes_no_runs(engine: Engine) -> None:
    """It lets begin what is there."""
    scheduler = Scheduler(Settings(dsn=engine.db.worker_dsn), backfill_only=True)
    assert asyncio.run(scheduler._make_due_runs()) == Made(0, None)
