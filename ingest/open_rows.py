"""How the rows of a capture get into a window: at once, or later in batches that small captures share.

To finish a batch and to write it costs as much CPU time as to decode a thousand rows. So the rows of small captures stay
in batches that are still open. They are written when a batch is full, after OPEN_BYTES of captures, and when the window is
closed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from pcaplake.lake.records import Capture
from pcaplake.lake.staging.window import Window
from pcaplake.parser import TABLES
from pcaplake.parser.engine.open_batches import OpenBatches

OPEN_BYTES = 4 << 20  # of captures, after which their rows are written
Row = dict[str, Any]


class RowWindow(Protocol):
    """Collects the rows of one capture after the other: a `Window` of a lake, or a substitute of it."""

    @property
    @abstractmethod
    def rows_by_table(self) -> dict[str, int]:
        """Rows of the current capture so far, by table."""

    @abstractmethod
    def begin(self, capture: Capture) -> None: ...

    @abstractmethod
    def write(self, table: str, batch: pa.RecordBatch) -> None: ...

    @abstractmethod
    def end(self, outcome: str, profile: str) -> None: ...


class OpenRows:
    """The rows of a window's captures that are not written yet."""

    def __init__(self) -> None:
        self.batches = OpenBatches()
        self.rows: dict[str, list[Row]] = {}  # of tables that are not decoded
        self.bytes = 0  # of captures since everything was written

    def finish(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        yield from self.batches.finish()
        rows, self.rows, self.bytes = self.rows, {}, 0
        for table, rows_of_table in rows.items():
            yield table, _batch_of_rows(table, rows_of_table)


class RowsOfCapture:
    """Writes the rows of one capture at once."""

    batches: OpenBatches | None = None  # those that the capture shares

    def __init__(self, window: RowWindow) -> None:
        self._window = window

    def write_batch(self, table: str, batch: pa.RecordBatch) -> None:
        """A batch of decoded rows. Columns that were not decoded (`raw`) are null."""
        for field in TABLES[table].schema:
            if field.name not in batch.schema.names:
                batch = batch.append_column(field.name, pa.nulls(batch.num_rows))
        self._window.write(table, batch)

    def count_decoded(self, rows: Mapping[str, int]) -> None:
        """The numbers of decoded rows, when all are decoded."""

    def write_rows(self, table: str, rows: Sequence[Row]) -> None:
        """Rows of a table that is not decoded."""
        self._window.write(table, _batch_of_rows(table, rows))

    def end_capture(self, capture: Capture) -> None: ...


class _SharedRowsOfCapture(RowsOfCapture):
    """Leaves rows in the open rows of a lake's window."""

    def __init__(self, window: Window) -> None:
        self._lake_window = window
        if not isinstance(window.open_rows, OpenRows):
            window.open_rows = OpenRows()
        self._open_rows = window.open_rows
        self.batches = self._open_rows.batches

    def write_batch(self, table: str, batch: pa.RecordBatch) -> None:
        self._lake_window.write_open_rows(table, batch)

    def count_decoded(self, rows: Mapping[str, int]) -> None:
        self._lake_window.count_rows({table: count for table, count in rows.items() if count})

    def write_rows(self, table: str, rows: Sequence[Row]) -> None:
        self._open_rows.rows.setdefault(table, []).extend(rows)
        self._lake_window.count_rows({table: len(rows)})

    def end_capture(self, capture: Capture) -> None:
        self._open_rows.bytes += capture.size
        if self._open_rows.bytes >= OPEN_BYTES:
            self._lake_window.finish_open_rows()


def rows_of_capture(window: RowWindow) -> RowsOfCapture:
    """How to write the rows of the window's current capture."""
    return _SharedRowsOfCapture(window) if isinstance(window, Window) else RowsOfCapture(window)


def _batch_of_rows(table: str, rows: Sequence[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), TABLES[table].schema)
