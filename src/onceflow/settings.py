"""Settings, read once at the door: arguments, then the environment, then `onceflow.toml`, then the defaults.

Nothing here runs at import. A process calls `load_settings` once and hands the result down, so two parts of one
process can never disagree, and a test needs no environment.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from onceflow.checks import LONGEST_S, check_queue, check_text
from onceflow.errors import InvalidArgument, SettingsError

TOML_NAME = "onceflow.toml"
ENV_PREFIX = "ONCEFLOW_"
DATABASE_PREFIX = "ONCEFLOW_DATABASE_"  # + NAME: the DSN of a database for @step(database="name")
DSN_FIELDS = frozenset({"dsn", "step_dsn", "direct_dsn"})


@dataclass(frozen=True, slots=True, repr=False)
class Settings:
    """Every setting of a process. Immutable; `repr` masks passwords, so it may be logged.

    Durations (`_s`, and those of the dag processor, which have the names that users of Airflow know) are seconds. `dsn` is the engine's connection, `step_dsn` the one of user steps (role
    onceflow_step), `direct_dsn` one that reaches Postgres without pgbouncer, for LISTEN.
    """

    dsn: str | None = None
    step_dsn: str | None = None
    direct_dsn: str | None = None
    dags: str | None = None
    queues: tuple[str, ...] = ("default",)
    concurrency: int = 32
    lease_s: float = 10.0
    poll_s: float = 1.0
    suspend_after_s: float = 1.0
    step_idle_s: float = 300.0
    drain_s: float = 30.0
    max_value_bytes: int = 8 * 1024 * 1024
    xcom_backend: str | None = None
    xcom_threshold_bytes: int = 100_000
    fernet_key: str | None = None
    max_rescues: int = 5
    group_max: int = 50
    max_map_length: int = 10_000
    code_version: str | None = None
    pause_new_dags: bool = True
    parsing_processes: int = 4
    min_file_process_interval: float = 30.0
    dag_dir_list_interval: float = 0.5
    dagbag_import_timeout: float = 30.0
    parsing_memory_mb: int = 1024
    parsing_network: Literal["none", "host"] = "none"
    parsing_environment: tuple[str, ...] = ()
    parsing_user: str = "nobody"
    embedded_dir: str = ".onceflow"
    databases: tuple[tuple[str, str], ...] = ()
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{f.name}={self._shown(f.name)!r}' for f in fields(self))})"

    def _shown(self, name: str) -> object:
        value = getattr(self, name)
        if name == "fernet_key" and value:
            return "***"
        if name == "databases":
            return tuple((known, mask_dsn(dsn)) for known, dsn in value)
        return mask_dsn(value) if name in DSN_FIELDS and value else value


def load_settings(**overrides: object) -> Settings:
    """The settings of this process: overrides > ONCEFLOW_<NAME> > onceflow.toml in the current folder > defaults.

    An override of None and an empty environment variable count as not given, so a command line may pass all its
    options on. Raises SettingsError naming the setting, where its value came from, and what is accepted.
    """
    # The weakest source comes first: a later one replaces what an earlier one gave. A wrong value raises even where
    # a stronger source hides it: it would surprise on the day the stronger one is taken away.
    merged: dict[str, Any] = {}
    for values, source in (
        (read_toml(Path.cwd() / TOML_NAME), f"{TOML_NAME} in {Path.cwd()}"),
        (_read_environment(os.environ), f"environment variable {ENV_PREFIX}%s"),
        ({name: value for name, value in overrides.items() if value is not None}, "argument"),
    ):
        for name, value in values.items():
            merged[name] = _checked(name, value, source.replace("%s", name.upper()))
    return Settings(**merged)


def mask_dsn(dsn: str) -> str:
    """The DSN with every password replaced by ***; user, host and database stay readable.

    Masks rather too much than too little: an unescaped @ inside a password is covered too, and a misspelt key (passwort=).
    """
    masked = re.sub(r"^(\s*[\w+.-]+://[^:/?#@]*):.*@", r"\1:***@", dsn, flags=re.DOTALL)
    masked = re.sub(r"([?&][^?&=]*pass[^?&=]*=)[^&#]*", r"\1***", masked, flags=re.IGNORECASE)
    if "://" in masked:
        return masked
    return re.sub(r"(pass\w*\s*=\s*)('(?:[^'\\]|\\.)*'?|\S+)", r"\1***", masked, flags=re.IGNORECASE)


def check_dsn(dsn: object, source: str) -> str:
    """The DSN, or SettingsError naming its source and what is accepted; for a DSN that does not come from the settings."""
    return str(_checked("dsn", dsn, source))


def read_toml(path: Path) -> dict[str, object]:
    """The settings in a TOML file: flat keys, or those under [onceflow]; {} if there is no such file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}. Make it a readable UTF-8 file or remove it.") from error
    try:
        found: dict[str, object] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not valid TOML: {error}. Correct that line.") from error
    table = found.pop("onceflow", {})
    if not isinstance(table, dict):
        raise SettingsError(f"'onceflow' in {path} is not a table. Write [onceflow] on its own line, or flat keys.")
    if twice := sorted(found.keys() & table.keys()):
        raise SettingsError(f"Setting '{twice[0]}' stands twice in {path}: flat and under [onceflow]. Remove one.")
    return found | table


def _read_environment(environ: Mapping[str, str]) -> dict[str, object]:
    # Unknown ONCEFLOW_ variables are let pass: the environment is shared with other programs and other releases.
    found = {f.name: environ.get(f"{ENV_PREFIX}{f.name.upper()}", "").strip() for f in fields(Settings) if f.name != "databases"}
    parsed = {name: _parsed(name, text) for name, text in found.items() if text}
    databases = {name.removeprefix(DATABASE_PREFIX).lower(): dsn.strip() for name, dsn in environ.items() if name.startswith(DATABASE_PREFIX) and dsn.strip()}
    return parsed | ({"databases": databases} if databases else {})


def _parsed(name: str, text: str) -> object:
    """The text of an environment variable as the type of its field; text that does not fit is returned as it is."""
    default = Settings.__dataclass_fields__[name].default
    if isinstance(default, tuple):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if isinstance(default, bool):
        return _FLAGS.get(text.lower(), text)
    if isinstance(default, int | float):
        try:
            return type(default)(text)
        except ValueError:
            return text
    return text


def _checked(name: str, value: object, source: str) -> object:
    if name not in Settings.__dataclass_fields__:
        known = ", ".join(f.name for f in fields(Settings))
        raise SettingsError(f"Unknown setting '{name}' ({source}). Accepted: {known}.")
    accepted, check = _RULES.get(name, _TEXT)
    checked = check(value)
    if checked is None:
        shown = "***" if name == "fernet_key" else mask_dsn(str(value)) if name in DSN_FIELDS | {"databases"} else value
        raise SettingsError(f"Setting '{name}' ({source}) is {shown!r}. Accepted: {accepted}.")
    return checked


_FLAGS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
Check = Callable[[object], object | None]


def _passes(check: Callable[..., object], *arguments: object, **options: int) -> bool:
    try:
        check(*arguments, **options)
    except InvalidArgument:
        return False
    return True


def _whole(least: int, most: int = 2**31 - 1) -> tuple[str, Check]:
    def check(value: object) -> object | None:
        fits = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        return value if fits else None

    return f"a whole number from {least} to {most}", check


def _seconds(least: float, most: float = LONGEST_S) -> tuple[str, Check]:
    def check(value: object) -> object | None:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if is_number and least <= value <= most else None  # type: ignore[operator, arg-type]

    return f"a number of seconds from {least:g} to {most:.0f}", check


def _check_text(value: object) -> object | None:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    return value if isinstance(value, str) and value.strip() and _passes(check_text, value, "", most=4096) else None


def _check_dsn(value: object) -> object | None:
    return value if isinstance(value, str) and re.match(r"postgres(ql)?://", value) and "\0" not in value else None


def _check_queues(value: object) -> object | None:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names:
        return None
    stripped = tuple(name.strip() if isinstance(name, str) else "" for name in names)
    return stripped if all(_passes(check_queue, name) for name in stripped) else None


def _check_databases(value: object) -> object | None:
    if not isinstance(value, Mapping) or not all(_passes(check_text, name, "") and _check_dsn(dsn) for name, dsn in value.items()):
        return None
    return tuple(sorted(value.items()))


def _check_flag(value: object) -> object | None:
    return value if isinstance(value, bool) else None


def _check_environment(value: object) -> object | None:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) and re.fullmatch(r"[A-Za-z_]\w*", name.strip()) for name in names):
        return None
    stripped = tuple(name.strip() for name in names)
    return None if any(name.startswith((ENV_PREFIX, "PG")) for name in stripped) else stripped  # that is what they are kept from


def _check_network(value: object) -> object | None:
    return value if value in ("none", "host") else None


def _check_log_format(value: object) -> object | None:
    return value if value in ("text", "json") else None


def _check_log_level(value: object) -> object | None:
    return value if value in ("debug", "info", "warning", "error") else None


_TEXT: tuple[str, Check] = ("a text that is not empty, without control characters", _check_text)
_VERSION: tuple[str, Check] = ("a text of 1 to 250 characters", lambda value: value if _passes(check_text, value, "") else None)
_DSN: tuple[str, Check] = ("a URL like postgresql://user@host:5432/database (no +driver)", _check_dsn)
_RULES: dict[str, tuple[str, Check]] = {
    "dsn": _DSN,
    "step_dsn": _DSN,
    "direct_dsn": _DSN,
    "databases": ("a table of names and DSN URLs (in the environment ONCEFLOW_DATABASE_<NAME>)", _check_databases),
    "queues": ("one or more queue names (a list; in the environment separated by commas)", _check_queues),
    "concurrency": _whole(1, 10_000),
    "code_version": _VERSION,
    "lease_s": _seconds(0.1),  # a heartbeat is sent four times in a lease
    "poll_s": _seconds(0.001),
    "suspend_after_s": _seconds(0),
    "step_idle_s": _seconds(0.001, 2_147_483),  # PostgreSQL keeps it in milliseconds, 0 being none
    "drain_s": _seconds(0),
    "max_value_bytes": _whole(1),
    "xcom_threshold_bytes": _whole(1),
    "fernet_key": ("one Fernet key, or several separated by commas, the one to encrypt with first", _check_text),
    "max_rescues": _whole(0),
    "pause_new_dags": ("true or false", _check_flag),
    "group_max": _whole(1, 10_000),
    "max_map_length": _whole(1, 1_000_000),
    "parsing_processes": _whole(1, 256),
    "min_file_process_interval": _seconds(0),
    "dag_dir_list_interval": _seconds(0.05),
    "dagbag_import_timeout": _seconds(0.1),
    "parsing_memory_mb": _whole(64),
    "parsing_network": ("'none' or 'host'", _check_network),
    "parsing_environment": (
        "names of variables that dag files may see (a list; in the environment separated by commas), none of ONCEFLOW_ or PG",
        _check_environment,
    ),
    "log_format": ("'text' or 'json'", _check_log_format),
    "log_level": ("'debug', 'info', 'warning' or 'error'", _check_log_level),
}
