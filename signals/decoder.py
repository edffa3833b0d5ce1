"""Decodes the rows of one source to rows of `signals`, or of a wide table: on one machine and in the Spark job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from pcaplake.parser import schemas
from pcaplake.parser.arrow_types import convert_batch

from .arrow_columns import ROWS_OUT
from .containers import ContainerCounts
from .database import Databases
from .frames import FrameDecoder
from .someip.decoder import PayloadCounts, SomeipDecoder
from .someip.wide import WidePayloads, payloads_named
from .sources import COLUMNS, TABLES, Source
from .tables import SIGNALS_SCHEMA
from .wide import wide_schema_named

FRAMES_AT_ONCE: Final = 131_072
ROWS_AT_ONCE: Final = 500_000
"""Rows of signals that are decoded at once."""
BYTES_AT_ONCE: Final = 128 << 20
"""Bytes of small batches of frames that are joined and decoded at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedCounts:
    """What the decoded messages were. The numbers grow."""

    someip: PayloadCounts = field(default_factory=PayloadCounts)
    containers: ContainerCounts = field(default_factory=ContainerCounts)

    def add(self, other: DecodedCounts) -> None:
        """Add the numbers of another decoder."""
        self.someip.add(other.someip)
        self.containers.add(other.containers)


class SignalDecoder:
    """`message`: decodes to the wide table of this message; None: to `signals`. Not thread-safe."""

    def __init__(self, databases: Databases, source: Source, message: str | None = None) -> None:
        self._databases, self._source, self._message = databases, source, message
        self._frames, self._payloads = FrameDecoder(databases), SomeipDecoder(databases.services)
        table = schemas.TABLES[TABLES[source]].schema
        self._input = pa.schema([table.field(name) for name in COLUMNS[source]])
        self._wide: WidePayloads | None = None
        if message is not None and source == "someip":
            self._wide = WidePayloads(payloads_named(databases.services, message))
        self.schema = SIGNALS_SCHEMA if message is None else wide_schema_named(databases, message)
        self.counts = DecodedCounts(someip=self._payloads.counts, containers=self._frames.counts)

    def decode(self, frames: pa.RecordBatch) -> pa.Table:
        """All rows of these frames, which have the columns `sources.COLUMNS` and their types."""
        if self._wide is not None:
            return self._payloads.decode_wide_rows(self._wide, frames)
        if self._source == "someip":
            return self._payloads.decode_signals(frames)
        if self._message is None:
            return self._frames.decode_signals(self._source, frames)
        return self._frames.decode_wide_rows(self._source, self._message, frames)

    def decode_batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All rows of frames with the columns `sources.COLUMNS`, of any types with these values, in parts of at most ROWS_OUT.

        Joins small batches, so that each message has many frames, but not so many that their signals fill the memory.
        """
        most = ROWS_AT_ONCE * len(SIGNALS_SCHEMA) // max(len(self.schema), len(SIGNALS_SCHEMA))
        gathered: list[pa.RecordBatch] = []
        count, size, at_once = 0, 0, 1  # the first small batch tells how many rows a frame has
        for given in batches:
            batch = convert_batch(given, self._input)  # Spark may have chosen other types
            gathered.append(batch)
            count += batch.num_rows
            size += batch.nbytes
            if count < at_once and size < BYTES_AT_ONCE:
                continue
            if count:
                rows = self.decode(_join(gathered))
                at_once = min(FRAMES_AT_ONCE, max(1, most * count // max(1, rows.num_rows)))
                yield from rows.to_batches(ROWS_OUT)
            gathered, count, size = [], 0, 0
        if count:
            yield from self.decode(_join(gathered)).to_batches(ROWS_OUT)


def _join(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
