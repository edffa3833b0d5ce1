"""What a setup finds, makes and changes, told one by one; a rehearsal does nothing. Knows no service."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

State = Literal["there", "made", "changed", "not supported here"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing: a `queue` of some name, the `time to live` of a table. In a rehearsal: what would become of it."""

    what: str
    name: str
    state: State
    detail: str = ""


class Steps:
    """The steps so far. `rehearsal`: acts are told and not done; `show` is called with each."""

    def __init__(self, *, rehearsal: bool = False, show: Callable[[Step], None] = lambda step: None) -> None:
        self.rehearsal = rehearsal
        self.done: list[Step] = []
        self._show = show

    def there(self, what: str, name: str, detail: str = "") -> None:
        self._add(what, name, "there", detail)

    def act(self, state: State, what: str, name: str, act: Callable[[], object], detail: str = "") -> None:
        """Do it, and then tell; what `act` raises is raised, and nothing is told."""
        if not self.rehearsal:
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
