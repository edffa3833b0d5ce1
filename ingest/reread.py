"""`ingest --reread`: decodes captures of the lake again and swaps their rows, without Spark and beside other processes.

    read      decode some captures into new files, which no table references yet
    note      put the note that these captures are being swapped (swaps.py)
    swap      table by table, `captures` last: one transaction removes the old rows and adds the new ones (swap_rows.py)
    settle    delete the note

A run that is killed leaves the rows of the old or of the new decoding in each table, never both and never none. The ledger does
not change: it records that a capture is in the tables, not how it was decoded. A capture that cannot be read keeps its rows.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from pcaplake.ingest.captures.reference import reference_from_capture
from pcaplake.ingest.captures.source import Sources
from pcaplake.lake.commit.replaced import CAPTURES_LAST
from pcaplake.lake.commit.swap_rows import RowSwapper
from pcaplake.lake.commit.swaps import (
    FOLDER,
    SwapFence,
    delete_outdated_notes,
    delete_run_folder,
    read_notes,
    settle_notes,
    write_note,
)
from pcaplake.lake.lake import Lake
from pcaplake.lake.ledger import COMMITTED
from pcaplake.lake.records import Capture, Stage
from pcaplake.lake.staging.window import Window
from pcaplake.lake.store.store import Store
from pcaplake.lake.table_rows import TableRows
from pcaplake.lake.tables import SCHEMAS, Decoding

from .pipeline import Reader
from .rebuild_files import read_same_content
from .restage import is_lake_failure

_AT_ONCE = 500  # captures whose rows are swapped in one transaction of a table


async def reason_not_to_reread(
    lake: Lake, reader: Reader, decodings: Mapping[str, Decoding], *, accept_loss: bool
) -> str:
    """Why the rows of these captures must not be swapped for those that `reader` gives; "" if they may.

    `accept_loss`: values that only an earlier profile or `--raw` gives may be lost.
    """
    if accept_loss:
        return ""
    if lost := [decoding for decoding in decodings.values() if reader.profile.loses_names_of(decoding.profile)]:
        return (
            f"{len(lost):,} of these captures were read with a profile ({lost[0].profile}), and none is given now: their bus "
            "names and vehicle ids would be lost. Give --profile, or accept the loss with --yes"
        )
    if not reader.raw and await asyncio.to_thread(_have_raw_bytes, lake.store, decodings):
        return (
            "some of these captures were read with --raw: add it, or accept with --yes that column packets.raw is lost"
        )
    return ""


def _have_raw_bytes(store: Store, capture_ids: Collection[str]) -> bool:
    wanted = pc.field("capture_id").isin(pa.array(list(capture_ids), pa.string())) & pc.field("raw").is_valid()
    return any(batch.num_rows for batch in TableRows(store, "packets").read(["capture_id", "raw"], wanted))


@dataclass(slots=True, kw_only=True)
class Rereader:
    """Decodes captures again. `wanted` is asked between captures: when it is False, no other swap begins. `on_read` is called
    once with each capture that was decoded.

    `done`: captures whose rows were swapped. `failed`: URI -> why its rows stay as they are.
    """

    lake: Lake
    sources: Sources
    reader: Reader
    threads: int
    wanted: Callable[[], bool]
    on_read: Callable[[Capture], None] = lambda capture: None
    done: list[Capture] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    async def run(self, captures: Collection[Capture]) -> None:
        """Swap the rows of captures that are committed to every table. Raises as `RowSwapper.swap`."""
        generation = self.lake.generation
        await delete_outdated_notes(self.lake.store, generation)
        # Notes of runs that were killed: their captures may have new rows in some tables only, until a run swaps them in all.
        notes = await read_notes(self.lake.store, generation)
        items = await self.lake.find_captures([capture.capture_id for capture in captures])
        # A capture that is staged and not committed has no rows to swap; its stage will add those of the decoding that staged it.
        ready = [item for item in items.values() if item.state == COMMITTED]
        batches = {item.capture.capture_id: item.batch or 0 for item in ready}
        with ThreadPoolExecutor(self.threads, thread_name_prefix="reread") as pool:
            for start in range(0, len(ready), _AT_ONCE):
                stages = await self._decode([item.capture for item in ready[start : start + _AT_ONCE]], pool)
                if not self.wanted():
                    break
                decoded = [capture for stage in stages for capture in stage.captures]
                if not decoded:
                    continue  # none of these can be read, but perhaps the next ones
                await self._swap(stages, {one.capture_id: batches[one.capture_id] for one in decoded}, generation)
                self.done += decoded
                notes = await settle_notes(self.lake.store, notes, [one.capture_id for one in decoded])

    async def _swap(self, stages: Sequence[Stage], batches: Mapping[str, int], generation: int) -> None:
        lake, step, folder = self.lake, self.lake.runtime.step, f"{FOLDER}/{uuid.uuid4().hex}"
        fence = SwapFence(lake.store, lake.log, generation)
        # An overwrite or another swap that has begun since the captures were chosen would be undone by this one: the fence makes
        # the transactions of these tables fail then.
        await fence.begin()
        step("before reread")
        # from here on, some tables may have the new rows and others the old ones
        await write_note(lake.store, folder, batches, generation)
        step("after reread note")
        swapper = RowSwapper(
            store=lake.store,
            log_store=lake.log,
            lake_config=lake.lake_config,
            fence=fence,
            batches=batches,
            runtime=lake.runtime,
        )
        # `captures` says with which profile and version a capture was read. As the last table, it says so only when all have the
        # new rows, so a run that was killed is repeated.
        for table in CAPTURES_LAST:
            adds = [add for stage in stages for add in stage.adds.get(table, ())]
            await swapper.swap(table, SCHEMAS[table], adds)
            step(f"after reread {table}")
        await delete_run_folder(lake.store, folder)
        step("after reread")

    async def _decode(self, captures: Sequence[Capture], pool: ThreadPoolExecutor) -> list[Stage]:
        """Decode captures into files that no table references -> the stages, which no ledger knows."""
        waiting, stages, read = deque(captures), list[Stage](), set[str]()

        async def decode_into(window: Window) -> None:
            """Until the window is due. The complete captures of a window in which one fails are decoded again."""
            loop = asyncio.get_running_loop()
            try:
                while waiting and self.wanted() and not window.is_due:
                    capture = waiting.popleft()
                    try:
                        opening = self.sources.open_capture_file(reference_from_capture(capture))
                        async with opening as file:
                            await loop.run_in_executor(pool, read_same_content, self.reader, file, capture, window)
                    except Exception as error:  # also errors of the decoder
                        if is_lake_failure(error):
                            raise
                        self.failed[capture.uri] = str(error) or repr(error)
                        waiting.extend(window.abandon())
                        return
                    if capture.capture_id not in read:  # it may be read twice
                        read.add(capture.capture_id)
                        self.on_read(capture)
                if (stage := await loop.run_in_executor(pool, window.close)) is not None:
                    stages.append(stage)
            finally:
                window.abandon()

        async def run_task() -> None:
            while waiting and self.wanted():
                await decode_into(self.lake.window())

        async with asyncio.TaskGroup() as group:
            for _ in range(self.threads):
                group.create_task(run_task())
        return stages
