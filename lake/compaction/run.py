"""Compaction of a table: plan from the log, rewrite, commit in batches.

    plan        the live files, and how they say that they are sorted (plan.py)
    rewrite     the files of a bin become one new file (rewrite.py), in threads here or in the executors of another program
    commit      a version removes what was rewritten and adds what it became, without `dataChange`

A batch has some bins and a commit of its own: a kill or a budget loses one batch at most, which is work and no row.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
from deltalake.exceptions import DeltaError

from pcaplake.common.errors import Fatal, PcaplakeError
from pcaplake.common.plain_text import counted, describe_library_error
from pcaplake.common.runtime import Runtime
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.delta.actions import AddFile
from pcaplake.lake.delta.checkpoint_reader import read_footer
from pcaplake.lake.delta.commit_content import AsRead, Swap
from pcaplake.lake.delta.live_files import LiveFile, Snapshot
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.delta.schema import to_arrow_schema
from pcaplake.lake.staging.stage_files import StageFiles
from pcaplake.lake.store.store import Store

from .order import ORDER_KEY, SORTED, remember_start
from .plan import Bin, plan_bins
from .rewrite import Rewriter, Stopped, Unreadable, read_order

BATCH_BYTES = 1 << 30  # rewritten before a commit: a kill loses no more
BATCH_FILES = 5_000
MEMORY_BYTES = 192 << 20  # of rows that wait to be sorted, in all threads
_THREADS = 4  # at most
_MOST_UNREADABLE = 10  # files of a bin: the others are read again after each of them
_FOOTERS_AT_ONCE = 32


@dataclass(slots=True, kw_only=True)
class Compaction:
    """How many files were rewritten, into how many, and their bytes. `left`: files that had no time any more.
    `problems`: why some files stay as they were."""

    removed: int = 0
    added: int = 0
    removed_bytes: int = 0
    added_bytes: int = 0
    left: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compactor:
    """Compacts tables of a lake through its log store. `until`: no batch begins after this time of `runtime.clock`.

    `progress`: called with the table, and how many of how many files are done.
    """

    log_store: LogStore
    store: Store
    lake_config: LakeConfig
    until: float | None = None
    progress: Callable[[str, int, int], None] = lambda table, done, total: None
    runtime: Runtime = field(default_factory=Runtime)

    async def compact(self, table: str) -> Compaction:
        """Compact a table. Files that cannot be read or written stop no others.

        Raises Fatal when the table cannot be written, and as `LogStore.read_snapshot`.
        """
        done, snapshot = Compaction(), await self.log_store.read_snapshot(table, choose=remember_start)
        if snapshot is None or not snapshot.files.live:
            return done
        stop = threading.Event()
        rewriter = self._create_rewriter(table, snapshot, stop.is_set)
        bins = await plan(self.store, snapshot, rewriter.order, self.lake_config.target_file_size, self.runtime.now())
        if not bins:
            return done
        if reason := await self.log_store.read_block_reason(table):
            raise Fatal(f"{table} was not compacted: {reason}")
        total = seen = sum(len(one.files) for one in bins)
        self.progress(table, 0, total)
        pool, loop = ThreadPoolExecutor(_count_threads()), asyncio.get_running_loop()
        try:
            for chosen in split_into_batches(bins):
                if self.until is not None and self.runtime.clock() >= self.until:
                    break
                rewrites = (
                    loop.run_in_executor(pool, _rewrite_readable, rewriter, one, done.problems) for one in chosen
                )
                outcomes = await asyncio.gather(*rewrites, return_exceptions=True)
                await self._commit(snapshot, outcomes, done)
                seen -= sum(len(one.files) for one in chosen)
                self.progress(table, total - seen, total)
        finally:
            stop.set()
            await asyncio.to_thread(pool.shutdown)  # not here: the threads read remote files in this event loop
        done.left = seen
        return done

    def _create_rewriter(self, table: str, snapshot: Snapshot, stopped: Callable[[], bool]) -> Rewriter:
        try:
            schema = to_arrow_schema(snapshot.metadata.schema)
        except ValueError as error:
            raise Fatal(f"{table} was not compacted: {error}") from error
        most, loop = MEMORY_BYTES // _count_threads(), asyncio.get_running_loop()
        return Rewriter(
            self.store,
            table,
            schema,
            snapshot.partition_columns,
            self.lake_config,
            most,
            lambda path, start, length: asyncio.run_coroutine_threadsafe(
                self.store.get_range(path, start, length), loop
            ).result(),
            snapshot.files.chosen,
            stopped,
        )

    async def _commit(
        self, snapshot: Snapshot, outcomes: Sequence[tuple[Bin, AddFile] | BaseException | None], done: Compaction
    ) -> None:
        """Swap the files that were rewritten, in one version. Nothing is committed of a bin that failed."""
        table, rewritten, adds = snapshot.files.table, dict[str, LiveFile](), list[AddFile]()
        for outcome in outcomes:
            if isinstance(outcome, tuple):
                rewritten |= outcome[0].files
                adds.append(outcome[1])
            elif isinstance(outcome, BaseException) and not isinstance(outcome, Stopped):
                raise outcome
        if not adds:
            return
        self.runtime.step(f"before compaction {table}")
        # rule: compaction commits only files that exist
        # a VACUUM may have deleted them while this process was stopped
        if missing := await StageFiles(self.store).find_missing([f"{table}/{add.path}" for add in adds]):
            done.problems.append(
                f"{table}: {counted(len(missing), 'new file')} were deleted, for example {missing[0]}: run it again"
            )
            return
        swap = Swap(
            snapshot=snapshot,
            removed=rewritten,
            fences=(),
            operation="OPTIMIZE",
            # rule: compaction changes no row
            data_change=False,
            as_read=AsRead(files=rewritten, protocol=snapshot.protocol, metadata=snapshot.metadata),
        )
        try:
            await self.log_store.swap_files(table, adds, swap)
        except PcaplakeError as error:
            done.problems.append(f"{table} was not compacted: {error}; run it again")
            return
        self.runtime.step(f"after compaction {table}")
        done.removed += len(rewritten)
        done.added += len(adds)
        done.removed_bytes += sum(file.size for file in rewritten.values())
        done.added_bytes += sum(add.size for add in adds)


def _rewrite_readable(rewriter: Rewriter, one: Bin, problems: list[str]) -> tuple[Bin, AddFile] | None:
    """Rewrite those files of a bin that can be read -> these, and the new file; None: none is rewritten.

    Adds to `problems` what stays as it is, and why. Blocks. Raises Stopped.
    """
    table, unreadable = rewriter.table, 0
    while len(one.files) > bool(unreadable):  # what is left of a bin may be one file, which needs no other
        try:
            return one, rewriter.rewrite(one)
        except Unreadable as error:
            problems.append(f"{table}: file {error.path} stays as it is: {error}")
            unreadable += 1
            one = one.without(error.path)
            if unreadable < _MOST_UNREADABLE:
                continue
            why = "others with it cannot be read"
        except (DeltaError, OSError, pa.ArrowException, ValueError, PcaplakeError) as error:
            why = describe_library_error(error)
        problems.append(
            f"{table}: {counted(len(one.files), 'file')} such as {next(iter(one.files))} stay as they are: {why}"
        )
        return None
    return None


async def plan(store: Store, snapshot: Snapshot, order: str, target: int, now: float) -> list[Bin]:
    """What is rewritten of a table. `order`: what its files say of themselves when they need no more. `now`: epoch seconds."""
    live = snapshot.files.live
    in_order = {path for path, file in live.items() if file.tags.get(ORDER_KEY) == order}
    # rule: a file whose tags were dropped is not rewritten again
    unmarked = [path for path, file in live.items() if ORDER_KEY not in file.tags and f"-{SORTED}." in path]
    slots = asyncio.Semaphore(_FOOTERS_AT_ONCE)

    async def look(path: str) -> None:
        async with slots:
            try:
                footer = await read_footer(store, f"{snapshot.files.table}/{path}")
            except (OSError, pa.ArrowException):
                return  # it is named when it is rewritten
            if read_order(footer.metadata.metadata) == order:
                in_order.add(path)

    await asyncio.gather(*map(look, unmarked))
    return plan_bins(live, snapshot.partition_columns, in_order, target=target, now_ms=round(now * 1000))


def split_into_batches(bins: Sequence[Bin]) -> Iterator[list[Bin]]:
    """Bins that are committed together."""
    chosen, size, files = list[Bin](), 0, 0
    for one in bins:
        chosen.append(one)
        size += one.size
        files += len(one.files)
        if size >= BATCH_BYTES or files >= BATCH_FILES:
            yield chosen
            chosen, size, files = [], 0, 0
    if chosen:
        yield chosen


def _count_threads() -> int:
    return min(_THREADS, len(os.sched_getaffinity(0)))
