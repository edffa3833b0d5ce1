"""The port for metrics. Names are those of worker/telemetry/metrics.py, without prefix and suffixes."""

from __future__ import annotations

from typing import Protocol


class Meter(Protocol):
    """Records metrics. Methods never raise and never block. Labels must have few distinct values."""

    def count(self, name: str, by: float = 1, **labels: str) -> None:
        """Add to a counter."""
        ...

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add a value to a histogram: seconds, bytes, files."""
        ...

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge. NaN: unknown to this process, so the gauge is not exposed."""
        ...


class _Silent:
    def count(self, name: str, by: float = 1, **labels: str) -> None: ...

    def observe(self, name: str, value: float, **labels: str) -> None: ...

    def set(self, name: str, value: float, **labels: str) -> None: ...


SILENT: Meter = _Silent()
