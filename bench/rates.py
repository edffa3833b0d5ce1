"""Rates of several ways to do the same work, measured in turn."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

ROUNDS = 7


def measure_rates(ways: Mapping[str, Callable[[], int]]) -> dict[str, list[float]]:
    """way -> results per CPU second, by round. Every round has all ways, so that disturbances affect all of them.

    ways: name -> function that does the work and returns the number of its results
    """
    figures: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(ROUNDS + 1):
        for name, way in ways.items():
            start = _cpu_seconds()
            count = way()
            if number:  # the first warms up
                figures[name].append(count / (_cpu_seconds() - start))
    return figures


def _cpu_seconds() -> float:
    """Of this thread, and of the programs that it has run."""
    spent = os.times()
    return time.thread_time() + spent.children_user + spent.children_system
