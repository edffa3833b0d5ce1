"""Captures back to the queue: in waves, without what the lakes know, from where it stopped; dead letters never lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.stub import Stubber

from pcaplake.common.errors import Fatal, OutcomeUnknown, Retryable
from pcaplake.ingest.captures.reference import ObjectRef, capture_from_reference, epoch_ms
from pcaplake.lake import identity
from pcaplake.lake.records import Manifest, Stage
from pcaplake.lake.sightings import sighting_of
from pcaplake.worker.admin.aws_clients import Clients
from pcaplake.worker.admin.capture_status import CaptureStatusReader, LakeLedger
from pcaplake.worker.admin.dead_letters import (
    DeadLetter,
    RedriveTally,
    Selection,
    parse_dead_letter,
    redrive_dead_letters,
)
from pcaplake.worker.admin.replay.announce import Announcer, Tally, go_through
from pcaplake.worker.admin.replay.listing import Found, Page, pages
from pcaplake.worker.cli import redrive as command
from pcaplake.worker.cli.replay import ObjectFilter, describe_tally, make_uri_printer, parse_age
from pcaplake.worker.config.routes import Routes
from pcaplake.worker.config.s3_prefixes import Place, parse_place
from pcaplake.worker.config.settings import WrongSetting
from pcaplake.worker.service.notification import build_s3_event, parse_notification
from pcaplake.worker.service.queue import Delivery
from pcaplake.worker.service.queue.heartbeat import Heartbeats
from tests.lake.generations import raise_generation
from tests.worker.adapters.faults import Faults, Killed
from tests.worker.adapters.memory_ledger import MemoryLedger
from tests.worker.adapters.memory_store import MemoryStore
from tests.worker.adapters.queue import FakeClock, MemoryQueue
from tests.worker.lakes import stage_of

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def ref(key: str, bucket: str = "raw", etag: str = "e1") -> ObjectRef:
    return ObjectRef(uri=f"s3://{bucket}/{key}", size=10, explicit=True, etag=etag)


def found(key: str, *, age: float = 100.0, archived: bool = False, size: int = 10) -> Found:
    modified = epoch_ms(NOW - timedelta(seconds=age))
    one = ObjectRef(uri=f"s3://raw/{key}", size=size, explicit=True, etag="e1", modified=modified)
    return Found(ref=one, key=key, age=age, archived=archived)


def named(bodies: list[str]) -> list[str]:
    return [one.uri.removeprefix("s3://raw/") for body in bodies for one in parse_notification(body).objects]


async def in_queue(queue: MemoryQueue) -> list[str]:
    """The keys of what is delivered now, sorted."""
    bodies: list[str] = []
    while deliveries := await queue.receive(10, 0):
        bodies += [one.body for one in deliveries]
    return sorted(named(bodies))


class Lakes:
    """Lakes in memory, each with its ledger, and routes to them: `a/` to one, `b/` to another, `ab/` to both."""

    def __init__(self) -> None:
        self.routes = Routes.parse_routes(
            [
                {"name": "both", "bucket": "raw", "key": "ab/*", "lake": "memory:///one", "also": True},
                {"name": "one", "bucket": "raw", "key": "a/*", "lake": "memory:///one"},
                {"name": "two", "bucket": "raw", "key": "*b/*", "lake": "memory:///two"},
            ]
        )
        self.books = {uri: LakeLedger(store=MemoryStore(), ledger=MemoryLedger()) for uri in self.routes.lake_uris}
        self.known = CaptureStatusReader(self.routes, self.books)
        self.stages: dict[str, Stage] = {}

    async def made(self) -> Lakes:
        for book in self.books.values():
            await identity.open_identity(book.store, book.ledger)
        return self

    async def stage(self, lake: str, *refs: ObjectRef, generation: int = 0) -> None:
        stage = Stage(
            stage_id=f"{lake}-{refs[0].uri}-{generation}",
            generation=generation,
            decoder_version="test",
            written_at=0,
            captures=tuple(map(capture_from_reference, refs)),
            schemas={},
            adds={},
        )
        assert await self.books[f"memory:///{lake}"].ledger.put_stage_if_absent(stage) == {}
        self.stages[lake] = stage

    async def commit(self, lake: str) -> None:
        """The last stage of a lake is in its tables."""
        stage = self.stages[lake]
        manifest = Manifest(batch=0, generation=stage.generation, opens=True, tables=(), stages=(stage,))
        ledger = self.books[f"memory:///{lake}"].ledger
        await ledger.mark_batch_stages(manifest)
        await ledger.flag_batch_committed(manifest)


# -- what the lakes know ----------------------------------------------------------------------------------------------
async def test_where_captures_stand() -> None:
    lakes = await Lakes().made()
    every = [ref("a/1"), ref("a/2"), ref("ab/1"), ref("ab/2"), ref("x/1"), ref("a/1", etag="e2")]
    assert await lakes.known.find_standings(every) == ["absent", "absent", "absent", "absent", "no_route", "absent"]
    await lakes.stage("one", ref("a/1"), ref("ab/1"), ref("ab/2"))
    await lakes.stage("two", ref("ab/2"))
    assert await lakes.known.find_standings(every) == ["staged", "absent", "absent", "staged", "no_route", "absent"]
    assert await lakes.known.find_standings([]) == []


async def test_committed_is_only_what_is_in_every_lake_of_it() -> None:
    lakes = await Lakes().made()
    for lake in ("one", "two"):
        await lakes.stage(lake, ref("ab/1"))
    for lake, standing in (("one", "staged"), ("two", "committed")):
        await lakes.commit(lake)
        assert await lakes.known.find_standings([ref("ab/1")]) == [standing]


async def test_of_another_generation_nothing_is_known_and_without_a_lake_nothing_is_asked() -> None:
    lakes = await Lakes().made()
    await lakes.stage("one", ref("a/1"))
    await raise_generation(lakes.books["memory:///one"].store)
    assert await lakes.known.find_standings([ref("a/1")]) == ["absent"]
    await lakes.stage("one", ref("a/1"), generation=1)
    assert await lakes.known.find_standings([ref("a/1")]) == ["staged"]
    empty = Lakes()
    with pytest.raises(Fatal, match="pcaplake setup"):
        await empty.known.find_standings([ref("a/1")])


# -- listing ----------------------------------------------------------------------------------------------------------
@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clients]:
    """Clients that may not ask anybody: every answer is put there by a test."""
    for name, value in {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with Clients(region="eu-central-1") as made:
        yield made


def listed(*keys: str, more: str = "", date: str = "Sun, 01 Mar 2026 12:00:00 GMT", **raw: Any) -> dict[str, Any]:
    """An answer of S3, of objects made a day before."""
    contents = [{"Key": key, "Size": 10, "ETag": '"e1"', "LastModified": NOW - DAY, **raw} for key in keys]
    answer: dict[str, Any] = {"Contents": contents, "IsTruncated": bool(more)}
    if more:
        answer["NextContinuationToken"] = more
    return {**answer, "ResponseMetadata": {"HTTPHeaders": {"date": date}, "HTTPStatusCode": 200}}


async def listing(client: Any, place: Place, start_after: str = "") -> list[Page]:
    return [page async for page in pages(client, place, start_after=start_after)]


async def test_an_object_that_is_listed_is_the_capture_that_was_notified_with_its_version(clients: Clients) -> None:
    """A listing names no versions: on a versioned bucket the same content must not become a second capture."""
    with Stubber(clients.s3) as stub:
        stub.add_response("list_objects_v2", listed("a/b.pcap"))
        ((one,),) = await listing(clients.s3, Place(bucket="raw", prefix="a/"))
    notified = replace(one.ref, version_id="3HL4kqt")
    (by_notification,), (by_replay,) = (
        parse_notification(build_s3_event(notified)).objects,
        parse_notification(build_s3_event(one.ref)).objects,
    )
    assert (by_notification.version_id, by_replay.version_id) == ("3HL4kqt", None)
    assert (
        capture_from_reference(by_notification).capture_id
        == capture_from_reference(by_replay).capture_id
        == capture_from_reference(one.ref).capture_id
    )
    newer = replace(one.ref, etag="e2")
    assert capture_from_reference(newer).capture_id != capture_from_reference(one.ref).capture_id


async def test_a_content_that_came_back_without_a_message_is_absent() -> None:
    """It is known again when its sighting is staged, also if the event said the next second."""
    lakes = await Lakes().made()
    first = replace(ref("a/1"), modified=epoch_ms(NOW) + 300, sequencer="0A")
    await lakes.stage("one", first)
    again = [replace(ref("a/1"), modified=epoch_ms(NOW) + milliseconds) for milliseconds in (0, 1_000, 9_000)]
    assert [await lakes.known.find_standings([one]) for one in again] == [["staged"], ["staged"], ["absent"]]
    seen = sighting_of(capture_from_reference(replace(again[-1], modified=epoch_ms(NOW) + 10_200, sequencer="0B")))
    book = lakes.books["memory:///one"].ledger
    await book.put_stage_if_absent(stage_of([seen]))
    assert [await lakes.known.find_standings([one]) for one in again] == [["staged"]] * 3


async def test_pages_in_the_order_of_keys_with_ages_by_the_stores_clock(clients: Clients) -> None:
    asked = {"Bucket": "raw", "Prefix": "a/b", "OptionalObjectAttributes": ["RestoreStatus"], "StartAfter": "a/b1"}
    with Stubber(clients.s3) as stub:
        stub.add_response("list_objects_v2", listed("a/b//2+%20", more="next"), asked)
        stub.add_response("list_objects_v2", listed("a/b3"), {**asked, "ContinuationToken": "next"})
        first, second = await listing(clients.s3, Place(bucket="raw", prefix="a/b"), "a/b1")
    assert first == (found("a/b//2+%20", age=86_400.0),)
    assert second == (found("a/b3", age=86_400.0),)


@pytest.mark.slow
async def test_archives_must_be_restored_first(clients: Clients) -> None:
    restored = {"RestoreStatus": {"IsRestoreInProgress": False, "RestoreExpiryDate": NOW}}
    under_way = {"RestoreStatus": {"IsRestoreInProgress": True}}
    for raw, archived in (
        ({"StorageClass": "GLACIER"}, True),
        ({"StorageClass": "DEEP_ARCHIVE", **under_way}, True),
        ({"StorageClass": "DEEP_ARCHIVE", **restored}, False),
        ({"StorageClass": "GLACIER_IR"}, False),
        ({"StorageClass": "STANDARD"}, False),
    ):
        with Stubber(clients.s3) as stub:
            stub.add_response("list_objects_v2", listed("a", **raw))
            ((one,),) = await listing(clients.s3, Place(bucket="raw"))
        assert one.archived == archived


async def test_listing_that_fails(clients: Clients) -> None:
    with Stubber(clients.s3) as stub:
        stub.add_client_error("list_objects_v2", "NoSuchBucket", "", 404)
        with pytest.raises(Fatal, match="s3://raw/a"):
            await listing(clients.s3, Place(bucket="raw", prefix="a"))
        stub.add_response("list_objects_v2", listed("a", date="soon"))
        with pytest.raises(Retryable, match="no valid date: 'soon'"):
            await listing(clients.s3, Place(bucket="raw"))


# -- choosing ---------------------------------------------------------------------------------------------------------
def test_what_is_chosen_and_why_the_rest_is_not() -> None:
    assert ObjectFilter()(found("a")) is None
    assert ObjectFilter(globs=("a/*", "*.pcap"))(found("a/b/c.pcap")) is None
    assert ObjectFilter(globs=("a/*", "*.pcap"))(found("a/b/c.gz")) == "no_match"
    assert [ObjectFilter(newer=100.0)(found("a", age=age)) for age in (99.0, 101.0)] == [None, "too_old"]
    assert [ObjectFilter(older=100.0)(found("a", age=age)) for age in (99.0, 101.0)] == ["too_young", None]


def test_ages_and_places_as_people_write_them() -> None:
    assert [parse_age(text) for text in ("90m", "1.5d", "36h", "10")] == [5400, 129_600, 129_600, 10]
    with pytest.raises(ValueError, match="'soon' is not a time"):
        parse_age("soon")
    with pytest.raises(WrongSetting, match="s3://bucket/prefix"):
        parse_place("raw/a")


TRIES = 7  # of `outlast_outage`


async def at_once(seconds: float) -> None:
    assert seconds > 0


# -- waves ------------------------------------------------------------------------------------------------------------
class Waves:
    """An announcer, and what its queue held each time it waited; `workers` take all out when it waits."""

    def __init__(self, queue: MemoryQueue, wave: int, workers: bool = True) -> None:
        self.queue, self.held, self.workers = queue, list[int](), workers
        self.announcer = Announcer(queue, wave=wave, settle=3.0, sleep=self.sleep)

    async def sleep(self, seconds: float) -> None:
        assert seconds == 3.0
        await asyncio.sleep(0)
        self.held.append(len(self.queue))
        while self.workers and (deliveries := await self.queue.receive(10, 0)):
            await self.queue.delete(deliveries)

    async def send(self, count: int) -> list[int]:
        return [sent async for sent in self.announcer.send([ref(f"a/{number}") for number in range(count)])]


async def test_never_more_than_a_wave_is_in_the_queue() -> None:
    queue = MemoryQueue(FakeClock())
    queue.put_message("somebody else's")
    queue.put_message("later", delay=60)
    waves = Waves(queue, 10)
    assert await waves.send(25) == [8, 9, 8]
    assert waves.held == [10, 10]  # what is delayed counts too
    assert await waves.send(3) == [1, 2]
    assert waves.held == [10, 10, 10]


async def test_it_waits_as_long_as_the_queue_is_full() -> None:
    queue = MemoryQueue(FakeClock())
    for number in range(4):
        queue.put_message(str(number))
    await queue.receive(2, 0)  # in flight: they count
    waves = Waves(queue, 4, workers=False)
    task = asyncio.create_task(waves.send(1))
    while len(waves.held) < 5:
        await asyncio.sleep(0)
    assert not task.done()
    waves.workers = True  # they delete what can be received
    assert await task == [1]
    assert len(queue) == 3


async def paged(*some: Page) -> AsyncIterator[Page]:
    for page in some:
        yield page


async def test_only_what_no_lake_has_had_is_announced() -> None:
    lakes, queue, tally = await Lakes().made(), MemoryQueue(FakeClock()), Tally()
    await lakes.stage("one", ref("a/2"), ref("ab/1"))
    await lakes.stage("two", ref("b/2"))
    await lakes.commit("two")
    first = (found("a/", size=0), found("a/1"), found("a/2"), found("a/3.gz"), found("a/4", archived=True))
    second = (found("ab/1"), found("b/1"), found("b/2"), found("x/1"))
    told: list[str] = []
    await go_through(
        paged(first, second),
        lakes.known,
        tally,
        why_not=ObjectFilter(globs=("*[!z]",)),
        announcer=Announcer(queue),
        absent=lambda one: told.append(one.uri),
    )
    assert await in_queue(queue) == ["a/1", "ab/1", "b/1"]
    assert told == ["s3://raw/a/1", "s3://raw/ab/1", "s3://raw/b/1"]
    assert tally == Tally(
        listed=9,
        folders=1,
        filtered={"no_match": 1},
        archived=1,
        no_route=1,
        absent=3,
        staged=1,
        committed=1,
        announced=3,
        last_key="x/1",
    )
    assert describe_tally(tally) == (
        "9 objects: 3 announced, 1 staged, 1 in the lakes, 1 without a route, 1 not matching the pattern, "
        "1 archived (restore them first)"
    )


async def test_looking_sends_nothing() -> None:
    lakes, tally = await Lakes().made(), Tally()
    page = (found("a/1"), found("a/2"))
    await go_through(paged(page), lakes.known, tally, why_not=ObjectFilter(), announcer=None)
    assert (tally.absent, tally.announced, tally.last_key) == (2, 0, "a/2")
    assert describe_tally(tally) == "2 objects: 2 not in any lake"
    assert describe_tally(Tally()) == "0 objects"


@pytest.mark.parametrize("kind", ["error", "lost", "dead before", "dead after"])
@pytest.mark.parametrize("passed", [0, 1, 2])
async def test_stopped_anywhere_it_goes_on_behind_the_last_key_and_leaves_out_none(kind: Any, passed: int) -> None:
    """`passed` sends are well, the next is not; the pages after are those behind the key that was told."""

    lakes, faults = await Lakes().made(), Faults()
    queue = MemoryQueue(FakeClock())
    process = queue.as_process(faults)
    every = [found(f"a/{number:02}") for number in range(30)]
    tally = Tally()

    async def counting() -> AsyncIterator[Page]:
        for number, start in enumerate((0, 10, 20)):
            if number == passed:
                faults.inject_fault("queue.send", kind, TRIES)
            yield tuple(every[start : start + 10])

    with pytest.raises((Retryable, Killed)):
        await go_through(
            counting(), lakes.known, tally, why_not=ObjectFilter(), announcer=Announcer(process, sleep=at_once)
        )
    assert tally.announced == 10 * passed
    assert tally.last_key == (every[10 * passed - 1].key if passed else "")
    rest = tuple(one for one in every if one.key > tally.last_key)
    await go_through(paged(rest), lakes.known, tally, why_not=ObjectFilter(), announcer=Announcer(queue))
    there = await in_queue(queue)
    assert set(there) == {one.key for one in every}
    assert len(there) == 30 + 10 * {"lost": TRIES, "dead after": 1}.get(kind, 0)


async def test_a_blip_is_outlived() -> None:
    lakes, faults, tally, slept = await Lakes().made(), Faults(), Tally(), list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    queue = MemoryQueue(FakeClock(), faults=faults)
    flaky = LakeLedger(store=lakes.books["memory:///one"].store, ledger=MemoryLedger(faults))
    known = CaptureStatusReader(lakes.routes, {**lakes.books, "memory:///one": flaky})
    for point in ("ledger.captures", "queue.attributes", "queue.send"):
        faults.inject_fault(point, "error", 2)
    announcer = Announcer(queue, sleep=sleep)
    await go_through(paged((found("a/1"),)), known, tally, why_not=ObjectFilter(), announcer=announcer, sleep=sleep)
    assert tally.announced == len(queue) == 1
    assert len(slept) == 6, "two pauses at each of the three points"
    assert all(0 < seconds <= 4 for seconds in slept)
    assert not faults.waiting


async def test_within_a_page_too_it_is_known_how_far_it_came() -> None:
    lakes, tally = await Lakes().made(), Tally()
    waves = Waves(MemoryQueue(FakeClock()), 10)

    async def stop(seconds: float) -> None:
        if len(waves.held) == 1:
            raise Killed("while it waits")
        await waves.sleep(seconds)

    announcer = Announcer(waves.queue, wave=10, settle=3.0, sleep=stop)
    every = tuple(found(f"a/{number:02}") for number in range(25))
    with pytest.raises(Killed):
        await go_through(paged(every), lakes.known, tally, why_not=ObjectFilter(), announcer=announcer)
    assert (tally.announced, tally.last_key) == (20, "a/19")


ODD = "s3://raw/a\tb\nc\x1b[2J\x7f\x9b\u2028\udc80 :car: [b]\\ü"
SHOWN = r"s3://raw/a\tb\nc\x1b[2J\x7f\x9b\u2028\udc80 :car: [b]\ü"


def test_a_line_is_a_uri(capsys: pytest.CaptureFixture[str]) -> None:
    make_uri_printer(True)(ObjectRef(uri=ODD, size=1, explicit=True))
    make_uri_printer(False)(ObjectRef(uri=ODD, size=1, explicit=True))
    assert capsys.readouterr().out == SHOWN + "\n"


def test_a_line_is_a_letter(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    letter = DeadLetter(
        delivery=Delivery(message_id="m", receipt_handle="r", body="", receive_count=1, sent_at=0.0), uris=(ODD,)
    )

    async def moved(settings: object, dead_letters: object, tally: RedriveTally, selection: object, **how: Any) -> None:
        tally.found += 1
        how["show"](letter)

    monkeypatch.setattr(command, "_redrive_dead_letters", moved)
    command.redrive()
    shown = capsys.readouterr()
    assert shown.out.startswith(f"{SHOWN}  (message m, received 1 time,")
    assert shown.out.count("\n") == 1
    assert "1 dead letter found" in shown.err


@pytest.mark.parametrize("seen", [0, 2])
def test_no_summary_of_a_redrive_that_never_began(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, seen: int
) -> None:
    async def failed(
        settings: object, dead_letters: object, tally: RedriveTally, selection: object, **how: Any
    ) -> None:
        tally.found = seen
        raise Fatal("there is no queue")

    monkeypatch.setattr(command, "_redrive_dead_letters", failed)
    with pytest.raises(Fatal):
        command.redrive()
    assert ("dead letter" in capsys.readouterr().err) == bool(seen)


# -- dead letters -----------------------------------------------------------------------------------------------------
class Letters:
    """Two queues in memory; `faults` are those of who moves letters."""

    def __init__(self, *bodies: str) -> None:
        self.clock, self.faults = FakeClock(1000.0), Faults()
        self.dead, self.queue = MemoryQueue(self.clock, visibility_timeout=30), MemoryQueue(self.clock)
        for body in bodies:
            self.dead.put_message(body)
        self.shown: list[DeadLetter] = []

    async def redrive(self, tally: RedriveTally | None = None, **how: Any) -> RedriveTally:
        tally = tally or RedriveTally()
        dead, queue = self.dead.as_process(self.faults), self.queue.as_process(self.faults)
        task = asyncio.create_task(redrive_dead_letters(dead, queue, tally, Selection(**how), show=self.shown.append))
        while not task.done():
            await asyncio.sleep(0)
            self.clock.advance_time(0.5)  # polls end
        task.result()
        return tally

    async def left(self) -> list[str]:
        """What can be received at once from the dead letters."""
        return sorted([one.body for _ in range(5) for one in await self.dead.receive(10, 0)])


def letters(*keys: str) -> list[str]:
    return [build_s3_event(ref(key)) for key in keys]


async def test_what_matches_goes_back_and_the_rest_is_visible_at_once() -> None:
    bodies = letters(*(f"a/{number}" for number in range(15)), *(f"b/{number}" for number in range(15)))
    case = Letters(*bodies)
    assert await case.redrive(match="s3://raw/a/*") == RedriveTally(found=30, matched=15, moved=15)
    assert await in_queue(case.queue) == sorted(f"a/{number}" for number in range(15))
    assert await case.left() == sorted(bodies[15:])
    assert {one.uris[0] for one in case.shown} == {f"s3://raw/a/{number}" for number in range(15)}


async def test_a_rehearsal_moves_nothing_and_hides_nothing() -> None:
    bodies = letters("a/1", "b/1")
    case = Letters(*bodies)
    assert await case.redrive(dry_run=True) == RedriveTally(found=2, matched=2)
    assert len(case.queue) == 0
    assert await case.left() == sorted(bodies)
    assert [one.delivery.receive_count for one in case.shown] == [1, 1]


async def test_a_limit() -> None:
    case = Letters(*letters(*(f"a/{number}" for number in range(7))))
    assert (await case.redrive(limit=3)).moved == 3
    assert len(case.queue) == 3
    assert len(await case.left()) == 4


async def test_what_nobody_can_read_stays() -> None:
    removed = json.dumps({"Records": [{"eventVersion": "2.1", "eventName": "ObjectRemoved:Delete", "s3": {}}]})
    case = Letters("nonsense", removed, *letters("a/1"))
    assert await case.redrive() == RedriveTally(found=3, matched=2, unreadable=1, moved=2)
    assert await case.left() == ["nonsense"]
    (bad,) = [one for one in case.shown if one.unreadable]
    assert "not JSON" in bad.unreadable
    assert not bad.matches_pattern(None)
    (good,) = json.loads(letters("a/2")[0])["Records"]
    case = Letters(json.dumps({"Records": [good, {"eventName": "ObjectCreated:Put"}]}))
    assert (await case.redrive()).moved == 1
    (half,) = case.shown
    assert "it will become a dead letter again: record 1" in command._describe_letter(half)
    case = Letters(removed)
    assert await case.redrive(match="*") == RedriveTally(found=1)  # it is about no capture


async def test_what_nobody_can_read_is_deleted_on_request_after_it_was_shown() -> None:
    case = Letters("nonsense", *letters("a/1"))
    tally = await case.redrive(drop_unreadable=True, dry_run=True)
    assert tally == RedriveTally(found=2, matched=1, unreadable=1)
    assert len(case.dead) == 2
    tally = await case.redrive(match="s3://raw/b/*", drop_unreadable=True)
    assert tally == RedriveTally(found=2, unreadable=1, dropped=1)
    assert await case.left() == letters("a/1")
    assert not len(case.queue)
    assert case.shown[-1].delivery.body == "nonsense"


def test_an_unreadable_letter_is_printed_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    letter = parse_dead_letter(
        Delivery(message_id="m", receipt_handle="r", body="what\nis this?", receive_count=5, sent_at=0.0)
    )

    async def shown(settings: object, dead_letters: object, tally: RedriveTally, selection: object, **how: Any) -> None:
        for _ in range(command.SHOWN + 1):
            how["show"](letter)

    monkeypatch.setattr(command, "_redrive_dead_letters", shown)
    command.redrive(drop_unreadable=True)
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("deleted: the body is not JSON")
    assert second == "  body: what\\nis this?"
    command.redrive(drop_unreadable=True, json=True)
    said = json.loads(capsys.readouterr().out)["messages"]
    assert [one["body"] for one in said] == [letter.delivery.body] * (command.SHOWN + 1)


async def test_a_message_about_several_captures() -> None:
    one, two = (json.loads(body)["Records"][0] for body in letters("a/1", "b/1"))
    body = json.dumps({"Records": [one, two]})
    case = Letters(body)

    (delivery,) = await case.dead.receive(1, 0)
    letter = parse_dead_letter(delivery)
    assert letter.uris == ("s3://raw/a/1", "s3://raw/b/1")
    assert letter.matches_pattern("s3://raw/b/*")
    assert not letter.matches_pattern("s3://raw/c/*")


@pytest.mark.parametrize("kind", ["error", "lost", "dead before", "dead after"])
@pytest.mark.parametrize("point", ["queue.send", "queue.delete *"])
async def test_whatever_fails_no_letter_is_lost(kind: Any, point: str) -> None:
    bodies = letters("a/1", "a/2", "a/3")
    case, tally = Letters(*bodies), RedriveTally()
    case.faults.inject_fault(point, kind)
    try:
        await case.redrive(tally)
    except (Retryable, OutcomeUnknown, Killed):
        assert "delete" not in point or kind.startswith("dead")
    else:
        assert "delete" in point
        assert (tally.moved, tally.doubled) == (3, 1)
    case.faults.waiting.clear()
    case.clock.advance_time(60)
    there = await in_queue(case.queue)
    assert set(there) | set(named(await case.left())) == {"a/1", "a/2", "a/3"}
    assert len(there) == len(set(there))


async def test_letters_stay_hidden_while_a_long_list_is_read() -> None:
    """The visibility timeout passes several times; nothing is met twice, and all are visible at the end."""

    case = Letters(*letters(*(f"a/{number:03}" for number in range(60))))
    beats = Heartbeats(case.dead, clock=case.clock.time, sleep=case.clock.sleep, uniform=lambda low, high: 1.0)
    started = case.clock.now

    class Slow(MemoryQueue):
        async def receive(self, limit: int, wait: float) -> list[Delivery]:
            for _ in range(40):  # half a second each
                case.clock.advance_time(0.5)
                for _ in range(5):
                    await asyncio.sleep(0)
            return await super().receive(limit, 0)

    slow = Slow(case.clock, visibility_timeout=30)
    slow._messages = case.dead._messages
    tally = RedriveTally()
    await redrive_dead_letters(slow, case.queue, tally, Selection(match="none"), heartbeats=beats)
    assert tally == RedriveTally(found=60)
    assert case.clock.now - started > 4 * 30
    assert max(one.received for one in case.dead._messages.values()) == 1
    assert (await case.dead.read_attributes()).visible == 60
