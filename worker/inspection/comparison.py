"""What a profile changes: rows, faults and undecoded bytes of captures, decoded with it and without it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any


class Comparison:
    """The sums over captures. Each item is [without, with] by name."""

    def __init__(self) -> None:
        self.captures = 0
        self.vehicles: Counter[str] = Counter()  # captures by vehicle id
        self._sums: dict[str, tuple[Counter[str], Counter[str]]] = {
            name: (Counter(), Counter()) for name in ("rows", "faults", "undecoded")
        }

    def add(self, without: Mapping[str, Any], with_: Mapping[str, Any], vehicle_id: str | None) -> None:
        """Add a capture. without, with_: what `inspect_capture` says of it."""
        self.captures += 1
        if vehicle_id is not None:
            self.vehicles[vehicle_id] += 1
        for side, found in enumerate((without, with_)):
            self._sums["rows"][side].update(found["rows"])
            self._sums["faults"][side].update(found["faults"])
            for reason, counts in found["undecoded"]["reasons"].items():
                self._sums["undecoded"][side][reason] += counts["bytes"]

    def of(self, what: str) -> dict[str, tuple[int, int]]:
        """Rows by table, faults by kind, or undecoded bytes by reason: (without, with) the profile."""
        before, after = self._sums[what]
        return {name: (before[name], after[name]) for name in {**before, **after} if before[name] or after[name]}

    def changed(self, what: str) -> dict[str, tuple[int, int]]:
        """What differs, the greatest difference first."""
        differing = {name: pair for name, pair in self.of(what).items() if pair[0] != pair[1]}
        return dict(sorted(differing.items(), key=lambda item: (-abs(item[1][1] - item[1][0]), item[0])))

    def total(self, what: str) -> tuple[int, int]:
        before, after = self._sums[what]
        return before.total(), after.total()

    def describe(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {
            "captures": self.captures,
            "vehicle_ids": dict(self.vehicles),
            **{
                what: {name: {"without": pair[0], "with": pair[1]} for name, pair in self.of(what).items()}
                for what in self._sums
            },
        }
