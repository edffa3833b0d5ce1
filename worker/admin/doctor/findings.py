"""The results of the doctor's checks: findings, and the repairs that they offer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """A change that fixes a finding. `make` is idempotent and returns a text about what it did."""

    what: str
    make: Callable[[], Awaitable[str]]
    accepts_loss: bool = False  # rows are given up, as --accept-loss asks


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A result of one check. `what`: the state; `do`: what the operator can do about it.

    `not_examined`: the check could not finish.
    """

    level: Level
    what: str
    do: str = ""
    table: str | None = None
    repair: Repair | None = None
    check: str = ""
    lake: str | None = None
    not_examined: bool = False


def ok(what: str) -> Finding:
    return Finding(level="ok", what=what)


def warning(what: str, do: str, *, table: str | None = None, repair: Repair | None = None) -> Finding:
    return Finding(level="warning", what=what, do=do, table=table, repair=repair)


def error(what: str, do: str, *, table: str | None = None, repair: Repair | None = None) -> Finding:
    return Finding(level="error", what=what, do=do, table=table, repair=repair)
