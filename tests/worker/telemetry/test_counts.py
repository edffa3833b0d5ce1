"""What the lake, the queue and fetching tell about themselves is what happened to them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import date
from typing import Any, TypeVar

import obstore
import pyarrow as pa
import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from pcaplake.common import retry
from pcaplake.common.errors import OutcomeUnknown, PcaplakeError, Retryable
from pcaplake.common.runtime import Runtime
from pcaplake.ingest.captures.range_reader import FetchConfig, RangeReader
from pcaplake.lake import dynamodb_table as dynamo
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.delta import LogStore
from pcaplake.lake.dynamodb_table import DynamoClient
from pcaplake.lake.identity import CurrentIdentity, open_identity
from pcaplake.lake.lake import Lake
from pcaplake.lake.lake_parts import LakeParts
from pcaplake.lake.ledger.dynamodb_requests import Requests
from pcaplake.lake.records import Capture, Stage
from pcaplake.lake.store.store import Store
from pcaplake.worker.service.queue.heartbeat import Heartbeats
from pcaplake.worker.service.queue.sqs import SqsQueue
from tests.lake.delta.deltas import add, txn
from tests.lake.delta.lock_table_scene import NOW, Scene, begun, started
from tests.retries import hardly_wait
from tests.worker.adapters.faults import Faults, apply_fault
from tests.worker.adapters.memory_ledger import MemoryLedger
from tests.worker.adapters.memory_store import MemoryStore
from tests.worker.adapters.queue import FakeClock, MemoryBucket, MemoryQueue
from tests.worker.telemetry.counts import Counts

SCHEMA = pa.schema([("capture_id", pa.string()), ("date", pa.date32())])
SCHEMAS = {"captures": SCHEMA, "packets": SCHEMA}
T = TypeVar("T")
STEPS = ["recover", "compose", "manifest", "mark", "commit", "flag", "advance"]


@pytest.fixture
def counts() -> Counts:
    return Counts()


# -- the lake ---------------------------------------------------------------------------------------------------------
class NoWaiting(random.Random):
    """Pauses of no length, so that retries follow at once."""

    def uniform(self, a: float, b: float) -> float:
        return 0.0


class Outage(Faults):
    """Faults, and points that fail as long as they are `down`."""

    down = ""

    async def run_with_faults(self, point: str, effect: Callable[[], T]) -> T:
        if self.down and point.startswith(self.down):
            return apply_fault(point, "error", effect)
        return await super().run_with_faults(point, effect)


class Bench:
    """A lake in memory; `now` is the committer's clock, `hours` what the store has moved on."""

    def __init__(self, counts: Counts, **lake_config: Any) -> None:
        self.counts, self.now, self.hours, self.faults = counts, 100.0, 0.0, Outage()
        self.store = MemoryStore(self.faults, lambda: NOW + 3600 * self.hours)
        self.ledger = MemoryLedger(self.faults)
        self.lake_config = LakeConfig(**{"max_batch_age": 0.0, "commit_timeout": 0.0, **lake_config})
        self.lake: Lake

    async def start(self, made: Mapping[str, pa.Schema] = SCHEMAS) -> Bench:
        """`made`: tables that are there, of other columns perhaps."""
        identity = await open_identity(self.store, self.ledger)
        runtime = Runtime(clock=lambda: self.now, rng=NoWaiting(), meter=self.counts)
        log = LogStore(self.store, commit_timeout=0.0, runtime=replace(runtime, clock=time.monotonic))
        for table, schema in {**SCHEMAS, **made}.items():
            await log.create(table, schema, partition_columns=("date",))
        current = CurrentIdentity(self.store, identity, self.ledger)
        self.lake = Lake(
            LakeParts(store=self.store, log_store=log, ledger=self.ledger, current=current),
            lake_config=self.lake_config,
            schemas=SCHEMAS,
            runtime=runtime,
        )
        return self

    async def staged(self, *names: str) -> Stage:
        window = self.lake.window()
        for name in names:
            window.begin(Capture(capture_id=name, uri=f"file:///{name}.pcap", etag="e", size=1))
            for table in SCHEMAS:
                window.write(
                    table, pa.RecordBatch.from_pylist([{"capture_id": name, "date": date(2026, 1, 2)}], SCHEMA)
                )
            window.end()
        stage = window.close()
        assert stage is not None
        await self.lake.stage(stage)
        return stage


def size(*stages: Stage, table: str | None = None) -> int:
    return sum(
        one.size for stage in stages for name, adds in stage.adds.items() for one in adds if table in (None, name)
    )


async def until(reached: Any) -> None:
    """Let others go on until it is so; nothing here waits for a clock."""
    for _ in range(10_000):
        if reached():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


async def test_stages_and_batches(counts: Counts) -> None:
    bench = await Bench(counts).start()
    small, large = await bench.staged("a"), await bench.staged(*map(str, range(50)))
    bench.hours = 3
    await bench.lake.committer.run_turn()
    assert counts("files_created_total", table="packets") == 2
    assert counts("written_bytes_total", table="packets") == size(small, large, table="packets")
    assert size(small) < size(large)
    assert counts("stage_bytes_count") == 2
    assert counts("stage_bytes_sum") == size(small, large)
    assert (counts("stage_smallest_bytes"), counts("stage_largest_bytes")) == (size(small), size(large))
    assert (counts("batch_bytes_count"), counts("batch_bytes_sum")) == (1, size(small, large))
    assert counts("batch_smallest_bytes") == counts("batch_largest_bytes") == size(small, large)
    assert (counts("stage_age_seconds_count"), counts("stage_age_seconds_sum")) == (2, 2 * 3 * 3600)
    for table in SCHEMAS:
        assert counts("commits_total", table=table, outcome="committed") == 1
    assert (counts("commit_files_count"), counts("commit_files_sum")) == (2, 4)
    assert [step for step in STEPS if counts("step_seconds_count", step=step) != 1] == []


async def test_who_leads_and_what_waits_while_the_ledger_fails(counts: Counts) -> None:
    """The age grows although no turn comes to its end: it is the alarm."""

    bench = await Bench(counts).start()
    lake = bench.store.uri
    bench.faults.down = "ledger.stages"
    await bench.staged("a")
    async with bench.lake:
        await until(lambda: (counts("committer_failures_total") or 0) > 0)
        bench.now += 40
        await until(lambda: counts("oldest_pending_stage_age_seconds", lake=lake) == 40)
        assert counts("leader", lake=lake) == 1
        assert counts("batches_open", lake=lake) == 0
        bench.faults.down = ""
        await until(lambda: counts("oldest_pending_stage_age_seconds", lake=lake) == 0)
        assert counts("commits_total", table="packets", outcome="committed") == 1
    assert counts("leader", lake=lake) == 0


async def test_a_table_that_is_blocked(counts: Counts) -> None:
    bench = await Bench(counts).start()
    lake = bench.store.uri
    protocol = b'{"protocol":{"minReaderVersion":3,"minWriterVersion":99}}\n'
    bench.store.put_past_faults(f"packets/_delta_log/{1:020d}.json", protocol)
    await bench.staged("a")
    async with bench.lake:
        await until(lambda: counts("tables_blocked", lake=lake) == 1)
        assert counts("batches_open", lake=lake) == 1
        assert counts("commit_failures_total", table="packets", reason="TableBlocked") == 1
        assert counts("commit_failures_total", table="captures", reason="TableBlocked") is None
        assert counts("commits_total", table="captures", outcome="committed") == 1
        assert counts("commits_total", table="packets", outcome="committed") is None


async def all_can_be_read(captures: Sequence[Capture]) -> Sequence[Capture]:
    return ()


async def test_files_that_are_missing_and_captures_that_are_returned(counts: Counts) -> None:
    bench = await Bench(counts).start()
    protocol = b'{"protocol":{"minReaderVersion":3,"minWriterVersion":99}}\n'
    bench.store.put_past_faults(f"packets/_delta_log/{1:020d}.json", protocol)
    stage = await bench.staged("a")
    await bench.lake.committer.run_turn()  # in a batch, and not in `packets`
    del bench.store.objects[f"packets/_delta_log/{1:020d}.json"]
    del bench.store.objects[f"packets/{stage.adds['packets'][0].path}"]
    broken = await bench.staged("b")
    del bench.store.objects[broken.file_paths[0]]
    bench.lake.committer._composer._unreadable = all_can_be_read
    bench.hours, bench.now = 24 * 6, bench.now + 3600
    await bench.lake.committer.run_turn()
    assert counts("commit_failures_total", table="packets", reason="FilesMissing") == 1
    assert counts("captures_returned_total") == 1


async def test_a_stage_that_no_table_can_take(counts: Counts) -> None:
    bench = await Bench(counts).start({"packets": pa.schema([("capture_id", pa.int64()), ("date", pa.date32())])})
    lake = bench.store.uri
    await bench.staged("a")
    async with bench.lake:
        await until(lambda: counts("stages_held", lake=lake) == 1)
        assert counts("batch_bytes_count") == 0
        await bench.staged("b")
        await until(lambda: counts("stages_held", lake=lake) == 2)
    assert counts("stages_held", lake=lake) == 0, "it leads no more"


async def test_stages_that_are_held_since_before_and_what_others_do_with_them(counts: Counts) -> None:
    bench = await Bench(counts).start()
    lake = bench.store.uri
    stage = await bench.staged("a")
    async with bench.lake:
        bench.faults.down = "ledger.held"
        await until(lambda: counts("commits_total", table="packets", outcome="committed") == 1)
        assert counts("committer_failures_total") in (None, 0), "what is only told stops nobody"
        bench.ledger.shared.held[0, "other"] = "somebody else has put it there"
        bench.faults.down = ""
        bench.now += 60
        await until(lambda: counts("stages_held", lake=lake) == 1)
        bench.ledger.shared.held.clear()  # as `doctor --repair` does
        bench.now += 60
        await until(lambda: counts("stages_held", lake=lake) == 0)
    assert stage.stage_id not in bench.ledger.shared.held


async def test_checkpoints(counts: Counts, monkeypatch: pytest.MonkeyPatch) -> None:
    async def clean(log: LogStore, table: str) -> int:
        if table == "packets":
            raise Retryable("not now")
        return 0

    monkeypatch.setattr(LogStore, "clean", clean)

    bench = await Bench(counts, checkpoint_interval=1).start()
    await bench.staged("a")
    await bench.lake.committer.run_turn()
    await until(lambda: counts("checkpoints_total", table="captures", outcome="created"))
    await until(lambda: counts("checkpoints_total", table="packets", outcome="failed"))
    assert counts("checkpoints_total", table="packets", outcome="created") is None


async def test_a_ledger_that_does_not_answer(counts: Counts) -> None:
    bench = await Bench(counts, commit_timeout=60.0).start()
    bench.faults.inject_fault("ledger.stage *", "error", 3)
    await bench.staged("a")
    assert counts("ledger_retries_total") == 3
    assert counts("stage_bytes_count") == 1


# -- the log ----------------------------------------------------------------------------------------------------------
async def test_a_version_that_somebody_else_made(counts: Counts) -> None:
    scene, log = await started(meter=counts)
    before = counts("commits_total", table="t", outcome="committed")
    await scene.log().commit("t", [add("theirs")], txn=txn(7))
    await log.commit("t", [add("a")], txn=txn(8))
    assert before == 1
    assert counts("commits_total", table="t", outcome="committed") == 2
    assert counts("commit_conflicts_total", table="t") == 1
    assert counts("log_retries_total", table="t") == 1
    assert counts("commit_outcomes_resolved_total", table="t") is None
    await log.commit("t", [add("a")], txn=txn(8))
    assert counts("commits_total", table="t", outcome="already_committed") == 1
    assert counts("commits_total", table="t", outcome="committed") == 2
    assert counts("commit_files_count") == 2


@pytest.mark.parametrize("kind", ["lost", "error"])
async def test_an_outcome_that_is_found_out(counts: Counts, kind: Any) -> None:
    """The answer of the request that makes the version: lost, or it was never carried out and we could not know."""

    faults = Faults()
    _, log = await started(faults, meter=counts)
    faults.inject_fault("store.put_if_absent t/_delta_log/*2.json", kind)
    await log.commit("t", [add("a")], txn=txn(1))
    assert counts("log_retries_total", table="t") == 1
    assert counts("commit_outcomes_resolved_total", table="t") == (1 if kind == "lost" else None)
    assert counts("commits_total", table="t", outcome="committed") == 2
    assert counts("commit_conflicts_total", table="t") is None


@pytest.mark.parametrize("error", [OutcomeUnknown, Retryable])
async def test_a_commit_that_is_given_up(counts: Counts, error: type[PcaplakeError]) -> None:
    """After its version was begun nobody can say that nothing happened; before that, anybody can."""

    faults = Faults()
    scene, log = await started(faults, meter=counts, commit_timeout=5.0)
    faults.inject_fault("store.*", "error", 1000)
    unread = scene.log(faults, meter=counts, commit_timeout=5.0)
    with pytest.raises(error) as raised:
        await (log if error is OutcomeUnknown else unread).commit("t", [add("a")], txn=txn(1))
    assert type(raised.value) is error
    assert counts("commits_total", table="t", outcome="committed") == 1
    assert counts("commit_failures_total", table="t", reason=error.__name__) == 1


async def test_what_others_left_half_done(counts: Counts) -> None:
    scene: Scene
    scene, log = await started(meter=counts)
    assert counts("log_versions_completed_total", table="t") is None
    begun(scene, temp=True, version=False)
    assert await log.read_version("t") == 2
    assert counts("log_versions_completed_total", table="t") == 1


# -- services ---------------------------------------------------------------------------------------------------------
class Answers:
    """A client of botocore's shape: each of its methods gives the next answer, or raises it."""

    def __init__(self, *answers: Mapping[str, Any] | Exception) -> None:
        self._answers = list(answers)

    def __getattr__(self, name: str) -> Any:
        async def answer(**request: Any) -> Any:
            given = self._answers.pop(0)
            if isinstance(given, Exception):
                raise given
            return given

        return answer


def refused(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "said so"}}, "Operation")


TIMEOUT = ReadTimeoutError(endpoint_url="somewhere")


class Shape:
    """What `DynamoClient` asks botocore's model of an operation: nothing is filled in."""

    members: Mapping[str, Any] = {}
    input_shape = property(lambda self: self)

    def operation_model(self, operation: str) -> Shape:
        return self


def client(*answers: Mapping[str, Any] | Exception) -> Any:
    found: Any = Answers(*answers)
    found.meta = type("Meta", (), {"service_model": Shape()})
    return found


async def test_requests_to_dynamodb(counts: Counts, monkeypatch: pytest.MonkeyPatch) -> None:
    hardly_wait(monkeypatch)

    throttled = refused("ThrottlingException")
    table = DynamoClient("books", client({}, throttled, TIMEOUT, {}), AsyncExitStack(), meter=counts)
    await table.call_operation("GetItem")
    await table.call_operation("PutItem")
    lost = DynamoClient("books", client(refused("ConditionalCheckFailedException")), AsyncExitStack(), meter=counts)
    with pytest.raises(dynamo.ConditionLost):
        await lost.call_operation("PutItem")
    assert counts("requests_total", service="dynamodb", operation="GetItem") == 1
    assert counts("requests_total", service="dynamodb", operation="PutItem") == 4
    assert counts("request_failures_total", service="dynamodb", operation="PutItem") == 2
    assert counts("request_failures_total", service="dynamodb", operation="GetItem") == 0


async def test_others_at_the_items_of_the_ledger(counts: Counts, monkeypatch: pytest.MonkeyPatch) -> None:
    hardly_wait(monkeypatch)
    monkeypatch.setattr(retry, "DYNAMODB_BUSY", replace(retry.DYNAMODB_BUSY, attempts=3))
    busy = refused("TransactionCanceledException")
    busy.response["CancellationReasons"] = [{"Code": "TransactionConflict"}]  # type: ignore[typeddict-unknown-key]

    table = DynamoClient("ledger", client(busy, busy, {}), AsyncExitStack(), meter=counts)
    await Requests(table).write_transaction([{"Delete": {"Key": {}}}])
    assert counts("ledger_retries_total") == 2
    assert counts("requests_total", service="dynamodb", operation="TransactWriteItems") == 3


async def test_requests_to_sqs(counts: Counts) -> None:
    answers = client({"Messages": []}, TIMEOUT)
    queue = SqsQueue("captures", answers, answers, AsyncExitStack(), meter=counts)
    await queue.receive(1, 0)
    with pytest.raises(Retryable):
        await queue.read_attributes()
    assert counts("requests_total", service="sqs", operation="ReceiveMessage") == 1
    assert counts("requests_total", service="sqs", operation="GetQueueAttributes") == 1
    assert counts("request_failures_total", service="sqs", operation="GetQueueAttributes") == 1
    assert counts("request_failures_total", service="sqs", operation="ReceiveMessage") == 0


async def test_requests_to_the_lakes_store(counts: Counts, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open("memory:///counted", meter=counts)
    assert await store.put_if_absent("a", b"1")
    assert not await store.put_if_absent("a", b"1")
    await store.put("a", b"12")
    assert await store.get("nothing") is None
    await store.get_range("a", 0, 1)
    await store.head("a")
    await store.list("")
    await store.delete("a")
    upload = store.upload("b")
    upload.write(b"1")
    upload.finish()

    async def fails(*given: Any, **more: Any) -> None:
        raise OSError("broken")

    monkeypatch.setattr(obstore, "put_async", fails)
    with pytest.raises(OutcomeUnknown):
        await store.put("a", b"1")
    asked = {"put": 4, "get": 2, "head": 1, "list": 1, "delete": 1, "upload": 1}
    for operation, times in asked.items():
        assert counts("requests_total", service="objects", operation=operation) == times, operation
        failures = counts("request_failures_total", service="objects", operation=operation)
        assert failures == (1 if operation == "put" else 0), "an object that is not there is no failure"


# -- messages and captures --------------------------------------------------------------------------------------------
async def test_heartbeats_by_their_outcome(counts: Counts) -> None:
    clock, faults = FakeClock(), Faults()
    queue = MemoryQueue(clock, faults=faults)
    for name in ("kept", "gone", "deleted"):
        queue.put_message(name)
    deliveries = await queue.receive(10, 0)
    heartbeats = Heartbeats(queue, clock=clock.time, sleep=clock.sleep, meter=counts)
    for one in deliveries:
        heartbeats.watch_delivery(one, lambda _: None)
    await queue.delete(deliveries[:2])
    await heartbeats.send_heartbeats()
    faults.inject_fault("queue.extend *", "error")
    await heartbeats.send_heartbeats()
    for outcome, times in {"extended": 1, "receipt_expired": 2, "failed": 1}.items():
        assert counts("heartbeats_total", outcome=outcome) == times, outcome


async def test_ranges_that_are_asked_for_again(counts: Counts) -> None:
    async def sleep(seconds: float) -> None:
        """At once."""

    faults = Faults()
    bucket = MemoryBucket(faults=faults)
    bucket.put_object("a", bytes(3000))
    faults.inject_fault("bucket.read *", "lost")
    faults.inject_fault("bucket.read *", "error")
    fetch_config = FetchConfig(chunk_bytes=1000, ahead=1, sleep=sleep, meter=counts)
    async with await RangeReader.open(bucket, await bucket.head_object("a"), fetch_config=fetch_config) as body:
        assert len(await asyncio.to_thread(body.read) or b"") == 3000
    assert counts("fetch_retries_total") == 2
    assert counts("request_failures_total", service="objects", operation="get") == 2
    assert counts("requests_total", service="objects", operation="get") == 5
