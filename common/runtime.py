"""Clocks, randomness and metrics of a lake. Tests pass their own, so that runs are reproducible."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from .meter import SILENT, Meter


def _no_step(name: str) -> None:
    """Ignore the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The dependencies of a lake that are not deterministic.

    `clock`: seconds of a monotonic clock, for every interval and timeout. `now`: epoch seconds, only for timestamps.

    `step` is called with the name of each numbered step of docs/exactly-once.md, before and after it ("before commit.4").
    """

    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    rng: random.Random = field(default_factory=random.Random)
    meter: Meter = SILENT
    step: Callable[[str], None] = _no_step

    def new_id(self) -> str:
        """A unique id of 32 hex digits; safe in any thread."""
        return f"{self.rng.getrandbits(128):032x}"
