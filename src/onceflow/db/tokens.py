"""What stands for a task's token where other steps might read it; the same as mark_token and prove_token in sql/hold_lease.sql.

All steps' connections are of one role, and Postgres shows a role the statements of all its sessions (pg_stat_activity).
So no statement on a step's connection holds a token itself.
"""

from __future__ import annotations

import hashlib


def mark_token(ti: int, token: str, key: str) -> str:
    """What the setting onceflow.step holds during a step: names the step, and lets whoever reads it prove nothing.

    With an empty key: of a transaction that several steps share.
    >>> mark_token(7, "6f2b0c9e-0000-4000-8000-000000000000", "pay#0").split("/")[::2]
    ['7', 'pay#0']
    """
    digest = hashlib.sha256(f"{token}/{key}".encode()).hexdigest()
    return f"{ti}/{digest}/{key}"


def name_session(worker: int, mark: str) -> str:
    """The application_name of a step's transaction, of at most 63 bytes; the same as name_session in sql/hold_lease.sql.

    >>> name_session(12, mark_token(7, "6f2b0c9e-0000-4000-8000-000000000000", "pay#0"))
    'onceflow-step:12:808647eae9effc6b'
    """
    ti, _, rest = mark.partition("/")
    key = rest.partition("/")[2]
    return f"onceflow-step:{worker}:{hashlib.sha256(f'{ti}/{key}'.encode()).hexdigest()[:16]}"


def prove_token(token: str, what: str) -> str:
    """A proof of knowing the token that is good for one purpose only.

    >>> prove_token("6f2b0c9e-0000-4000-8000-000000000000", "pay#0/1/transactional/null")[14]
    '8'
    """
    digest = hashlib.sha256(f"{token}/{what}".encode()).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-8{digest[13:16]}-{digest[16:20]}-{digest[20:32]}"
