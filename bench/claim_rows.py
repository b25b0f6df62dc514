"""What claims cost: over much history, at great depth, and while somebody's open transaction keeps dead rows from being removed."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg

from bench.place import BenchPlace
from bench.size import Size
from bench.step_rows import Figures, find_p99, register_step

SHALLOW, CLAIMS, LOAD = 1_000, 100, 500
PAUSE_S, PROBE_S = 0.02, 0.02
REGISTER = "select onceflow.register_worker(%s, 'bench', 1, array['default'], 3600, %s)"
SCANS = """
    select relname, seq_scan from pg_stat_xact_user_tables
    where schemaname = 'onceflow' and seq_scan > 0 and (relname ~ '^(ready|lease|ti|run|step_ledger)(_|$)')"""
FILL = """
    with made as (select onceflow.new_id() id, g from generate_series(1, %(count)s) g), runs as (
        insert into onceflow.run (id, dag_id, run_id, logical_date, root, created_at, state, end_date, conf)
        select id, %(dag)s, %(state)s || id, '2000-01-01'::timestamptz + g * interval '1 second', id, now(), nullif(%(state)s, 'queued'),
            case when %(state)s <> 'queued' then now() end, '[1]' from made), tis as (
        insert into onceflow.ti (run, id, task_id, kind, state, lane, logical_date, entries)
        select id, id, %(dag)s, 'step', nullif(%(state)s, 'queued'), %(lane)s, '2000-01-01'::timestamptz + g * interval '1 second', case when %(state)s = 'queued' then 0 else 1 end
        from made returning run, id, lane, logical_date, state)
    insert into onceflow.ready (lane, rank, logical_date, run, ti) select lane, 0, logical_date, run, id from tis where state is null"""


class Claimer:
    """A worker that only claims, on one connection."""

    def __init__(self, conn: psycopg.Connection[Any], dag: str, number: int = 1) -> None:
        self.conn, self.number, self.claims = conn, number, 0
        conn.execute(REGISTER, [number, f'[{{"dag_id":"{dag}","kind":"step","code_version":"any"}}]'])
        row = conn.execute("select array_agg(id) from onceflow.lane where dag_id = %s", [dag]).fetchone()
        assert row is not None
        self.lanes = row[0]

    def claim(self, limit: int) -> tuple[float, list[dict[str, Any]]]:
        """Milliseconds of one claim, and what it gave."""
        self.claims += 1
        started = time.perf_counter()
        row = self.conn.execute("select onceflow.claim_tasks(%s, %s, %s, %s)", [self.number, self.claims, self.lanes, limit]).fetchone()
        assert row is not None
        return (time.perf_counter() - started) * 1000, row[0]


def fill_runs(place: BenchPlace, dag: str, count: int, state: str) -> None:
    """Ended or queued runs written straight into the tables, as their owner, by the set."""
    register_step(place, dag)
    with place.connect() as conn:
        lane = conn.execute("select onceflow.ensure_lane('default', %s, null)", [dag]).fetchone()
        assert lane is not None
        conn.execute(FILL, {"count": count, "dag": dag, "state": state, "lane": lane[0]})
        conn.execute("analyze")


def claim_over_history(place: BenchPlace, size: Size) -> Figures:
    """Median milliseconds of a claim that finds nothing, and of one that takes ten, with many finished runs in the tables; nothing big is read through."""
    fill_runs(place, "external", size.finished, "success")
    with place.connect() as conn:
        claimer = Claimer(conn, "external")
        empty = [claimer.claim(10)[0] for _ in range(CLAIMS)]
        fill_runs(place, "external", 10, "queued")
        ten = []
        for _ in range(CLAIMS):
            with conn.transaction(force_rollback=True):
                took, taken = claimer.claim(10)
                scans = conn.execute(SCANS).fetchall()
            assert len(taken) == 10 and not scans, f"a claim of ten took {len(taken)} and read through {scans}"
            ten.append(took)
    return {"empty_claim": (statistics.median(empty), "ms"), "ten_deep_claim": (statistics.median(ten), "ms")}


def queue_depth(place: BenchPlace, size: Size) -> Figures:
    """Transactional steps per second at a depth of 1,000 to 2,000, which is kept up, against a depth of 1,000,000."""
    shallow = rate_at(place, size, SHALLOW, keep_up=True)
    place.renew()
    deep = rate_at(place, size, size.depth, keep_up=False)
    return {"queue_depth_1000": (shallow, "steps/s"), "queue_depth_1000000": (deep, "steps/s"), "queue_depth_kept": (deep / shallow, "x")}


def rate_at(place: BenchPlace, size: Size, depth: int, keep_up: bool) -> float:
    fill_runs(place, "insert_one", depth, "queued")
    with place.worker(), place.connect() as conn:
        place.await_true("select count(*) > %s from onceflow.step_ledger", size.count // 20)  # warm
        before, started = count_ended(conn), time.monotonic()
        while time.monotonic() - started < size.rate_s:
            if keep_up and conn.execute("select count(*) < %s from onceflow.ready", [SHALLOW]).fetchone() == (True,):
                conn.execute(FILL, {"count": SHALLOW, "dag": "insert_one", "state": "queued", "lane": lane_of(conn, "insert_one")})
            time.sleep(PAUSE_S)
        return (count_ended(conn) - before) / (time.monotonic() - started)


def count_ended(conn: psycopg.Connection[Any]) -> int:
    row = conn.execute("select count(*) from onceflow.step_ledger where final").fetchone()
    assert row is not None
    return int(row[0])


def lane_of(conn: psycopg.Connection[Any], dag: str) -> int:
    row = conn.execute("select id from onceflow.lane where dag_id = %s and version is null", [dag]).fetchone()
    assert row is not None
    return int(row[0])


@contextlib.contextmanager
def steady_load(place: BenchPlace, dag: str, per_second: int) -> Iterator[None]:
    """Starts so many runs a second from a thread of its own, as long as it can keep up."""
    stop = threading.Event()

    def start_runs() -> None:
        text = """select count(onceflow.start_run(%s, jsonb_build_array(g), task_kind => 'step', notify => g = %s)) from generate_series(1, %s) g"""
        due = time.monotonic()
        each = max(1, int(per_second * PAUSE_S))
        with place.connect("app") as conn:
            while not stop.is_set():
                conn.execute(text, [dag, each, each])
                due = max(due + PAUSE_S, time.monotonic() - 1)  # what a stall of over a second has kept from starting is not made up for
                stop.wait(max(0.0, due - time.monotonic()))

    thread = threading.Thread(target=start_runs)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def probe_claims(claimer: Claimer, seconds: float) -> list[float]:
    """Milliseconds of one claim after the other, 50 a second, beside the worker; what it gets it gives back."""
    times, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        took, taken = claimer.claim(1)
        if taken:
            claimer.conn.execute("select onceflow.unclaim_tasks(%s, %s::uuid[])", [claimer.number, [task["token"] for task in taken]])
        times.append(took)
        time.sleep(PROBE_S)
    return times


def pinned_xmin(place: BenchPlace, size: Size) -> Figures:
    """p99 of claims at 500 tasks/s while a REPEATABLE READ transaction is held open, against before; and how soon after its end they are as fast again."""
    register_step(place, "external")
    with place.worker(), place.connect() as conn, place.connect() as holder, steady_load(place, "external", LOAD):
        claimer = Claimer(conn, "external")
        probe_claims(claimer, size.held_s / 30)  # warm
        baseline = find_p99(probe_claims(claimer, size.held_s / 5))
        holder.execute("begin isolation level repeatable read")
        holder.execute("select count(*) from onceflow.run")
        before, started = count_ended(conn), time.monotonic()
        held = find_p99(probe_claims(claimer, size.held_s))
        rate = (count_ended(conn) - before) / (time.monotonic() - started)
        holder.execute("commit")
        recovery = time_recovery(claimer, baseline, size.held_s)
    return {
        "pinned_xmin_baseline_p99": (baseline, "ms"), "pinned_xmin_p99": (held, "ms"), "pinned_xmin_slowdown": (held / baseline, "x"),
        "pinned_xmin_recovery": (recovery, "s"), "pinned_xmin_tasks": (rate, "tasks/s"),
    }  # fmt: skip


def time_recovery(claimer: Claimer, baseline: float, at_most_s: float) -> float:
    """Seconds until the claims of two seconds have a p99 of at most 1.5 times the baseline's; at_most_s when they never have."""
    started = time.monotonic()
    while (since := time.monotonic() - started) < at_most_s:
        if find_p99(probe_claims(claimer, min(2.0, at_most_s))) <= 1.5 * baseline:
            return since
    return at_most_s
