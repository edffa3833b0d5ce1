"""Random histories of a fleet whose objects change while older contents are removed.

Objects get contents again and again, messages are delivered late, twice and in any order, committers begin, finish and repeat
removals and are killed at any step. Between two requests of one process to the ledger others run to their end. In the end each
table must have the rows of the newest content of each object, once, and nothing else. Rows are of a dict, as in swaps_model.py.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.ingest.captures.source import Sources
from pcaplake.ingest.stager import CaptureStager, StagerConfig
from pcaplake.lake.commit.history import APP_ID
from pcaplake.lake.commit.removals import find_older_contents, finish_removals, remove_captures
from pcaplake.lake.current_captures import Content
from pcaplake.lake.delta.actions import Txn
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.ledger import CaptureItem, CaptureLeaves
from pcaplake.lake.records import Capture, Manifest, Stage, compute_capture_id, manifest_path
from pcaplake.lake.sightings import is_later, sighting_of
from tests.lake.commit.swaps_model import SCHEMA, Killed, Rows, SwapWorld
from tests.worker.adapters.fleet_ledger import FleetLedger

T = TypeVar("T")
TABLES = ("packets", "sightings", "captures")
URIS = ("s3://raw/a", "s3://raw/b")
ETAGS = ("one", "two")


@dataclass(frozen=True)
class Message:
    """An object got a content at a time."""

    capture: Capture


class Ledger(FleetLedger):
    """Others run before each operation."""

    before: Callable[[str], None] = staticmethod(lambda name: None)

    async def _run_operation(self, point: str, effect: Callable[[], T]) -> T:
        self.before(f"ledger.{point}")
        return await super()._run_operation(point, effect)


class _Asks:
    """In the place of the `Batched` of a `CaptureStager`, whose tasks must not be killed."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def ask(self, capture_id: str) -> CaptureItem | None:
        return (await self._ledger.get_capture_items(0, [capture_id])).get(capture_id)


class RemovalWorld(SwapWorld):
    """A fleet's lake, its objects, and what happens to them. `seed` decides everything."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.ledger: Ledger = Ledger()
        self.ledger.before = self.step
        self.now = 1_000
        self.contents: dict[str, Message] = {}  # by URI: what the object has now
        self.waiting: list[Message] = []
        self.old: list[Message] = []
        self.begun: Manifest | None = None  # only some tables have this batch

    async def run(self, steps: int) -> None:
        """Raises AssertionError if a table has other rows than those of the newest contents."""
        log = LogStore(self.store)
        for table in TABLES:
            await log.create(table, SCHEMA, partition_columns=[])
        for uri in URIS:
            self.upload(uri, ETAGS[0])
        for _ in range(steps):
            await self.act()
        self.quiet, self.lost = True, None
        for _ in range(9):
            for _ in range(len(self.waiting)):
                await self.receive()
            await self.commit()
            await self.remove()
        assert not self.waiting, "messages are kept for ever"
        await self.check()

    async def act(self) -> None:
        choice = self.rng.random()
        if choice < 0.12:
            self.upload(self.rng.choice(URIS), self.rng.choice(ETAGS))
        elif choice < 0.45:
            await self.receive()
        elif choice < 0.7:
            await self.commit()
        elif choice < 0.73:
            self.lost = self.rng.choice((None, *TABLES[:-1]))
        elif choice < 0.75 and self.old:
            self.waiting.append(self.rng.choice(self.old))
        else:
            await self.remove()

    def upload(self, uri: str, etag: str) -> None:
        self.now += 2_000
        capture = Capture(
            capture_id=compute_capture_id(uri, etag),
            uri=uri,
            etag=etag,
            size=1,
            modified=self.now,
            sequencer=f"{self.now:016X}",
        )
        self.contents[uri] = message = Message(capture)
        self.waiting += [message] * self.rng.choice((1, 1, 1, 2))
        self.old.append(message)

    # -- a worker -------------------------------------------------------------------------------------------------
    async def receive(self) -> None:
        """One message, which is deleted if its capture is staged or seen, or if the object has another content."""
        if not self.waiting:
            return
        message = self.waiting.pop(0 if self.quiet else self.rng.randrange(len(self.waiting)))
        try:
            done = await self.handle(message.capture)
        except CaptureLeaves:
            self.counts["kept"] += 1
            done = False
        except Killed:
            done = False
        if not done:
            self.waiting.append(message)

    async def handle(self, capture: Capture) -> bool:
        stager = CaptureStager(Sources({}), StagerConfig(threads=1))
        lake: Any = object()
        stager._questions[lake] = cast(Any, _Asks(self.ledger))
        known = await stager.find_staged(lake, capture.capture_id)
        if known is None:
            if self.contents[capture.uri].capture.etag != capture.etag:
                return True  # the object has another content
            self.counts["read"] += 1
            return not await self.ledger.put_stage_if_absent(self.stage(capture))
        seen = replace(known, modified=capture.modified, sequencer=capture.sequencer)
        if not is_later(seen, known):
            return True
        one = sighting_of(seen)
        if await self.ledger.get_capture_items(0, [one.capture_id]):
            return True
        self.counts["seen"] += 1
        return not await self.ledger.put_stage_if_absent(self.stage(one))

    def stage(self, capture: Capture) -> Stage:
        return Stage(
            stage_id=f"s{next(self.names)}",
            generation=0,
            decoder_version="1",
            captures=(capture,),
            schemas={},
            adds={},
            written_at=0,
        )

    # -- the committer --------------------------------------------------------------------------------------------
    async def commit(self) -> None:
        """A batch of some of the stages that wait, while no table is blocked; or the rest of one that was begun."""
        if self.lost is not None:
            return
        self.deep, deep = 9, self.deep  # nothing happens beside this
        quiet, self.quiet = self.quiet, True
        if self.begun is None:
            await self.begin_batch(all_stages=quiet)
        if self.begun is not None and (quiet or self.rng.random() < 0.7):
            await self.end_batch(self.begun)
        self.deep, self.quiet = deep, quiet

    async def begin_batch(self, *, all_stages: bool) -> None:
        shared = self.ledger.shared
        waiting = [stage_id for _, stage_id in shared.pending]
        some = waiting if all_stages else self.rng.sample(waiting, self.rng.randint(0, len(waiting)))
        stages = [stage for one in some if (stage := shared.stages[0, one].stage) is not None]
        if stages:
            self.begun = Manifest(batch=self.batch, generation=0, opens=False, tables=TABLES, stages=tuple(stages))
            self.store.put_past_faults(manifest_path(self.batch), self.begun.to_json())
            await self.ledger.mark_batch_stages(self.begun)
            await self.commit_tables(stages, ("captures", "sightings"))

    async def end_batch(self, manifest: Manifest) -> None:
        await self.commit_tables(manifest.stages, ("packets",))
        await self.ledger.flag_batch_committed(manifest)
        assert await self.ledger.advance_head(self.batch)
        self.batch, self.begun = self.batch + 1, None

    async def commit_tables(self, stages: Sequence[Stage], tables: Sequence[str]) -> None:
        log = LogStore(self.store)
        for table in tables:
            rows = Rows()
            for capture in (capture for stage in stages for capture in stage.captures):
                if capture.is_sighting == (table == "sightings"):
                    rows[capture.content_id, f"{capture.modified} {capture.sequencer}"] += 1
            adds = [self.file(table, rows)] if rows else []
            await log.commit(table, adds, txn=Txn(app_id=APP_ID, version=self.batch), schema=SCHEMA)

    async def remove(self) -> None:
        """As the leader does beside its batches."""
        swaps = self.swaps()
        try:
            await finish_removals(swaps)
            plan = await find_older_contents(self.ledger, 0, await self.find_contents())
            for older in plan.older.values():
                await remove_captures(swaps, older)
                self.counts["removed"] += 1
                there = {capture_id for capture_id, _ in await self.read("packets")}
                uri = older[0].capture.uri
                assert any(compute_capture_id(uri, etag) in there for etag in ETAGS), f"no rows of {uri} are left"
        except Killed:
            self.counts["killed"] += 1
        except (Fatal, Retryable):
            self.counts["waits"] += 1

    async def find_contents(self) -> dict[str, list[Content]]:
        """As `current_captures.find_contents`, from the rows of this world."""
        captures, sightings = await self.read("captures"), await self.read("sightings")
        uris = {compute_capture_id(uri, etag): uri for uri in URIS for etag in ETAGS}
        found: dict[str, dict[str, Content]] = {}
        there = {capture_id for capture_id, _ in captures}
        for capture_id, at in (*captures, *sightings):
            ms, _, sequencer = at.partition(" ")
            content = Content(
                capture_id=capture_id,
                outcome="ok" if capture_id in there else None,
                modified_at=datetime.fromtimestamp(int(ms) / 1000, UTC),
                sequencer=sequencer,
            )
            mine = found.setdefault(uris[capture_id], {})
            mine[capture_id] = max(mine.get(capture_id, content), content, key=lambda one: one.seen)
        return {uri: sorted(mine.values(), key=lambda one: one.seen, reverse=True) for uri, mine in found.items()}

    def step(self, name: str) -> None:
        choice = 1.0 if self.quiet else self.rng.random()
        if choice < 0.02:
            raise Killed
        beside = self.act
        if self.rng.random() < 0.7:  # what can hurt most there
            beside = {"ledger.stage": self.remove, "ledger.begin_removal": self.receive}.get(
                name.partition(" ")[0], beside
            )
        if choice < (0.15 if beside == self.act else 0.5) and self.deep < 2:
            self.deep += 1
            with ThreadPoolExecutor(1) as thread:
                thread.submit(lambda: asyncio.run(beside())).result()
            self.deep -= 1

    # -- the oracle -----------------------------------------------------------------------------------------------
    async def check(self) -> None:
        newest = {one.capture.capture_id for one in self.contents.values()}
        known = {one for _, one in self.ledger.shared.captures}
        for table in ("packets", "captures"):
            rows = Counter(dict.fromkeys(newest, 0))
            for (capture_id, _), count in (await self.read(table)).items():
                rows[capture_id] += count
            assert rows == dict.fromkeys(newest, 1), f"{table}: {dict(rows)}, not {newest} once"
        assert newest <= known, f"the ledger lacks {newest - known}"
        assert self.ledger.shared.removal is None
