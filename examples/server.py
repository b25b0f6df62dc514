"""Start the bundled PostgreSQL in ./.onceflow, or find it running, and print how to reach it, one login for each role.

eval "$(python examples/server.py)"         starts it, and names its logins to this shell
python examples/server.py stop              stops it; the data stay in ./.onceflow
"""

import sys

from onceflow.db.embedded import ensure_database, stop_server


def main() -> None:
    if "stop" in sys.argv:
        stop_server(".onceflow")
        return
    server = ensure_database(".onceflow")
    print(f"export APP_DSN='{server.dsn('app')}'")                     # your application: starts runs, owns its tables
    print(f"export ONCEFLOW_DSN='{server.dsn('worker')}'")             # the worker's engine
    print(f"export ONCEFLOW_STEP_DSN='{server.dsn('onceflow_step')}'")  # the worker's steps
    print(f"export AUDITOR_DSN='{server.dsn('auditor')}'")             # reads everything, changes nothing


if __name__ == "__main__":
    main()
