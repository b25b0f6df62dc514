"""Connections and variables: who may set them, and who may read what is secret."""

from __future__ import annotations

import pytest
from psycopg.errors import InsufficientPrivilege

from tests.database import TestDatabase
from tests.sql.engine_calls import Engine, sqlstate_of

FIELDS = '{"conn_type": "http", "host": "bank", "password": "gAAA", "extra": {"$fernet": "gAAB"}, "port": 80}'


@pytest.fixture
def bank(db: TestDatabase) -> None:
    """One of each, set by an operator."""
    with db.connect("app") as app:
        app.execute("select onceflow.set_connection('bank', %s)", (FIELDS,))
        app.execute("select onceflow.set_variable('limit', '5'), onceflow.set_variable('token', 'gAAC', true)")


@pytest.mark.usefixtures("bank")
@pytest.mark.parametrize("login", ["app", "worker", "onceflow_step", "auditor"])
def test_no_login_reads_secrets_by_plain_sql(db: TestDatabase, login: str) -> None:
    """Neither password, extra nor values; and only a worker's connection has the function that gives them, encrypted."""
    user = "onceflow_step" if login == "onceflow_step" else login
    reads = [
        "select password from onceflow.connection",
        "select extra from onceflow.connection",
        "select * from onceflow.connection",
        "select val from onceflow.variable",
    ]
    with db.connect(user) as conn:
        for text in reads:
            with pytest.raises(InsufficientPrivilege):
                conn.execute(text.encode())
        if login == "worker":
            (row,) = conn.execute("select onceflow.read_named_value('connection', 'bank')").fetchone() or ()
            assert (row["password"], row["extra"], row["port"]) == ("gAAA", {"$fernet": "gAAB"}, 80)
        else:
            with pytest.raises(InsufficientPrivilege):
                conn.execute("select onceflow.read_named_value('connection', 'bank')")


@pytest.mark.usefixtures("bank")
def test_an_operator_sets_and_sees_what_is_not_secret(db: TestDatabase) -> None:
    """Setting again replaces the whole, but keeps the description."""
    with db.connect("app") as app:
        shown = app.execute("select onceflow.list_variables()").fetchone()
        assert shown is not None and [(row["key"], row["val"]) for row in shown[0]] == [("limit", "5"), ("token", None)]
        app.execute("""select onceflow.set_connection('bank', '{"conn_type": "ftp", "description": "ours"}')""")
        app.execute("""select onceflow.set_connection('bank', '{"conn_type": "sftp"}')""")
        assert app.execute("select conn_type, host, port, description from onceflow.connection").fetchall() == [("sftp", None, None, "ours")]
        app.execute("select onceflow.delete_connection('bank'), onceflow.delete_variable('token')")
        assert app.execute("select count(*) from onceflow.connection").fetchone() == (0,)


def test_bad_names_are_refused(one: Engine) -> None:
    """By the engine's own errors, as is what is not there."""
    assert sqlstate_of(lambda: one.sql("select onceflow.set_connection('', %s)", FIELDS)) == "OF008"
    assert sqlstate_of(lambda: one.sql("select onceflow.set_connection('bank', '{}')")) == "OF008"
    assert sqlstate_of(lambda: one.sql("select onceflow.set_variable('', 'x')")) == "OF008"
    assert sqlstate_of(lambda: one.sql("select onceflow.delete_variable('x')")) == "OF004"
    assert sqlstate_of(lambda: one.sql("select onceflow.delete_connection('x')")) == "OF004"
