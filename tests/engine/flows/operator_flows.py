"""Dags whose tasks are operators."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

import asyncpg

from onceflow import (
    BaseOperator,
    BashOperator,
    EmptyOperator,
    HttpOperator,
    PostgresOperator,
    PythonOperator,
    SQLOperator,
    TriggerDagRunOperator,
    dag,
)


class Greet(BaseOperator):
    """A user's own operator; external."""

    template_fields: ClassVar = ("name",)

    def __init__(self, task_id: str, *, name: Any, **options: Any) -> None:
        super().__init__(task_id, **options)
        self.name = name

    def execute(self, context: dict[str, Any]) -> str:
        return f"Hello, {self.name}, on {context['ds']}"


class Note(Greet):
    """The same, transactional and async."""

    async def execute(self, conn: asyncpg.Connection[Any], context: dict[str, Any]) -> str:
        await conn.execute("insert into effect (what, note) values ($1, $2)", context["run_id"], self.name)
        return self.name.upper()


def add(left: int, right: int, ds: str, **context: Any) -> dict[str, Any]:
    return {"sum": left + right, "ds": ds, "run_id": context["run_id"]}


@dag(schedule=None)
def operators() -> None:
    greet = Greet("greet", name="{{ params.who }}")
    note = Note("note", name=greet.output)
    BashOperator(task_id="in_a_text", bash_command=f"echo {greet.output}") << greet
    PythonOperator(task_id="python", python_callable=add, op_args=[1], op_kwargs={"right": 2})
    note >> SQLOperator(
        task_id="sql",
        sql="insert into effect (what, note) values (%(run)s, %(note)s) returning note",
        parameters={"run": "{{ run_id }}", "note": "sql {{ ds }}"},
    )
    PostgresOperator(
        task_id="scripts", sql=["create temp table t (x int)", "insert into t values (1), (2); update t set x = x + 1", "select x from t order by x"]
    )


@dag(schedule=None)
def commands() -> None:
    BashOperator(task_id="echo", bash_command="echo one; echo $NAME {{ ds_nodash }}", env={"NAME": "{{ run_id }}"}, append_env=True)
    BashOperator(task_id="secret", bash_command="echo dsn=$ONCEFLOW_DSN")
    BashOperator(task_id="skip", bash_command="exit 99") >> EmptyOperator("after_skip")
    BashOperator(task_id="fail", bash_command="echo oh no; exit 3")


@dag(schedule=None)
def starts_another() -> None:
    TriggerDagRunOperator(task_id="start", trigger_dag_id="operators", conf={"who": "{{ run_id }}"}, trigger_run_id="by {{ run_id }}")


@dag(schedule=None)
def mapped() -> None:
    """Classes expanded over a list in the file, over an output, and over dicts."""
    words = PythonOperator(task_id="words", python_callable=lambda: ["{{ ds }}", "b"])
    BashOperator.partial("bash", retries=1).expand(bash_command=["echo {{ ds_nodash }}", "echo 2"])
    notes = Note.partial("note").expand(name=words.output)
    sql = SQLOperator.partial("sql", sql="select %(x)s::int + 1 as y").expand_kwargs([{"parameters": {"x": 1}}, {"parameters": {"x": 2}}])
    PythonOperator(task_id="total", python_callable=lambda a, b: [a, b], op_args=[notes.output, sql.output])
    Greet.partial("greet", name=words.output).expand(doc=["first", "second"])


@dag(schedule=None)
def slow_command() -> None:
    """Both the shell and its child note their pids, ignore SIGTERM and go on."""
    text = "trap '' TERM; echo $$ > {{ params.file }}; (trap '' TERM; echo $BASHPID >> {{ params.file }}; while true; do sleep 0.1; done) & while true; do sleep 0.1; done"
    BashOperator(task_id="slow", bash_command=text, execution_timeout=timedelta(seconds=1))


@dag(schedule=None)
def requests() -> None:
    HttpOperator(task_id="post", url="{{ params.url }}/echo", method="POST", data={"run": "{{ run_id }}"})
    HttpOperator(task_id="missing", url="{{ params.url }}/missing")
