"""Reads rows of a lake's tables through `deltalake`, with the types of the table's schema, whatever its writers have chosen.

Conditions are evaluated on the converted rows: pyarrow's dataset compares a condition with the statistics of a file in the
file's own types, and has no comparison for some of them (`string_view`). It still leaves out files by the Delta log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyarrow.dataset import ParquetReadOptions

from pcaplake.lake.store.store import Store
from pcaplake.parser.arrow_types import convert_batch

INT96_UNIT: Final = "us"
"""Of times that other writers store as INT96 (Spark does by default). As nanoseconds, pyarrow's default, those before 1677 and
after 2262 would become others without an error."""


class TableRows:
    """The rows of one version of a table; `version`: by default the newest. Its methods block.

    Raises `DeltaError` if the log cannot be read or `deltalake` does not support a feature of the table. `schema`: of the rows.
    """

    def __init__(self, store: Store, table: str, version: int | None = None) -> None:
        opened = DeltaTable(
            store.external_location(table), version=version, storage_options=store.current_options() or None
        )
        options = ParquetReadOptions(coerce_int96_timestamp_unit=INT96_UNIT)
        self._dataset: Any = opened.to_pyarrow_dataset(parquet_read_options=options)
        self._partition_columns = frozenset(opened.metadata().partition_columns)
        self.schema: pa.Schema = self._dataset.schema

    def count_rows(self) -> int:
        """All rows, counted in the files."""
        return int(self._dataset.count_rows())

    def list_files(self, wanted: pc.Expression | None = None) -> Iterator[FileRows]:
        """The live files; `wanted`: without those that have no such row, as the log says."""
        for fragment in self._dataset.get_fragments(filter=wanted):
            yield FileRows(fragment, self.schema, self._partition_columns)

    def read(self, columns: Sequence[str], wanted: pc.Expression | None = None) -> Iterator[pa.RecordBatch]:
        """These columns of the rows that match, in batches. A condition has no other columns. Raises as `FileRows.read`."""
        for file in self.list_files(wanted):
            yield from file.read(columns, wanted)


class FileRows:
    """The rows of one file of a table. `path`: below the table."""

    def __init__(self, fragment: Any, schema: pa.Schema, partition_columns: frozenset[str]) -> None:
        self._fragment, self._schema, self._partition_columns = fragment, schema, partition_columns
        self.path: str = fragment.path

    def count_rows(self) -> int:
        return int(self._fragment.count_rows())

    def read(self, columns: Sequence[str], wanted: pc.Expression | None = None) -> Iterator[pa.RecordBatch]:
        """As `TableRows.read`. Raises OSError, and `pa.ArrowInvalid` for values that the table's types cannot hold."""
        schema = pa.schema([self._schema.field(name) for name in columns])
        for stored in self._fragment.to_batches(schema=self._stored_schema(), columns=list(columns)):
            try:
                batch = convert_batch(stored, schema)
            except pa.ArrowInvalid as error:
                raise pa.ArrowInvalid(f"{self.path}: {error}") from error
            yield from [batch] if wanted is None else pa.Table.from_batches([batch]).filter(wanted).to_batches()

    def _stored_schema(self) -> pa.Schema:
        """The table's columns with the types of the file, so that the dataset converts nothing."""
        physical = self._fragment.physical_schema
        stored = set(physical.names) - self._partition_columns
        return pa.schema([physical.field(field.name) if field.name in stored else field for field in self._schema])
