"""Compaction: small files of a partition become larger ones, with the encoder and the statistics of all other files.

`deltalake` is not used for it: its statistics of a column with infinities hide rows from its own dataset, and it fails for
partition values with `~`, and for those whose folder has more than 255 bytes when each byte is percent-encoded.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler

from pcaplake.common.errors import Fatal, PcaplakeError
from pcaplake.common.plain_text import describe_library_error
from pcaplake.common.runtime import Runtime
from pcaplake.parser.arrow_types import convert_batch

from .config import LakeConfig
from .delta.actions import AddFile
from .delta.commit_content import Swap
from .delta.live_files import LiveFile, Snapshot
from .delta.log_store import LogStore
from .delta.schema import to_arrow_schema
from .parquet import ParquetSink
from .staging.partitions import partition_path
from .staging.stage_files import StageFiles
from .store.store import Store

_COMMIT_BYTES = 16 << 30  # rewritten before a commit: a kill loses no more
_ROWS_AT_ONCE = 65_536
_THREADS = 4  # at most: each holds a row group

Group = Mapping[str, LiveFile]
"""Files of one partition that fit into one file, by their paths below the table's folder."""


@dataclass(slots=True, kw_only=True)
class Compaction:
    """How many files were compacted, into how many. `problems`: why some files stay as they were."""

    removed: int = 0
    added: int = 0
    problems: list[str] = field(default_factory=list)


async def compact_table(log_store: LogStore, store: Store, table: str, lake_config: LakeConfig) -> Compaction:
    """Compact the files that are smaller than `target_file_size`. Files that cannot be read or written stop no others.

    Raises Fatal when the table cannot be written, and as `LogStore.read_snapshot`.
    """
    done, snapshot = Compaction(), await log_store.read_snapshot(table)
    groups = [] if snapshot is None else group_small_files(snapshot, lake_config.target_file_size)
    if snapshot is None or not groups:
        return done
    if reason := await log_store.read_block_reason(table):
        raise Fatal(f"{table} was not compacted: {reason}")
    try:
        schema = to_arrow_schema(await log_store.read_schema_struct(table) or {})
    except ValueError as error:
        raise Fatal(f"{table} was not compacted: {error}") from error
    rewriter = _Rewriter(store, table, schema, snapshot.partition_columns, lake_config)
    with ThreadPoolExecutor(min(_THREADS, len(os.sched_getaffinity(0)))) as pool:
        for chosen in _split_by_size(groups):
            rewrites = (asyncio.get_running_loop().run_in_executor(pool, rewriter.rewrite, group) for group in chosen)
            outcomes = await asyncio.gather(*rewrites, return_exceptions=True)
            await _commit_rewritten(log_store, store, snapshot, list(zip(chosen, outcomes, strict=True)), done)
    return done


def group_small_files(snapshot: Snapshot, target_file_size: int) -> list[Group]:
    """Neighbors in the log, of one partition, that are at most `target_file_size` together; at least two in each group."""
    partitions = defaultdict[tuple[str | None, ...], list[dict[str, LiveFile]]](list)
    sizes = dict[int, int]()
    for path, file in snapshot.files.live.items():
        if file.size >= target_file_size:
            continue
        groups = partitions[tuple(file.partition_values.get(name) or None for name in snapshot.partition_columns)]
        if not groups or sizes[id(groups)] + file.size > target_file_size:
            groups.append({})
            sizes[id(groups)] = 0
        groups[-1][path] = file
        sizes[id(groups)] += file.size
    return [group for groups in partitions.values() for group in groups if len(group) > 1]


def _split_by_size(groups: Sequence[Group]) -> Iterator[list[Group]]:
    chosen, size = list[Group](), 0
    for group in groups:
        size += sum(file.size for file in group.values())
        chosen.append(group)
        if size >= _COMMIT_BYTES:
            yield chosen
            chosen, size = [], 0
    if chosen:
        yield chosen


async def _commit_rewritten(
    log_store: LogStore,
    store: Store,
    snapshot: Snapshot,
    outcomes: Sequence[tuple[Group, AddFile | BaseException]],
    done: Compaction,
) -> None:
    """Swap the groups that were rewritten, in one version. Nothing is committed of one that failed."""
    table, removed, adds = snapshot.files.table, list[str](), list[AddFile]()
    for group, outcome in outcomes:
        if isinstance(outcome, AddFile):
            removed += group
            adds.append(outcome)
        elif isinstance(outcome, (DeltaError, OSError, pa.ArrowException, ValueError, PcaplakeError)):
            done.problems.append(
                f"{table}: {len(group)} files such as {next(iter(group))} stay small: {describe_library_error(outcome)}"
            )
        else:
            raise outcome
    if not adds:
        return
    # rule: compaction commits only files that exist
    # a VACUUM may have deleted them while this process was stopped
    if missing := await StageFiles(store).find_missing([f"{table}/{add.path}" for add in adds]):
        done.problems.append(f"{table}: {len(missing)} new files were deleted, for example {missing[0]}: run it again")
        return
    swap = Swap(snapshot=snapshot, removed=removed, fences=(), operation="OPTIMIZE", data_change=False)
    try:
        await log_store.swap_files(table, adds, swap)
    except PcaplakeError as error:
        done.problems.append(f"{table} was not compacted: {error}; run it again")
        return
    done.removed += len(removed)
    done.added += len(adds)


@dataclass(frozen=True, slots=True)
class _Rewriter:
    store: Store
    table: str
    schema: pa.Schema
    partition_columns: Sequence[str]
    lake_config: LakeConfig

    def rewrite(self, group: Group) -> AddFile:
        """Write the rows of a group into one new file, which no version has yet. Blocks."""
        values = {name: next(iter(group.values())).partition_values.get(name) for name in self.partition_columns}
        path = f"{partition_path(values)}{Runtime().new_id()}-0.zstd.parquet"
        upload = self.store.upload(f"{self.table}/{path}")
        try:
            sink = ParquetSink(
                self.schema,
                upload.write,
                compression="zstd",
                level=self.lake_config.compression_level,
                row_group_rows=self.lake_config.row_group_rows,
                omit=self.partition_columns,
            )
            for name, file in group.items():
                for batch in self._read_batches(name, file):
                    sink.write_batch(batch)
            summary = sink.close()
            modified = upload.finish().last_modified
        finally:
            upload.abort()
        return AddFile(
            path=path,
            size=summary.size,
            partition_values=values,
            modification_time=round(modified.timestamp() * 1000),
            stats=summary.stats,
            data_change=False,
        )

    def _read_batches(self, path: str, file: LiveFile) -> Iterator[pa.RecordBatch]:
        """The rows of a file without the partition columns. Raises Fatal if they are fewer or more than the log says."""
        handler = DeltaStorageHandler(self.store.external_location(self.table), self.store.current_options() or None)
        read = 0
        with pa.PythonFile(handler.open_input_file(path)) as opened, pq.ParquetFile(opened) as parquet:
            schema = pa.schema([one for one in self.schema if one.name not in self.partition_columns])
            stored = [name for name in schema.names if name in parquet.schema_arrow.names]
            others = {name.lower(): name for name in parquet.schema_arrow.names if name not in self.schema.names}
            if name := next((name for name in schema.names if name not in stored and name.lower() in others), None):
                # Spark reads these values, and the new file would lack them
                raise Fatal(f"{self.table}/{path} calls the column {name} {others[name.lower()]}")
            expected = parquet.metadata.num_rows if file.rows is None else file.rows
            for row_group in range(parquet.num_row_groups):  # a batch across them could be many times as large
                for batch in parquet.iter_batches(_ROWS_AT_ONCE, row_groups=[row_group], columns=stored):
                    read += batch.num_rows
                    yield convert_batch(batch, schema)
        # rule: a compacted file has all rows of the files that it replaces
        if read != expected:
            raise Fatal(f"{self.table}/{path} has {expected:,} rows in the log, and {read:,} were read")
