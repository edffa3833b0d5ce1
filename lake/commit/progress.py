"""The leader's state of the lake: which batches are open, and which batch each table has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pcaplake.lake.records import Manifest

from .history import extend_last_batches


@dataclass(slots=True, kw_only=True)
class Progress:
    """The state that a recovery reads and that each later step updates. `tables`: all tables that the lake ever had."""

    tables: frozenset[str]
    batch: int | None = None  # of the last manifest; None: recover first
    generation: int = 0  # whose rows the tables have after that batch
    open: dict[int, frozenset[str]] = field(default_factory=dict)  # manifests above head -> tables they touch
    given_back: set[int] = field(default_factory=set)  # open batches whose returned captures are announced
    done: dict[str, int] = field(default_factory=dict)  # table -> its txn
    floor: Mapping[str, int] = field(default_factory=dict)  # table -> its last batch up to head
    last: Mapping[str, int] = field(default_factory=dict)  # the same up to the last manifest
    least: dict[str, int] = field(default_factory=dict)  # table -> the highest txn that it is known to have had
    sees_since: int | None = None  # store time, epoch ms, of the first commit after the last recovery
    looked_at: dict[str, int] = field(default_factory=dict)  # blocked or restored table -> store time of the last look

    @property
    def tables_behind_head(self) -> frozenset[str]:
        """Tables that lack a batch up to head."""
        return frozenset(table for table, batch in self.floor.items() if self.done.get(table, -1) < batch)

    @property
    def tables_lacking_open_batches(self) -> frozenset[str]:
        """Tables that lack a batch above head."""
        return frozenset(t for batch, touched in self.open.items() for t in touched if self.done.get(t, -1) < batch)

    def is_in_all_tables(self, batch: int, touched: Iterable[str]) -> bool:
        """Whether all these tables have the batch."""
        return all(self.done.get(table, -1) >= batch for table in touched)

    def add_batch(self, manifest: Manifest) -> None:
        """The manifest is written and its stages are marked."""
        self.open[manifest.batch] = manifest.touched_tables
        self.tables = self.tables.union(manifest.tables)
        self.last = extend_last_batches(self.last, manifest)
        self.generation = manifest.shown_generation
        self.batch = manifest.batch

    def finish_batch(self, manifest: Manifest) -> None:
        """Head is at this batch."""
        del self.open[manifest.batch]
        self.floor = extend_last_batches(self.floor, manifest)
        self.given_back.discard(manifest.batch)
