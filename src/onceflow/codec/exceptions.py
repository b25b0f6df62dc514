"""Errors to plain parts and back. The class, the arguments and the attributes return; the traceback stays as text.

An error must always be recordable: what cannot be kept of it is dropped or stands in as text, and an error that
cannot be rebuilt comes back as RemoteError. No __init__ of a user's class runs.
"""

from __future__ import annotations

import concurrent
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError

from onceflow.codec.classes import error_args, error_state, find_class, name_of, rebuild_error
from onceflow.errors import OnceflowError

Keep = Callable[[Any], Any]  # a value to plain JSON; raises if it cannot be kept

_TEXT_LIMIT = 65536
_FRAME = re.compile(r'  File "(.*?)", line .*\n(?:    .*\n)*')
_NOT_THE_USERS = (str(Path(__file__).parents[1]), str(Path(concurrent.__file__).parent))


class RemoteError(OnceflowError):
    """An error from another process whose class cannot be found or rebuilt here."""

    def __init__(self, class_path: str, message: str, traceback_text: str = "") -> None:
        super().__init__(f"{class_path}: {message}" if message else class_path)
        self.class_path = class_path
        self.message = message
        self.traceback_text = traceback_text


class Unkept:
    """Stands where a value was that could not be kept; its repr and its type's name are those of that value."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def clean_text(text: str, limit: int = _TEXT_LIMIT) -> str:
    """Text that jsonb takes: NUL and lone surrogates escaped, the middle cut out if it is too long."""
    if len(text) > limit:
        text = f"{text[: limit // 4]}\n… {len(text) - limit} characters cut …\n{text[-limit * 3 // 4 :]}"
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()


def _ask(question: Callable[[Any], str], value: object) -> str:
    """str() or repr() of anything, however broken."""
    try:
        return clean_text(question(value), 2000 if question is repr else _TEXT_LIMIT)
    except Exception as error:
        return f"<{type(value).__qualname__}: {question.__name__}() raised {type(error).__name__}>"


def traceback_of(error: BaseException) -> str:
    """The traceback as Python prints it, with causes and contexts."""
    try:
        return clean_text("".join(traceback.format_exception(error)))
    except Exception:
        return _ask(repr, error)


def find_user_frames(traceback_text: str) -> str:
    """Those frames of a recorded traceback that are not the engine's."""
    return "".join(frame.group() for frame in _FRAME.finditer(traceback_text) if not frame.group(1).startswith(_NOT_THE_USERS)).rstrip()


def error_name(error: BaseException) -> str:
    """The class path that is kept; pydantic's ValidationError under its public name."""
    return "pydantic_core:ValidationError" if type(error) is ValidationError else name_of(type(error))


def minimal_parts(error: BaseException) -> dict[str, Any]:
    """What can be said of every error."""
    return {"$error": error_name(error), "message": _ask(str, error), "args": [_ask(str, error)]}


def error_parts(error: BaseException, keep: Keep, args: list[Any] | None = None, *, cause: bool = True) -> dict[str, Any]:
    """An error as plain JSON. `args` are its arguments if the caller has written them; else each may fall back to its
    repr. Attributes that cannot be kept are left out."""
    parts: dict[str, Any] = {"$error": error_name(error), "message": _ask(str, error)}
    if type(error) is ValidationError:
        parts.update(_validation_parts(error, keep))
    else:
        parts["args"] = [_or_repr(keep, arg) for arg in error_args(error)] if args is None else args
        if state := _kept_state(error, keep):
            parts["state"] = state
    if notes := getattr(error, "__notes__", None):
        parts["notes"] = [_ask(str, note) for note in notes]
    if cause and error.__cause__ is not None:
        parts["cause"] = error_parts(error.__cause__, keep, cause=False)
    return parts


def _or_repr(keep: Keep, value: Any) -> Any:
    try:
        return keep(value)
    except Exception:
        return _ask(repr, value)


def _kept_state(error: BaseException, keep: Keep) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    try:
        state = error_state(error)
    except Exception:
        return kept
    for name, item in state.items():
        try:
            if name[:1] != "$":
                kept[clean_text(name)] = keep(item)
        except Exception:
            continue  # a response, a socket, a session: of use only where it was raised
    return kept


def read_error(parts: dict[str, Any]) -> BaseException:
    """The error of these parts (already decoded), or a RemoteError that tells what it was."""
    try:
        if "errors" in parts and parts["$error"] == "pydantic_core:ValidationError":
            error: BaseException = _read_validation(parts)
        else:
            cls = find_class(parts["$error"], lambda cls: issubclass(cls, BaseException), "an exception class")
            # Entries written by SQL functions have a message only.
            error = rebuild_error(cls, tuple(parts.get("args", [parts.get("message", "")])), parts.get("state", {}))
    except Exception:
        error = remote_error(parts)
    if notes := parts.get("notes"):
        error.__notes__ = list(notes)
    if isinstance(parts.get("cause"), BaseException):
        error.__cause__ = parts["cause"]
    return error


def remote_error(parts: Any) -> RemoteError:
    """The stand-in for an error that cannot be rebuilt, from whatever was recorded."""
    if not isinstance(parts, dict):
        return RemoteError("unknown error", str(parts))
    path, message, trace = (str(parts.get(key, "")) for key in ("$error", "message", "traceback"))
    return RemoteError(path or "unknown error", message, trace)


# --- pydantic's ValidationError -------------------------------------------------------------------------------------


def _validation_parts(error: ValidationError, keep: Keep) -> dict[str, Any]:
    try:
        reduced: Any = error.__reduce__()
        input_type, hide_input = reduced[1][2:4]
    except Exception:  # older pydantic_core
        input_type, hide_input = "python", False
    errors = []
    for line in error.errors(include_url=False):
        parts: dict[str, Any] = {"type": line["type"], "loc": list(line["loc"]), "msg": clean_text(line["msg"])}
        shown = Unkept("<hidden>") if hide_input else line["input"]
        parts["input"] = _or_stand_in(keep, shown)
        if "ctx" in line:
            parts["ctx"] = {name: _or_stand_in(keep, item) for name, item in line["ctx"].items()}
        errors.append(parts)
    return {"title": error.title, "errors": errors, "input_type": input_type, "hide_input": hide_input}


def _or_stand_in(keep: Keep, value: Any) -> Any:
    try:
        return keep(value)
    except Exception:
        return {"$unkept": _ask(repr, value), "type": type(value).__qualname__}


def read_unkept(parts: dict[str, Any]) -> Unkept:
    """The stand-in of a value that could not be kept."""
    cls = type(str(parts["type"]).rpartition(".")[2], (Unkept,), {"__qualname__": parts["type"]})
    stand_in: Unkept = cls(parts["$unkept"])
    return stand_in


def _read_validation(parts: dict[str, Any]) -> ValidationError:
    lines = [_read_line(line) for line in parts["errors"]]
    error = ValidationError.from_exception_data(parts["title"], lines, input_type=parts["input_type"], hide_input=parts["hide_input"])
    error.args = ()  # as pydantic leaves it when it validates
    return error


def _read_line(line: dict[str, Any]) -> InitErrorDetails:
    """One error; a type that pydantic does not know, or words otherwise, is the user's own PydanticCustomError."""
    details: InitErrorDetails = {"type": line["type"], "loc": tuple(line["loc"]), "input": line["input"]}
    if "ctx" in line:
        details["ctx"] = line["ctx"]
    try:
        again = ValidationError.from_exception_data("", [details]).errors()[0]
        if again["msg"] == line["msg"]:
            return details
    except Exception:
        pass
    details.pop("ctx", None)
    details["type"] = PydanticCustomError(line["type"], line["msg"], line.get("ctx"))
    return details
