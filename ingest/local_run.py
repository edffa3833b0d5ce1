"""One run of `pcaplake ingest`: captures are staged by `CaptureStager`, and the lake's committer brings them into the tables.

A capture is always in one of three places: not yet read (the next run finds it again), staged (any run commits it), or in
the tables. Therefore a run that is killed needs no repair, only another run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.common.plain_text import counted
from pcaplake.common.retry import CAPTURE_FILE
from pcaplake.ingest.captures.discovery import counts_by_name
from pcaplake.ingest.captures.range_reader import FetchConfig
from pcaplake.ingest.captures.reference import ObjectRef, reference_from_capture
from pcaplake.ingest.captures.source import Sources
from pcaplake.lake.commit.removals import finish_removals
from pcaplake.lake.commit.swap_records import find_half_swapped
from pcaplake.lake.lake import Lake, LedgerTimeout
from pcaplake.lake.ledger import Removals
from pcaplake.lake.missing_rows import find_lost_captures
from pcaplake.lake.records import SIGHTINGS, Capture
from pcaplake.lake.staging.window import MAX_CAPTURES
from pcaplake.lake.tables import SCHEMAS, Decoding, read_decodings
from pcaplake.parser import Summary

from .pipeline import QUARANTINED, Reader
from .rebuild_files import CaptureSource
from .restage import is_lake_failure, restage_captures
from .stage_sightings import see_contents
from .stager import CaptureStager, Outcome, Request, Result, StagerConfig

OPEN_CAPTURES = 2  # for each thread: one is being read, and the next is ready
EARLIER = "in an earlier run; the table quarantine has the reason"
log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts and names of a run so far. `captures`: read in this run, including those that are quarantined."""

    captures: int = 0
    already_ingested: int = 0
    quarantined: int = 0
    ignored: list[str] = field(default_factory=list)  # URIs of files that do not count as captures
    packets: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)  # uri -> why
    bad: dict[str, str] = field(default_factory=dict)  # quarantined captures, also of earlier runs: uri -> why
    changed: list[str] = field(default_factory=list)  # URIs read in this run of which the lake has another content, too
    replaced: list[str] = field(default_factory=list)  # URIs whose other contents were removed
    other_profile: int = 0  # captures that were in the lake, and that another profile or version has decoded
    other_version: int = 0
    two_decodings: list[str] = field(
        default_factory=list
    )  # URIs of such captures whose tables may have rows of two decodings
    reread: int = 0  # captures whose rows were swapped
    not_reread: str = ""  # why none was
    total: int = 0  # captures, and the bytes to read
    total_bytes: int = 0
    read_bytes: int = 0
    unstaged_rows: int = 0  # decoded rows of captures that are not staged yet
    kept: str = ""  # why an overwrite replaced nothing


class Ingest:
    """One run. `source` reads captures again for the committer. `stop` may be called at any time."""

    def __init__(
        self,
        sources: Sources,
        reader: Reader,
        *,
        threads: int,
        replace_changed: bool = False,
        reread: bool = False,
        accept_loss: bool = False,
        reader_of: Callable[[str], Reader | None] | None = None,
    ) -> None:
        """`reader_of`: by URI, the reader of a capture instead of `reader`; None only for URIs that no run names.

        `replace_changed`: at the end, remove other contents of the captures that this run read or found in the lake.

        `reread`: swap the rows of captures that another profile or version has read. `accept_loss`: also if that loses values.
        """
        self.tally = Tally()
        self.stopped = False
        self._sources, self._reader, self._threads = sources, reader, threads
        self._readers: Callable[[str], Reader | None] = reader_of or (lambda uri: reader)
        self._replace_changed, self._reread, self._accept_loss = replace_changed, reread, accept_loss
        fetch_config = FetchConfig(eager=False)
        self._stager = CaptureStager(
            sources, StagerConfig(threads=threads, fetch_config=fetch_config, max_open=OPEN_CAPTURES * threads)
        )
        self.source = CaptureSource(sources, self._readers, self._restage_captures, fetch_config=fetch_config)
        self._waiting: deque[ObjectRef] = deque()
        self._attempts: Counter[str] = Counter()
        self._contents: dict[str, str] = {}  # uri -> capture_id of captures that are in the lake and not quarantined
        self._read_uris: set[str] = set()
        # by URI: captures that are in the lake, with the times of their objects now
        self._seen: dict[str, Capture] = {}
        self._known: dict[str, Capture] = {}  # by capture_id: captures that were in the lake before
        self._lake_failed_at: float | None = None
        self._restaged = False  # did `_restage_captures` stage something since the lake was last drained?
        self._lake: Lake

    def stop(self) -> None:
        """Read no more captures; those that are complete are staged and committed."""
        self.stopped = True

    async def run(self, lake: Lake, refs: Iterable[ObjectRef]) -> None:
        """Read and stage captures, and wait until everything staged is in the tables. Raises Fatal as the lake does."""
        self._lake = self.source.lake = lake
        if isinstance(lake.ledger, Removals):  # a lake of one machine has finished its swaps when it is opened
            await finish_removals(lake.swaps())
        self._waiting.extend(refs)
        self.tally.total = sum(map(counts_by_name, self._waiting))
        self.tally.total_bytes = sum(ref.size for ref in self._waiting)
        try:
            async with asyncio.TaskGroup() as group:
                decoding = group.create_task(self._stager.decode_pool.run())
                await self._stage_waiting_captures()
                await self._commit_staged_captures()
                await self._stager.decode_pool.close()
                await decoding
        except BaseExceptionGroup as group_error:
            error: BaseException = group_error
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            raise error from group_error
        finally:
            self.stopped = True

    async def _commit_staged_captures(self) -> None:
        if self._lake.is_overwrite:
            self.tally.kept = self._reason_not_to_replace()
            if self.tally.kept:
                return
            await self._lake.replace_all()
        elif self._reread and not self.stopped:
            await self._lake.swaps().finish()
            await self._reread_lost_captures()
        await self._drain_until_settled()
        current = dict[str, str]()
        try:
            current = await self._see_current_contents()
        except Retryable as error:  # everything is in the tables
            log.warning("it is not known whether the lake has other contents of these captures: %s", error)
        outdated = await self._compare_decodings()
        if self._replace_changed and not self.stopped:
            # without those of which another run has read a newer content
            keep = {uri: capture_id for uri, capture_id in self._contents.items() if current.get(uri) == capture_id}
            replaced = await self._lake.remove_other_contents(keep)
            self.tally.replaced = sorted(replaced)
            self.tally.changed = [uri for uri in self.tally.changed if uri not in replaced]
        if self._reread and outdated and not self.stopped:
            await self._reread_captures(outdated)

    async def _see_current_contents(self) -> dict[str, str]:
        """Record which of several contents an object has now, if the tables do not say so -> URI -> capture_id of these."""
        several = await self._lake.uris_with_other_contents(self._seen)
        self.tally.changed = sorted(several & self._read_uris)
        seen = {uri: self._seen[uri] for uri in several}
        if not seen:
            return {}
        current, staged = await see_contents(self._lake, self._sources, seen, self._vehicle_id_of)
        self.tally.rows[SIGHTINGS] += staged
        if staged:
            await self._drain_until_settled()
        return current

    async def _compare_decodings(self) -> dict[str, Decoding]:
        """capture_id -> decoding, of captures that were in the lake and that must be reread to be as this run reads them.

        The table `captures` also knows better than the ledger which of them are quarantined, because rows may be swapped.
        """
        try:
            decodings = await read_decodings(self._lake.store, self._known)
            half = await find_half_swapped(self._lake.store, self._lake.generation) if decodings else {}
        except (OSError, Retryable) as error:  # everything is in the tables
            log.warning("it is not known with which profile the captures in the lake were read: %s", error)
            return {}
        outdated = {}
        self.tally.other_profile = self.tally.other_version = 0
        self.tally.two_decodings = sorted(half[capture_id] for capture_id in half.keys() & decodings.keys())
        for capture_id, decoding in decodings.items():
            known = self._known[capture_id]
            if decoding.outcome != known.outcome:
                if decoding.outcome == QUARANTINED:
                    self.tally.bad[known.uri] = EARLIER
                else:
                    del self.tally.bad[known.uri]
                self._known[capture_id] = replace(known, outcome=decoding.outcome)
            differs = (
                not self._reader_of(known.uri).profile.is_recorded_as(decoding.profile),
                decoding.decoder_version != self._reader.decoder_version,
            )
            self.tally.other_profile += differs[0]
            self.tally.other_version += differs[1]
            if any(differs) or capture_id in half:
                outdated[capture_id] = decoding
        return outdated

    async def _reread_lost_captures(self) -> None:
        """Read captures of this run again whose rows another program has removed, and unblock tables that are then complete."""
        lake = self._lake

        async def find_lost() -> set[str]:
            lost = await find_lost_captures(lake.store, lake.log, lake.ledger, lake.generation, SCHEMAS)
            return {one.capture_id for missing in lost.values() for one in missing} & self._known.keys()

        if lost := await find_lost():
            decodings = await read_decodings(lake.store, lost)
            await self._reread_captures({capture_id: decodings.get(capture_id) for capture_id in lost})
            if self.tally.not_reread:
                log.warning("captures that lack rows are not read again: %s", self.tally.not_reread)
            for uri, why in self.tally.failed.items():
                log.warning("not read again: %s: %s", uri, why)
            await find_lost()
        await lake.swaps().finish()  # a table that was recorded as complete begins with the first swap again
        lake.committer.retry_blocked_tables()

    async def _reread_captures(self, outdated: Mapping[str, Decoding | None]) -> None:
        from .reread import Rereader, reason_not_to_reread

        known = {capture_id: decoding for capture_id, decoding in outdated.items() if decoding is not None}
        readers = {capture_id: self._reader_of(self._known[capture_id].uri) for capture_id in known}
        why = await reason_not_to_reread(self._lake, readers, known, accept_loss=self._accept_loss)
        if why:
            self.tally.not_reread = why
            return
        captures = [self._known[capture_id] for capture_id in outdated]
        self.tally.total_bytes += sum(capture.size for capture in captures)
        rereader = Rereader(
            lake=self._lake,
            sources=self._sources,
            reader_of=lambda capture: self._reader_of(capture.uri),
            threads=self._threads,
            wanted=lambda: not self.stopped,
            on_read=self._count_reread_capture,
        )
        await rereader.run(captures)
        self.tally.reread += len(rereader.done)
        self.tally.failed |= rereader.failed
        await self._compare_decodings()

    def _reader_of(self, uri: str) -> Reader:
        """The reader of a capture of this run."""
        return self._readers(uri) or self._reader

    def _vehicle_id_of(self, uri: str) -> str | None:
        return self._reader_of(uri).profile.vehicle_id_of(uri)

    def _count_reread_capture(self, capture: Capture) -> None:
        self.tally.read_bytes += capture.size

    async def _drain_until_settled(self) -> None:
        """Drain the lake, until the committer has had no more captures read again meanwhile."""
        self._restaged = True
        while self._restaged:
            self._restaged = False
            await self._lake.drain()

    def _reason_not_to_replace(self) -> str:
        """Why the captures of this run must not replace the rows of the lake; "" if they may."""
        if self.stopped:
            return "it was stopped before all was read"
        if self.tally.failed:
            return f"{counted(len(self.tally.failed), 'capture')} could not be read"
        if self.tally.captures == self.tally.quarantined:
            return "no capture was read"
        return ""

    # -- captures to read -----------------------------------------------------------------------------------------
    async def _stage_waiting_captures(self) -> None:
        """Stage all captures that wait, in tasks. Each task waits for its window: enough tasks fill two windows a thread."""
        tasks = min(self._threads * 2 * (MAX_CAPTURES + OPEN_CAPTURES), len(self._waiting))
        async with asyncio.TaskGroup() as group:
            committer = group.create_task(self._watch_committer())
            staging = [group.create_task(self._run_task()) for _ in range(tasks)]
            if staging:
                await asyncio.wait(staging)
            committer.cancel()

    async def _watch_committer(self) -> None:
        """Raise the error that ended the committer, if one does."""
        while True:
            self._lake.raise_if_stopped()
            await asyncio.sleep(0.5)

    async def _run_task(self) -> None:
        while self._waiting and not self.stopped:
            await self._stage_capture(self._waiting.popleft())

    async def _stage_capture(self, ref: ObjectRef) -> None:
        """Stage one capture. If that fails, it is counted, or waits for another attempt."""
        read = rows = 0

        def count_bytes(count: int) -> None:
            nonlocal read
            read += count
            self.tally.read_bytes += count

        def count_rows(count: int) -> None:
            nonlocal rows
            rows += count
            self.tally.unstaged_rows += count

        request = Request(
            lake=self._lake,
            reader=self._reader_of(ref.uri),
            ref=ref,
            alone=self._attempts[ref.uri] > 0,
            progress=count_bytes,
            decoded=count_rows,
            wanted=lambda: not self.stopped,
        )
        done = False
        try:
            result = await self._stager.stage_capture(request)
            if result.outcome is Outcome.GONE:
                done = self._count_failure(ref, result.why)
            elif result.outcome is not Outcome.STOPPED:
                self._count_result(ref, result)
                done = True
        except Exception as error:
            if not is_lake_failure(error):
                done = self._count_failure(ref, error)
            elif isinstance(error, Retryable):
                self._waiting.appendleft(ref)
                await self._wait_after_lake_failure(error)
            else:
                raise
        finally:
            self.tally.read_bytes += (ref.size if done else 0) - read
            self.tally.unstaged_rows -= rows

    def _count_failure(self, ref: ObjectRef, error: Exception | None) -> bool:
        """Count a capture that cannot be read; False if it waits for another attempt, with the content that it has then."""
        self._attempts[ref.uri] += 1
        if self._attempts[ref.uri] < CAPTURE_FILE.attempts:
            self._waiting.append(replace(ref, etag=None, event_time=None))
            return False
        self.tally.total += not counts_by_name(ref)
        log.debug("%s", ref.uri, exc_info=error)
        self.tally.failed[ref.uri] = str(error) or repr(error)
        return True

    async def _wait_after_lake_failure(self, error: Retryable) -> None:
        """Wait before the next attempt. Raises Fatal if nothing could be written for `commit_timeout`."""
        now = time.monotonic()
        is_first = self._lake_failed_at is None
        self._lake_failed_at = self._lake_failed_at or now
        if isinstance(error, LedgerTimeout) or now - self._lake_failed_at > self._lake.lake_config.commit_timeout:
            raise Fatal(f"the lake cannot be written: {error}") from error
        if is_first:  # one warning for each outage, not for each capture of a window
            log.warning("%s; trying again", error)
        await asyncio.sleep(1.0)

    def _count_result(self, ref: ObjectRef, result: Result) -> None:
        if result.outcome is Outcome.IGNORED:
            self.tally.ignored.append(ref.uri)
            return
        self.tally.total += not counts_by_name(ref)
        capture = result.capture
        assert capture is not None
        # else its rows would be nowhere when it has left
        if result.outcome is Outcome.ALREADY_STAGED and (why := self._lake.leaving.get(capture.capture_id)):
            self.tally.failed[ref.uri] = f"this content is being removed from the lake, which waits: {why}"
            return
        if capture.outcome == QUARANTINED:
            self.tally.bad[ref.uri] = result.reason or EARLIER
        else:
            self._contents[capture.uri] = capture.capture_id
        modified = capture.modified if ref.modified_ms is None else ref.modified_ms
        self._seen[capture.uri] = replace(capture, modified=modified)
        if result.outcome is Outcome.ALREADY_STAGED:
            self.tally.already_ingested += 1
            self._known[capture.capture_id] = capture
        else:
            self._count_staged_capture(capture, result.rows, result.summary)

    def _count_staged_capture(self, capture: Capture, rows: dict[str, int], summary: Summary | None) -> None:
        self._lake_failed_at = None
        self._read_uris.add(capture.uri)
        self.tally.captures += 1
        self.tally.rows.update(rows)
        if summary is None:
            self.tally.quarantined += 1
        else:
            self.tally.packets += summary.packets
            self.tally.faults.update(summary.faults)

    # -- captures that the committer needs again ------------------------------------------------------------------
    async def _restage_captures(self, captures: Sequence[Capture]) -> None:
        """Stage captures again. An interrupt lets this finish."""
        await restage_captures(self._stager, self._lake, self._readers, captures, self._count_restaged_capture)

    def _count_restaged_capture(self, capture: Capture, result: Result) -> None:
        self._restaged = True
        self.tally.total += 1
        self.tally.total_bytes += capture.size
        self.tally.read_bytes += capture.size
        self._count_result(reference_from_capture(capture), result)
