"""A stage for tests of the ledger and of rights: one worker, and a connection of each login role of a real installation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg

from onceflow.db import calls
from onceflow.db.calls import Call, render
from onceflow.db.tokens import mark_token, prove_token
from tests.database import TestDatabase
from tests.sql.engine_calls import Engine, Task, make_silent

Connection = psycopg.Connection[Any]
Finding = tuple[str, str | None, int | None, str]


def complete_step_call(task: Task, key: str, kind: str = "transactional", output: str = "1") -> Call:
    """The record of a step's success, as it stands in the last message on a step's connection: with a proof, not the token."""
    return calls.complete_step(task.run, task.ti, prove_token(task.token, f"{key}/1/{kind}/{output}"), key, key.split("#")[0], kind, 1, "{}", "h", output, 1000)


@dataclass
class Drive:
    """The worker calls as login worker, steps as onceflow_step, applications as app, auditors as auditor."""

    db: TestDatabase
    engine: Engine = field(init=False)
    opened: dict[str, Connection] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.engine = Engine(self.db, user="worker")
        self.engine.register()

    def connection(self, login: str) -> Connection:
        """The one connection of a login, opened when first needed."""
        if login not in self.opened or self.opened[login].closed:
            self.opened[login] = self.db.connect(login)
        return self.opened[login]

    @property
    def step(self) -> Connection:
        return self.connection("step")

    @property
    def app(self) -> Connection:
        return self.connection("app")

    @property
    def auditor(self) -> Connection:
        return self.connection("auditor")

    def close(self) -> None:
        self.engine.close()
        for conn in self.opened.values():
            conn.close()

    def start(self, **options: Any) -> Task:
        """A new run whose body is claimed."""
        return self.engine.start_and_claim(**options)

    @contextmanager
    def transaction(self, task: Task, key: str, conn: Connection | None = None) -> Iterator[Connection]:
        """The transaction of the step of that key, opened as the engine opens it; committed at the end of the block."""
        conn = conn or self.step
        with conn.transaction():
            conn.execute("select set_config('onceflow.step', %s, true)", (mark_token(task.ti, task.token, key),))
            yield conn

    def complete_step(self, task: Task, key: str, conn: Connection | None = None, kind: str = "transactional") -> None:
        """Record a step's success on the connection that it wrote on, under its own mark, as one of a group."""
        conn = conn or self.step
        conn.execute("select set_config('onceflow.step', %s, true)", (mark_token(task.ti, task.token, key),))
        conn.execute(render(complete_step_call(task, key, kind)).encode())

    def write(self, task: Task, key: str, *statements: str) -> None:
        """A whole transactional step: its statements and its record, committed together."""
        with self.transaction(task, key) as conn:
            for statement in statements:
                conn.execute(statement.encode())
            conn.execute(render(complete_step_call(task, key)).encode())

    def lose(self, max_rescues: int = 5) -> None:
        """The worker was silent for too long: its tasks are rescued."""
        make_silent(self.db, self.engine)
        self.db.sql("select onceflow.rescue_tasks(500, %s)", max_rescues)
        self.db.sql("update onceflow.worker set heartbeat_at = onceflow.now()")

    def seal(self) -> dict[str, Any]:
        """Seal all that is settled."""
        answer: dict[str, Any] = self.engine.call(calls.seal_ledger())
        return answer

    def findings(self, run: int | None = None) -> list[Finding]:
        """(problem, step key, entry, detail) of each row of verify_ledger."""
        return [(r[0], r[3], r[4], r[5]) for r in self.auditor.execute("select * from onceflow.verify_ledger(%s)", (run,)).fetchall()]

    def problems(self, run: int | None = None) -> list[str]:
        """The distinct problems found."""
        return sorted({problem for problem, *_ in self.findings(run)})

    def who_wrote(self, table: str, where: str = "true") -> list[dict[str, Any]]:
        """The answers of who_wrote for the rows of a table, in the table's order, asked by the auditor."""
        query = f"select w.* from {table} p, onceflow.who_wrote(p.tableoid, p.ctid) w where {where} order by p.id, w.at"
        cursor = self.auditor.execute(query.encode())
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
