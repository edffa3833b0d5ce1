"""Faults at named points of the in-memory adapters, and the death of a real process at a step.

Every operation of an adapter goes through a `Faults`: a test can make it fail, lose its answer, or let its process die
before or after it. `crash_at_step` kills a real process. Nothing here reads the environment, and only tests need it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Literal, TypeVar

from pcaplake.worker.errors import OutcomeUnknown, Retryable

T = TypeVar("T")
Kind = Literal["error", "lost", "dead before", "dead after"]


class Killed(BaseException):
    """The process is dead here; no `except Exception` may live on."""


class Faults:
    """Named points: `store.get a/b`, `ledger.stage s1`; patterns are the shell's. Without rules nothing ever fails."""

    def __init__(self) -> None:
        self.waiting: list[tuple[str, Kind]] = []
        self.seen: list[str] = []

    def inject_fault(self, pattern: str, kind: Kind, times: int = 1) -> None:
        """The next `times` points that match: `error` nothing happens, `lost` it happens and the answer is lost."""
        self.waiting += [(pattern, kind)] * times

    async def run_with_faults(self, point: str, effect: Callable[[], T]) -> T:
        """Carry out `effect`, which never awaits, as one step that others see whole or not at all."""
        self.seen.append(point)
        rule = next((rule for rule in self.waiting if fnmatchcase(point, rule[0])), None)
        if rule is not None:
            self.waiting.remove(rule)
        return apply_fault(point, rule and rule[1], effect)


def apply_fault(point: str, kind: Kind | None, effect: Callable[[], T]) -> T:
    """One operation with a fault of this kind, or with none."""
    if kind == "error":
        raise Retryable(f"injected: {point} did not happen")
    if kind == "dead before":
        raise Killed(point)
    answer = effect()
    if kind == "lost":
        raise OutcomeUnknown(f"injected: the answer to {point} is lost")
    if kind == "dead after":
        raise Killed(point)
    return answer


def crash_at_step(where: str) -> Callable[[str], None]:
    """A `step` for `Lake` that kills this process (SIGKILL) at a step, as `before commit.3a` or `after stage.5`.

    `where` may end in ` #3`: the third time. A step with a subject, as `after commit.4 packets`, is also met by its
    name alone. ValueError when it does not begin with `before` or `after`.
    """
    name, _, times = where.partition(" #")
    if name.split(" ")[0] not in ("before", "after"):
        raise ValueError(f"{where!r}: write `before <step>` or `after <step>`")
    left = int(times or 1)

    def kill_at_step(here: str) -> None:
        nonlocal left
        if here == name or here.startswith(f"{name} "):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return kill_at_step
