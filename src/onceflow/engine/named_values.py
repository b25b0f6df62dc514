"""Connections and variables by name: from the environment of the worker, else from the database. What is secret of them is never shown."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from onceflow.engine.secret_box import SecretBox
from onceflow.errors import SettingsError

PREFIXES = {"connection": "ONCEFLOW_CONN_", "variable": "ONCEFLOW_VAR_"}
_SECRET_WORDS = ("password", "passwd", "secret", "token", "apikey", "api_key", "private_key", "access_key", "passphrase")
MASK = "***"
Find = Callable[[str, str], dict[str, Any] | None]  # the database's row of a kind and name


class Secrets:
    """What was handed out and must not be shown."""

    def __init__(self) -> None:
        self._texts: set[str] = set()

    def add(self, text: str | None) -> str | None:
        if text:
            self._texts.add(text)
        return text

    def mask(self, text: str) -> str:
        """The JSON text without them: in its texts, wherever they stand."""
        return json.dumps(self._masked(json.loads(text)), ensure_ascii=False) if self._texts else text

    def _masked(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._masked(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._masked(item) for item in value]
        if isinstance(value, str):
            for secret in sorted(self._texts, key=len, reverse=True):
                value = value.replace(secret, MASK)
        return value


class Connection:
    """What is known of another system: conn_id, conn_type, host, port, login, password, schema, extra (a dict). As text it is a URI; its repr has no secrets."""

    def __init__(self, conn_id: str, uri: str, fields: dict[str, Any] | None = None) -> None:
        parts = urlsplit(uri)
        self.conn_id, self.conn_type, self.host, self.port = conn_id, parts.scheme, parts.hostname, parts.port
        self.login, self.password = parts.username and unquote(parts.username), parts.password and unquote(parts.password)
        self.schema, self.extra = unquote(parts.path.lstrip("/")), dict[str, Any](parse_qsl(parts.query))
        self._uri: str | None = uri
        if fields is not None:  # a row, decrypted
            self.conn_type, self.host, self.port, self.schema = fields["conn_type"], fields["host"], fields["port"], fields["schema"] or ""
            self.login, self.password, self.extra, self._uri = fields["login"], fields["password"], fields["extra"], None

    def get_uri(self) -> str:
        """As URI, with its secrets."""
        if self._uri is not None:
            return self._uri
        login = quote(self.login or "", safe="") + (f":{quote(self.password, safe='')}" if self.password else "")
        place = f"{login}@" * bool(login) + (self.host or "") + (f":{self.port}" if self.port else "")
        path = f"/{quote(self.schema, safe='')}" if self.schema else ""
        flat = {key: value if isinstance(value, str) else json.dumps(value) for key, value in self.extra.items()}
        return f"{self.conn_type}://{place}{path}" + (f"?{urlencode(flat)}" if flat else "")

    def list_secrets(self) -> list[str]:
        """Its password, and what stands under a secret's name in extra."""
        passwords = [self.password, quote(self.password, safe="")] if self.password else []
        raw = urlsplit(self._uri).password if self._uri else None
        return [*passwords, *([raw] if raw else []), *(value for key, value in self.extra.items() if is_secret_name(key) and isinstance(value, str))]

    def __str__(self) -> str:
        return self.get_uri()

    def __repr__(self) -> str:
        return f"<connection {self.conn_id}: {self.conn_type} at {self.host}>"


class NamedValues:
    """Reads them: the environment first. `find` asks the database; None: there is none at hand. `secrets` learns what was handed out."""

    def __init__(self, secrets: Secrets, find: Find | None = None, box: SecretBox | None = None) -> None:
        self.secrets, self._find, self._box = secrets, find, box or SecretBox(None)

    def read_connection(self, name: str) -> Connection:
        """Raises SettingsError, which says where to set it, when there is none."""
        given = os.environ.get(f"{PREFIXES['connection']}{name.upper()}")
        found = Connection(name, given) if given is not None else self.open_connection(name, self._need("connection", name))
        for secret in found.list_secrets():
            self.secrets.add(secret)
        return found

    def open_connection(self, name: str, row: dict[str, Any]) -> Connection:
        """A connection of the database, decrypted."""
        password = row["password"] and self._box.decrypt(row["password"], f"the password of connection {name!r}")
        extra = json.loads(self._box.decrypt(row["extra"]["$fernet"], f"extra of connection {name!r}")) if row["extra"] else {}
        return Connection(name, "", {**row, "password": password, "extra": extra})

    def read_variable(self, name: str) -> str:
        """Its text. Raises SettingsError when there is none."""
        found = os.environ.get(f"{PREFIXES['variable']}{name.upper()}")
        is_secret = is_secret_name(name)
        if found is None:
            row = self._need("variable", name)
            found, is_secret = str(row["val"]), is_secret or row["is_encrypted"]
            if row["is_encrypted"]:
                found = self._box.decrypt(found, f"variable {name!r}")
        if is_secret:
            self.secrets.add(found)
        return found

    def _need(self, kind: str, name: str) -> dict[str, Any]:
        row = None if self._find is None else self._find(kind, name)
        if row is None:
            variable = f"{PREFIXES[kind]}{name.upper()}"
            raise MissingValue(f"there is no {kind} {name!r}: set {variable} in the environment of the workers, or run: onceflow {kind}s set {name} …")
        return row


class MissingValue(SettingsError):
    """There is no connection or variable of that name."""


class Connections:
    """`conn.name` in templates."""

    def __init__(self, values: NamedValues) -> None:
        self._values = values

    def __getattr__(self, name: str) -> Connection:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._values.read_connection(name)

    def get(self, name: str) -> Connection:
        return self._values.read_connection(name)


class Variables:
    """`var.value.name` in templates, its text, and `var.json.name`, the same read as JSON."""

    def __init__(self, values: NamedValues) -> None:
        self.value, self.json = _Variables(values, parse=False), _Variables(values, parse=True)


class _Variables:
    def __init__(self, values: NamedValues, *, parse: bool) -> None:
        self._values, self._parse = values, parse

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        text = self._values.read_variable(name)
        return json.loads(text) if self._parse else text

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return getattr(self, name)
        except MissingValue:
            return default


def is_secret_name(name: str) -> bool:
    """Does the name say that its value must not be shown?"""
    return any(word in name.lower() for word in _SECRET_WORDS)
