"""The service over adapters in memory: what comes into the tables, what becomes of messages, and how it stops."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

import pytest

from pcaplake.common.errors import Fatal
from pcaplake.common.retry import DELETE_MESSAGE
from pcaplake.ingest.captures.reference import capture_from_reference
from pcaplake.ingest.decode_pool import MOST_WINDOWS, DecodePool, End, Job
from pcaplake.lake.adoption import adopt_ledger
from pcaplake.lake.commit.committer import Committer
from pcaplake.lake.commit.rebuild_ledger import rebuild_from_manifests
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.records import Capture
from pcaplake.lake.staging.window import Window
from pcaplake.worker.service import service as service_module
from pcaplake.worker.service.notification import parse_notification
from pcaplake.worker.service.queue import Attributes, Delivery
from pcaplake.worker.service.service import Service
from tests.lake.generations import raise_generation
from tests.worker import lakes
from tests.worker.adapters.memory_ledger import MemoryLedger
from tests.worker.adapters.queue import MemoryQueue
from tests.worker.fleets import Fleet, can_capture, emptied
from tests.worker.telemetry.counts import Counts


@asynccontextmanager
async def running(
    fleet: Fleet, *, lake_config: Any = None, **given: Any
) -> AsyncIterator[tuple[Service, asyncio.Task[None]]]:
    """A service that runs until the body is over, and then stops as by SIGTERM."""
    async with await fleet.lake(source=fleet.source(), **(lake_config or {})) as lake:
        service = fleet.service(lake, **given)
        task = asyncio.create_task(service.run())
        try:
            yield service, task
        finally:
            service.stop()
            fleet.clock.advance_time(1.0)  # the pending poll answers
            await task


async def test_captures_come_into_the_tables_once_and_messages_are_deleted() -> None:
    fleet = Fleet()
    bodies = [fleet.upload(f"in/{i} ü+%.pcap", can_capture(100, i)) for i in range(30)]
    for body in bodies[:10]:  # delivered twice, as SQS may
        fleet.queue.put_message(body)
    both = [record for body in bodies[:2] for record in json.loads(body)["Records"]]
    fleet.queue.put_message(json.dumps({"Records": both}))
    async with running(fleet) as (service, task):
        await asyncio.wait_for(emptied(fleet, service, task), 30)
    assert fleet.captures() == {f"s3://raw/in/{i} ü+%.pcap": 1 for i in range(30)}
    assert fleet.rows("can_frames").num_rows == 3000
    assert service.tally["staged"] == 30
    assert service.tally["already_staged"] == 12


async def test_captures_that_arrive_together_share_files() -> None:
    fleet = Fleet()
    for i in range(40):
        fleet.upload(f"{i}.pcap", can_capture(10, i))
    async with running(fleet, threads=2) as (service, task):
        await asyncio.wait_for(emptied(fleet, service, task), 30)
    files = [path for path in fleet.store.objects if path.startswith("can_frames/date=")]
    assert len(files) < 20
    assert fleet.rows("can_frames").num_rows == 400


async def test_what_is_no_capture_is_quarantined_and_what_is_gone_is_forgotten() -> None:
    fleet = Fleet()
    fleet.upload("text.txt", b"this is no capture at all")
    fleet.upload("gone.pcap", can_capture(5))
    fleet.bucket.delete_object("gone.pcap")
    fleet.upload("good.pcap", can_capture(5))
    async with running(fleet) as (service, task):
        await asyncio.wait_for(emptied(fleet, service, task), 30)
    outcomes = dict(zip(*(fleet.rows("captures")[name].to_pylist() for name in ("uri", "outcome")), strict=True))
    assert outcomes == {"s3://raw/text.txt": "quarantined", "s3://raw/good.pcap": "ok"}
    assert fleet.rows("quarantine").num_rows == 1
    assert service.tally == {"staged": 1, "quarantined": 1, "gone": 1}


async def test_what_a_worker_did_is_in_its_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    fleet = Fleet()
    fleet.upload("text.txt", b"this is no capture at all")
    fleet.upload("gone.pcap", can_capture(5))
    fleet.bucket.delete_object("gone.pcap")
    for number in range(3):
        fleet.upload(f"{number}.pcap", can_capture(5, number))
    async with running(fleet) as (service, task):
        await asyncio.wait_for(emptied(fleet, service, task), 30)
    events = [vars(record) for record in caplog.records if record.levelno == logging.INFO]

    def logged(text: str) -> list[dict[str, Any]]:
        return [event for event in events if event["msg"] == text]

    rows = fleet.rows("captures").num_rows + fleet.rows("quarantine").num_rows + 2 * fleet.rows("can_frames").num_rows
    for text in ("captures staged", "batch committed"):
        found = logged(text)
        assert sum(event["captures"] for event in found) == 4
        assert sum(event["rows"] for event in found) == rows  # a frame is also a row of `packets`
        assert all(event["seconds"] >= 0 and event["lake"] == fleet.store.uri for event in found)
    assert {uri for event in logged("captures staged") for uri in event["uris"].split(", ")} == set(fleet.captures())
    (quarantined,), (gone,) = logged("capture quarantined"), logged("capture gone")
    assert quarantined["uri"] == "s3://raw/text.txt"
    assert quarantined["reason"].startswith("not a capture (unknown_format)")
    assert gone["uri"] == "s3://raw/gone.pcap"
    assert "does not exist" in gone["reason"]
    assert [event["msg"] for event in events if "leader" in event["msg"]] == ["leadership won", "leadership released"]


async def test_a_message_that_nobody_can_read_is_left_to_the_redrive_policy() -> None:
    fleet = Fleet(max_receives=2)
    fleet.queue.put_message("what is this?")
    fleet.upload("good.pcap", can_capture(5))
    async with running(fleet, retry_first=1.0, retry_most=1.0) as (_, task):
        for _ in range(200):
            await asyncio.sleep(0.01)
            fleet.clock.advance_time(0.5)
            if fleet.queue.dead and fleet.captures():
                break
        assert not task.done()
    assert fleet.queue.dead == ["what is this?"]
    assert fleet.captures() == {"s3://raw/good.pcap": 1}


async def test_a_bad_record_costs_no_other_of_its_message_and_is_not_forgotten() -> None:
    fleet = Fleet(max_receives=2)
    (good,) = json.loads(fleet.bucket.put_object("good.pcap", can_capture(5)))["Records"]
    body = json.dumps({"Records": [{"eventName": "ObjectCreated:Put"}, good]})
    fleet.queue.put_message(body)
    async with running(fleet, retry_first=1.0, retry_most=1.0):
        while not fleet.queue.dead:
            await asyncio.sleep(0.01)
            fleet.clock.advance_time(0.5)
    assert fleet.queue.dead == [body]
    assert fleet.captures() == {"s3://raw/good.pcap": 1}


async def test_names_of_events_are_no_labels() -> None:
    """Each name that a sender invents would be a series in Prometheus for good."""
    fleet, counts = Fleet(), Counts()
    names = ["ObjectRemoved:Delete", *(f"ObjectMade:Up{number}" for number in range(20))]
    fleet.queue.put_message(json.dumps({"Records": [{"eventName": name} for name in names]}))
    async with running(fleet, meter=counts):
        while len(fleet.queue):
            await asyncio.sleep(0.01)
            fleet.clock.advance_time(0.5)
    assert counts("notifications_ignored_total", kind="ObjectRemoved:Delete") == 1
    assert counts("notifications_ignored_total", kind="other") == 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["error", "lost"])
@pytest.mark.parametrize(
    "point",
    ["bucket.read*", "ledger.captures", "ledger.stage*", "queue.delete*", "queue.receive", "store.get*lake.json"],
)
async def test_a_fault_anywhere_costs_time_and_no_row(point: str, kind: str) -> None:
    fleet = Fleet()
    for i in range(6):
        fleet.upload(f"{i}.pcap", can_capture(20, i))
    async with running(fleet, retry_first=0.5, retry_most=0.5) as (service, task):
        fleet.faults.inject_fault(point, kind, times=4)  # type: ignore[arg-type]

        async def until_empty() -> None:
            while len(fleet.queue) or service.messages_in_flight:
                await asyncio.sleep(0.01)
                fleet.clock.advance_time(0.2)

        await asyncio.wait_for(until_empty(), 30)
        assert not task.done()
    assert fleet.captures() == {f"s3://raw/{i}.pcap": 1 for i in range(6)}
    assert fleet.rows("can_frames").num_rows == 120


@pytest.mark.slow
async def test_stopping_gives_back_what_has_not_begun_and_stages_what_is_whole() -> None:
    fleet = Fleet(visibility_timeout=1000.0)
    for i in range(50):
        fleet.upload(f"{i}.pcap", can_capture(2000, i))
    async with await fleet.lake(source=fleet.source()) as lake:
        service = fleet.service(lake, threads=1, max_inflight=20)
        task = asyncio.create_task(service.run())
        while not service.messages_in_flight:
            await asyncio.sleep(0)
        service.stop()
        fleet.clock.advance_time(1.0)
        await asyncio.wait_for(task, 30)
    assert service.messages_in_flight == 0
    done = fleet.captures()
    assert len(fleet.queue) == 50 - len(done)
    assert len(await fleet.queue.receive(10, 0)) == min(10, len(fleet.queue))  # they are visible again at once
    fleet.clock.advance_time(1001.0)
    async with running(fleet) as (again, task):
        await asyncio.wait_for(emptied(fleet, again, task), 30)
    assert set(fleet.captures().values()) == {1}
    assert len(fleet.captures()) == 50
    assert service.tally["staged"] + again.tally["staged"] == 50


async def test_what_only_people_can_mend_ends_the_service() -> None:
    fleet = Fleet()
    fleet.upload("a.pcap", can_capture(5))
    async with await fleet.lake(commits=False) as lake:
        service = fleet.service(lake)
        del fleet.store.objects["_pcaplake/lake.json"]
        task = asyncio.create_task(service.run())
        while not service.messages_in_flight:
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        fleet.clock.advance_time(1.0)
        with pytest.raises(Fatal, match=r"lake\.json"):
            await asyncio.wait_for(task, 30)
    assert len(fleet.queue) == 1
    assert await fleet.queue.receive(1, 0)  # given back


async def test_one_role_stages_and_the_other_commits() -> None:
    fleet = Fleet()
    for i in range(5):
        fleet.upload(f"{i}.pcap", can_capture(10, i))
    async with await fleet.lake(commits=False) as lake:
        service = fleet.service(lake)
        task = asyncio.create_task(service.run())
        await asyncio.wait_for(emptied(fleet, service, task), 30)
        service.stop()
        fleet.clock.advance_time(1.0)
        await task
    assert not fleet.captures()
    async with await fleet.lake(source=fleet.source()) as lake:
        committer = fleet.service(lake, receives=False)
        task = asyncio.create_task(committer.run())
        while sum(fleet.captures().values()) < 5:
            await asyncio.sleep(0.01)
        committer.stop()
        await asyncio.wait_for(task, 30)
    assert fleet.captures() == {f"s3://raw/{i}.pcap": 1 for i in range(5)}


async def test_a_capture_that_breaks_takes_no_other_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(max_receives=3)
    for i in range(8):
        fleet.upload(f"{i}.pcap", can_capture(10, i))
    fleet.upload("broken.pcap", can_capture(10))
    real = type(fleet.parts()[0]["all"]).read

    def read(self: Any, file: Any, capture: Any, window: Any, *stopped: Any) -> Any:
        result = real(self, file, capture, window, *stopped)
        if "broken" in capture.uri:
            raise RuntimeError("a bug")
        return result

    monkeypatch.setattr("pcaplake.ingest.pipeline.Reader.read", read)
    async with running(fleet, threads=1, retry_first=0.5, retry_most=0.5) as (service, task):
        for _ in range(1000):
            await asyncio.sleep(0.01)
            fleet.clock.advance_time(0.2)
            if fleet.queue.dead and not service.messages_in_flight and not len(fleet.queue):
                break
        assert not task.done()
    assert fleet.captures() == {f"s3://raw/{i}.pcap": 1 for i in range(8)}
    assert len(fleet.queue.dead) == 1


class LingeringQueue(MemoryQueue):
    """Goes on with a poll that its client has abandoned, as SQS may, and delivers to nobody."""

    async def receive(self, limit: int, wait: float) -> list[Delivery]:
        return await asyncio.shield(asyncio.create_task(super().receive(limit, wait)))


async def test_a_message_that_is_given_back_does_not_go_to_a_poll_of_the_same_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pcaplake.worker.service.service.POLL_GRACE", 0.0)
    fleet = Fleet()
    fleet.queue = LingeringQueue(fleet.clock, visibility_timeout=1000.0)
    begun = asyncio.Event()

    async def hang(content: Any, start: int, end: int) -> AsyncIterator[Any]:
        begun.set()
        await asyncio.Event().wait()
        yield b""

    fleet.bucket.read_range = hang  # type: ignore[assignment, method-assign]
    async with await fleet.lake(source=fleet.source()) as lake:
        service = fleet.service(lake, drain_timeout=1000.0)
        fleet.upload("a.pcap", can_capture(10))
        task = asyncio.create_task(service.run())
        await asyncio.wait_for(begun.wait(), 30)
        service.stop()
        for _ in range(20):
            await asyncio.sleep(0.01)  # long enough to give it back too early
        fleet.clock.advance_time(1.0)
        await asyncio.wait_for(task, 30)
    (delivery,) = await fleet.queue.receive(10, 0)
    assert delivery.receive_count == 2


@pytest.mark.slow
async def test_an_idle_service_does_not_wait_for_its_polls() -> None:
    """Time does not pass in the queue, so the polls never end."""
    fleet = Fleet()
    async with await fleet.lake(source=fleet.source()) as lake:
        service = fleet.service(lake, drain_timeout=1000.0)
        task = asyncio.create_task(service.run())
        fleet.upload("a.pcap", can_capture(10))
        await emptied(fleet, service, task)
        service.stop()
        await asyncio.wait_for(task, 30)
    assert fleet.clock.now == 0
    assert fleet.captures() == {"s3://raw/a.pcap": 1}


async def test_what_a_poll_brings_while_the_service_stops_is_given_back() -> None:
    fleet = Fleet(visibility_timeout=1000.0)
    async with await fleet.lake(source=fleet.source()) as lake:
        service = fleet.service(lake, drain_timeout=1000.0)
        task = asyncio.create_task(service.run())
        while not fleet.clock.has_waiters:
            await asyncio.sleep(0)
        service.stop()
        fleet.upload("a.pcap", can_capture(10))
        while not service.messages_in_flight:
            await asyncio.sleep(0)
        fleet.clock.advance_time(1.0)
        await asyncio.wait_for(task, 30)
    assert not fleet.captures()
    (delivery,) = await fleet.queue.receive(10, 0)
    assert delivery.receive_count == 2


@pytest.mark.slow
async def test_restarts_use_up_no_receipts() -> None:
    """Its own pending polls would take again what a stopping service gives back, and the redrive policy counts that."""

    fleet = Fleet(visibility_timeout=1000.0, max_receives=5)
    for i in range(12):
        fleet.upload(f"{i}.pcap", can_capture(500, i))
    for _ in range(4):
        async with await fleet.lake(source=fleet.source()) as lake:
            service = fleet.service(lake, threads=1, max_inflight=4)
            task = asyncio.create_task(service.run())
            while not service.messages_in_flight and len(fleet.queue):
                await asyncio.sleep(0)
            service.stop()
            fleet.clock.advance_time(1.0)
            await asyncio.wait_for(task, 30)
        assert service.messages_in_flight == 0
    async with running(fleet) as (service, task):
        await asyncio.wait_for(emptied(fleet, service, task), 30)
    assert not fleet.queue.dead
    assert fleet.captures() == {f"s3://raw/{i}.pcap": 1 for i in range(12)}


async def test_a_window_that_cannot_be_closed_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet()
    for i in range(6):
        fleet.upload(f"{i}.pcap", can_capture(10, i))
    real, left = Window.close, [KeyError("a bug"), MemoryError()]

    def close(self: Any) -> Any:
        if left:
            raise left.pop()
        return real(self)

    monkeypatch.setattr("pcaplake.lake.staging.window.Window.close", close)
    async with running(fleet, retry_first=0.5, retry_most=0.5) as (service, task):
        for _ in range(1000):
            await asyncio.sleep(0.01)
            fleet.clock.advance_time(0.2)
            if not len(fleet.queue) and not service.messages_in_flight:
                break
        assert not task.done()
    assert not left
    assert fleet.captures() == {f"s3://raw/{i}.pcap": 1 for i in range(6)}


async def test_a_bucket_that_cannot_be_is_the_fault_of_one_message() -> None:
    fleet = Fleet(max_receives=2)
    body = fleet.upload("good.pcap", can_capture(5))
    fleet.queue.put_message(body.replace('"name": "raw"', '"name": "a b"'))
    async with running(fleet, retry_first=0.5, retry_most=0.5) as (service, task):
        for _ in range(1000):
            await asyncio.sleep(0.01)
            fleet.clock.advance_time(0.2)
            if fleet.queue.dead and not service.messages_in_flight:
                break
        assert not task.done()
        assert not service._failures  # no reason to receive less
    assert len(fleet.queue.dead) == 1
    assert fleet.captures() == {"s3://raw/good.pcap": 1}


async def test_a_ledger_that_ends_everything_leaves_no_job_behind() -> None:
    """Fatal in one lane, while others read and stage: `run` returns at once, and every message is given back."""

    fleet = Fleet()
    for i in range(20):
        fleet.upload(f"{i}.pcap", can_capture(300, i))
    async with await fleet.lake(commits=False) as lake:
        service = fleet.service(lake, threads=3, drain_timeout=1000.0)

        async def stage(stage: Any) -> Any:
            raise Fatal("the ledger is gone for good")

        lake.stage = stage  # type: ignore[method-assign]
        task = asyncio.create_task(service.run())
        while not service.is_stopping:
            await asyncio.sleep(0.01)
        fleet.clock.advance_time(1.0)
        with pytest.raises(Fatal, match="gone for good"):
            await asyncio.wait_for(task, 30)
    assert service.messages_in_flight == 0
    assert len(await fleet.queue.receive(10, 0)) == 10


async def test_a_capture_that_was_overwritten_is_read_again_in_its_version() -> None:
    """The stage that had it is returned, and one of its files must be made again."""

    fleet = Fleet()
    source = fleet.source()
    (first,) = parse_notification(fleet.upload("a.pcap", can_capture(10, 0))).objects
    lake = source.lake = await fleet.lake(commits=False, source=source)
    async with lake:
        service = fleet.service(lake)
        task = asyncio.create_task(service.run())
        await asyncio.wait_for(emptied(fleet, service, task), 30)
        service.stop()
        fleet.clock.advance_time(1.0)  # the pending poll answers
        await task
    (item,) = fleet.ledger.shared.captures.values()
    assert item.capture.version_id == first.version_id
    fleet.bucket.put_object("a.pcap", can_capture(20, 100))
    made = await source.rebuild_files("can_frames", lakes.stage_of([item.capture]))
    assert made is not None
    assert [json.loads(add.stats or "")["numRecords"] for add in made] == [10]

    await source.replay_captures([item.capture])
    (delivery,) = await fleet.queue.receive(10, 0)
    (ref,) = parse_notification(delivery.body).objects
    assert (ref.version_id, capture_from_reference(ref).capture_id) == (
        item.capture.version_id,
        item.capture.capture_id,
    )


class Gauges:
    """What was counted by its labels, and the most that a gauge ever showed."""

    def __init__(self) -> None:
        self.counted: Counter[tuple[str, ...]] = Counter()
        self.most: dict[str, float] = {}
        self.shown: dict[str, list[float]] = {}

    def count(self, name: str, by: float = 1, **labels: str) -> None:
        self.counted[name, *labels.values()] += int(by)

    def set(self, name: str, value: float, **labels: str) -> None:
        self.most[name] = max(value, self.most.get(name, 0.0))
        self.shown.setdefault(name, []).append(value)

    def observe(self, name: str, value: float, **labels: str) -> None: ...


@pytest.mark.slow
async def test_polls_bring_no_more_than_may_be_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both wait for messages when they come, all at once."""

    fleet, gauges, asked = Fleet(), Gauges(), list[int]()
    receive = fleet.queue.receive

    def noted(limit: int, wait: float) -> Awaitable[list[Delivery]]:
        asked.append(limit)
        return receive(limit, wait)

    monkeypatch.setattr(fleet.queue, "receive", noted)
    monkeypatch.setattr("pcaplake.worker.service.suspects.FRESH", 0)  # as a process that has received some already
    async with running(fleet, max_inflight=12, meter=gauges) as (service, task):
        while len(asked) < 2:
            await asyncio.sleep(0)
        assert asked == [10, 2]
        for i in range(40):
            fleet.upload(f"{i}.pcap", can_capture(10, i))
        await asyncio.wait_for(emptied(fleet, service, task), 30)
    assert gauges.most["messages_in_flight"] <= 12
    assert fleet.captures().total() == 40


AGE = "queue_oldest_message_age_seconds"


@pytest.mark.parametrize(("ahead", "oldest"), [(0.0, 90.0), (-1000.0, 0.0)], ids=["clocks agree", "ours is behind"])
async def test_the_age_of_the_oldest_message(ahead: float, oldest: float) -> None:
    """`ahead`: our clock before the queue's."""

    fleet, gauges = Fleet(), Gauges()
    fleet.upload("old.pcap", can_capture(10, 0))
    fleet.clock.advance_time(90.0)
    fleet.upload("new.pcap", can_capture(10, 1))
    async with running(fleet, meter=gauges, now=lambda: fleet.clock.now + ahead) as (service, task):
        await asyncio.wait_for(emptied(fleet, service, task), 30)
        while AGE not in gauges.shown:
            fleet.clock.advance_time(1.0)
            await asyncio.sleep(0)
        assert gauges.shown[AGE] == [oldest], "as it was when it was received"
        while len(gauges.shown[AGE]) < 2:
            fleet.clock.advance_time(1.0)
            await asyncio.sleep(0)
    assert gauges.shown[AGE][1] == 0, "none came, and none waits"


async def test_an_idle_service_releases_memory_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, released = Fleet(), []
    monkeypatch.setattr(service_module, "release_idle_memory", lambda: released.append(fleet.clock.now))
    async with running(fleet) as (service, task):
        for number in range(2):
            for _ in range(30):
                fleet.clock.advance_time(1.0)
                await asyncio.sleep(0)
            assert len(released) == number
            fleet.upload(f"{number}.pcap", can_capture(10, number))
            await asyncio.wait_for(emptied(fleet, service, task), 30)
        for _ in range(30):
            fleet.clock.advance_time(1.0)
            await asyncio.sleep(0)
    assert len(released) == 2


async def test_who_receives_nothing_says_no_age_while_something_waits() -> None:
    fleet, gauges = Fleet(), Gauges()
    fleet.upload("old.pcap", can_capture(10, 0))
    async with running(fleet, meter=gauges, receives=False) as (_, _task):
        while gauges.shown.get("queue_messages", [])[-3:] != [1, 0, 0]:
            fleet.clock.advance_time(1.0)
            await asyncio.sleep(0)
    assert AGE not in gauges.shown


async def test_only_who_leads_asks_for_the_figures_of_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand followers would ask 720,000 times an hour for what one tells."""

    fleet, gauges = Fleet(), Gauges()
    async with running(fleet, meter=gauges, receives=False) as (service, _task):
        (lake,) = service._lakes.values()
        asked: list[bool] = []
        attributes = fleet.queue.read_attributes

        async def ask() -> Attributes:
            asked.append(lake.committer.is_leading)
            return await attributes()

        monkeypatch.setattr(fleet.queue, "read_attributes", ask)
        shown = gauges.shown.setdefault("queue_messages", [])
        while shown[-3:] != [0, 0, 0]:
            fleet.clock.advance_time(1.0)
            await asyncio.sleep(0)
        monkeypatch.setattr(Committer, "is_leading", property(lambda _: False))
        seen = len(shown)
        while len(shown) < seen + 9:
            fleet.clock.advance_time(1.0)
            await asyncio.sleep(0)
        count = len(asked)
        assert all(math.isnan(value) for value in shown[-6:]), "what it knew is old"
        while len(shown) < seen + 18:
            fleet.clock.advance_time(1.0)
            await asyncio.sleep(0)
        assert asked == [True] * count


async def test_a_message_that_could_not_be_deleted_is_not_counted_as_deleted() -> None:
    fleet, gauges = Fleet(visibility_timeout=1.0), Gauges()
    fleet.faults.inject_fault("queue.delete *", "error", times=DELETE_MESSAGE.attempts)
    fleet.upload("a.pcap", can_capture(10, 0))
    async with running(fleet, meter=gauges) as (service, task):
        while not gauges.counted["messages", "delete_failed"]:
            await asyncio.sleep(0)
        fleet.clock.advance_time(2.0)
        await asyncio.wait_for(emptied(fleet, service, task), 30)
    outcomes = {key[1]: count for key, count in gauges.counted.items() if key[0] == "messages"}
    assert outcomes == {"delete_failed": 1, "deleted": 1}
    assert fleet.captures() == {"s3://raw/a.pcap": 1}


@pytest.mark.slow
async def test_a_checkpoint_under_way_does_not_keep_it_from_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, stopped = set[str](), set[str]()

    async def endless(self: LogStore, table: str) -> None:
        begun.add(table)
        try:
            await asyncio.Event().wait()
        finally:
            stopped.add(table)

    monkeypatch.setattr(LogStore, "checkpoint", endless)

    fleet = Fleet()
    fleet.upload("a.pcap", can_capture(10, 0))
    async with asyncio.timeout(30):
        async with running(fleet, drain_timeout=0.5, lake_config={"checkpoint_interval": 1}) as (service, task):
            await emptied(fleet, service, task)
            while not begun:
                await asyncio.sleep(0.01)
    assert stopped == begun
    assert fleet.ledger.shared.lease.owner == ""


@pytest.mark.slow
async def test_a_lake_that_is_overwritten_between_two_captures_of_a_message_gets_both() -> None:
    """The first was staged, and is gone with the old content; the message is not deleted before it is there again."""

    fleet, gate = Fleet(), asyncio.Event()
    bodies = [fleet.bucket.put_object(f"{i}.pcap", can_capture(10, i)) for i in range(2)]
    fleet.queue.put_message(
        json.dumps({"Records": [record for body in bodies for record in json.loads(body)["Records"]]})
    )
    read = fleet.bucket.read_range

    async def slow(content: Any, start: int, end: int) -> AsyncIterator[Any]:
        if content.key == "1.pcap":
            await gate.wait()
        async for part in read(content, start, end):
            yield part

    fleet.bucket.read_range = slow  # type: ignore[method-assign]
    async with running(fleet, lake_config={"flush_interval": 0.1}, retry_first=0.5, retry_most=0.5) as (service, _):
        while not fleet.captures():
            await asyncio.sleep(0.01)
        await raise_generation(fleet.store)
        gate.set()
        async with asyncio.timeout(30):
            while len(fleet.queue) or service.messages_in_flight:
                await asyncio.sleep(0.01)
                fleet.clock.advance_time(0.2)
    async with await fleet.lake() as lake:
        await lake.drain()
    assert fleet.captures() == {"s3://raw/0.pcap": 1, "s3://raw/1.pcap": 1}


@pytest.mark.parametrize("when", ["while it reads", "before it asks"])
async def test_who_lives_on_when_another_ledger_is_made_the_lakes_deletes_no_message(when: str) -> None:
    """Its own ledger is nobody's any more: what is staged there never comes into a table."""

    fleet, begun, gate = Fleet(), asyncio.Event(), asyncio.Event()
    read = fleet.bucket.read_range

    async def slow(content: Any, start: int, end: int) -> AsyncIterator[Any]:
        begun.set()
        await gate.wait()
        async for part in read(content, start, end):
            yield part

    async def adopted() -> None:
        book = MemoryLedger()
        book.shared.identity = "another"
        await rebuild_from_manifests(fleet.store, book)
        await adopt_ledger(fleet.store, book)

    fleet.bucket.read_range = slow  # type: ignore[method-assign]
    if when == "before it asks":
        gate.set()
    async with await fleet.lake(commits=False) as lake:
        if when == "before it asks":
            await adopted()
        service = fleet.service(lake)
        fleet.upload("a.pcap", can_capture(10))
        task = asyncio.create_task(service.run())
        if when == "while it reads":
            await asyncio.wait_for(begun.wait(), 30)
            await adopted()
            gate.set()
        while len(fleet.queue) and not task.done():
            fleet.clock.advance_time(1.0)
            await asyncio.sleep(0.01)
        assert len(fleet.queue) == 1
        with pytest.raises(Fatal, match="the lake's ledger was memory memory"):
            task.result()


async def test_a_blocked_table_keeps_nobody_from_stopping() -> None:
    fleet = Fleet()
    async with await fleet.lake(source=fleet.source()) as lake:
        service = fleet.service(lake, drain_timeout=1000.0)
        task = asyncio.create_task(service.run())
        block(fleet, "can_frames")
        fleet.upload("a.pcap", can_capture(10))
        while not lake.committer.is_stuck:
            await asyncio.sleep(0.01)
        service.stop()
        fleet.clock.advance_time(1.0)
        await asyncio.wait_for(task, 30)


@pytest.mark.parametrize("drains", [False, True])
async def test_a_blocked_table_keeps_nothing_from_the_others_at_the_end(drains: bool) -> None:
    """What was staged after it was blocked is composed, and in the tables that are free."""

    fleet = Fleet()
    async with await fleet.lake(source=fleet.source(), max_batch_age=1000.0) as lake:
        service = fleet.service(lake, drain_timeout=1000.0)
        task = asyncio.create_task(service.run())
        block(fleet, "can_frames")
        fleet.upload("a.pcap", can_capture(10, 0))
        await emptied(fleet, service, task)
        lake.committer.flush_now = True
        lake.committer.wake()
        while not lake.committer.is_stuck:
            await asyncio.sleep(0.01)
        lake.committer.flush_now = False
        fleet.upload("b.pcap", can_capture(10, 50))
        await emptied(fleet, service, task)
        if drains:
            with pytest.raises(Fatal, match="protocol"):
                await lake.drain()
        service.stop()
        fleet.clock.advance_time(1.0)
        await asyncio.wait_for(task, 30)
    assert fleet.captures() == {"s3://raw/a.pcap": 1, "s3://raw/b.pcap": 1}


@pytest.mark.slow
async def test_one_patience_for_all_that_a_committer_ends() -> None:
    """A ledger and a checkpoint that both hang do not have it one after the other."""

    fleet = Fleet()
    lake = await fleet.lake(source=fleet.source())
    await lake.__aenter__()
    while not lake.committer.is_leading:
        await asyncio.sleep(0.01)

    async def hangs(*given: Any) -> Any:
        await asyncio.Event().wait()

    lake.ledger.read_lease = hangs  # type: ignore[method-assign]
    lake.log.checkpoint = hangs  # type: ignore[method-assign]
    lake.committer.checkpoints.note_commit("packets", lake.lake_config.checkpoint_interval)
    assert lake.committer.checkpoints.tasks
    lake.committer.stop_timeout = patience = 2.5
    started = asyncio.get_running_loop().time()
    await lake.close()
    assert asyncio.get_running_loop().time() - started < 2 * patience


def block(fleet: Fleet, table: str) -> None:
    """Somebody raises its protocol."""
    versions = [path for path in fleet.store.objects if path.startswith(f"{table}/_delta_log/")]
    raised = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [], "writerFeatures": []}
    fleet.store.put_past_faults(
        f"{table}/_delta_log/{len(versions):020d}.json", json.dumps({"protocol": raised}).encode() + b"\n"
    )


def damage(fleet: Fleet, table: str) -> None:
    """Its checkpoint is no Parquet file."""
    fleet.store.put_past_faults(f"{table}/_delta_log/{0:020d}.checkpoint.parquet", b"damaged")
    fleet.store.put_past_faults(f"{table}/_delta_log/_last_checkpoint", b'{"version":0,"size":1}')


def tear(fleet: Fleet, table: str) -> None:
    """A version is missing in its log."""
    fleet.store.put_past_faults(f"{table}/_delta_log/{2:020d}.json", b"{}\n")


@pytest.mark.parametrize("breaks", [block, damage, tear])
async def test_a_process_starts_beside_a_blocked_table(
    breaks: Callable[[Fleet, str], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It works for the others, says which one is blocked, and the blocked one catches up when it is free."""
    monkeypatch.setattr("pcaplake.lake.commit.blocked_tables.BLOCKED_RETRY_SECONDS", 0.01)

    fleet = Fleet()
    async with await fleet.lake():
        pass
    whole = fleet.store.objects.copy()
    breaks(fleet, "can_frames")
    broken = [path for path in fleet.store.objects if fleet.store.objects[path] is not whole.get(path)]
    async with await fleet.lake(source=fleet.source()) as lake:
        assert "table can_frames is blocked" in caplog.text
        service = fleet.service(lake, drain_timeout=1000.0)
        task = asyncio.create_task(service.run())
        while "can_frames" not in lake.committer.blocked:
            await asyncio.sleep(0.01)
        fleet.upload("a.pcap", can_capture(10))
        await emptied(fleet, service, task)
        lake.committer.flush_now = True
        lake.committer.wake()
        while not fleet.captures():
            await asyncio.sleep(0.01)
        assert not task.done()
        assert await lake.ledger.read_head() == -1
        for path in broken:
            del fleet.store.objects[path]
        async with asyncio.timeout(30):
            while await lake.ledger.read_head() < 0 or lake.committer.blocked:
                await asyncio.sleep(0.01)
        assert fleet.rows("can_frames").num_rows == 10
        service.stop()
        fleet.clock.advance_time(1.0)
        await asyncio.wait_for(task, 30)


async def test_a_table_that_is_freed_while_nothing_waits_for_it_is_blocked_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pcaplake.lake.commit.blocked_tables.BLOCKED_RETRY_SECONDS", 0.01)

    fleet = Fleet()
    async with await fleet.lake():
        pass
    damage(fleet, "can_frames")
    async with await fleet.lake() as lake:
        while "can_frames" not in lake.committer.blocked:
            await asyncio.sleep(0.01)
        for name in (f"{0:020d}.checkpoint.parquet", "_last_checkpoint"):
            del fleet.store.objects[f"can_frames/_delta_log/{name}"]
        async with asyncio.timeout(30):
            while lake.committer.blocked:
                await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_an_open_window_is_closed_for_one_of_another_lake(monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker serves many lakes, and its memory does not grow with their number."""
    count = 4 * MOST_WINDOWS

    async def main() -> int:
        most = 0
        async with AsyncExitStack() as stack:
            fleets = [Fleet() for _ in range(count)]
            lakes = [await stack.enter_async_context(await fleet.lake(flush_interval=1000.0)) for fleet in fleets]
            decode_pool, (readers, _) = DecodePool(1, coming=lambda: 1), fleets[0].parts()
            running = asyncio.create_task(decode_pool.run())
            open_windows = set[int]()
            for lake in lakes:
                window, stage = lake.window, lake.stage

                def opened(lake: Any = lake, window: Any = window) -> Window:
                    open_windows.add(id(lake))
                    return cast(Window, window())

                async def staged(found: Any, lake: Any = lake, stage: Any = stage) -> Any:
                    open_windows.discard(id(lake))
                    return await stage(found)

                monkeypatch.setattr(lake, "window", opened)
                monkeypatch.setattr(lake, "stage", staged)
            jobs = []
            for number, lake in enumerate(lakes):
                data = can_capture(5, number)
                named = Capture(capture_id=f"{number:032x}", uri=f"s3://raw/{number}", etag="e", size=len(data))
                job = Job(lake=lake, reader=readers["all"], capture=named, body=Read(data))
                jobs.append(job)
                await decode_pool.submit_job(job)
                while decode_pool._jobs or decode_pool._reading:
                    await asyncio.sleep(0.001)
                most = max(most, len(open_windows))
            await decode_pool.close()
            await asyncio.wait_for(running, 30)
            assert {await job.done for job in jobs} == {End.STAGED}
        return most

    assert MOST_WINDOWS <= await main() <= MOST_WINDOWS + 1  # one is being staged


class Read(io.BytesIO):
    """A body that has come as a whole."""

    def close_and_discard(self) -> None:
        self.close()

    def require_unchanged(self) -> None: ...
