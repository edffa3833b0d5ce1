"""`ingest --reread`, and Spark's `replace`: decodes captures of the lake again and swaps their rows, beside other processes.

Some captures at a time are decoded into files that no table references yet, and then their rows are swapped
(`lake.commit.swaps`). A run that is killed leaves the rows of the old or of the new decoding in each table, and the next
process that opens the lake swaps the others. The ledger does not change: it records that a capture is in the tables, not how it
was decoded. A capture that cannot be read keeps its rows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from pcaplake.ingest.captures.reference import reference_from_capture
from pcaplake.ingest.captures.source import Sources
from pcaplake.lake.lake import Lake
from pcaplake.lake.ledger import COMMITTED
from pcaplake.lake.records import Capture, Stage
from pcaplake.lake.staging.window import Window
from pcaplake.lake.store.store import Store
from pcaplake.lake.table_rows import TableRows
from pcaplake.lake.tables import Decoding

from .pipeline import Reader
from .rebuild_files import read_same_content
from .restage import is_lake_failure

AT_ONCE = 500  # captures whose rows are swapped in one transaction of a table


async def reason_not_to_reread(
    lake: Lake, readers: Mapping[str, Reader], decodings: Mapping[str, Decoding], *, accept_loss: bool
) -> str:
    """Why the rows of these captures must not be swapped for those that `readers` give, both by capture_id; "" if they may.

    `accept_loss`: values that only an earlier profile or `--raw` gives may be lost.
    """
    if accept_loss:
        return ""
    if lost := [
        one for capture_id, one in decodings.items() if readers[capture_id].profile.loses_names_of(one.profile)
    ]:
        return (
            f"{len(lost):,} of these captures were read with a profile ({lost[0].profile}), and none is given now: their bus "
            "names and vehicle ids would be lost. Give --profile, or accept the loss with --yes"
        )
    without = [capture_id for capture_id, reader in readers.items() if not reader.raw]
    had_raw: bool = await asyncio.to_thread(_have_raw_bytes, lake.store, without) if without else False
    if had_raw:
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
    reader_of: Callable[[Capture], Reader]
    threads: int
    wanted: Callable[[], bool]
    on_read: Callable[[Capture], None] = lambda capture: None
    done: list[Capture] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    async def run(self, captures: Collection[Capture]) -> None:
        """Swap the rows of captures that are committed to every table. Raises as `Swaps.swap`."""
        swaps = self.lake.swaps()
        since = await swaps.finish()
        items = await self.lake.find_captures([capture.capture_id for capture in captures])
        # A capture that is staged and not committed has no rows to swap; its stage will add those of the decoding that staged it.
        ready = [item for item in items.values() if item.state == COMMITTED]
        bounds = await swaps.find_bounds([item.capture.capture_id for item in ready])
        with ThreadPoolExecutor(self.threads, thread_name_prefix="reread") as pool:
            for start in range(0, len(ready), AT_ONCE):
                some = [item.capture for item in ready[start : start + AT_ONCE]]
                again = DecodeAgain(self.sources, self.reader_of, self.lake.window, pool, self.wanted, self.on_read)
                stages = await again.run(some, self.threads)
                self.failed |= {uri: str(error) or repr(error) for uri, error in again.failed.items()}
                if not self.wanted():
                    break
                decoded = [capture for stage in stages for capture in stage.captures]
                if not decoded:
                    continue  # none of these can be read, but perhaps the next ones
                await swaps.swap({one.capture_id: bounds[one.capture_id] for one in decoded}, stages, since=since)
                self.done += decoded


@dataclass(slots=True)
class DecodeAgain:
    """Decodes captures into files that no table references. `failed`: URI -> why a capture cannot be decoded.

    `wanted` is asked between captures; `on_read` is called once with each capture that was decoded.
    """

    sources: Sources
    reader_of: Callable[[Capture], Reader]
    new_window: Callable[[], Window]
    pool: ThreadPoolExecutor
    wanted: Callable[[], bool] = lambda: True
    on_read: Callable[[Capture], None] = lambda capture: None
    failed: dict[str, Exception] = field(default_factory=dict)

    async def run(self, captures: Iterable[Capture], tasks: int) -> list[Stage]:
        """The stages, which no ledger knows. `tasks`: windows that are filled at the same time. Raises if the lake fails."""
        waiting, stages, read = deque(captures), list[Stage](), set[str]()

        async def run_task() -> None:
            while waiting and self.wanted():
                await self._decode_into(self.new_window(), waiting, stages, read)

        async with asyncio.TaskGroup() as group:
            for _ in range(tasks):
                group.create_task(run_task())
        return stages

    async def _decode_into(self, window: Window, waiting: deque[Capture], stages: list[Stage], read: set[str]) -> None:
        """Until the window is due. The complete captures of a window in which one fails are decoded again."""
        loop = asyncio.get_running_loop()
        try:
            while waiting and self.wanted() and not window.is_due:
                capture = waiting.popleft()
                reader = self.reader_of(capture)
                try:
                    async with self.sources.open_capture_file(reference_from_capture(capture)) as file:
                        await loop.run_in_executor(self.pool, read_same_content, reader, file, capture, window)
                except Exception as error:  # also errors of the decoder
                    if is_lake_failure(error):
                        raise
                    self.failed[capture.uri] = error
                    waiting.extend(window.abandon())
                    return
                if capture.capture_id not in read:  # it may be read twice
                    read.add(capture.capture_id)
                    self.on_read(capture)
            if (stage := await loop.run_in_executor(self.pool, window.close)) is not None:
                stages.append(stage)
        finally:
            window.abandon()
