"""The clocks, the randomness and the metrics that a lake works with. Tests give their own, so that a run can be repeated."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from .meter import SILENT, Meter


def _no_step(name: str) -> None:
    """Nobody watches steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """`clock`: seconds of a monotonic clock, for every interval and timeout. `now`: epoch seconds, only for timestamps.

    `step` is called with the name of each numbered step of docs/exactly-once.md, before and after it ("before commit.4").
    """

    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    rng: random.Random = field(default_factory=random.Random)
    meter: Meter = SILENT
    step: Callable[[str], None] = _no_step

    def new_id(self) -> str:
        """32 hex digits that nobody else has; safe in any thread."""
        return f"{self.rng.getrandbits(128):032x}"
