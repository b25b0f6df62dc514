"""Imports the files of a dags folder, so that their workflows and steps are known to this process."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from onceflow.authoring import registry
from onceflow.authoring.graph.dag import DAG
from onceflow.authoring.graph.plan import describe_dag
from onceflow.authoring.reading import reading_files
from onceflow.engine.dag_files import folder_of, list_files, name_module, open_root
from onceflow.engine.requests import dag_row, declared_options
from onceflow.errors import ImportFailed, SettingsError


def load_dags(path: str | Path) -> None:
    """Imports every .py file of a folder (or one file); the folder goes on sys.path, so they may import each other. Raises the
    ImportFailed of the first file that cannot be imported."""
    for error in import_files(path):
        raise error


def import_files(path: str | Path) -> list[ImportFailed]:
    """The same, for a process that serves what it can: answers the errors of the files that cannot be imported."""
    root = open_root(path)
    found = list(list_files(root).dags)
    if not found:
        raise SettingsError(f"--dags {path}: there is no .py file in that folder. Put a file with a @workflow there, or name another folder.")
    errors, folder = list[ImportFailed](), folder_of(root)
    add_to_path(folder)
    with reading_files():
        for file in found:
            try:
                import_file(folder, Path(file))
            except ImportFailed as error:
                errors.append(error)
    return errors


def add_to_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def describe_dags(code_version: str | None = None, pause_new: bool = True) -> list[dict[str, Any]]:
    """The dag rows of every workflow this process knows, and of every step whose name no workflow has. `code_version` stands for all, if given.

    `pause_new`: is a scheduled dag paused when it is new, unless it says otherwise itself?"""
    dags: list[dict[str, Any]] = [
        {
            "dag_id": w.name,
            "kind": "workflow",
            "fileloc": w.fileloc,
            "description": (w.__doc__ or "").strip().split("\n")[0],
            "code_version": code_version or w.source_version(),
            **declared_options(w),
        }
        for w in registry.list_workflows()
    ]
    dags += [dag_row(d, code_version, pause_new) for d in registry.list_dags()]
    taken = {d["dag_id"] for d in dags}
    dags += [
        {"dag_id": s.name, "kind": "step", "code_version": code_version or "any", **declared_options(s)} for s in registry.list_steps() if s.name not in taken
    ]
    return list({d["dag_id"]: d for d in dags}.values())


def import_file(folder: Path, file: Path) -> None:
    """Imports one file, unless another has imported it already. Raises ImportFailed, from the error it is about."""
    name = name_module(folder, file)
    known = sys.modules.get(name)
    if known is not None:
        if getattr(known, "__file__", None) and os.path.samefile(str(known.__file__), file):
            return
        raise ImportFailed(f"{file}: a module named {name!r} is imported already ({getattr(known, '__file__', 'built in')}); rename the file", str(file))
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # a second edit within one second would not be seen
    try:
        registry.take_new()
        _execute(name, file)
        _describe_new()
    except KeyboardInterrupt:
        raise  # somebody pressed Ctrl-C while a slow file was imported
    except BaseException as error:
        sys.modules.pop(name, None)
        registry.forget_module(name, str(file))
        said = f"{file} cannot be imported: {type(error).__name__}: {error}{_find_line(file, error)}{_find_cure(error)}"
        raise ImportFailed(said, str(file)) from error
    finally:
        sys.dont_write_bytecode = writes


def _describe_new() -> None:
    """What is wrong with a dag is wrong with the file that declares it, or imports the one that does."""
    for declared in registry.take_new():
        try:
            describe_dag(declared if isinstance(declared, DAG) else declared.dag)
        except BaseException:
            registry.forget_dag(declared.dag_id)
            raise


def _execute(name: str, file: Path) -> None:
    """Under just that name: what records call it."""
    if "." in name and (package := name.rpartition(".")[0]) and _is_package(package):
        importlib.import_module(name)
        return
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def _is_package(name: str) -> bool:
    """Can the folder be imported from? A folder without __init__.py can; one with a dot in its name cannot."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _find_line(file: Path, error: BaseException) -> str:
    """Where in the file: of a syntax error its own line, else the line that was being executed."""
    if isinstance(error, SyntaxError):
        return ""  # its text names file and line
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return f" (line {lines[-1]})" if lines else ""


def _find_cure(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f". Install {error.name} where this process runs, or put it beside the file"
    if isinstance(error, SystemExit):
        return '. Put what is a program under: if __name__ == "__main__":'
    return ""
