"""What the parts tell about themselves: a port, so that none of them knows who counts.

The names are those of worker/telemetry/metrics.py, without their prefix and suffixes.
"""

from __future__ import annotations

from typing import Protocol


class Meter(Protocol):
    """Never raises, never blocks. Labels have few values."""

    def count(self, name: str, by: float = 1, **labels: str) -> None:
        """So many more of it."""
        ...

    def observe(self, name: str, value: float, **labels: str) -> None:
        """One value of a distribution: seconds, bytes, files."""
        ...

    def set(self, name: str, value: float, **labels: str) -> None:
        """What it is now. NaN: this process does not know (any more), and shows nothing."""
        ...


class _Silent:
    def count(self, name: str, by: float = 1, **labels: str) -> None: ...

    def observe(self, name: str, value: float, **labels: str) -> None: ...

    def set(self, name: str, value: float, **labels: str) -> None: ...


SILENT: Meter = _Silent()
