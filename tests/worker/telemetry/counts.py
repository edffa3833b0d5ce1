"""A meter that keeps what it was told."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from pcaplake.worker.telemetry.prometheus import PrometheusMeter


class Counts(PrometheusMeter):
    """A strict meter that answers: `counts("rows_total", table="packets")`, None for what nobody has told."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        super().__init__(self.registry, strict=True)

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"pcaplake_{name}", labels)
