"""Connections and variables of templates: what is read from the environment, and what of it is never shown."""

from __future__ import annotations

import json

import pytest

from onceflow import SettingsError
from onceflow.engine.named_values import Connections, NamedValues, Secrets, Variables


def test_a_connection_is_read_from_its_uri(monkeypatch: pytest.MonkeyPatch) -> None:
    """Escapes are undone, the query is its extra; as text it is the URI."""
    uri = "postgresql://me%2Fyou:p%40ss@db.example:6432/books?sslmode=require&api_key=k1"
    monkeypatch.setenv("ONCEFLOW_CONN_BOOKS", uri)
    secrets = Secrets()
    found = Connections(NamedValues(secrets)).books
    assert (found.conn_type, found.host, found.port, found.login, found.password, found.schema) == ("postgresql", "db.example", 6432, "me/you", "p@ss", "books")
    assert found.extra == {"sslmode": "require", "api_key": "k1"} and str(found) == uri
    assert json.loads(secrets.mask(json.dumps([uri, "p@ss", "k1", "require"]))) == [uri.replace("p%40ss", "***").replace("k1", "***"), "***", "***", "require"]


def test_masking_keeps_the_text_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the secret is: digits, quotes, a name of a field, letters beyond ASCII. Numbers and names of fields stay."""
    for secret in ("1", '"', "{", "value", "\\", "gehe\u00efm"):
        monkeypatch.setenv("ONCEFLOW_VAR_TOKEN", secret)
        secrets = Secrets()
        assert Variables(NamedValues(secrets)).value.token == secret
        masked = json.loads(secrets.mask(json.dumps({"value": [1, f"<{secret}>"]})))
        assert masked == {"value": [1, "<***>"]}


def test_what_is_not_there_is_told() -> None:
    """With the variable to set; get() has a default."""
    variables = Variables(NamedValues(Secrets()))
    with pytest.raises(SettingsError, match="there is no variable 'limit': set ONCEFLOW_VAR_LIMIT"):
        _ = variables.value.limit
    with pytest.raises(SettingsError, match="there is no connection 'bank': set ONCEFLOW_CONN_BANK"):
        _ = Connections(NamedValues(Secrets())).bank
    assert variables.value.get("limit", "7") == "7"
