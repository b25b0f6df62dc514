"""Installs an outpost: what another Postgres needs so that steps may write there exactly once."""

from __future__ import annotations

from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from onceflow.errors import SettingsError


def install_outpost(admin_dsn: str, step_dsn: str | None = None) -> str:
    """Creates schema onceflow_outpost (again: no change) and lets the login of `step_dsn` use its two functions.

    Needs the right to create a schema there. Answers the login. Example: `install_outpost("postgresql://admin@h/books", "postgresql://app@h/books")`.
    """
    login = conninfo_to_dict(step_dsn or admin_dsn).get("user")
    if not login:
        raise SettingsError(
            "the DSN of the other database must name its user, postgresql://USER@HOST/DATABASE: the outpost's functions are granted to that login"
        )
    with psycopg.connect(admin_dsn) as conn:
        conn.execute(_read_install().encode())
        conn.execute(
            sql.SQL("grant usage on schema onceflow_outpost to {0}; grant execute on all functions in schema onceflow_outpost to {0}").format(
                sql.Identifier(str(login))
            )
        )
    return str(login)


def _read_install() -> str:
    package = Path(__file__).parent.parent
    for folder in (package / "_outpost", package.parent.parent / "outpost"):
        if (folder / "install.sql").exists():
            return (folder / "install.sql").read_text()
    raise SettingsError(f"outpost/install.sql is missing from this installation of onceflow ({package}); install it anew")
