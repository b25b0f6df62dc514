"""Steps that catch an error of the database and go on as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import asyncpg
import psycopg
import sqlalchemy as sa
import sqlalchemy.ext.asyncio as sa_asyncio
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from onceflow import commit_with, current_run, step, workflow

CLASH = "insert into account values (1, 0)"
NOTE = "insert into effect (what, note) values ('{}', 'after')"


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "account"
    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]


def note_text() -> str:
    return NOTE.format(current_run().run_id)


@step
async def on_asyncpg(conn: asyncpg.Connection[Any], goes_on: bool) -> None:
    try:
        await conn.execute(CLASH)
    except asyncpg.UniqueViolationError:
        pass
    if goes_on:
        await conn.execute(note_text())


@step
def on_psycopg(conn: psycopg.Connection, goes_on: bool) -> None:
    try:
        conn.execute(CLASH)
    except psycopg.errors.UniqueViolation:
        pass
    if goes_on:
        conn.execute(note_text().encode())


@step
async def on_psycopg_async(conn: psycopg.AsyncConnection, goes_on: bool) -> None:
    try:
        await conn.execute(CLASH)
    except psycopg.errors.UniqueViolation:
        pass
    if goes_on:
        await conn.execute(note_text().encode())


@step
def on_session(session: Session, goes_on: bool) -> None:
    try:
        session.execute(sa.text(CLASH))
    except sa.exc.IntegrityError:
        pass
    if goes_on:
        session.execute(sa.text(note_text()))


@step
def on_flush(session: Session, goes_on: bool) -> None:
    session.add(Account(id=1, balance=0))
    try:
        session.flush()
    except sa.exc.IntegrityError:
        pass
    if goes_on:
        session.execute(sa.text(note_text()))


@step
async def on_async_session(session: sa_asyncio.AsyncSession, goes_on: bool) -> None:
    session.add(Account(id=1, balance=0))
    try:
        await session.flush()
    except sa.exc.IntegrityError:
        pass
    if goes_on:
        await session.execute(sa.text(note_text()))


@step
def on_sa_connection(conn: sa.Connection, goes_on: bool) -> None:
    try:
        conn.execute(sa.text(CLASH))
    except sa.exc.IntegrityError:
        pass
    if goes_on:
        conn.execute(sa.text(note_text()))


@step
async def on_sa_async_connection(conn: sa_asyncio.AsyncConnection, goes_on: bool) -> None:
    try:
        await conn.execute(sa.text(CLASH))
    except sa.exc.IntegrityError:
        pass
    if goes_on:
        await conn.execute(sa.text(note_text()))


@step
def on_late_commit(goes_on: bool) -> None:
    with commit_with(psycopg.Connection) as conn:
        try:
            conn.execute(CLASH)
        except psycopg.errors.UniqueViolation:
            pass
        if goes_on:
            conn.execute(note_text().encode())


@step
async def on_async_late_commit(goes_on: bool) -> None:
    async with commit_with(asyncpg.Connection) as conn:
        await on_asyncpg.fn(conn, goes_on)


@step
async def in_a_savepoint(conn: asyncpg.Connection[Any]) -> None:
    try:
        async with conn.transaction():
            await conn.execute(CLASH)
    except asyncpg.UniqueViolationError:
        await conn.execute(note_text())


KINDS: dict[str, tuple[Callable[..., Any], str]] = {
    "asyncpg": (on_asyncpg, "async with conn.transaction():"),
    "psycopg": (on_psycopg.aio, "with conn.transaction():"),
    "psycopg_async": (on_psycopg_async, "async with conn.transaction():"),
    "session": (on_session.aio, "with session.begin_nested():"),
    "flush": (on_flush.aio, "with session.begin_nested():"),
    "async_session": (on_async_session, "async with session.begin_nested():"),
    "sa_connection": (on_sa_connection.aio, "with conn.begin_nested():"),
    "sa_async_connection": (on_sa_async_connection, "async with conn.begin_nested():"),
    "late_commit": (on_late_commit.aio, "with conn.transaction():"),
    "async_late_commit": (on_async_late_commit, "async with conn.transaction():"),
}


@workflow
async def going_on(kind: str, goes_on: bool) -> None:
    await KINDS[kind][0](goes_on)


@step
async def swallow_serialization(conn: asyncpg.Connection[Any], amount: int) -> str:
    """Reads, lets the other transaction win once, and swallows what PostgreSQL says of it."""
    first = await conn.fetchval("select nextval('tries')") == 1
    try:
        await conn.execute(f"do $$ begin if {first} then raise serialization_failure; end if; end $$")
    except asyncpg.SerializationError:
        pass
    await conn.execute(note_text())
    return "done"
