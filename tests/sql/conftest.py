"""Workers of the raw SQL tests: connections that call the functions, closed at the test's end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.database import TestDatabase
from tests.sql.drive import Drive
from tests.sql.engine_calls import Engine


@pytest.fixture
def make_engine(db: TestDatabase) -> Iterator[Callable[..., Engine]]:
    """Makes a registered worker on a connection of its own."""
    made: list[Engine] = []

    def make(**options: Any) -> Engine:
        engine = Engine(db, **options)
        made.append(engine)
        engine.register()
        return engine

    yield make
    for engine in made:
        engine.close()


@pytest.fixture
def one(make_engine: Callable[..., Engine]) -> Engine:
    """The first worker."""
    return make_engine()


@pytest.fixture
def two(make_engine: Callable[..., Engine]) -> Engine:
    """The second worker, of the same code."""
    return make_engine()


@pytest.fixture
def drive(db: TestDatabase) -> Iterator[Drive]:
    """A worker and a connection of each login role."""
    made = Drive(db)
    yield made
    made.close()
