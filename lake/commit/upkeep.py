"""What the leader of a fleet's lake does beside its batches: it finishes swaps of rows, and removes older contents of objects.

It runs in a task of its own, because a swap may rewrite large files, and batches must not wait for that. Everything can be
interrupted and repeated, and two processes may do it at the same time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from pcaplake.common.errors import PcaplakeError
from pcaplake.common.runtime import Runtime
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.current_captures import find_contents, find_uris_with_several_contents
from pcaplake.lake.lake_parts import LakeParts
from pcaplake.lake.ledger import Removals

from .manifests import Manifests
from .removals import find_last_batch, find_older_contents, finish_removals, remove_captures
from .swaps import Swaps

LOOK_SECONDS = 60.0  # between two looks for older contents, if batches were committed
FINISH_SECONDS = 600.0  # between two looks for swaps that another process has left
_MOST_BATCHES = 1_000  # whose manifests are read; if there are more, all captures are looked at
log = logging.getLogger(__name__)


class Upkeep:
    """Of one lake. `run_if_due` when this process leads. `may_remove`: whether every table can be written, as far as is known."""

    def __init__(
        self,
        parts: LakeParts,
        manifests: Manifests,
        *,
        lake_config: LakeConfig,
        runtime: Runtime,
        may_remove: Callable[[], bool],
    ) -> None:
        self._parts, self._manifests, self._lake_config, self._runtime = parts, manifests, lake_config, runtime
        self._may_remove = may_remove
        self._replaces = lake_config.changed_captures == "replace"
        self._looked_at, self._has_batches = float("-inf"), True
        self._task: asyncio.Task[None] | None = None
        # a ledger that was rebuilt does not know which contents were seen again; the tables do, up to head
        self._needed: int | None = None

    def note_batch(self) -> None:
        """A batch is in every table."""
        self._has_batches = True

    def run_if_due(self) -> None:
        """Begin, if it is time. Does nothing for a lake of one machine, whose commands do this themselves."""
        if not isinstance(self._parts.ledger, Removals) or (self._task is not None and not self._task.done()):
            return
        passed = self._runtime.clock() - self._looked_at
        if passed >= (LOOK_SECONDS if self._replaces and self._has_batches else FINISH_SECONDS):
            self._looked_at = self._runtime.clock()
            self._task = asyncio.create_task(self._run_and_log())

    async def stop(self) -> None:
        """The next leader goes on."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run_and_log(self) -> None:
        try:
            await self.run()
        except PcaplakeError as error:
            self._has_batches = True
            self._runtime.meter.count("upkeep_failures")
            log.warning("rows of older contents are not removed yet: %s; trying again", error)
        except Exception:
            self._has_batches = True
            self._runtime.meter.count("upkeep_failures")
            log.exception("rows of older contents are not removed yet; trying again")

    async def run(self) -> None:
        """Once. Raises as `remove_captures`."""
        parts = self._parts
        swaps = Swaps(
            store=parts.store,
            log_store=parts.log_store,
            ledger=parts.ledger,
            generation=await parts.current.reload_generation(),
            lake_config=self._lake_config,
            runtime=self._runtime,
        )
        self._has_batches = False
        await finish_removals(swaps)
        if not self._replaces or not isinstance(parts.ledger, Removals):
            return
        if not self._may_remove():
            self._has_batches = True
            return
        head = await parts.ledger.read_head()
        if self._needed is None:
            self._needed = await find_last_batch(parts.store, head)
        if head < self._needed:
            self._has_batches = True
            return
        uris = await self._find_uris(await parts.ledger.read_followed(), head, swaps.generation)
        plan = await find_older_contents(parts.ledger, swaps.generation, await find_contents(parts.store, uris))
        items = [item for older in plan.older.values() for item in older]
        if items:
            removed = await remove_captures(swaps, items)
            self._runtime.meter.count("captures_removed", len(removed))
            log.info(
                "older contents removed",
                extra={
                    "captures": len(removed),
                    "rows": sum(item.capture.rows for item in items if item.capture.capture_id in removed),
                    "uris": ", ".join(sorted(plan.older)[:5]),
                    "lake": parts.store.uri,
                },
            )
        # last: a process that dies before leaves them to the next one
        await parts.ledger.write_followed(head)

    async def _find_uris(self, followed: int | None, head: int, generation: int) -> set[str]:
        """The URIs of which a content was committed or seen again since the batch `followed`; None: all with several."""
        if head < 0:
            return set()
        if followed is None or head - followed > _MOST_BATCHES:
            return await find_uris_with_several_contents(self._parts.store)
        uris = set[str]()
        for batch in range(followed + 1, head + 1):
            manifest = await self._manifests.require(batch)
            self._manifests.forget(batch)
            if manifest.generation == generation:
                uris |= {capture.uri for stage in manifest.stages for capture in stage.captures}
        return uris
