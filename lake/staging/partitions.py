"""Partitions of a Delta table: the rows of each in a batch, and the names of their folders."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date

import numpy as np
import pyarrow as pa

_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = re.compile(r"[\x00-,/:-@\[-^`{-\x7f]")  # all of ASCII but letters, digits, "_", "." and "-"
_MOST_BYTES = 200  # of a name: file systems allow 255, together with the name of the column

Partition = tuple[str | None, ...]  # the value of each partition column, as text; None for null


def folder_name(value: str | None) -> str:
    """The part after `column=` of the folder of a partition: the value, percent-encoded as by other Delta writers.

    Delta readers take the value from the log, but Polars takes it from the folder. So a value that is too long for a folder,
    or that is the name of null's folder, gets the name `=` and a hash: with two `=` it is no folder of a value for Polars,
    which refuses to read the table instead of showing a wrong value.
    """
    if value is None:
        return _NULL_PARTITION
    name = _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", value)
    is_value = len(name.encode()) <= _MOST_BYTES and name != _NULL_PARTITION
    return name if is_value else f"={hashlib.sha256(value.encode()).hexdigest()[:32]}"


def partition_path(values: Mapping[str, str | None]) -> str:
    """The folders of a partition below the table's, with a slash at the end; "" without partition columns."""
    return "".join(f"{column}={folder_name(value or None)}/" for column, value in values.items())


def split_by_partition(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[Partition, pa.RecordBatch]]:
    """The rows of each partition, in their order; the batch itself when it has one partition."""
    if not batch.num_rows:
        return
    if all(_is_constant(batch.column(name)) for name in columns):
        yield tuple(_partition_value_text(batch.column(name)[0].as_py()) for name in columns), batch
        return
    codes = np.zeros(batch.num_rows, np.int64)
    for name in columns:
        array = batch.column(name)
        coded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
        known = len(coded.dictionary)
        codes = codes * (known + 1) + coded.indices.cast(pa.int64()).fill_null(known).to_numpy(zero_copy_only=False)
    for code in np.unique(codes):
        part = batch.filter(pa.array(codes == code))
        yield tuple(_partition_value_text(part.column(name)[0].as_py()) for name in columns), part


def _is_constant(array: pa.Array) -> bool:
    if array.null_count:
        return bool(array.null_count == len(array))
    if pa.types.is_dictionary(array.type):
        return len(array.dictionary) == 1
    if pa.types.is_date32(array.type):  # the import of pyarrow.compute would take longer than to decode a small capture
        days = np.frombuffer(array.buffers()[1], np.int32)[array.offset :][: len(array)]
        return bool(days.min() == days.max())
    import pyarrow.compute as pc

    ends = pc.min_max(array)
    return bool(ends["min"] == ends["max"])


def _partition_value_text(value: object) -> str | None:
    """A partition value as in the Delta protocol, where the empty string means null."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, date) else str(value)
