"""Fixtures of the engine's tests: see local_worker."""

from tests.engine.local_worker import engine, idle_engine, show_logs

__all__ = ["engine", "idle_engine", "show_logs"]
