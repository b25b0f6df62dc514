"""A dag that reads connections, variables and what was before it."""

from __future__ import annotations

from typing import Any

from onceflow import BashOperator, dag, get_connection, get_variable, task


@dag(schedule=None)
def named() -> None:
    @task
    def templated(host: str, password: str, rate: float, missing: str) -> list[Any]:
        return [host, len(password), rate, missing]

    @task
    def in_python() -> list[Any]:
        bank = get_connection("bank")
        return [
            bank.host,
            bank.port,
            bank.login,
            bank.password == "p@ss",
            bank.extra["region"],
            get_variable("rates", deserialize_json=True)["USD"],
            repr(bank),
        ]

    @task
    async def in_async() -> list[Any]:
        return [(await get_connection("bank")).schema, len(await get_variable("api_token")), await get_variable("none", "7")]

    @task
    def before(prev_start_date_success: Any, prev_data_interval_start_success: Any, text: str) -> list[Any]:
        return [prev_start_date_success and prev_start_date_success.year >= 2026, prev_data_interval_start_success, text]

    templated("{{ conn.bank.host }}", "{{ conn.bank.password }}", "{{ var.json.rates.USD }}", "{{ var.value.get('none', 'nothing') }}")
    in_python()
    in_async()
    before(text="{{ prev_data_interval_end_success }}")
    BashOperator(task_id="bash", bash_command="echo {{ var.value.api_token | length }} {{ prev_end_date_success is none }}")


@dag(schedule=None)
def named_in_vain() -> None:
    @task
    def ask() -> Any:
        return get_variable("nowhere")

    ask()


named()
named_in_vain()
