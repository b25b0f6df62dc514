"""`Param`: a run's parameter with a default and a JSON schema."""

from __future__ import annotations

import json
from typing import Any

from onceflow.checks import show
from onceflow.codec import encode
from onceflow.errors import AuthoringError, InvalidArgument

_NO_DEFAULT: Any = object()


class Param:
    """A parameter of a dag's runs. The other arguments are keywords of JSON schema (type, minimum, enum, pattern, format, …), `title` and `description` too.

    The default is checked when the dag is described, a run's own value when it is started, and again before its tasks run. Without a default every
    run must give one.

    >>> Param(3, type="integer", minimum=1).schema
    {'type': 'integer', 'minimum': 1}
    """

    def __init__(self, default: Any = _NO_DEFAULT, *, description: str | None = None, **schema: Any) -> None:
        self.has_default = default is not _NO_DEFAULT
        self.default = default if self.has_default else None
        self.schema = {**schema, **({"description": description} if description else {})}

    def __repr__(self) -> str:
        return f"Param({self.default!r})" if self.has_default else "Param()"


def read_params(given: Any, where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The defaults, and the schemas of those that have one, checked. A parameter without a default is in the schemas only."""
    if given is not None and not (isinstance(given, dict) and all(isinstance(name, str) for name in given)):
        raise AuthoringError(f"{where}: params must be a dict of values or Param(...) by name, not {show(given)}")
    params = {name: value if isinstance(value, Param) else Param(value) for name, value in (given or {}).items()}
    schemas = {name: param.schema for name, param in params.items() if param.schema or not param.has_default}
    defaults = {name: param.default for name, param in params.items() if param.has_default}
    for name, schema in schemas.items():
        _check_schema(name, schema, where)
    try:
        check_params({**defaults}, {name: schema for name, schema in schemas.items() if name in defaults}, where)
    except InvalidArgument as error:
        raise AuthoringError(f"{error}: that is its default") from None
    return defaults, schemas


def check_params(params: dict[str, Any], schemas: dict[str, Any], where: str) -> None:
    """Raises InvalidArgument for the first parameter that is missing or does not fit its schema."""
    if not schemas:
        return
    from jsonschema import Draft202012Validator, FormatChecker  # takes its time to import, and few dags need it

    for name, schema in schemas.items():
        if name not in params:
            raise InvalidArgument(f"{where}: param {name!r} is not given and has no default; start it with params={{{name!r}: …}}")
        plain = json.loads(encode(params[name], where=f"param {name} of {where}"))
        error = next(iter(sorted(Draft202012Validator(schema, format_checker=FormatChecker()).iter_errors(plain), key=lambda e: list(e.path))), None)
        if error is not None:
            raise InvalidArgument(f"{where}: param {name!r} is {show(params[name])}: {error.message}")


def _check_schema(name: str, schema: dict[str, Any], where: str) -> None:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise AuthoringError(f"{where}: param {name!r} has no valid JSON schema: {error.message} (at {error.json_path})") from None
