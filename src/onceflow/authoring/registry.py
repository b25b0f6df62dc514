"""What this process has been told of: every workflow and step declared by the modules it has imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onceflow.errors import AuthoringError, NotFound

if TYPE_CHECKING:
    from onceflow.authoring.graph.dag import DAG
    from onceflow.authoring.graph.decorator import DagFunction
    from onceflow.authoring.step import Step
    from onceflow.authoring.workflow import Workflow

_workflows: dict[str, Workflow[..., Any]] = {}
_steps: dict[str, Step[..., Any]] = {}
_dags: dict[str, DAG] = {}
_dag_functions: dict[str, DagFunction[...]] = {}
_new: list[DAG | DagFunction[...]] = []
_doubled: dict[str, str] = {}  # names that two places gave, and the first of these


def add_workflow(workflow: Workflow[..., Any]) -> None:
    """Remembers a workflow. Two of one name in different places are an error, and neither is served: runs would reach either by chance."""
    other = _workflows.get(workflow.name)
    first = _doubled.get(workflow.name) or (other.reference if other is not None else workflow.reference)
    if first != workflow.reference:
        _doubled[workflow.name] = first
        _workflows.pop(workflow.name, None)
        raise AuthoringError(
            f"two workflows are named {workflow.name!r}: {first} and {workflow.reference}; no worker serves either. Give one another name=, or remove it"
        )
    if workflow.name not in _doubled:
        _workflows[workflow.name] = workflow


def forget_module(name: str, file: str | None = None) -> None:
    """Forgets what a module declared before it turned out that it cannot be imported."""
    for key in [key for key, workflow in _workflows.items() if workflow.reference.startswith(f"{name}:")]:
        del _workflows[key]
    for key in [key for key in _steps if key.startswith(f"{name}:")]:
        del _steps[key]
    for key in [key for key, function in _dag_functions.items() if function.fn.__module__ == name]:
        del _dag_functions[key]
    for key in [key for key, dag in _dags.items() if file is not None and dag.fileloc == file]:
        del _dags[key]
    _new.clear()


def forget_dag(dag_id: str) -> None:
    """Forgets a dag that cannot be described."""
    _dags.pop(dag_id, None)
    _dag_functions.pop(dag_id, None)


def forget_all() -> None:
    """For a process that reads one file after another, each by itself."""
    for known in (_workflows, _steps, _dags, _dag_functions, _doubled, _new):
        known.clear()


def take_new() -> list[DAG | DagFunction[...]]:
    """The dags declared since this was last asked; described or not."""
    found = _new.copy()
    _new.clear()
    return found


def add_step(step: Step[..., Any]) -> None:
    """Remembers a step under module:qualname, where step.start finds it again on any worker."""
    _steps[step.reference] = step


def list_workflows() -> list[Workflow[..., Any]]:
    return list(_workflows.values())


def list_steps() -> list[Step[..., Any]]:
    return list(_steps.values())


def find_workflow(name: str) -> Workflow[..., Any]:
    try:
        return _workflows[name]
    except KeyError:
        raise NotFound(f"this worker has no workflow {name!r}; it has {sorted(_workflows)}. Is its file in --dags?") from None


def find_step(reference: str) -> Step[..., Any]:
    """A step by module:qualname, the module with its packages or without, or by its bare name; when only one step fits."""
    if reference in _steps:
        return _steps[reference]
    found = [s for s in _steps.values() if reference == s.name or _last_part(reference) == _last_part(s.reference)]
    if len(found) == 1:
        return found[0]
    if found:
        raise NotFound(
            f"this worker has several steps {reference!r}: {', '.join(sorted(s.reference for s in found))}. "
            "Start the one that is meant by the step itself, client.start(step, ...), or give one another name=."
        )
    raise NotFound(f"this worker has no step {reference!r}. Is its file in --dags?")


def _last_part(reference: str) -> str:
    """Of package.module:qualname what every importer calls alike: module:qualname."""
    module, colon, name = reference.partition(":")
    return f"{module.rpartition('.')[2]}{colon}{name}"


def add_dag(dag: DAG) -> None:
    """Remembers a dag. Two of one id in different files are an error."""
    other = _dags.get(dag.dag_id)
    if other is not None and other.fileloc != dag.fileloc:
        raise AuthoringError(f"two dags have the id {dag.dag_id!r}: one in {other.fileloc} and one in {dag.fileloc}; rename one, or remove it")
    _dags[dag.dag_id] = dag
    _new.append(dag)


def add_dag_function(function: DagFunction[...]) -> None:
    """Remembers a function under @dag, which is run when the dag is first asked for."""
    _dag_functions[function.dag_id] = function
    _new.append(function)


def list_dags() -> list[DAG]:
    """Every dag; those only declared are described now, which may raise what their function raises."""
    for function in _dag_functions.values():
        _ = function.dag
    return list(_dags.values())


def find_dag(dag_id: str) -> DAG:
    if dag_id not in _dags and dag_id in _dag_functions:
        return _dag_functions[dag_id].dag
    try:
        return _dags[dag_id]
    except KeyError:
        raise NotFound(f"this worker has no dag {dag_id!r}; it has {sorted(_dags)}. Is its file in --dags?") from None
