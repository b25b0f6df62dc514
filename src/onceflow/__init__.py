"""Onceflow: a workflow engine in which PostgreSQL is the executor.

Every state transition, step record and database side effect of a step commits in one transaction.
"""

from typing import TYPE_CHECKING, Any

from onceflow.authoring.context import Here
from onceflow.authoring.dataset import Asset, Dataset, DatasetAlias, DatasetAll, DatasetAny, DatasetOrTime, Metadata
from onceflow.authoring.deferral import BaseTrigger, TriggerEvent, defer
from onceflow.authoring.forms import (
    commit_with,
    continue_as,
    current_context,
    current_run,
    first_of,
    gather,
    get_connection,
    get_event,
    get_variable,
    idempotency_key,
    now,
    patch,
    random,
    recv,
    send,
    set_event,
    sleep,
    timeout,
    uuid4,
)
from onceflow.authoring.graph.dag import DAG
from onceflow.authoring.graph.deadline import DeadlineAlert, DeadlineReference
from onceflow.authoring.graph.decorator import dag
from onceflow.authoring.graph.group import TaskGroup, task_group
from onceflow.authoring.graph.label import Label
from onceflow.authoring.graph.operator import BaseOperator, EmptyOperator
from onceflow.authoring.graph.param import Param
from onceflow.authoring.graph.setup_teardown import setup, teardown
from onceflow.authoring.graph.xcom_arg import chain, cross_downstream
from onceflow.authoring.retry import RetryPolicy
from onceflow.authoring.sensor import BaseSensor, PokeReturnValue, sensor
from onceflow.authoring.step import Step, sql_step, step, task
from onceflow.authoring.testing import bind_tests
from onceflow.authoring.workflow import Workflow, workflow
from onceflow.errors import (
    AlreadyRecorded,
    AuthoringError,
    DecodingError,
    EncodingError,
    FailTask,
    InvalidArgument,
    InvalidTransition,
    LeaseLost,
    LostContext,
    MigrationError,
    NoDatabase,
    NonDeterminismError,
    NotFound,
    OnceflowError,
    RunCancelled,
    RunConflict,
    RunFailed,
    RunStopped,
    SensorTimeout,
    SettingsError,
    SkipTask,
    StepAborted,
    StepDisconnected,
    StepIdle,
    StepSplit,
    StepTimeout,
    TriggerFailed,
    VersionSkew,
    WaitTimeout,
    WorkerLost,
    WrongColour,
)

if TYPE_CHECKING:
    from onceflow.authoring.timetable import Bounds, DataInterval, PlannedRun, Timetable
    from onceflow.authoring.timetables import CronInterval, CronTrigger, Interval, IntervalTrigger
    from onceflow.engine.async_client import AsyncClient, AsyncRunHandle
    from onceflow.engine.client import Client, RunHandle
    from onceflow.engine.trial import Trial
    from onceflow.operators.approval import ApprovalOperator
    from onceflow.operators.bash import BashOperator
    from onceflow.operators.http import HttpOperator
    from onceflow.operators.latest_only import LatestOnlyOperator
    from onceflow.operators.python import BranchPythonOperator, PythonOperator, ShortCircuitOperator
    from onceflow.operators.sensors import DateTimeSensor, ExternalTaskSensor, FileSensor, SqlSensor, TimeDeltaSensor
    from onceflow.operators.sql import PostgresOperator, SQLOperator
    from onceflow.operators.trigger_dag_run import TriggerDagRunOperator
    from onceflow.triggers.file import FileTrigger
    from onceflow.triggers.moment import DateTimeTrigger, TimeDeltaTrigger
    from onceflow.triggers.sql import SqlTrigger

__version__ = "0.1.0"
__all__ = [
    "DAG",
    "AlreadyRecorded",
    "ApprovalOperator",
    "Asset",
    "AsyncClient",
    "AsyncRunHandle",
    "AuthoringError",
    "BaseOperator",
    "BaseSensor",
    "BaseTrigger",
    "BashOperator",
    "Bounds",
    "BranchPythonOperator",
    "Client",
    "CronInterval",
    "CronTrigger",
    "DataInterval",
    "Dataset",
    "DatasetAlias",
    "DatasetAll",
    "DatasetAny",
    "DatasetOrTime",
    "DateTimeSensor",
    "DateTimeTrigger",
    "DeadlineAlert",
    "DeadlineReference",
    "DecodingError",
    "EmptyOperator",
    "EncodingError",
    "ExternalTaskSensor",
    "FailTask",
    "FileSensor",
    "FileTrigger",
    "Here",
    "HttpOperator",
    "Interval",
    "IntervalTrigger",
    "InvalidArgument",
    "InvalidTransition",
    "Label",
    "LatestOnlyOperator",
    "LeaseLost",
    "LostContext",
    "Metadata",
    "MigrationError",
    "NoDatabase",
    "NonDeterminismError",
    "NotFound",
    "OnceflowError",
    "Param",
    "PlannedRun",
    "PokeReturnValue",
    "PostgresOperator",
    "PythonOperator",
    "RetryPolicy",
    "RunCancelled",
    "RunConflict",
    "RunFailed",
    "RunHandle",
    "RunStopped",
    "SQLOperator",
    "SensorTimeout",
    "SettingsError",
    "ShortCircuitOperator",
    "SkipTask",
    "SqlSensor",
    "SqlTrigger",
    "Step",
    "StepAborted",
    "StepDisconnected",
    "StepIdle",
    "StepSplit",
    "StepTimeout",
    "TaskGroup",
    "TimeDeltaSensor",
    "TimeDeltaTrigger",
    "Timetable",
    "Trial",
    "TriggerDagRunOperator",
    "TriggerEvent",
    "TriggerFailed",
    "VersionSkew",
    "WaitTimeout",
    "WorkerLost",
    "Workflow",
    "WrongColour",
    "chain",
    "commit_with",
    "continue_as",
    "cross_downstream",
    "current_context",
    "current_run",
    "dag",
    "defer",
    "first_of",
    "gather",
    "get_connection",
    "get_event",
    "get_variable",
    "idempotency_key",
    "now",
    "patch",
    "random",
    "recv",
    "send",
    "sensor",
    "set_event",
    "setup",
    "sleep",
    "sql_step",
    "step",
    "task",
    "task_group",
    "teardown",
    "timeout",
    "uuid4",
    "workflow",
]

_LATER = {
    **dict.fromkeys(("Client", "RunHandle"), "engine.client"),
    **dict.fromkeys(("AsyncClient", "AsyncRunHandle"), "engine.async_client"),
    "Trial": "engine.trial",
    **dict.fromkeys(("PythonOperator", "BranchPythonOperator", "ShortCircuitOperator"), "operators.python"),
    **dict.fromkeys(("SQLOperator", "PostgresOperator"), "operators.sql"),
    "ApprovalOperator": "operators.approval",
    **dict.fromkeys(("DateTimeSensor", "ExternalTaskSensor", "FileSensor", "SqlSensor", "TimeDeltaSensor"), "operators.sensors"),
    **dict.fromkeys(("FileTrigger",), "triggers.file"),
    **dict.fromkeys(("DateTimeTrigger", "TimeDeltaTrigger"), "triggers.moment"),
    **dict.fromkeys(("SqlTrigger",), "triggers.sql"),
    "BashOperator": "operators.bash",
    "HttpOperator": "operators.http",
    "LatestOnlyOperator": "operators.latest_only",
    "TriggerDagRunOperator": "operators.trigger_dag_run",
    **dict.fromkeys(("Bounds", "DataInterval", "PlannedRun", "Timetable"), "authoring.timetable"),
    **dict.fromkeys(("CronInterval", "CronTrigger", "Interval", "IntervalTrigger"), "authoring.timetables"),
}


def __getattr__(name: str) -> Any:
    """Imported when first asked for: the clients, which bring database drivers along, and what few files need."""
    if name not in _LATER:
        raise AttributeError(f"module 'onceflow' has no attribute {name!r}")
    return getattr(_import(_LATER[name]), name)


def _import(module: str) -> Any:
    from importlib import import_module

    return import_module(f"onceflow.{module}")


bind_tests(
    lambda *args, **options: _import("engine.trial").run_test(*args, **options),
    lambda *args, **options: _import("engine.dag_trial").run_dag_test(*args, **options),
)
