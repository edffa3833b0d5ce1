"""What all modules share with `logs.py`, but without its extra: ids that log records are about, and which errors are logged."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar

_LOGGED = "_pcaplake_logged"
_IDS: ContextVar[Mapping[str, str]] = ContextVar("log_context")


def bind_log_context(**ids: str) -> None:
    """Add these ids to all later log records of this task and of the tasks that it starts.

    A thread of an executor has its own context; `asyncio.to_thread` passes the task's context on.
    """
    _IDS.set({**log_context(), **ids})


def log_context() -> Mapping[str, str]:
    """The ids of the current task."""
    return _IDS.get({})


def mark_logged(error: BaseException) -> None:
    """The error that ends the process is in the log, so the command line must not print it, too."""
    setattr(error, _LOGGED, True)


def is_logged(error: BaseException) -> bool:
    return getattr(error, _LOGGED, False)
