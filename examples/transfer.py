"""Money moves from one account to another, and the power goes off in between. Each update happens once all the same.

In both terminals first:                        eval "$(python examples/server.py)"
Terminal 1, twice, for the first worker dies:   onceflow worker --dags examples/transfer.py
Terminal 2:                                     python examples/transfer.py
"""

import os
import signal

import asyncpg

from onceflow import current_run, step, workflow


@step
async def debit(conn: asyncpg.Connection, account: int, amount: int) -> None:
    await conn.execute("update account set balance = balance - $2 where id = $1", account, amount)

@step
async def credit(conn: asyncpg.Connection, account: int, amount: int) -> None:
    await conn.execute("update account set balance = balance + $2 where id = $1", account, amount)

@workflow
async def transfer(source: int, target: int, amount: int) -> str:
    await debit(source, amount)
    if current_run().try_number == 1:
        os.kill(os.getpid(), signal.SIGKILL)    # the power goes off: half of the money is on its way
    await credit(target, amount)
    return f"moved {amount}"


def main() -> None:
    import psycopg

    from onceflow import Client

    with psycopg.connect(os.environ["APP_DSN"]) as conn:
        conn.execute("create table if not exists account (id int primary key, balance int not null)")
        conn.execute("insert into account values (1, 100), (2, 100) on conflict (id) do update set balance = 100")
    with Client(os.environ["APP_DSN"]) as client:
        run = client.start(transfer, 1, 2, 10)
        print(run.result(timeout_s=120))
        for entry in run.steps():
            print(f"{entry['step_key']:12} try {entry['try_number']}  {entry['from_state']} -> {entry['to_state']}")
    with psycopg.connect(os.environ["APP_DSN"]) as conn:
        print(conn.execute("select id, balance from account order by id").fetchall())


if __name__ == "__main__":
    main()
