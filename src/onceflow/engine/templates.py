"""Jinja templates in the fields of operators and the arguments of tasks: sandboxed, and strict about names."""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jinja2 import FileSystemLoader, StrictUndefined, TemplateError, TemplateNotFound
from jinja2.nativetypes import NativeEnvironment
from jinja2.sandbox import SandboxedEnvironment

from onceflow.authoring.graph.operator import BaseOperator
from onceflow.authoring.graph.xcom_arg import XComArg
from onceflow.engine.named_values import Connections, NamedValues, Variables
from onceflow.errors import AuthoringError

_MARKS = ("{{", "{%", "{#")


class _NativeSandbox(SandboxedEnvironment, NativeEnvironment):
    """Sandboxed, and what a lone {{ }} gives keeps its type."""


def ds_add(ds: str, days: int) -> str:
    """A date text some days on: ds_add("2026-01-31", 1) is "2026-02-01"."""
    return f"{datetime.strptime(ds, '%Y-%m-%d') + timedelta(days=days):%Y-%m-%d}"


def ds_format(ds: str, input_format: str, output_format: str) -> str:
    """A date text in another format: ds_format("2026-01-31", "%Y-%m-%d", "%d.%m.%Y")."""
    return datetime.strptime(ds, input_format).strftime(output_format)


_FILTERS = {
    "ds": lambda moment: f"{moment:%Y-%m-%d}",
    "ds_nodash": lambda moment: f"{moment:%Y%m%d}",
    "ts": lambda moment: moment.isoformat(),
    "ts_nodash": lambda moment: f"{moment:%Y%m%dT%H%M%S}",
}
MACROS = SimpleNamespace(ds_add=ds_add, ds_format=ds_format, datetime=datetime, timedelta=timedelta, time=time, uuid=uuid, random=random.random, json=json)


@lru_cache(maxsize=64)
def _environment(native: bool, folder: str | None) -> SandboxedEnvironment:
    made = (_NativeSandbox if native else SandboxedEnvironment)(
        undefined=StrictUndefined, loader=FileSystemLoader(folder) if folder else None, keep_trailing_newline=True
    )
    made.filters.update(_FILTERS)
    return made


def is_template(value: Any) -> bool:
    """Is there a template somewhere in the value?"""
    return any(any(mark in text for mark in _MARKS) for text in find_texts(value))


def find_texts(value: Any) -> Iterator[str]:
    """Every text in a value, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from find_texts(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from find_texts(item)


class Renderer:
    """Renders for one task. `values`: the connections and variables it may read; what was handed out and must not be shown, its `secrets` know. `data` are the
    fields that come from other tasks."""

    def __init__(self, operator: BaseOperator, context: dict[str, Any], values: NamedValues, data: set[str] | None = None) -> None:
        self.operator, self.secrets, self._data = operator, values.secrets, data or set()
        dag = operator.dag
        self.names = {**context, "macros": MACROS, "conn": Connections(values), "var": Variables(values), **dag.user_defined_macros}
        self._environment = _environment(dag.render_template_as_native_obj, str(Path(dag.fileloc).parent) if dag.fileloc else None)

    def render_fields(self) -> dict[str, Any]:
        """The operator's template fields, rendered; what is data stays as it is."""
        names = [name for name in self.operator.template_fields if hasattr(self.operator, name)]
        return {name: getattr(self.operator, name) if name in self._data else self.render(self._load(name), name) for name in names}

    def render(self, value: Any, field: str) -> Any:
        """The value with every text in it rendered; references to outputs, and what is no text, list or dict, stay as they are."""
        if isinstance(value, str):
            return self._render_text(value, field) if any(mark in value for mark in _MARKS) else value
        if type(value) is dict:
            return {key: self.render(item, f"{field}[{key!r}]") for key, item in value.items()}
        if type(value) in (list, tuple, set, frozenset):
            return type(value)(self.render(item, f"{field}[{number}]") for number, item in enumerate(value))
        return value

    def _load(self, name: str) -> Any:
        """The field, or the text of the file it names."""
        value = getattr(self.operator, name)
        if isinstance(value, XComArg) or not (isinstance(value, str) and self.operator.template_ext and value.strip().endswith(self.operator.template_ext)):
            return value
        try:
            return self._environment.loader.get_source(self._environment, value.strip())[0] if self._environment.loader else value
        except TemplateNotFound:
            raise AuthoringError(f"{self._where(name)} names the file {value.strip()!r}, which is not beside {self.operator.dag.fileloc}") from None

    def _render_text(self, text: str, field: str) -> Any:
        try:
            return self._environment.from_string(text).render(self.names)
        except TemplateError as error:
            shown = text if len(text) <= 80 else text[:77] + "…"
            raise AuthoringError(f"{self._where(field)}: {error.message} in {shown!r}; a template knows {', '.join(sorted(self.names))}") from error

    def _where(self, field: str) -> str:
        return f"task {self.operator.task_id} of dag {self.operator.dag.dag_id}, field {field}"
