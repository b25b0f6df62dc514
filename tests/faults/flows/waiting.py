"""Bodies that wait: they leave memory, and a step in a `finally:` must write only when the body really ends."""

from __future__ import annotations

from payments import pay, pay_blocking

import onceflow
from onceflow import workflow


async def wait_with_finally(key: str, wait: object) -> None:
    try:
        await wait  # type: ignore[misc]
    finally:
        await pay(f"{key}/finally")


@workflow
async def wait_sleep(key: str) -> str:
    await wait_with_finally(key, onceflow.sleep(1.5))
    return key


@workflow
async def wait_message(key: str) -> str:
    await wait_with_finally(key, onceflow.recv("go"))
    return key


@workflow
async def nap(key: str) -> str:
    await wait_with_finally(key, onceflow.sleep(0.2))
    return key


@workflow
async def child(key: str, seconds: float = 1.5) -> str:
    await onceflow.sleep(seconds)
    await pay(f"{key}/child")
    return key


@workflow
async def with_child(key: str) -> str:
    handle = await child.start(key, 0.1)
    return str(await handle.result())


@workflow
async def wait_child(key: str) -> str:
    handle = await child.start(key)
    await wait_with_finally(key, handle.result())
    return key


@workflow
def wait_sleep_blocking(key: str) -> str:
    try:
        onceflow.sleep(1.5)
    finally:
        pay_blocking(f"{key}/finally")
    return key
