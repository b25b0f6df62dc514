"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
JsonLog = Annotated[bool, typer.Option("--json", help="Log one JSON object per line.")]
Dsn = Annotated[str | None, typer.Option("--dsn", metavar="URL", help="The database of this call, in place of ONCEFLOW_DSN.")]
Run = Annotated[str, typer.Argument(metavar="RUN", help="A run: its id, DAG/RUN_ID, or its number.")]
Dags = Annotated[str | None, typer.Option("--dags", metavar="FOLDER", help="Folder (or one file) with workflows and dags; default: ONCEFLOW_DAGS.")]
Embedded = Annotated[bool, typer.Option("--embedded", help="Use the bundled Postgres in .onceflow/ of this folder.")]
Concurrency = Annotated[int | None, typer.Option("--concurrency", min=1, metavar="N", help="Tasks at once; default 32.")]
Queues = Annotated[str | None, typer.Option("--queues", metavar="A,B", help="Queues to serve; default: default.")]
LogLevel = Annotated[str | None, typer.Option("--log-level", metavar="LEVEL", help="debug, info (default), warning or error.")]
Days = Annotated[int, typer.Option("--days", min=1, max=36_500, help="Keep what is younger than this many days.")]
