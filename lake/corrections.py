"""Corrects what the log says of files that were right for older versions or other writers, and that readers misread now.

- Statistics without the bounds of a column hide rows (`parquet.statistics`). The version that corrects them adds the file
  again: in Delta's protocol the newest action of a path counts, and a version may not have two actions of one path (after
  a `remove` and an `add`, deltalake, DuckDB and Polars read no row of the file).
- Older versions wrote `_` for many characters of a partition value in the name of its folder, and Polars takes the value
  from there. Such a file is copied into the right folder and swapped for its copy; VACUUM deletes it after its retention.

Each version changes no row (`dataChange` is false) and exists only if all of its files are still live.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from pcaplake.common.errors import Fatal, PcaplakeError, Retryable
from pcaplake.common.retry import ROW_SWAP

from .delta.actions import AddFile, Metadata, TaggedFile, encode_path
from .delta.checkpoint_reader import read_batches, read_footer
from .delta.commit_content import Swap
from .delta.errors import SwapConflict, TableBlocked
from .delta.live_files import LiveFile, Snapshot, read_live_files
from .delta.log_state import LogState, read_log_state
from .delta.log_store import LogStore
from .delta.schema import to_arrow_schema
from .parquet.statistics import (
    ColumnRange,
    complete_statistics,
    compute_range,
    find_unbounded_columns,
    select_indexed_columns,
)
from .staging.partitions import partition_path
from .staging.stage_files import StageFiles
from .store.store import Store, is_nameable

OPERATION: Final = "COMPUTE STATS"
_FILES_AT_ONCE: Final = 1_000  # in one version
_READ_AT_ONCE: Final = 4
log = logging.getLogger(__name__)
_OLD_UNSAFE: Final = re.compile(r"[^A-Za-z0-9=_.-]")


@dataclass(frozen=True, slots=True)
class FileExpectations:
    """What readers expect of the files of a table. `indexed`: columns with bounds."""

    indexed: pa.Schema
    partition_columns: Sequence[str]

    @classmethod
    def of_table(cls, metadata: Metadata) -> FileExpectations:
        """Raises ValueError for a column type of a newer protocol."""
        schema = to_arrow_schema(metadata.schema)
        columns = pa.schema([field for field in schema if field.name not in metadata.partition_columns])
        return cls(select_indexed_columns(columns, metadata.configuration), metadata.partition_columns)

    def find_unbounded(self, stats: str) -> list[str]:
        """The columns that the statistics of a file hide rows of. Files without statistics are read."""
        return find_unbounded_columns(self.indexed, stats) if stats else []

    def find_right_folder(self, path: str, values: Mapping[str, str | None]) -> str | None:
        """The folder that a file should be in, if it is in one as older versions named it."""
        ordered = {name: values.get(name) for name in self.partition_columns}
        folder, right = path[: path.rfind("/") + 1], partition_path(ordered)
        old = "".join(
            f"{name}={_OLD_UNSAFE.sub('_', value)}/" if value else partition_path({name: None})
            for name, value in ordered.items()
        )
        return right if folder != right and folder == old else None

    def describe_misreading(self, path: str, values: Mapping[str, str | None], stats: str) -> str | None:
        """What readers misread of a file; None: nothing."""
        if not is_nameable(path):  # a file outside of the table, which belongs to another one
            return None
        wrong = []
        if names := self.find_unbounded(stats):
            wrong.append(
                f"filters on {', '.join(names)} find no row in some readers, because its statistics lack bounds"
            )
        if self.find_right_folder(path, values) is not None:
            wrong.append("its folder was named by an older version, and Polars takes the partition value from there")
        return sys.intern("; ".join(wrong)) if wrong else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCorrector:
    """Corrects files of the tables of a lake, with a lock table or without."""

    store: Store
    log_store: LogStore

    async def correct_table(self, table: str) -> int:
        """Correct all files of a table that readers misread, and return how many. What a kill leaves is corrected next time.

        Raises Fatal if the table cannot be written or, after the other files are corrected, if a file cannot be read;
        Retryable if one is missing, or if other writers change the same files in every attempt.
        """
        corrected = 0
        for _ in ROW_SWAP.rounds:
            state = await read_log_state(self.store, table)
            if state.metadata is None:
                return corrected
            try:
                expectations = FileExpectations.of_table(state.metadata)
            except ValueError as error:
                raise Fatal(f"{table}: {error}") from error
            try:
                async for done in self._correct_files(table, state, expectations):
                    corrected += done
            except SwapConflict as conflict:
                log.info("%s; reading the table again", conflict)
            else:
                return corrected
        raise Retryable(f"{table}: other programs changed the same files in {ROW_SWAP.attempts} attempts; run it again")

    async def _correct_files(self, table: str, state: LogState, expectations: FileExpectations) -> AsyncIterator[int]:
        """The number of files in each version. Raises SwapConflict."""

        def remember(path: str, values: Mapping[str, str | None], stats: str) -> str | None:
            return None if expectations.describe_misreading(path, values, stats) is None else stats

        files = await read_live_files(self.store, table, state, choose=remember)
        assert state.metadata is not None
        snapshot = Snapshot(files=files, txns=dict(state.txns), metadata=state.metadata, protocol=state.protocol)
        chosen = sorted(files.chosen.items())
        if chosen and (reason := await self.log_store.read_block_reason(table)):
            raise TableBlocked(reason)
        problems = list[PcaplakeError]()
        for start in range(0, len(chosen), _FILES_AT_ONCE):
            some = dict(chosen[start : start + _FILES_AT_ONCE])
            failed = await self._correct_some(table, snapshot, expectations, some)
            problems += failed
            yield len(some) - len(failed)
        if problems:
            raise problems[0]

    async def _correct_some(
        self, table: str, snapshot: Snapshot, expectations: FileExpectations, chosen: Mapping[str, str]
    ) -> list[PcaplakeError]:
        """Correct these files in one version, without those that cannot be read; returns why. Raises SwapConflict."""
        slots = asyncio.Semaphore(_READ_AT_ONCE)
        adds, problems = dict[str, AddFile](), list[PcaplakeError]()

        async def correct(path: str, stats: str) -> None:
            async with slots:
                if (file := snapshot.files.live.get(path)) is None:  # removed since the version before
                    raise SwapConflict(f"{table}: another program has removed {path} at the same time")
                try:
                    adds[path] = await self._correct_file(table, path, file, stats, expectations)
                except (Fatal, Retryable) as problem:
                    problems.append(problem)

        await asyncio.gather(*(correct(path, stats) for path, stats in chosen.items()))
        if not adds:
            return problems
        kept = {add.path for add in adds.values()}.intersection(chosen)
        swap = Swap(
            snapshot=snapshot,
            removed=adds.keys() - kept,
            # rule: a corrected file is still live, or its rows would return
            kept=kept,
            fences=(),
            operation=OPERATION,
            data_change=False,
        )
        await self.log_store.swap_files(table, list(adds.values()), swap)
        return problems

    async def _correct_file(
        self, table: str, path: str, file: LiveFile, stats: str, expectations: FileExpectations
    ) -> AddFile:
        """The action that adds the file again, or a copy of it in the right folder."""
        meta = await self.store.head(f"{table}/{path}")
        if meta is None:
            raise Retryable(f"{table}/{path} is missing")
        if names := expectations.find_unbounded(stats):
            rows, ranges = await self._read_ranges(f"{table}/{path}", expectations.indexed, names)
            if file.rows is not None and file.rows != rows:
                raise Fatal(f"{table}/{path} has {rows:,} rows, and {file.rows:,} in the log")
            stats = complete_statistics(expectations.indexed, stats, rows, ranges)
        add = TaggedFile(
            path=path,
            size=meta.size,
            partition_values=file.partition_values,
            modification_time=round(meta.last_modified.timestamp() * 1000),
            stats=stats,
            # rule: a correction changes no row
            data_change=False,
            tags=file.tags,
        )
        folder = expectations.find_right_folder(path, file.partition_values)
        if (
            folder is None
            # rule: a file whose path another writer spells in its own way is swapped for a copy
            and encode_path(path) == file.uri
        ):
            return add
        return await StageFiles(self.store).copy_file(
            table, add, path[: path.rfind("/") + 1] if folder is None else folder
        )

    async def _read_ranges(
        self, path: str, indexed: pa.Schema, names: Sequence[str]
    ) -> tuple[int, Mapping[str, ColumnRange]]:
        """The rows of a file, and the ranges of some columns."""
        try:
            rows = (await read_footer(self.store, path)).metadata.num_rows
            ranges = dict[str, ColumnRange]()
            async for batch in read_batches(self.store, path, names):
                for name in batch.schema.names:
                    array = batch.column(name).cast(indexed.field(name).type, safe=False)
                    ranges[name] = ranges.get(name, ColumnRange()) | compute_range(array)
        except FileNotFoundError as error:
            raise Retryable(f"{path} was deleted while it was read") from error
        except (OSError, pa.ArrowException) as error:
            raise Fatal(f"{path} cannot be read: {error}") from error
        return rows, {name: ranges.get(name, ColumnRange(nulls=rows)) for name in names}  # a column may be younger
