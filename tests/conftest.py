"""Fixtures of all tests: a real server for the session, an own database for each test, real worker processes.

The session runs on the bundled Postgres 18; `ONCEFLOW_TEST_SERVER=15` or `=pgbouncer` runs it elsewhere, and
`@pytest.mark.server("18", "15", "pgbouncer")` runs one test on each server named.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from onceflow.db.embedded import grant_login_roles
from onceflow.db.migrate import migrate
from tests.database import Template, TestDatabase
from tests.processes import Workers
from tests.servers import Server, ServerMissing, start_server, stop_servers

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def under_ci() -> bool:
    """Is this a CI run, where nothing may be left out?"""
    return any(os.environ.get(name, "").lower() not in ("", "0", "false") for name in ("CI", "ONCEFLOW_CI"))


def pytest_configure(config: pytest.Config) -> None:
    """Register our own marker."""
    config.addinivalue_line("markers", "server(*names): run the test on these servers (18, 15, pgbouncer)")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a marked test once on each server it names."""
    marker = metafunc.definition.get_closest_marker("server")
    if marker and "server_name" in metafunc.fixturenames:
        # indirect: pytest then sees one fixture with another parameter and makes `server` and `template` anew
        metafunc.parametrize("server_name", marker.args, scope="session", indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the worker logs of a failed test; under CI a skip is a failure, with the skip's reason."""
    report = yield
    workers = getattr(item, "funcargs", {}).get("workers")
    if report.failed and workers is not None and workers.started:
        report.sections.append(("worker logs", workers.log_report()))
    return fail_if_skipped(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Under CI a module that skips itself is a failure too."""
    return fail_if_skipped((yield))


def fail_if_skipped(report: Report) -> Report:
    """Under CI turn a skip into a failure (an expected failure is not a skip)."""
    if under_ci() and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"skipped, and under CI nothing may be skipped. {reason}"
    return report


@pytest.fixture(scope="session")
def server_name(request: pytest.FixtureRequest) -> str:
    """Which server the test runs on: that of its marker, else that of the session."""
    return str(getattr(request, "param", None) or os.environ.get("ONCEFLOW_TEST_SERVER", "18"))


@pytest.fixture(scope="session", autouse=True)
def _servers() -> Iterator[None]:
    """Stop every server at the session's end, after failures and Ctrl-C too."""
    yield
    stop_servers()


@pytest.fixture(scope="session")
def server(server_name: str) -> Server:
    """The running server; skips with the reason where this machine does not have it."""
    try:
        return start_server(server_name)
    except ServerMissing as missing:
        pytest.skip(str(missing))


_templates: dict[str, Template] = {}


@pytest.fixture(scope="session")
def template(server: Server) -> Template:
    """The migrated database that tests' databases are cloned from; made once on each Postgres."""
    cluster = server.direct_dsn("postgres", "postgres")
    if cluster not in _templates:
        _templates[cluster] = Template(server).create(migrate, grant_login_roles)
    return _templates[cluster]


@pytest.fixture
def db(server: Server, template: Template) -> Iterator[TestDatabase]:
    """The test's own database, dropped afterwards whoever is still connected."""
    database = template.clone(server)
    yield database
    template.drop(database)


@pytest.fixture
def workers(db: TestDatabase, tmp_path: Path) -> Iterator[Workers]:
    """Starts worker processes and ends them all by pid; a failed test shows their logs."""
    started = Workers(db, tmp_path)
    yield started
    started.end_all()
