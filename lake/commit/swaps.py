"""The one way to replace rows of captures: for `ingest --reread`, Spark's `replace`, `--replace-changed` and `delete`.

    record    put `_pcaplake/swaps/<number>.json` if absent: the captures, and the stages with their new rows, if any
    swap      table by table, `captures` last: one version removes the rows of the captures, adds the new files, and writes
              `txn(pcaplake-swapped, generation * 2^40 + number)`
    forget    captures without new rows leave the ledger, so that the same content can come back

Swaps are numbered without gaps, as batches are, and each table gets them in order and each one once: `txn` says which it
has. So a swap that was cut off needs no capture and no profile: any process finishes it from the record, also at the same
time as the process that began it. The batch that opens a generation writes a higher transaction, so no swap that was begun
before comes after it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.common.plain_text import counted
from pcaplake.common.retry import ROW_SWAP
from pcaplake.common.runtime import Runtime
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.delta.actions import AddFile
from pcaplake.lake.delta.commit_content import Swap
from pcaplake.lake.delta.errors import FileGone, SchemaConflict, SwapConflict, TableBlocked
from pcaplake.lake.delta.live_files import Snapshot
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.delta.schema import to_arrow_schema
from pcaplake.lake.identity import read_identity
from pcaplake.lake.ledger import COMMITTED, Ledger
from pcaplake.lake.records import SIGHTINGS, Manifest, Stage, manifest_path
from pcaplake.lake.staging.stage_files import StageFiles
from pcaplake.lake.store.store import Store
from pcaplake.parser.schemas import TABLES

from .history import APP_ID, SWAPPED, accept_removed_rows, find_lost_tables, opening_version
from .swap_records import RowSwap, drop_swap, is_dropped, newest_swap, put_swap, read_swaps

CAPTURES_LAST: Final = tuple(sorted(TABLES, key="captures".__eq__))
log = logging.getLogger(__name__)
if TYPE_CHECKING:
    from .copy_rows import Copying

Copy = Callable[["Copying"], Awaitable[tuple[list[str], list[AddFile]]]]
"""The files with rows that go, and new files with the other rows of these. Raises as `Copying.copy`."""


@dataclass(slots=True, kw_only=True)
class Swaps:
    """Swaps rows in one generation of a lake. `copy`: None: in a thread of this process.

    `leaving`: captures that a swap removes, and that the last `finish` left in the ledger, with the reason. As long as the ledger
    has them, their contents would not be read again. `forgets` False: this process may not write the ledger, and another one
    makes it forget captures that were removed.
    """

    store: Store
    log_store: LogStore
    ledger: Ledger
    generation: int
    lake_config: LakeConfig
    runtime: Runtime
    copy: Copy | None = None
    leaving: dict[str, str] = field(default_factory=dict)
    forgets: bool = True
    _numbers: dict[str, int] = field(default_factory=dict)  # table -> the last swap that it has
    _waiting: dict[str, str] = field(default_factory=dict)  # tables that cannot get the next swap now -> why
    _dropped: set[int] = field(default_factory=set)

    async def swap(self, captures: Mapping[str, int], stages: Sequence[Stage] = (), *, since: int) -> None:
        """Swap the rows of captures for those of `stages`, or remove the captures from the lake.

        `captures`: what `find_bounds` returned when they were chosen. `stages`: of these captures, and in no ledger. `since`:
        what `finish` returned before that.

        Raises Fatal if a table cannot be written; the next process finishes the swap there. Raises Retryable if nothing was
        changed, or if other programs change the same files in each attempt.
        """
        if stages:
            await self.require_tables()
        self.runtime.step("before swap")
        number = await self._record(captures, stages, since)
        self.runtime.step("after swap record")
        done = await self.finish()
        self.runtime.step("after swap")
        what = counted(len(captures), "capture")
        identity = await read_identity(self.store)
        if identity is None or identity[0].generation != self.generation:
            raise Fatal(
                f"the lake was overwritten while captures were replaced: rows of {what} went with the old rows, or were not "
                "swapped. Run it again on the lake as it is now"
            )
        if number in self._dropped:
            raise Retryable(f"the new files of {what} were deleted before they were in the tables: run this again")
        if number > done:
            why = "; ".join(f"table {table}: {reason}" for table, reason in self._waiting.items())
            raise Fatal(f"the rows of {what} are replaced in some tables only, and later in the others: {why}")

    async def require_tables(self) -> None:
        """Raises Fatal if a table is missing: the rows for it would be in no table."""
        for table in CAPTURES_LAST:
            if await self.log_store.read_version(table) < 0:
                raise Fatal(_missing(table))

    async def finish(self) -> int:
        """Finish all swaps that are recorded -> the number of the last one that every table has, and the ledger.

        A table that lacks a batch or rows waits until it is repaired, and one that cannot be written: `leaving` then has the
        captures that could not be removed. Raises Retryable as `swap`.
        """
        forgotten = await self.ledger.read_last_swap()
        if not (newest := await newest_swap(self.store, forgotten)):
            return 0
        if not self.forgets:
            forgotten = newest
        self._waiting.clear()
        self.leaving.clear()
        await self._put_back_restored_tables()
        self._numbers = await read_swap_numbers(self.log_store, self.generation)
        least = min(forgotten, *self._numbers.values())
        recorded = await read_swaps(self.store, range(least + 1, newest + 1))
        swaps = [swap for swap in recorded if swap.generation == self.generation]
        lost = await find_lost_tables(self.store, self.log_store, self.ledger) if swaps else {}
        for swap in swaps:
            await self._finish_swap(swap, lost, forget=swap.number > forgotten)
        done = min(newest, *self._numbers.values())
        if done > forgotten:
            await self.ledger.forget_captures(self.generation, {}, last_swap=done)
        return done

    async def _record(self, captures: Mapping[str, int], stages: Sequence[Stage], since: int) -> int:
        while True:
            newest = await newest_swap(self.store)
            for other in await read_swaps(self.store, range(since + 1, newest + 1)) if stages else ():
                # rule: rows of a capture that leaves the lake do not come back
                if other.removes and other.captures.keys() & captures.keys():
                    raise Retryable("another process removes one of these captures from the lake: run this again")
            swap = RowSwap(number=newest + 1, generation=self.generation, captures=captures, stages=stages)
            if await put_swap(self.store, swap):
                return swap.number

    async def _put_back_restored_tables(self) -> None:
        """Another program may have restored a table to where it lacks swaps, and no batch: then it gets them again."""
        for table in CAPTURES_LAST:
            try:
                version = await self.log_store.read_version(table)
                loss = await self.log_store.known_loss(table)
            except TableBlocked:
                continue  # it waits for its repair
            # rule: a table that was restored to before a swap gets the swap again
            if loss is not None and not loss.batches and loss.restored is not None:
                await accept_removed_rows(self.log_store, table, version, "RESTORED")
                log.warning(
                    "another program restored table %s: rows that were replaced or removed since then go again",
                    table,
                )

    async def _finish_swap(self, swap: RowSwap, lost: dict[str, str], *, forget: bool) -> None:
        batches = await self._find_batches(swap.captures) if swap.removes and forget else {}
        # a content that came back later stays
        ids = {
            capture_id
            for capture_id, until in swap.captures.items()
            if (now := batches.get(capture_id, -1)) is not None and now <= until
        }
        behind = [table for table in CAPTURES_LAST if self._numbers[table] < swap.number]
        files = [f"{table}/{add.path}" for table in behind for add in swap.adds_of(table)]
        # rule: rows are removed only if all new ones are there
        if swap.stages and await StageFiles(self.store).find_missing(files):
            await drop_swap(self.store, swap.number, behind)
            log.warning(
                "the new rows of %s are gone, so the old ones stay in %s: `pcaplake doctor` names the captures to read again",
                counted(len(swap.captures), "capture"),
                ", ".join(behind),
            )
        for table in behind:
            # rule: a swap that was given up in one table does not come to `captures`
            if swap.stages and table in (behind[0], "captures") and await is_dropped(self.store, swap.number):
                self._dropped.add(swap.number)
            # `captures` names the decoding of all other tables
            if table == "captures" and swap.stages and (before := self._waiting.keys() & set(behind)):
                first = min(before, key=behind.index)
                self._waiting.setdefault(table, self._waiting[first])
                if first in lost:
                    lost.setdefault(table, lost[first])
            # rule: a table gets swaps in order
            if table not in self._waiting:
                await self._try_swap(table, swap, lost)
            self.runtime.step(f"after swap {table}")
        if not swap.removes or not forget:
            return
        # else a content that comes back would be in a table twice
        if min(self._numbers.values()) >= swap.number:
            await self.ledger.forget_captures(self.generation, await self.find_stages(swap), last_swap=swap.number)
        else:
            why = "; ".join(f"table {table}: {reason}" for table, reason in self._waiting.items())
            self.leaving |= dict.fromkeys(ids, why)

    async def find_stages(self, swap: RowSwap) -> dict[str, str]:
        """capture_id -> the stage that has it, of those captures of a swap that have not come back since."""
        items = await self.ledger.get_capture_items(self.generation, swap.captures)
        batches = await self._find_batches(swap.captures)  # after the items: a capture that came back is in a later one
        return {
            capture_id: item.stage_id
            for capture_id, item in items.items()
            if (batch := batches.get(capture_id)) is not None and batch <= swap.captures[capture_id]
        }

    async def _try_swap(self, table: str, swap: RowSwap, lost: Mapping[str, str]) -> None:
        """Swap the rows in one table, or note why it waits. Raises Retryable if others change the same files each time."""
        # it may be put back to a version that has the rows; but rows that another program removed are brought back in this way
        if table in lost and (swap.removes or await self.log_store.known_loss(table) is None):
            self._waiting[table] = lost[table]
            return
        for _ in ROW_SWAP.rounds:
            try:
                await self._attempt_swap(table, swap)
            except SwapConflict as error:
                conflict = error
                log.info("%s; reading the table again", conflict)
            except (Fatal, TableBlocked, SchemaConflict) as error:
                self._waiting[table] = str(error)
                return
            else:
                self._numbers[table] = swap.number
                return
        if isinstance(conflict, FileGone):
            self._waiting[table] = str(conflict)
            return
        raise Retryable(f"{table}: other programs changed the same files in each attempt: {conflict}") from conflict

    async def _attempt_swap(self, table: str, swap: RowSwap) -> None:
        snapshot = await self.log_store.read_snapshot(table)
        # rule: a table has each swap once
        if snapshot is not None and snapshot.txns.get(SWAPPED, -1) >= swap.txn.version:
            return
        removed, adds = list[str](), swap.adds_of(table)
        if snapshot is None:
            if adds and swap.number not in self._dropped:
                raise Fatal(_missing(table))
            return
        if max(snapshot.txns.get(SWAPPED, 0) - opening_version(self.generation), 0) < self._numbers[table]:
            raise SwapConflict(f"{table} was restored meanwhile")  # it needs earlier swaps first
        ids, own = await self._find_old_rows(swap, snapshot), list[str]()
        changes = swap.number not in self._dropped and (swap.removes or table != SIGHTINGS)
        if changes:
            adds, shared = swap.split_adds(table, ids)
            own = [
                add.path for add in adds if add.path in snapshot.files.live
            ]  # a table that was restored may have them
            removed, kept = await self._copy_other_rows(table, snapshot, ids)
            removed = [path for path in removed if path not in own]
            adds = [*(add for add in adds if add.path not in own), *kept]
            if shared:
                adds += await self._copy_new_rows(table, swap, shared, ids)
        self.runtime.step(f"before swap {table}")
        if not changes or not (removed or adds):
            await self.log_store.commit_transaction(table, swap.txn, "REPLACED")
            return
        if missing := await StageFiles(self.store).find_missing([f"{table}/{add.path}" for add in adds]):
            raise SwapConflict(f"{len(missing)} new files were deleted, for example {missing[0]}")
        files = Swap(
            snapshot=snapshot,
            removed=removed,
            kept=own,
            fences=(SWAPPED,),
            captures=ids,
        )
        await self.log_store.swap_files(table, adds, files, txns=[swap.txn], schema=swap.schema_of(table))

    async def _find_old_rows(self, swap: RowSwap, snapshot: Snapshot) -> set[str]:
        """The captures of whose rows in this snapshot all are older than the swap.

        A content that came back is in a later batch. If the table does not have that batch yet, its rows are the old ones, for
        example after a RESTORE. The batches are asked for after the snapshot is read, so they include those of all its rows.
        """
        batches, done = await self._find_batches(swap.captures), snapshot.txns.get(APP_ID, -1)
        return {
            capture_id
            for capture_id, until in swap.captures.items()
            if (now := batches.get(capture_id, -1)) is None or now <= until or now > done
        }

    async def _copy_other_rows(
        self, table: str, snapshot: Snapshot, ids: Collection[str]
    ) -> tuple[list[str], list[AddFile]]:
        import pyarrow as pa  # this and deltalake: only for lakes whose rows are swapped
        import pyarrow.compute as pc

        from .copy_rows import Copying, require_live

        wanted = pc.field("capture_id").isin(pa.array(sorted(ids), pa.string()))
        copying = Copying.from_snapshot(table, snapshot, wanted, ["capture_id"])
        if self.copy is not None:
            removed, kept = await self.copy(copying)
        else:
            removed, kept = await asyncio.to_thread(copying.copy, self.store, self.lake_config, self.runtime)
        require_live(table, snapshot, removed)
        return removed, kept

    async def _copy_new_rows(
        self, table: str, swap: RowSwap, adds: Sequence[AddFile], ids: Collection[str]
    ) -> list[AddFile]:
        """New files with the rows of these captures in files of a swap."""
        from . import copy_rows

        struct = swap.schema_of(table)
        assert struct is not None, "the table has files of the swap"
        new = copy_rows.NewFiles(table=table, adds=adds, schema=to_arrow_schema(struct))
        return await asyncio.to_thread(new.copy, self.store, ids, self.lake_config, self.runtime)

    async def find_bounds(self, capture_ids: Collection[str]) -> dict[str, int]:
        """capture_id -> the batch up to which its rows are those of now: for `swap`. All are committed to every table.

        A content that is removed and comes back later is in a later batch. Rows of its sightings may be in batches up to head.
        """
        head, batches = await self.ledger.read_head(), await self._find_batches(capture_ids)
        return {capture_id: max(batches.get(capture_id) or 0, head) for capture_id in capture_ids}

    async def _find_batches(self, capture_ids: Collection[str]) -> dict[str, int | None]:
        """capture_id -> its last batch, by the ledger and the manifests; None: it waits for one.

        Batches above head count, too: a rebuilt ledger has many, and one that is an older copy does not know them.
        """
        items = await self.ledger.get_capture_items(self.generation, capture_ids)
        without = {item.stage_id for item in items.values() if item.batch is None}
        stages = await self.ledger.get_stage_items(self.generation, without) if without else {}
        batches = dict[str, int | None]()
        for capture_id, item in items.items():
            stage = stages.get(item.stage_id)
            batch = item.batch if item.batch is not None or stage is None else stage.batch
            batches[capture_id] = -1 if batch is None and item.state == COMMITTED else batch
        number = await self.ledger.read_head() + 1
        while (body := await self.store.get(manifest_path(number))) is not None:
            manifest = Manifest.from_json(body[0])
            for stage_of_batch in manifest.stages if manifest.generation == self.generation else ():
                batches |= {one.capture_id: number for one in stage_of_batch.captures if one.capture_id in capture_ids}
            number += 1
        return batches


async def read_unfinished_stages(store: Store, log_store: LogStore, generation: int) -> list[Stage]:
    """The stages of swaps that a table lacks: nobody else knows of their files."""
    if not await newest_swap(store):
        return []
    # before the records: who finishes a swap meanwhile does no harm
    numbers = await read_swap_numbers(log_store, generation)
    swaps = await read_swaps(store, range(min(numbers.values()) + 1, await newest_swap(store) + 1))
    return [stage for swap in swaps if swap.generation == generation for stage in swap.stages]


def _missing(table: str) -> str:
    return (
        f"the table {table} does not exist. If it was dropped, restore it, or accept the loss with `pcaplake doctor --repair "
        f"--accept-loss {table} --yes`; if it is new in this version, start a worker. Then run this again"
    )


async def read_swap_numbers(log_store: LogStore, generation: int) -> dict[str, int]:
    """table -> the number of the last swap that it has; 0: none in this generation, or the table cannot be read."""

    async def read_number(table: str) -> int:
        try:
            return max(await log_store.read_transaction(table, SWAPPED) - opening_version(generation), 0)
        except TableBlocked:
            return 0

    return {table: await read_number(table) for table in CAPTURES_LAST}
