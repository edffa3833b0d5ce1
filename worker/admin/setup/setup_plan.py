"""Records each step of a setup: what exists, is created or is changed. A dry run only records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

State = Literal["exists", "created", "changed", "not supported"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One resource, such as a `queue` or the `time to live` of a table, and its state after the step.

    In a dry run, the state that it would have.
    """

    what: str
    name: str
    state: State
    detail: str = ""


class Steps:
    """The steps so far. With `dry_run`, changes are recorded but not carried out. `show` is called with each step."""

    def __init__(self, *, dry_run: bool = False, show: Callable[[Step], None] = lambda step: None) -> None:
        self.dry_run = dry_run
        self.done: list[Step] = []
        self._show = show

    def record_existing(self, what: str, name: str, detail: str = "") -> None:
        self._add(what, name, "exists", detail)

    def apply_change(self, state: State, what: str, name: str, act: Callable[[], object], detail: str = "") -> None:
        """Carry out a change, then record it. If `act` raises, nothing is recorded."""
        if not self.dry_run:
            act()
        self._add(what, name, state, detail)

    def record_unsupported(self, what: str, name: str) -> None:
        self._add(what, name, "not supported", "")

    @property
    def changes(self) -> int:
        return sum(step.state in ("created", "changed") for step in self.done)

    def _add(self, what: str, name: str, state: State, detail: str) -> None:
        step = Step(what=what, name=name, state=state, detail=detail)
        self.done.append(step)
        self._show(step)
