"""The async client, on asyncpg: `Client` with await."""

from __future__ import annotations

import asyncio
import json
from datetime import date, datetime, timedelta
from typing import Any, Generic, ParamSpec, TypeVar, Unpack, cast

import asyncpg

from onceflow.authoring.step import Step
from onceflow.authoring.workflow import Workflow
from onceflow.codec import decode
from onceflow.db import calls, dag_calls
from onceflow.db.calls import Call
from onceflow.db.driver_errors import explain
from onceflow.db.foreign import run_on_foreign_async
from onceflow.db.link import Link
from onceflow.engine import backfills, requests
from onceflow.engine.backfills import AsyncBackfillHandle, BackfillArguments, BackfillOptions, Dag
from onceflow.engine.requests import Pause, Request, Startable, StartOptions
from onceflow.errors import NoDatabase, SettingsError
from onceflow.settings import check_dsn, load_settings, mask_dsn

P = ParamSpec("P")
R = TypeVar("R")
RECONNECT_S = 30.0


class AsyncRunHandle(Generic[R]):
    """A run; as RunHandle, with await."""

    def __init__(self, client: AsyncClient, run: int, dag_id: str, run_id: str, created: bool = False) -> None:
        self._client = client
        self.run, self.dag_id, self.run_id, self.created = run, dag_id, run_id, created

    async def state(self) -> str:
        return cast(str, await self._client._drive(requests.read_state(self.run)))

    async def result(self, timeout_s: float | None = None) -> R:
        return cast(R, await self._client._drive(requests.await_result(self.run, timeout_s)))

    async def cancel(self, reason: str | None = None, actor: str | None = None) -> None:
        await self._client._call(requests.cancel_call(self.run, reason, actor))

    async def retry(self, actor: str | None = None) -> None:
        await self._client._call(requests.retry_call(self.run, actor))

    resume = retry

    async def fork(self, from_step: str, run_id: str | None = None, actor: str | None = None) -> AsyncRunHandle[R]:
        answer = await self._client._call(requests.fork_call(self.run, from_step, run_id, actor))
        return AsyncRunHandle(self._client, int(answer["run"]), self.dag_id, answer["run_id"], answer["created"])

    async def send(self, message: Any, topic: str = "", key: str | None = None) -> bool:
        return cast(bool, await self._client._drive(requests.send_message(self.run, message, topic, key)))

    async def get_event(self, key: str) -> Any:
        answer = await self._client._call(requests.event_call(self.run, key))
        return None if answer is None else decode(json.dumps(answer["value"]))

    async def steps(self) -> list[dict[str, Any]]:
        return cast("list[dict[str, Any]]", await self._client._drive(requests.list_steps(self.run)))

    def __repr__(self) -> str:
        return f"<run {self.dag_id}/{self.run_id}>"


class AsyncClient:
    """An async client on asyncpg; as Client, with await. `conn` may be an asyncpg connection or an AsyncSession."""

    def __init__(self, dsn: str | None = None) -> None:
        found = load_settings().dsn if dsn is None else check_dsn(dsn, "AsyncClient(dsn)")
        if found is None:
            raise SettingsError("AsyncClient() needs a database: pass its DSN or set ONCEFLOW_DSN")
        self._link = Link(found, limit=2)
        self._known: set[str] = set()
        self._is_open = False

    async def start(
        self,
        target: Startable,
        /,
        *args: Any,
        run_id: str | None = None,
        conn: Any = None,
        queue: str | None = None,
        priority: int = 0,
        delay: float | timedelta | None = None,
        timeout: float | timedelta | None = None,
        deduplicate: str | None = None,
        **kwargs: Any,
    ) -> AsyncRunHandle[Any]:
        """As Client.start."""
        return await self._start(target, args, kwargs, StartOptions(run_id, conn, queue, priority, delay, timeout, deduplicate))

    def using(self, **options: Any) -> AsyncStartWith:
        """As Client.using."""
        return AsyncStartWith(self, StartOptions(**options))

    async def trigger(
        self,
        dag_id: Startable,
        *,
        logical_date: datetime | None = None,
        params: dict[str, Any] | None = None,
        run_id: str | None = None,
        conn: Any = None,
    ) -> AsyncRunHandle[Any]:
        """As Client.trigger."""
        options = StartOptions(run_id, conn, logical_date=logical_date)
        return await self._start(*(await self._drive(requests.read_trigger(dag_id, params, options))))

    async def _start(self, target: Startable, args: tuple[Any, ...], kwargs: dict[str, Any], options: StartOptions) -> AsyncRunHandle[Any]:
        call = requests.start_call(target, args, kwargs, options)
        await self._make_known(target)
        answer = await self._call(call) if options.conn is None else await run_on_foreign_async(options.conn, call)
        return AsyncRunHandle(self, int(answer["run"]), requests.name_of(target), answer["run_id"], answer["created"])

    async def _make_known(self, target: Startable) -> None:
        if not isinstance(target, str) and (name := requests.name_of(target)) not in self._known:
            await self._call(calls.register_dags(requests.describe_dag(target), False))
            self._known.add(name)

    async def backfill(self, dag: Dag, start: date | str, end: date | str, **options: Unpack[BackfillArguments]) -> AsyncBackfillHandle:
        """As Client.backfill."""
        await self._make_known(dag)
        return AsyncBackfillHandle(self, await self._drive(backfills.create_backfill(dag, start, end, BackfillOptions(**options))))

    async def preview_backfill(self, dag: Dag, start: date | str, end: date | str, **options: Unpack[BackfillArguments]) -> list[dict[str, Any]]:
        """As Client.preview_backfill."""
        await self._make_known(dag)
        return cast("list[dict[str, Any]]", await self._drive(backfills.preview_backfill(dag, start, end, BackfillOptions(**options))))

    async def find_backfill(self, backfill: int) -> AsyncBackfillHandle:
        """A backfill by its number."""
        return AsyncBackfillHandle(self, await self._call(backfills.find_backfill(backfill)))

    async def pause(self, dag: Dag) -> bool:
        """As Client.pause."""
        return bool(await self._call(dag_calls.pause_dag(requests.name_of(dag), True)))

    async def unpause(self, dag: Dag) -> bool:
        """As Client.unpause."""
        return bool(await self._call(dag_calls.pause_dag(requests.name_of(dag), False)))

    async def find(self, run_id: str, dag_id: str | None = None) -> AsyncRunHandle[Any]:
        answer = await self._call(requests.find_call(run_id, dag_id))
        return AsyncRunHandle(self, int(answer["run"]), answer["dag_id"], answer["run_id"])

    async def close(self) -> None:
        await self._link.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _drive(self, request: Request) -> Any:
        answer: Any = None
        while True:
            try:
                asked = request.send(answer)
            except StopIteration as end:
                return end.value
            if isinstance(asked, Pause):
                await asyncio.sleep(asked.seconds)
                answer = None
            else:
                answer = await self._call(asked)

    async def _call(self, call: Call) -> Any:
        if not self._is_open:
            await self._link.open()
            self._is_open = True
        try:
            async with asyncio.timeout(RECONNECT_S):
                return await self._link.call_again(call)
        except TimeoutError as error:
            raise NoDatabase(f"cannot reach {mask_dsn(self._link.dsn)} for {RECONNECT_S} s. Is the server up, and the DSN right?") from error
        except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise explain(error) or error from None


class AsyncStartWith:
    """A start with its options fixed, so that type checkers see the workflow's own signature."""

    def __init__(self, client: AsyncClient, options: StartOptions) -> None:
        self._client, self._options = client, options

    async def start(self, target: Workflow[P, R] | Step[P, R], /, *args: P.args, **kwargs: P.kwargs) -> AsyncRunHandle[R]:
        return await self._client._start(target, args, kwargs, self._options)

    async def trigger(self, dag_id: Startable, params: dict[str, Any] | None = None) -> AsyncRunHandle[Any]:
        """As StartWith.trigger."""
        return await self._client._start(*(await self._client._drive(requests.read_trigger(dag_id, params, self._options))))
