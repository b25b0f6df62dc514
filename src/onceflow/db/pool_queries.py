"""Pools, with what draws on them now."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg.rows import class_row

from onceflow.db.queries import Reader


@dataclass(frozen=True, slots=True)
class PoolRow:
    """A pool: its slots (-1 = no limit), how many are taken, how many tasks lie ready for it."""

    pool_name: str
    slots: int
    used: int
    ready: int
    include_deferred: bool
    description: str | None


def list_pools(reader: Reader) -> list[PoolRow]:
    with reader.cursor(row_factory=class_row(PoolRow)) as cursor:
        return cursor.execute(
            """select p.pool_name, p.slots, coalesce((select sum(l.pool_slots) from onceflow.lease l where l.pool = p.pool_name), 0)::int as used,
                (select count(*) from onceflow.ready r join onceflow.lane n on n.id = r.lane where n.pool = p.pool_name)::int as ready, p.include_deferred, p.description
            from onceflow.slot_pool p order by p.pool_name"""
        ).fetchall()
