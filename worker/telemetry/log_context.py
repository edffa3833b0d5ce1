"""The ids of the message and the capture that log records are about. Needs no extra, unlike `logs.py`, which shows them."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar

_IDS: ContextVar[Mapping[str, str]] = ContextVar("log_context")


def bind_log_context(**ids: str) -> None:
    """Add these ids to all later log records of this task and of the tasks that it starts.

    A thread of an executor has its own context; `asyncio.to_thread` passes the task's context on.
    """
    _IDS.set({**log_context(), **ids})


def log_context() -> Mapping[str, str]:
    """The ids of the current task."""
    return _IDS.get({})
