"""Writes the rows of some files of a table into one new file, in order. No version has the new file yet."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from pcaplake.common.errors import Fatal
from pcaplake.common.plain_text import describe_library_error
from pcaplake.common.runtime import Runtime
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.delta.actions import TaggedFile
from pcaplake.lake.delta.live_files import LiveFile
from pcaplake.lake.parquet import ParquetSink
from pcaplake.lake.staging.partitions import partition_path
from pcaplake.lake.store.store import Store
from pcaplake.lake.table_rows import INT96_UNIT
from pcaplake.parser.arrow_types import convert_batch

from .order import ORDER_KEY, SORTED, describe_order, sort_columns, start_key
from .plan import Bin
from .sorted_rows import Runs, merge

READ_BYTES = 4 << 20  # of rows that are read at once, about
READ_ROWS = 65_536
LEAST_AHEAD = 128 << 10  # of a remote file: bytes of a request
Fetch = Callable[[str, int, int], bytes]
"""Reads a range of an object: path, first byte, length. Blocks."""


class Stopped(Exception):
    """The caller asked to stop."""


class Unreadable(Exception):
    """A file that stays as it is. `path`: below the table's folder."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(why)
        self.path = path


@dataclass(frozen=True, slots=True)
class Rewriter:
    """Rewrites files of one table. `schema`: of its rows. `most_bytes`: of rows in memory. `fetch`: of remote stores.
    `starts`: by path, from `order.remember_start`. `stopped`: asked often."""

    store: Store
    table: str
    schema: pa.Schema
    partition_columns: Sequence[str]
    lake_config: LakeConfig
    most_bytes: int
    fetch: Fetch
    starts: Mapping[str, str] = field(default_factory=dict)
    stopped: Callable[[], bool] = lambda: False

    @property
    def order(self) -> str:
        """The order of the files that this writes, as they say it of themselves."""
        return describe_order(self._sort_columns)

    def rewrite(self, files: Bin) -> TaggedFile:
        """Write the rows of these files into one new file. Blocks.

        Raises Unreadable for the first file that cannot be read, or does not have the rows that the log says; Stopped; and what
        the store raises.
        """
        some = next(iter(files.files.values()))
        values = {name: some.partition_values.get(name) or None for name in self.partition_columns}  # "" is null
        path = f"{partition_path(values)}{Runtime().new_id()}-{SORTED}.zstd.parquet"
        upload = self.store.upload(f"{self.table}/{path}")
        runs = Runs(self._stored, self._sort_columns, self.most_bytes)
        try:
            sink = ParquetSink(
                self.schema,
                upload.write,
                compression="zstd",
                level=self.lake_config.compression_level,
                row_group_rows=self.lake_config.row_group_rows,
                omit=self.partition_columns,
                key_values={ORDER_KEY: self.order},
            )
            counts = dict[str, int]()
            for batch in self._sorted_batches(files, runs, counts):
                if self.stopped():
                    raise Stopped
                sink.write_batch(batch)
            summary = sink.close()
            # rule: a compacted file has as many rows as were read
            if summary.rows != sum(counts.values()):
                raise Fatal(f"{self.table}/{path} has {summary.rows:,} rows, and {sum(counts.values()):,} were read")
            modified = upload.finish().last_modified
        finally:
            upload.abort()
            runs.close()
        return TaggedFile(
            path=path,
            size=summary.size,
            partition_values=values,
            modification_time=round(modified.timestamp() * 1000),
            stats=summary.stats,
            data_change=False,
            tags={ORDER_KEY: self.order},
        )

    @property
    def _stored(self) -> pa.Schema:
        """The columns of the files."""
        return pa.schema([field for field in self.schema if field.name not in self.partition_columns])

    @property
    def _sort_columns(self) -> tuple[str, ...]:
        return sort_columns(self.table, self._stored.names)

    def _sorted_batches(self, files: Bin, runs: Runs, counts: dict[str, int]) -> Iterator[pa.RecordBatch]:
        at_once = min(READ_BYTES, self.most_bytes // (len(files.sorted) + 1))
        streams = [self._read_batches(path, file, counts, at_once) for path, file in files.sorted.items()]
        if files.fresh:
            streams.append(self._sorted_fresh(files, runs, counts))
        yield from merge(streams, self._stored, self._sort_columns, self.most_bytes)

    def _sorted_fresh(self, files: Bin, runs: Runs, counts: dict[str, int]) -> Iterator[pa.RecordBatch]:
        """The rows of the files that are not sorted. Those that begin first are read first, so that rows can be written early."""
        starts = {path: start_key(self.starts.get(path), self._sort_columns) for path in files.fresh}
        for path in sorted(files.fresh, key=starts.__getitem__):
            for batch in self._read_batches(path, files.fresh[path], counts):
                runs.append(batch)
                yield from runs.make_room(starts[path])
        if streams := runs.take_streams():
            yield from merge(streams, self._stored, self._sort_columns, self.most_bytes)

    def _read_batches(
        self, path: str, file: LiveFile, counts: dict[str, int], at_once: int = READ_BYTES
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a file without the partition columns. Raises Unreadable, also if they are not as many as the log says."""
        try:
            yield from self._read_file(path, file, counts, at_once)
        except (Fatal, OSError, pa.ArrowException, ValueError) as error:
            raise Unreadable(path, describe_library_error(error)) from error

    def _read_file(self, path: str, file: LiveFile, counts: dict[str, int], at_once: int) -> Iterator[pa.RecordBatch]:
        counts[path] = 0
        with self._open(path, file.size, at_once) as opened:
            footer = pq.ParquetFile(opened, coerce_int96_timestamp_unit=INT96_UNIT)
            stored = self._find_columns(path, footer.schema_arrow.names)
            texts = [name for name in stored if footer.schema_arrow.field(name).type == pa.string()]
            with pq.ParquetFile(
                opened,
                metadata=footer.metadata,
                read_dictionary=texts,
                coerce_int96_timestamp_unit=INT96_UNIT,
            ) as parquet:
                expected = parquet.metadata.num_rows if file.rows is None else file.rows
                for number in range(parquet.num_row_groups):
                    group = parquet.metadata.row_group(number)  # a batch across them could be many times as large
                    rows = max(256, min(READ_ROWS, at_once * group.num_rows // max(group.total_byte_size, 1)))
                    for batch in parquet.iter_batches(rows, row_groups=[number], columns=stored, use_threads=False):
                        if self.stopped():
                            raise Stopped
                        counts[path] += batch.num_rows
                        yield convert_batch(batch, self._stored, keep_dictionaries=True)
        # rule: a compacted file has all rows of the files that it replaces
        if counts[path] != expected:
            raise Fatal(f"{self.table}/{path} has {expected:,} rows in the log, and {counts[path]:,} were read")

    def _open(self, path: str, size: int, ahead: int) -> pa.NativeFile:
        if self.store.local is not None:
            return pa.OSFile(str(self.store.local / self.table / path))
        return pa.PythonFile(_RemoteFile(f"{self.table}/{path}", size, self.fetch, max(ahead, LEAST_AHEAD)), mode="r")

    def _find_columns(self, path: str, names: Sequence[str]) -> list[str]:
        """The table's columns that a file has."""
        stored = [name for name in self._stored.names if name in names]
        others = {name.lower(): name for name in names if name not in self.schema.names}
        if name := next((name for name in self._stored.names if name not in stored and name.lower() in others), None):
            # Spark reads these values, and the new file would lack them
            raise Fatal(f"{self.table}/{path} calls the column {name} {others[name.lower()]}")
        return stored


class _RemoteFile(io.RawIOBase):
    """An object, of which some bytes are read ahead. Not by `deltalake`, which keeps all other threads waiting meanwhile."""

    def __init__(self, path: str, size: int, fetch: Fetch, ahead: int) -> None:
        self._path, self._size, self._fetch, self._ahead = path, size, fetch, ahead
        self._at = self._start = 0
        self._window = b""

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        stop = self._size if size < 0 else min(self._at + size, self._size)
        if self._at >= stop:
            return b""
        if not self._start <= self._at <= stop <= self._start + len(self._window):
            self._start = 0 if self._size <= self._ahead else self._at
            length = min(max(stop - self._start, self._ahead), self._size - self._start)
            self._window = self._fetch(self._path, self._start, length)
        data = self._window[self._at - self._start : stop - self._start]
        self._at += len(data)
        return data


def read_order(key_values: Mapping[bytes, bytes] | None) -> str | None:
    """The order that the footer of a file names."""
    value = (key_values or {}).get(ORDER_KEY.encode())
    return None if value is None else value.decode(errors="replace")
