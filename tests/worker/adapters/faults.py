"""Injects faults at named points of the in-memory adapters, and kills a real process at a step.

Every operation of an adapter goes through a `Faults`: a test can make it fail, lose its answer, or kill its process before
or after it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Literal, TypeVar

from pcaplake.common.errors import OutcomeUnknown, Retryable

T = TypeVar("T")
Kind = Literal["nothing", "error", "lost", "dead before", "dead after"]


class Killed(BaseException):
    """The simulated process was killed. A BaseException, so that no `except Exception` catches it."""


class Faults:
    """The faults of one simulated process, by named points such as `store.get a/b` or `ledger.stage s1`."""

    def __init__(self) -> None:
        self.waiting: list[tuple[str, Kind]] = []
        self.seen: list[str] = []

    def inject_fault(self, pattern: str, kind: Kind, times: int = 1) -> None:
        """Inject a fault at the next `times` points that match the shell pattern.

        `nothing`: the operation runs without a fault. `error`: it fails and nothing happens. `lost`: it succeeds and the
        answer is lost. `dead before`, `dead after`: the process is killed.
        """
        self.waiting += [(pattern, kind)] * times

    async def run_with_faults(self, point: str, effect: Callable[[], T]) -> T:
        """Run `effect` as one atomic step, with the fault that is due at this point."""
        self.seen.append(point)
        rule = next((rule for rule in self.waiting if fnmatchcase(point, rule[0])), None)
        if rule is not None:
            self.waiting.remove(rule)
        return apply_fault(point, rule and rule[1], effect)


def apply_fault(point: str, kind: Kind | None, effect: Callable[[], T]) -> T:
    """Run an operation with a fault of this kind; None: without a fault."""
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
    """A `Runtime.step` that kills this process (SIGKILL) at a step, such as `before commit.3a` or `after stage.5`.

    `where` may end in ` #3`: the third time. `after commit.4` matches `after commit.4 packets`, too. Raises ValueError if
    `where` does not begin with `before` or `after`.
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
