"""Which content each object has now, in a fleet: contents come and come back, and messages are late or come twice."""

from __future__ import annotations

import asyncio
import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pytest

from pcaplake.ingest.captures.reference import ObjectRef
from pcaplake.lake.records import Capture
from pcaplake.lake.sightings import ids_of_listed, is_later, sighting_of
from pcaplake.worker.service.notification import build_s3_event, parse_notification
from tests.worker import lakes
from tests.worker.fleets import Fleet, can_capture, emptied

BEGIN = datetime(2026, 11, 29, 12, tzinfo=UTC)
URI = "s3://raw/a.pcap"


def current_captures(fleet: Fleet) -> dict[str, int]:
    """URI -> packets of its current content."""
    database = duckdb.connect()
    for table in ("captures", "sightings"):
        rows = fleet.rows(table)
        if not rows.num_rows:
            database.sql(
                f"CREATE TABLE {table} (uri TEXT, capture_id TEXT, modified_at TIMESTAMPTZ, sequencer TEXT, date DATE)"
            )
        else:
            database.register(table, rows)
    return dict(database.sql(f"SELECT uri, packets FROM ({lakes.current_captures_view()})").fetchall())


class Uploads:
    """Uploads of contents to two keys, at times that S3 may give, and their messages."""

    def __init__(self, fleet: Fleet, rng: random.Random, *, versions: bool) -> None:
        self.fleet, self.rng, self.versions, self.time = fleet, rng, versions, BEGIN
        self.now = dict[str, int]()  # URI -> packets
        self.messages = list[str]()

    def upload(self) -> None:
        key, frames = self.rng.choice(("a.pcap", "b.pcap")), self.rng.choice((1, 2, 3))
        self.time += timedelta(milliseconds=self.rng.choice((0, 1, 400, 1000, 60_000)))
        body = self.fleet.bucket.put_object(key, can_capture(frames), self.time.isoformat().replace("+00:00", "Z"))
        if not self.versions:
            self.fleet.bucket.versions[key] = self.fleet.bucket.versions[key][-1:]
            raw = json.loads(body)
            del raw["Records"][0]["s3"]["object"]["versionId"]
            body = json.dumps(raw)
        self.now[f"s3://raw/{key}"] = frames
        self.messages.append(body)

    def deliver(self, count: int) -> None:
        """Some of the messages, in any order; some come again later."""
        for _ in range(min(count, len(self.messages))):
            body = self.messages[self.rng.randrange(len(self.messages))]
            self.fleet.queue.put_message(body)
            if self.rng.random() < 0.7:
                self.messages.remove(body)


async def serve(fleet: Fleet) -> None:
    """A process that reads what is in the queue, and ends when all is in the tables."""
    async with await fleet.lake(source=fleet.source()) as lake:
        service = fleet.service(lake)
        task = asyncio.create_task(service.run())
        await asyncio.wait_for(emptied(fleet, service, task), 60)
        service.stop()
        fleet.clock.advance_time(1.0)
        await task
        await lake.drain()


@pytest.mark.parametrize("versions", [True, False])
@pytest.mark.parametrize("seed", range(3))
async def test_the_lake_says_which_content_each_object_has(seed: int, versions: bool) -> None:
    fleet = Fleet()
    uploads = Uploads(fleet, random.Random(seed), versions=versions)
    for _ in range(5):
        for _ in range(uploads.rng.randint(1, 4)):
            uploads.upload()
        uploads.deliver(uploads.rng.randint(0, 5))
        await serve(fleet)
    for body in uploads.messages:
        fleet.queue.put_message(body)
    await serve(fleet)
    assert current_captures(fleet) == uploads.now
    captures, sightings = fleet.rows("captures"), fleet.rows("sightings")
    assert len(set(captures["capture_id"].to_pylist())) == captures.num_rows, "nothing is read twice"
    assert fleet.rows("can_frames").num_rows == sum(captures["packets"].to_pylist())
    if sightings.num_rows:
        keys = list(zip(*(sightings[name].to_pylist() for name in ("capture_id", "sequencer")), strict=True))
        assert len(set(keys)) == len(keys), "each event is recorded once"
    before = sightings.num_rows
    for body in uploads.messages:  # what SQS delivers once more costs nothing
        fleet.queue.put_message(body)
    await serve(fleet)
    assert fleet.rows("sightings").num_rows == before


async def test_a_returned_sighting_is_announced_and_recorded_again() -> None:
    fleet = Fleet()
    for frames, second in ((1, 0), (2, 5)):
        fleet.queue.put_message(
            fleet.bucket.put_object("a.pcap", can_capture(frames), f"2026-11-29T12:00:{second:02}Z")
        )
    await serve(fleet)
    again = fleet.bucket.put_object("a.pcap", can_capture(1), "2026-11-29T12:00:10Z")
    fleet.queue.put_message(again)
    async with await fleet.lake(commits=False) as lake:  # the stage waits
        service = fleet.service(lake)
        task = asyncio.create_task(service.run())
        await asyncio.wait_for(emptied(fleet, service, task), 60)
        service.stop()
        fleet.clock.advance_time(1.0)
        await task
    ((key, item),) = [(key, one) for key, one in fleet.ledger.shared.captures.items() if one.capture.is_sighting]
    del fleet.ledger.shared.captures[key]
    fleet.ledger.shared.pending.clear()
    await fleet.source().replay_captures([item.capture])
    await serve(fleet)
    assert current_captures(fleet) == {URI: 1}
    assert fleet.rows("sightings")["modified_at"].to_pylist() == [datetime(2026, 11, 29, 12, 0, 10, tzinfo=UTC)]


def capture(modified: int | None, sequencer: str | None = None, version_id: str | None = None) -> Capture:
    return Capture(
        capture_id="c", uri=URI, etag="e", size=1, modified=modified, sequencer=sequencer, version_id=version_id
    )


@pytest.mark.parametrize(
    ("seen", "known", "later"),
    [
        (capture(5_000, "0B"), capture(5_000, "0A"), True),
        (capture(9_000, "0A"), capture(5_000, "0A"), False),  # the same event
        (capture(9_000, "0a00"), capture(5_000, "0A"), False),  # padded with zeros, in any case
        (capture(9_000, "0A"), capture(5_000, "0B"), False),  # late
        (capture(9_000), capture(5_000, "0B"), True),  # listed
        (capture(5_999, "0A"), capture(5_000), False),  # the event of what was listed
        (capture(6_000, "0A"), capture(5_000), True),
        (capture(4_000), capture(5_000), False),
        (capture(None, "0B"), capture(5_000, "0A"), False),
        (capture(9_000), capture(None), False),  # of an older version
        (capture(9_000, "0A"), capture(None), True),
        (capture(9_000, "0A", "v1"), capture(None, None, "v1"), False),
    ],
)
def test_what_is_later(seen: Capture, known: Capture, later: bool) -> None:
    assert is_later(seen, known) == later


def test_a_listing_finds_the_sighting_of_its_event() -> None:
    listed = capture(5_000)
    for event in (5_000, 5_400, 6_300):
        assert sighting_of(capture(event, "0A")).capture_id in ids_of_listed(listed)
    assert sighting_of(capture(7_000, "0A")).capture_id not in ids_of_listed(listed)


def test_a_message_of_pcaplake_has_the_time_of_the_listing() -> None:
    ref = ObjectRef(uri=URI, size=1, explicit=True, etag="e", modified=1_000, sequencer="0A")
    (read,) = parse_notification(build_s3_event(ref)).objects
    assert (read, read.modified_ms, read.event_time) == (ref, 1_000, None)


@pytest.mark.parametrize("value", [-1, True, "1", 1.5, 10**18])
def test_a_time_that_no_version_writes_is_refused(value: Any) -> None:
    body = json.loads(build_s3_event(ObjectRef(uri=URI, size=1, explicit=True, etag="e", modified=1)))
    body["Records"][0]["pcaplake"]["modified"] = value
    with pytest.raises(Exception, match="modified"):
        parse_notification(json.dumps(body))
