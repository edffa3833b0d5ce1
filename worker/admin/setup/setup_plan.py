"""Records each step of a setup: what exists, is created or is changed. A dry run only records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

State = Literal["there", "made", "changed", "not supported here"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One resource, such as a `queue` or the `time to live` of a table, and what was done with it, or would be in a dry run."""

    what: str
    name: str
    state: State
    detail: str = ""


class Steps:
    """The steps so far. With `dry_run`, changes are recorded but not made. `show` is called with each step."""

    def __init__(self, *, dry_run: bool = False, show: Callable[[Step], None] = lambda step: None) -> None:
        self.dry_run = dry_run
        self.done: list[Step] = []
        self._show = show

    def there(self, what: str, name: str, detail: str = "") -> None:
        self._add(what, name, "there", detail)

    def act(self, state: State, what: str, name: str, act: Callable[[], object], detail: str = "") -> None:
        """Make the change, then record it. If `act` raises, nothing is recorded."""
        if not self.dry_run:
            act()
        self._add(what, name, state, detail)

    def unsupported(self, what: str, name: str) -> None:
        self._add(what, name, "not supported here", "")

    @property
    def changes(self) -> int:
        return sum(step.state in ("made", "changed") for step in self.done)

    def _add(self, what: str, name: str, state: State, detail: str) -> None:
        step = Step(what=what, name=name, state=state, detail=detail)
        self.done.append(step)
        self._show(step)
