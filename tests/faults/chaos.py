"""Workers under a load, each behind a proxy of its own, and faults at their statements, as a seeded deck deals them."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg

from tests.database import TestDatabase
from tests.faults.conftest import FLOWS, Gates, wait_until
from tests.faults.load import Load
from tests.faults.own_server import OwnServer
from tests.faults.points import POINTS, Deck, Strike, find_unnamed
from tests.processes import WorkerProcess, Workers
from tests.proxy import Fault, Link, Proxy

LEASE_S = 1.0
RESCUED_WITHIN_S = LEASE_S + 2
LONGEST_STOP_S = LEASE_S + 3
HAND = 5
PATIENCE_S = 2.0  # for statements that do not come
REST_S = 0.4
SETTLE_S = 90.0
PACE_S = 0.02
NAMES_WITHIN = 400
HELD = "select from onceflow.lease l join onceflow.worker w on w.id = l.worker where w.pid = %s and w.ended_at is null"
ALL_HEARD = "select min(heartbeat_at) > %s from onceflow.worker where heartbeat_at > onceflow.now() - interval '3 s'"
ALL_DONE = "select not exists (select from onceflow.run where state is null) and not exists (select from onceflow.wake_up)"


@dataclass
class Armed:
    """A strike that waits for its statement."""

    strike: Strike
    fault: Fault


@dataclass
class Seat:
    """A worker's place: its proxy stays when the worker is killed, and the next sits down behind it.

    Its hand is a few strikes, of which the first whose statement comes happens.
    """

    proxy: Proxy
    worker: WorkerProcess
    hand: list[Armed] = field(default_factory=list)
    armed_at: float = 0.0
    rest_until: float = 0.0


@dataclass
class Chaos:
    """One fault run. `run` strikes for so long and then checks; it raises AssertionError with the evidence."""

    db: TestDatabase
    server: OwnServer
    workers: Workers
    gates: Gates
    seed: int
    seats_count: int = 4
    open_runs: int = 120
    restart_every_s: float = 20.0
    env: dict[str, str] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    struck: Counter[Strike] = field(default_factory=Counter)
    recent: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.load = Load(self.db, self.dice, self.open_runs)
        self.deck = Deck(self.dice)
        self.seats: list[Seat] = []
        self.late: list[Fault] = []
        self._sessions = threading.Lock()
        self.unnamed: set[str] = set()

    def begin(self) -> None:
        """Workers sit down."""
        self.load.prepare()
        for _ in range(self.seats_count):
            proxy = Proxy(self.db.superuser_dsn)
            proxy.on_statement = self._look
            self.seats.append(Seat(proxy, self._start_worker(proxy)))
        self._seat_workers()

    def end(self) -> None:
        for seat in self.seats:
            seat.proxy.pass_everything()
        self.workers.end_all()
        for seat in self.seats:
            seat.proxy.close()

    def run(self, seconds: float) -> None:
        """Strike for so long, then let everything come to its end, and check."""
        end = time.monotonic() + seconds
        restart_at = time.monotonic() + self.restart_every_s * self.dice.uniform(0.5, 1)
        while time.monotonic() < end:
            self.survive(self.load.feed)
            for seat in self.seats:
                self.tend(seat)
            if time.monotonic() > restart_at:
                restart_at += self.restart_every_s
                self.restart_server()
            time.sleep(PACE_S)  # the pace of the faults, not a wait
        self.settle()
        self.load.check()
        assert not self.unnamed, f"workers send statements that have no name in points.py, so no fault strikes at them: {self.unnamed}"

    def tend(self, seat: Seat) -> None:
        """Let a new worker sit down, count what has struck, arm a new hand."""
        now = time.monotonic()
        if not seat.worker.running:
            seat.worker = self._start_worker(seat.proxy)
        if any(one.fault.happened.is_set() for one in seat.hand):
            self._put_back(seat)
            seat.rest_until = now + self.dice.uniform(0, REST_S)
        elif seat.hand and now > seat.armed_at + PATIENCE_S:
            self._put_back(seat)
        if not seat.hand and now >= seat.rest_until:
            seat.armed_at = now
            for _ in range(HAND):
                self._arm(seat, self.deck.deal())

    def _arm(self, seat: Seat, strike: Strike) -> None:
        pause_s = LEASE_S * self.dice.uniform(0, 0.3)
        acts: dict[str, Callable[[Link], bool]] = {
            "kill": lambda link: self._kill(seat),
            "stop": lambda link: self._stop(seat.worker, pause_s),
            "end_session": self._end_session,
        }
        fault = seat.proxy.cut_next(POINTS[strike.point], when=strike.when, skip=self.dice.randrange(2), act=acts.get(strike.act))
        seat.hand.append(Armed(strike, fault))

    def _put_back(self, seat: Seat) -> None:
        """The hand goes back into the deck, but for what has happened, which is counted; what is just happening stays."""
        for one in seat.hand[:]:
            if one.fault.happened.is_set():
                self._count(seat, one)
            elif seat.proxy.forget(one.fault) or one.fault.missed.is_set():
                self.deck.put_back(one.strike)
            else:
                continue
            seat.hand.remove(one)

    def _count(self, seat: Seat, one: Armed) -> None:
        self.done[one.strike.act] += 1
        self.struck[one.strike] += 1
        self.recent = [*self.recent[-19:], f"{one.strike} (worker {seat.worker.pid})"]
        if one.fault.when == "held":
            self.late.append(one.fault)
        if len(self.late) > 3:
            self._deliver(self.late.pop(0))

    def _kill(self, seat: Seat) -> bool:
        seat.worker.kill()
        return False

    def _stop(self, worker: WorkerProcess, pause_s: float) -> bool:
        """Until it is taken for dead, and a moment more: then others are in the midst of what it held, and it goes on."""
        worker.stop()
        deadline = time.monotonic() + LONGEST_STOP_S
        time.sleep(LEASE_S)  # the pause is the fault
        self.survive(lambda: self._await_rescue(worker.pid, deadline))
        time.sleep(pause_s)
        worker.resume()
        return True

    def _await_rescue(self, pid: int, deadline: float) -> None:
        with self.db.connect() as conn:
            while time.monotonic() < deadline and conn.execute(f"select count(*) from ({HELD}) held", (pid,)).fetchone() != (0,):
                time.sleep(PACE_S)

    def _end_session(self, link: Link) -> bool:
        with self._sessions:
            self.survive(lambda: self.db.connect().execute("select pg_terminate_backend(%s)", (link.backend_pid,)).connection.close())
        return True

    def _deliver(self, fault: Fault) -> None:
        """A message that was held back arrives after all; its session may have been ended meanwhile."""
        with suppress(OSError, AssertionError):
            fault.deliver(2)

    def restart_server(self) -> None:
        """Postgres is stopped as in a crash, and comes back."""
        self.db.close()
        self.server.restart()
        self.done["restart"] += 1
        self.recent = [*self.recent[-19:], "restart of Postgres"]

    def settle(self) -> None:
        """No more faults: whoever was hurt is rescued in time, and every run comes to its end."""
        for seat in self.seats:
            self._put_back(seat)
            wait_until(lambda seat=seat: self._put_back(seat) or not seat.hand, "the end of the last faults", SETTLE_S)
            seat.proxy.pass_everything()
        for fault in self.late:
            self._deliver(fault)
        self.late = []
        self._seat_workers()
        self.check_rescue()
        self._seat_workers()
        with suppress(AssertionError):  # what is stuck is shown by the checks
            self.db.wait_for(ALL_DONE, timeout=SETTLE_S)
            self.check_polling()

    def _seat_workers(self) -> None:
        """Every seat has a worker that is at work."""
        wait_until(lambda: all([self._is_seated(seat) for seat in self.seats]), "workers in all seats", SETTLE_S)

    def _is_seated(self, seat: Seat) -> bool:
        """Whoever comes while Postgres starts up finds no database, and another comes."""
        seat.worker.resume()
        if not seat.worker.running:
            seat.worker = self._start_worker(seat.proxy)
        return self.db.sql("select count(*) from onceflow.worker where pid = %s and ended_at is null", seat.worker.pid) != [(0,)]

    def check_polling(self) -> None:
        """All workers are idle, and nobody tells them of a run: they find it. If not, the checks find it ready."""
        for _ in range(2):
            self.db.wait_for(ALL_HEARD, self.db.sql("select onceflow.now()")[0][0])
        run_id = f"quiet-{self.dice.getrandbits(60):x}"
        self.db.sql("select onceflow.start_run('one_payment', to_jsonb(array[%s::text]), %s, notify => false)", run_id, run_id)
        self.db.wait_for(ALL_DONE)

    def check_rescue(self) -> None:
        """A worker is killed in the midst of its work: soon after its lease nothing of it is left running.

        While nobody ticks, as after a restart, nobody is taken for dead; the time counts from the end of that.
        """
        self.load.feed()
        seat = self.dice.choice(self.seats)
        with suppress(AssertionError):  # it may have had nothing to do
            self.db.wait_for(f"select count(*) from ({HELD}) held", seat.worker.pid, timeout=2)
        seat.worker.kill()
        self.done["kill"] += 1
        killed_at = self.db.sql("select clock_timestamp()")[0][0]
        overdue = f"""
            select case when not exists ({HELD}) then 'rescued'
                when clock_timestamp() > greatest(%s::timestamptz, (select no_rescue_before from onceflow.engine)) + make_interval(secs => %s) then 'overdue' end"""
        outcome = self.db.wait_for(overdue, seat.worker.pid, killed_at, RESCUED_WITHIN_S, timeout=SETTLE_S)
        assert outcome == "rescued", f"tasks of a killed worker still run {RESCUED_WITHIN_S} s after it died:\n{self.db.dump()}"

    def _look(self, text: bytes) -> None:
        """A sharp eye for statements at which no fault can strike. The names of calls stand at the beginning."""
        if found := find_unnamed(text[:NAMES_WITHIN]):
            self.unnamed |= found

    def survive(self, work: Callable[[], Any]) -> None:
        """Our own statements meet the restarts too."""
        with suppress(psycopg.OperationalError):
            work()

    def _start_worker(self, proxy: Proxy) -> WorkerProcess:
        dsns = {"dsn": self.db.worker_dsn, "step_dsn": self.db.step_dsn, "direct_dsn": self.db.direct_dsn}
        settings = {name: proxy.dsn(dsn) for name, dsn in dsns.items()}
        settings |= {"lease_s": LEASE_S, "suspend_after_s": 0.1, "poll_s": 0.3, "max_rescues": 1_000_000, "pause_new_dags": False, "log_level": "warning"}
        env = {f"ONCEFLOW_{name.upper()}": str(value) for name, value in settings.items()}
        return self.workers.start(FLOWS, concurrency=16, env=env | self.env | {"FAULT_GATES": str(self.gates.folder)}, wait_ready=False)

    def missing(self) -> list[str]:
        """Names in points.py at which nothing has struck."""
        return sorted(set(POINTS) - {strike.point for strike in self.struck})

    def report(self) -> str:
        """What was done, for whoever reads the end of a run."""
        count = "select count(*), count(distinct xid), count(*) filter (where to_state = 'success' and kind <> 'body'), count(*) filter (where to_state = 'rescued')"
        entries, commits, steps, rescues = self.db.sql(f"{count} from onceflow.step_ledger")[0]
        return (
            f"seed {self.seed}: kills {self.done['kill']}, stops {self.done['stop']}, restarts {self.done['restart']}, sessions ended {self.done['end_session']}, "
            f"connections cut {self.done['lose']}, messages that came late {self.done['arrive_late']}; "
            f"runs {self.load.started}, steps {steps}, commits {commits}, entries {entries}, rescues {rescues}; "
            f"{len(self.struck)} of {len(self.deck)} strikes happened; points that never came: {', '.join(self.missing()) or 'none'}"
        )

    def evidence(self) -> str:
        """What helps to find a violation's cause; the workers' logs lie in the run's folder."""
        return f"seed {self.seed}; the last strikes:\n  " + "\n  ".join(self.recent) + f"\nlogs in {self.workers.folder}"
