"""Captures that a committer gives back: which of them can be read again, and what their messages are owed."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from pcaplake.common.errors import Retryable
from pcaplake.ingest.captures.reference import capture_from_reference, local_reference
from pcaplake.ingest.captures.source import LocalFile, Sources, is_readable_again, is_still_there
from pcaplake.lake.records import Capture
from pcaplake.worker.config.routes import Routes
from pcaplake.worker.service.announce import create_queue_source
from pcaplake.worker.service.notification import build_s3_event, parse_notification
from tests.worker.fleets import LAKE, ROUTES, Fleet, can_capture


def named(body: str) -> Capture:
    (ref,) = parse_notification(body).objects
    return capture_from_reference(ref)


async def test_which_captures_can_be_read_again() -> None:
    """By their very content: an old version is as good as a new one, another content of the key is not."""
    fleet = Fleet()
    overwritten = named(fleet.upload("a.pcap", can_capture(1)))
    fleet.bucket.put_object("a.pcap", can_capture(2))
    gone = named(fleet.upload("b.pcap", can_capture(1)))
    fleet.bucket.delete_object("b.pcap")
    unversioned = Capture(capture_id="c", uri=overwritten.uri, etag=overwritten.etag, size=overwritten.size)
    empty = named(fleet.bucket.put_object("d.pcap", b""))
    source = fleet.source()
    async with await fleet.lake(commits=False, source=source) as source.lake:
        assert await source.find_unreadable([overwritten, gone, unversioned, empty]) == [gone, unversioned]
        fleet.faults.inject_fault("bucket.read a.pcap 0", "error")
        with pytest.raises(Retryable):
            await source.find_unreadable([gone, overwritten])
    elsewhere = Routes.parse_routes([{"name": "all", "bucket": "other", "lake": "memory:///test"}])
    changed = create_queue_source(fleet.queue, elsewhere, *fleet.parts(), LAKE)
    changed.lake = source.lake
    assert await changed.find_unreadable([empty]) == [empty], "no route leads from it to the lake"


async def test_local_captures_can_be_read_while_they_are_what_they_were(tmp_path: Path) -> None:
    path = tmp_path / "a.pcap"
    path.write_bytes(can_capture(1))

    async def there(one: Capture) -> bool:
        loop = asyncio.get_running_loop()
        return await asyncio.to_thread(is_still_there, Sources(), one, loop)

    with LocalFile(local_reference(path, explicit=True).uri) as file:
        one = file.identify_capture()
    assert await there(one)
    path.write_bytes(can_capture(2))
    assert not await there(one)
    path.unlink()
    assert not await there(one)


async def test_a_remote_capture_can_be_read_when_a_byte_of_it_is_given() -> None:
    """An archived object answers a HEAD."""
    fleet = Fleet()
    one = named(fleet.upload("a.pcap", can_capture(1)))
    sources = Sources(buckets={"s3://raw": fleet.bucket})
    assert await is_readable_again(sources, one)
    fleet.faults.inject_fault("bucket.read a.pcap 0", "error")
    with pytest.raises(Retryable):
        await is_readable_again(sources, one)
    fleet.bucket.delete_object("a.pcap")
    assert not await is_readable_again(sources, replace(one, version_id=None))


class Counts:
    def __init__(self) -> None:
        self.counted: Counter[tuple[str, ...]] = Counter()

    def count(self, name: str, by: float = 1, **labels: str) -> None:
        self.counted[name, *labels.values()] += int(by)

    def set(self, name: str, value: float, **labels: str) -> None: ...

    def observe(self, name: str, value: float, **labels: str) -> None: ...


@pytest.mark.parametrize("why", ["no route", "gone"])
async def test_what_a_lake_is_owed_keeps_its_message(why: str) -> None:
    """The routes were changed since its rows were lost, or the object went meanwhile: it becomes a dead letter."""

    fleet, counts = Fleet(visibility_timeout=1.0, max_receives=2), Counts()
    one = named(fleet.bucket.put_object("a.pcap", can_capture(1)))
    source = fleet.source()
    async with await fleet.lake(commits=False, source=source) as lake:
        source.lake = lake
        await source.replay_captures([one])
        if why == "gone":
            fleet.bucket.delete_object("a.pcap")
        other = Routes.parse_routes([{"name": "all", "bucket": "raw", "lake": "memory:///other"}])
        routes = other if why == "no route" else ROUTES
        service = fleet.service(lake, routes=routes, meter=counts, retry_first=0.0, retry_most=0.0)
        task = asyncio.create_task(service.run())
        async with asyncio.timeout(30):
            while not fleet.queue.dead:
                assert not task.done()
                fleet.clock.advance_time(0.5)
                await asyncio.sleep(0.01)
        service.stop()
        fleet.clock.advance_time(1.0)
        await task
    assert counts.counted["returned_captures_unreadable", why] == 2
    assert not len(fleet.queue)
    assert not fleet.ledger.shared.captures


async def test_what_a_lake_is_owed_goes_to_no_other_lake() -> None:
    fleet = Fleet()
    ref = parse_notification(fleet.bucket.put_object("a.pcap", can_capture(1))).objects[0]
    first = {"name": "one", "bucket": "raw", "lake": "memory:///one", "also": True}
    routes = Routes.parse_routes([first, {"name": "two", "bucket": "raw", "lake": "memory:///two"}])
    async with await fleet.lake(commits=False) as lake:
        stager = fleet.service(lake, routes=routes)._stager
        body = build_s3_event(replace(ref, owed_to="memory:///two"))
        work, nowhere = stager._route_objects(parse_notification(body))
        assert ([route.name for route, _ in work], nowhere) == (["two"], [])
        work, nowhere = stager._route_objects(parse_notification(build_s3_event(ref)))
        assert ([route.name for route, _ in work], nowhere) == (["one", "two"], [])
