"""The committer: puts stages into batches and commits each batch to every table. Steps as in docs/exactly-once.md.

    1 recover   2 compose   3a manifest put   3b stages marked   4 commit, table by table   5 flag   6 advance

Any process may run one. Safety rests on three facts: a capture is in one stage (the ledger's condition), a stage is in
one manifest (marked before the next is composed, and a manifest is put if absent), a manifest is in a table once (`txn`).
The lease only keeps two processes from doing the same work. Ages are differences of the store's time, never of a local
clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

import pyarrow as pa

from pcaplake.common import retry
from pcaplake.common.errors import Retryable
from pcaplake.common.plain_text import counted
from pcaplake.common.runtime import Runtime
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.lake_parts import LakeParts
from pcaplake.lake.records import Manifest
from pcaplake.lake.staging.stage_files import StageFiles

from .blocked_tables import BlockedTables
from .capture_source import Source
from .checkpoints import CheckpointScheduler
from .committable_files import CommittableFiles
from .compose import Composer
from .history import describe_loss, extend_last_batches
from .lease import Leadership
from .manifests import Manifests
from .progress import Progress
from .recovery import Recovery
from .swap_records import LastSwap
from .table_commits import TableCommits
from .upkeep import Upkeep

FLUSH_POLL_SECONDS = 0.02
LONGEST_IDLE = 0.5  # seconds between polls while nothing waits, or `max_batch_age` if that is longer
LONGEST_PAUSE = 5.0  # seconds between polls, even when `max_batch_age` is longer
RELEASE_SECONDS = 1.0  # at least, to release the lease
_STEPS = {  # as metrics name them
    "commit.1": "recover",
    "commit.2": "compose",
    "commit.3a": "manifest",
    "commit.3b": "mark",
    "commit.4": "commit",
    "commit.5": "flag",
    "commit.6": "advance",
}
_NO_PROGRESS = ("commit.1", "commit.2", "commit.4")  # they succeed even when nothing can be written
log = logging.getLogger(__name__)


class Committer:
    """Commits the stages of one lake while `run` runs and this process leads.

    `flush_now`: close each batch at once. `stop_timeout`: seconds that running checkpoints get when `run` is canceled,
    then they are stopped; None: no limit.
    """

    def __init__(
        self,
        parts: LakeParts,
        source: Source,
        *,
        tables: Mapping[str, pa.Schema],
        lake_config: LakeConfig,
        runtime: Runtime,
    ) -> None:
        self._store, self._ledger = parts.store, parts.ledger
        self._current, self._source, self._lake_config = parts.current, source, lake_config
        self._clock, self._rng, self._meter, self._step = runtime.clock, runtime.rng, runtime.meter, runtime.step
        self._leadership = Leadership(
            parts.ledger,
            lake=parts.store.uri,
            owner=f"{runtime.rng.getrandbits(64):016x}",
            timeout=lake_config.lease_timeout,
            closely=lake_config.only_commits,
            clock=runtime.clock,
        )
        self._files = StageFiles(parts.store)
        self._composer = Composer(
            parts,
            self._files,
            source.find_unreadable,
            schemas=tables,
            lake_config=lake_config,
            timed_step=self._timed_step,
            runtime=runtime,
        )
        self._poll = self._idle = min(lake_config.max_batch_age / 10, 1.0)
        self._waited = False  # did the last poll find pending stages, which are still pending?
        self._wake = asyncio.Event()
        self._turn_began = self._clock()
        self._composed_at: dict[int, float] = {}  # open batches that this process composed
        self._failing_since: float | None = None  # when the first failed turn since the last progress began
        self.failure: Retryable | None = None  # of the last turn, None if it succeeded
        self.flush_now = False
        self.stop_timeout: float | None = None
        self.checkpoints = CheckpointScheduler(parts.log_store, lake_config.checkpoint_interval, runtime.meter)
        self._progress = Progress(tables=frozenset(tables))
        self._manifests, self._last_swap = Manifests(parts.store), LastSwap(parts.store, parts.ledger)
        self._blocked = BlockedTables(
            parts.log_store,
            describe_loss=partial(describe_loss, self._manifests.load),
            clock=runtime.clock,
            meter=runtime.meter,
        )
        self._recovery = Recovery(
            parts, self._manifests, progress=self._progress, blocked=self._blocked, own_tables=tables
        )
        self._table_commits = TableCommits(
            parts,
            self._manifests,
            CommittableFiles(parts, self._files, source, self._progress),
            progress=self._progress,
            blocked=self._blocked,
            schemas=tables,
            checkpoints=self.checkpoints,
            timed_step=self._timed_step,
        )
        self.upkeep = Upkeep(
            parts,
            Manifests(parts.store),
            lake_config=lake_config,
            runtime=runtime,
            may_remove=lambda: not self.blocked,
        )

    @property
    def blocked(self) -> dict[str, str]:
        """Table -> why it cannot be written."""
        return self._blocked.reasons

    def retry_blocked_tables(self) -> None:
        """Something was repaired: the next commits block the tables again that still cannot be written."""
        self._blocked.retry_all()

    @property
    def seconds_since_turn(self) -> float:
        """Seconds since the last turn began, as the leader or as a follower."""
        return self._clock() - self._turn_began

    @property
    def seconds_failing(self) -> float:
        """Seconds for which turns have failed without progress; 0 after a turn that succeeded."""
        return 0.0 if self._failing_since is None else self._clock() - self._failing_since

    @property
    def is_leading(self) -> bool:
        """Whether this process leads, as far as it knows."""
        return self._leadership.is_leading

    async def run(self) -> None:
        """Take the lease when it is free, and then make turn after turn. Ends by cancellation or with Fatal."""
        failures = 0
        beating = asyncio.create_task(self._leadership.send_heartbeats())
        try:
            while True:
                self._turn_began = self._clock()
                self._wake.clear()  # this turn may not see what is staged from here on
                self._publish_gauges()
                try:
                    if await self._leadership.try_to_lead(self._on_lease_taken):
                        await self.run_turn()
                        self.upkeep.run_if_due()
                    failures, self.failure, self._failing_since = 0, None, None
                    await self._sleep_until_next_poll()
                except Retryable as error:
                    self._progress.batch = None
                    failures, self.failure = failures + 1, error
                    if self._failing_since is None:
                        self._failing_since = self._turn_began
                    self._meter.count("committer_failures")
                    log.warning("commit failed: %s; trying again", error)
                    await asyncio.sleep(retry.COMMITTER_TURN.pause(failures, self._rng.uniform))
        finally:
            beating.cancel()
            await self.upkeep.stop()
            await asyncio.gather(beating, return_exceptions=True)
            until = None if self.stop_timeout is None else asyncio.get_running_loop().time() + self.stop_timeout
            # A checkpoint may take minutes on a large table. The next leader must not wait for it, so the lease goes first.
            await self._release_lease()  # before the checkpoints, which need no lease
            self._publish_gauges()
            await self.checkpoints.finish_or_cancel(until)

    def wake(self) -> None:
        """A stage was staged in this process: poll now, unless other stages are pending and a poll is due anyway."""
        if self.flush_now or not self._has_waiting_stages:
            self._wake.set()

    @property
    def _has_waiting_stages(self) -> bool:
        """Whether the last poll as the leader found pending stages."""
        return self.is_leading and self._composer.has_waiting_stages

    async def _sleep_until_next_poll(self) -> None:
        """Sleep until the next poll. Intervals grow, because polls cost requests, but never delay a batch."""
        if not (self.is_leading or self.flush_now):
            await self._sleep_until_next_look()
            return
        waits, longest = self._has_waiting_stages, max(self._lake_config.max_batch_age, LONGEST_IDLE)
        if waits:
            longest = max(self._lake_config.max_batch_age - self._composer.oldest_wait_seconds, self._poll)
        # New stages are polled for once more soon: if no other has come until then, the batch closes without waiting for its age.
        soon = self._progress.open or (waits and not self._waited)
        self._idle = self._poll if soon else min(1.5 * self._idle, longest, LONGEST_PAUSE)
        self._waited = waits
        with suppress(TimeoutError):  # `wait_for` of Python 3.11 may swallow a cancellation
            async with asyncio.timeout(FLUSH_POLL_SECONDS if self.flush_now else self._idle):
                await self._wake.wait()

    async def _sleep_until_next_look(self) -> None:
        """Sleep until the next look at the lease, which comes earlier when this process stages something."""
        loop, leadership = asyncio.get_running_loop(), self._leadership
        look_at = loop.time() + leadership.seconds_to_next_look(rows_wait=self._wake.is_set())
        self._wake.clear()
        while loop.time() < look_at and not self.flush_now:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(look_at):
                    await self._wake.wait()
                self._wake.clear()
                look_at = min(look_at, loop.time() + leadership.seconds_to_next_look(rows_wait=True))

    async def _release_lease(self) -> None:
        """Release the lease; it expires by itself if that takes too long."""
        timeout = None if self.stop_timeout is None else max(self.stop_timeout, RELEASE_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._leadership.release_lease()

    def _publish_gauges(self) -> None:
        """Set the gauges: what this process knows as the leader, 0 as a follower."""
        lake, leading = self._store.uri, self.is_leading
        self._meter.set("leader", leading, lake=lake)
        self._meter.set(
            "oldest_pending_stage_age_seconds", self._composer.oldest_wait_seconds if leading else 0, lake=lake
        )
        self._meter.set("batches_open", len(self._progress.open) if leading else 0, lake=lake)
        self._meter.set("stages_held", self._composer.held if leading else 0, lake=lake)
        self._meter.set("tables_blocked", len(self.blocked) if leading else 0, lake=lake)

    async def _on_lease_taken(self) -> None:
        self._progress.batch = None
        await self._ledger.release_held_stages(self._current.generation)

    async def run_turn(self) -> None:
        """Recover if necessary, compose one batch, and commit all batches above head as far as possible."""
        if self._progress.batch is None:
            await self._recover_state()
        manifest = await self._compose_batch()
        self._waited = self._waited and manifest is None
        if manifest is not None and manifest.opens:
            self._blocked.retry_all()  # it replaces the rows, whatever happened to them
        if manifest is not None and not await self._persist_manifest(manifest):
            await self._recover_state()
        if self._progress.open or self._progress.tables_behind_head:
            await self._commit_open_batches()
        if self.blocked:
            await self._blocked.check_tables(
                except_for=self._progress.tables_behind_head.union(*self._progress.open.values())
            )
        await self._composer.count_held_stages()

    # 1
    async def _recover_state(self) -> None:
        with self._timed_step("commit.1"):
            await self._recovery.recover_state()

    # 2
    async def _compose_batch(self) -> Manifest | None:
        assert self._progress.batch is not None
        manifest = await self._composer.compose_batch(
            after=self._progress.batch,
            generation=self._progress.generation,
            tables=self._progress.tables,
            flush_now=self.flush_now,
        )
        head = min(self._progress.open, default=self._progress.batch + 1) - 1
        return manifest and replace(
            manifest, last_batches=extend_last_batches(self._progress.last, manifest), head=head
        )

    # 3
    async def _persist_manifest(self, manifest: Manifest) -> bool:
        """Put the manifest and mark its stages. False: another leader put this batch; read that one instead."""
        # If an answer is lost, nobody knows whether the manifest is there. The next turn then recovers, which reads it and marks
        # its stages, instead of composing the same stages again.
        self._progress.batch = None  # until both steps are known to have happened
        with self._timed_step("commit.3a"):
            if not await self._manifests.put_if_absent(manifest):
                return False
        with self._timed_step("commit.3b"):
            await self._ledger.mark_batch_stages(manifest)
        if manifest.stages:
            self._meter.observe("batch_bytes", sum(stage.byte_count for stage in manifest.stages))
        self._composed_at[manifest.batch] = self._clock()
        self._manifests.keep(manifest)
        self._progress.add_batch(manifest)
        return True

    # 4, 5, 6
    async def _commit_open_batches(self) -> None:
        # batches whose returned captures could not be announced: head waits, tables do not
        owed: dict[int, Retryable] = {}
        for batch in sorted(self._progress.open.keys() - self._progress.given_back):
            try:
                # rule: returned captures are announced or staged again
                await self._return_captures(batch)
            except Retryable as not_given_back:
                owed[batch] = not_given_back
        tables = self._blocked.select_due(
            self._progress.tables_lacking_open_batches | self._progress.tables_behind_head
        )
        if tables:
            with self._timed_step("commit.4"):
                store_now, swapped = await self._files.read_store_clock(), await self._last_swap.read_transaction()
                if self._progress.sees_since is None:
                    self._progress.sees_since = store_now
                # Tables are independent: one that is slow or blocked must not keep new rows from the readers of the others.
                results = await asyncio.gather(
                    *(self._table_commits.commit_table(table, store_now, swapped) for table in tables),
                    return_exceptions=True,
                )
                for error in results:
                    if error is not None:
                        raise error
        for batch, touched in sorted(self._progress.open.items()):
            if (
                # rule: head waits until returned captures are announced or staged again
                batch in owed or not self._progress.is_in_all_tables(batch, touched)
            ):
                break
            manifest = await self._manifests.require(batch)
            with self._timed_step("commit.5"):
                await self._ledger.flag_batch_committed(manifest)
            with self._timed_step("commit.6"):
                moved = await self._ledger.advance_head(batch)
            if not moved:  # another process leads too, or head was lost: recover from the manifests
                self._progress.batch = None
                return
            self._progress.finish_batch(manifest)
            self.upkeep.note_batch()
            self._manifests.forget(batch)
            self._log_committed_batch(manifest)
        for first in owed.values():
            raise first

    def _log_committed_batch(self, manifest: Manifest) -> None:
        captures = [capture for stage in manifest.stages for capture in stage.captures if not capture.is_sighting]
        # Only this process's own clock is used, so a batch that another leader composed has no duration.
        composed_at = self._composed_at.get(manifest.batch)
        # another leader may have finished batches before this one
        self._composed_at = {batch: at for batch, at in self._composed_at.items() if batch > manifest.batch}
        log.info(
            "batch committed",
            extra={
                "batch": manifest.batch,
                "captures": len(captures),
                "rows": sum(capture.rows for capture in captures),
                "seconds": None if composed_at is None else round(self._clock() - composed_at, 3),
                "stages": len(manifest.stages),
                "returned": len(manifest.returned),
                "tables": len(manifest.touched_tables),
                "lake": self._store.uri,
            },
        )

    async def _return_captures(self, batch: int) -> None:
        """Delete the captures of returned stages from the ledger, and then have them read again.

        They are not read again when an overwrite has begun since: it replaces their rows.
        """
        manifest = await self._manifests.require(batch)
        if manifest.returned:
            # rule: returned captures leave the ledger before they are announced
            captures = await self._ledger.unstage_returned_captures(manifest)
            if captures and await self._current.reload_generation() <= manifest.generation:
                self._meter.count("captures_returned", len(captures))
                log.warning("%s of batch %d must be read again", counted(len(captures), "capture"), batch)
                await self._source.replay_captures(captures)
        self._progress.given_back.add(batch)

    @property
    def is_stuck(self) -> bool:
        """Whether all remaining work is in blocked tables."""
        left = self._progress.tables_lacking_open_batches
        return self._progress.batch is not None and bool(left) and self._blocked.are_blocked(left)

    @contextmanager
    def _timed_step(self, name: str) -> Iterator[None]:
        self._step(f"before {name}")
        started = self._clock()
        yield
        if name not in _NO_PROGRESS:
            self._failing_since = None
        if name in _STEPS:
            self._meter.observe("step_seconds", self._clock() - started, step=_STEPS[name])
        self._step(f"after {name}")
