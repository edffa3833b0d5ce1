"""The committer and the lake's front, step by step, over adapters in memory and on a real folder with a real ledger."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from fnmatch import fnmatch
from functools import wraps
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.worker.fleets import Fleet
from tests.worker.lake.deltas import checkpoint, checkpoint_bytes
from worker.errors import Fatal, NotAllowed, OutcomeUnknown, Retryable
from worker.lake.delta.actions import AddFile
from worker.lake.delta.log import LogStore
from worker.lake.files import CHECK_AFTER_MS, HOUR_MS, RETURN_AFTER_MS
from worker.lake.identity import LAKE_JSON, Current, open_lake, raise_generation
from worker.lake.knobs import Knobs
from worker.lake.lake import Lake
from worker.lake.lease import Leadership
from worker.lake.ledger.sqlite import SqliteLedger
from worker.lake.manifest import Capture, Manifest, Stage, manifest_path
from worker.lake.stage import Window
from worker.objects import Refused
from worker.testing import Faults, Killed, MemoryLedger, MemoryStore, crash_at

SCHEMA = pa.schema([("capture_id", pa.string()), ("date", pa.date32()), ("packet_no", pa.int64())])
SCHEMAS = {"captures": SCHEMA, "packets": SCHEMA}
TABLES = list(SCHEMAS)


def capture(name: str) -> Capture:
    return Capture(capture_id=name, uri=f"file:///{name}.pcap", etag="e", size=1)


def fill(window: Window, name: str, tables: Sequence[str] = TABLES, packets: int = 2) -> None:
    window.begin(capture(name))
    for table in tables:
        count = 1 if table == "captures" else packets
        columns = [pa.array([name] * count), pa.array([date(2026, 1, 2)] * count), pa.array(range(count), pa.int64())]
        window.write(table, pa.RecordBatch.from_arrays(columns, names=SCHEMA.names))
    window.end()


class Source:
    """Remembers what must be read again; `there`: the captures can still be read."""

    def __init__(self) -> None:
        self.replayed: list[str] = []
        self.there = True
        self.lake: Bench

    async def replay(self, captures: Sequence[Capture]) -> None:
        self.replayed += [one.capture_id for one in captures]

    async def remake(self, table: str, captures: Sequence[Capture]) -> Sequence[AddFile] | None:
        if not self.there:
            return None
        window = self.lake.lake.window(tables=[table])
        for one in captures:
            fill(window, one.capture_id, [table])
        stage = window.close()
        return None if stage is None else stage.adds[table]


class Bench:
    """One process over shared memory; its committer takes a turn when the test says so. Times are the test's."""

    def __init__(self, other: Bench | None = None, **knobs: object) -> None:
        self.now = 1_000.0
        self.days = other.days if other else [0.0]
        self.faults, self.source, self.steps = Faults(), Source(), list[str]()
        first = MemoryStore(self.faults, lambda: 1.8e9 + self.days[0] * 86_400)
        self.store = other.store.as_process(self.faults) if other else first
        self.ledger = other.ledger.as_process(self.faults) if other else MemoryLedger(self.faults)
        self.knobs = Knobs(**{"max_batch_age": 0.0, "commit_timeout": 0.0, **knobs})  # type: ignore[arg-type]
        self.lake: Lake

    async def start(self) -> Bench:
        identity = await open_lake(self.store, self.ledger)
        log = LogStore(self.store)
        for table, schema in SCHEMAS.items():
            await log.create(table, schema, partition_columns=("date",))
        self.source.lake = self
        self.lake = Lake(
            self.store, log, self.ledger, Current(self.store, identity), knobs=self.knobs, schemas=SCHEMAS,
            source=self.source, clock=lambda: self.now, step=self.steps.append,
        )  # fmt: skip
        return self

    async def staged(self, *names: str, tables: Sequence[str] = TABLES) -> Stage:
        window = self.lake.window()
        for name in names:
            fill(window, name, tables)
        stage = window.close()
        assert stage is not None
        assert [one.capture_id for one in (await self.lake.stage(stage)).staged] == list(names)
        return stage

    async def turn(self) -> None:
        await self.lake.committer.turn()

    def live(self, table: str) -> list[str]:
        files: dict[str, None] = {}
        for name in sorted(
            n for n in self.store.objects if n.startswith(f"{table}/_delta_log/") and n.endswith(".json")
        ):
            for line in self.store.objects[name][0].splitlines():
                action = json.loads(line)
                if "remove" in action:
                    files.pop(action["remove"]["path"], None)
                if "add" in action:
                    assert action["add"]["path"] not in files
                    files[action["add"]["path"]] = None
        return list(files)

    def rows(self, table: str) -> Counter[str]:
        found: Counter[str] = Counter()
        for path in self.live(table):
            data = pa.BufferReader(self.store.objects[f"{table}/{path}"][0])
            found.update(pq.read_table(data, partitioning=None)["capture_id"].to_pylist())
        return found

    def foreign(self, table: str, *actions: dict[str, object]) -> None:
        """Somebody else's commit."""
        prefix = f"{table}/_delta_log/"
        version = len([name for name in self.store.objects if name.startswith(prefix) and name.endswith(".json")])
        info = {"commitInfo": {"timestamp": 0, "operation": "MANUAL", "operationParameters": {}}}
        lines = "".join(json.dumps(action) + "\n" for action in (info, *actions))
        self.store.write(f"{prefix}{version:020d}.json", lines.encode())

    def configure(self, table: str, properties: dict[str, str]) -> None:
        first = self.store.objects[f"{table}/_delta_log/{0:020d}.json"][0].splitlines()
        metadata = next(json.loads(line)["metaData"] for line in first if b'"metaData"' in line)
        self.foreign(table, {"metaData": {**metadata, "configuration": properties}})

    @property
    def head(self) -> int:
        return self.ledger.shared.head

    def whole(self, *names: str) -> None:
        """These captures are in, each once, and nothing is left to do."""
        assert self.rows("captures") == Counter(names)
        assert self.rows("packets") == Counter(dict.fromkeys(names, 2))
        assert manifest_path(self.head + 1) not in self.store.objects
        generation = json.loads(self.store.objects[LAKE_JSON][0])["generation"]
        items = self.ledger.shared.captures
        assert all(items[generation, name].state == "COMMITTED" for name in names)
        assert not [one for g, one in self.ledger.shared.pending if g == generation]


def story(test):  # type: ignore[no-untyped-def]
    """Run a coroutine test."""

    @wraps(test)
    def run(*args, **options):  # type: ignore[no-untyped-def]
        asyncio.run(test(*args, **options))

    return run


@story
async def test_a_batch_takes_its_steps_in_order() -> None:
    bench = await Bench().start()
    await bench.staged("a", "b")
    await bench.turn()
    bench.whole("a", "b")
    done = [step.removeprefix("after ") for step in bench.steps if step.startswith("after ")]
    assert [step for step in done if step.startswith("stage")][-2:] == ["stage.5", "stage.6"]
    commit = [step for step in done if step.startswith("commit")]
    assert commit[:4] == ["commit.1", "commit.2", "commit.3a", "commit.3b"]
    assert sorted(commit[4:6]) == ["commit.4 captures", "commit.4 packets"]
    assert commit[6:] == ["commit.4", "commit.5", "commit.6"]
    manifest = Manifest.from_json(bench.store.objects[manifest_path(0)][0])
    assert (manifest.batch, manifest.generation, manifest.tables) == (0, 0, ("captures", "packets"))
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert [c.capture_id for c in manifest.stages[0].captures] == ["a", "b"]
    assert manifest.stages[0].schemas == manifest.schemas


@pytest.mark.parametrize("kind", ["error", "lost", "dead before", "dead after"])
@pytest.mark.parametrize(
    "point",
    [
        "ledger.stage *", "ledger.head", "ledger.pending", "ledger.stages", "ledger.mark 0", "ledger.flag 0",
        "ledger.advance 0", "store.put_if_absent _pcaplake/batches/*", "store.put_if_absent packets/*",
        "store.put_if_absent captures/*", "store.get _pcaplake/batches/*", "store.put _pcaplake/clock",
    ],
)  # fmt: skip
def test_any_one_fault_and_another_process_finishes(point: str, kind: str) -> None:
    @story
    async def run() -> None:
        bench = await Bench().start()
        bench.faults.at(point, kind)  # type: ignore[arg-type]
        try:
            await bench.staged("a")
            await bench.turn()
        except (Retryable, Killed):
            pass
        assert not bench.faults.waiting, "the fault was never met"
        other = await Bench(bench).start()
        seen = await other.lake.seen(["a"])
        if "a" not in seen:
            await other.staged("a")
        await other.staged("b")
        await other.turn()
        other.whole("a", "b")

    run()


@story
async def test_a_frozen_leader_that_wakes_up_does_no_harm() -> None:
    """It composed batch 0 and slept; the other fixed and drove another batch 0 with the same stage."""
    frozen = await Bench().start()
    await frozen.staged("a")
    await frozen.lake.committer._recover()
    composed = await frozen.lake.committer._compose()
    assert composed is not None
    other = await Bench(frozen).start()
    await other.staged("b")
    await other.turn()
    await other.staged("c")
    assert not await frozen.lake.committer._fix(composed)
    await frozen.turn()
    frozen.whole("a", "b", "c")


@story
async def test_two_drive_one_manifest() -> None:
    one = await Bench().start()
    two = await Bench(one).start()
    await one.staged("a")
    await one.lake.committer._recover()
    composed = await one.lake.committer._compose()
    assert composed is not None
    assert await one.lake.committer._fix(composed)
    await two.turn()
    await one.lake.committer._drive()
    one.whole("a")
    assert len(one.live("packets")) == 1


@story
async def test_a_blocked_table_stops_only_itself() -> None:
    bench = await Bench().start()
    bench.configure("packets", {"delta.setTransactionRetentionDuration": "interval 1 days"})
    await bench.staged("a")
    await bench.turn()
    await bench.staged("b")
    await bench.turn()
    assert bench.rows("captures") == Counter(a=1, b=1)
    assert (bench.rows("packets"), bench.head) == (Counter(), -1)
    assert "packets" in bench.lake.committer.blocked
    assert bench.lake.committer.stuck
    other = await Bench(bench).start()  # a takeover in the middle of it
    await other.staged("c")
    await other.turn()
    assert other.head == -1
    bench.configure("packets", {})
    other.now += 60
    await other.turn()
    other.whole("a", "b", "c")
    assert not other.lake.committer.blocked
    await bench.turn()  # who led before finds everything done
    bench.whole("a", "b", "c")


@story
async def test_a_stage_with_another_type_is_held_and_blocks_nobody() -> None:
    bench = await Bench().start()
    stage = await bench.staged("odd")
    retyped = json.loads(json.dumps(stage.schemas["packets"]).replace('"long"', '"string"'))
    key = (0, stage.stage_id)
    bench.ledger.shared.stages[key] = type(bench.ledger.shared.stages[key])(
        stage=Stage.from_dict({**stage.to_dict(), "schemas": {**stage.schemas, "packets": retyped}})
    )
    await bench.staged("a")
    await bench.turn()
    assert bench.rows("packets") == Counter(a=2)
    held = await bench.ledger.held(0)
    assert "packets: column packet_no is long in the table and string in the rows" in held[stage.stage_id]


@story
async def test_a_newer_decoder_adds_a_column() -> None:
    bench = await Bench().start()
    await bench.staged("a")
    grown = {"name": "speed", "type": "double", "nullable": True, "metadata": {}}
    key = next(iter(bench.ledger.shared.stages))
    stage = bench.ledger.shared.stages[key].stage
    assert stage is not None
    wider = {**stage.schemas["packets"], "fields": [*stage.schemas["packets"]["fields"], grown]}
    bench.ledger.shared.stages[key] = type(bench.ledger.shared.stages[key])(
        stage=Stage.from_dict({**stage.to_dict(), "schemas": {**stage.schemas, "packets": wider}})
    )
    await bench.staged("b")  # with the old schema, in the same batch
    await bench.turn()
    bench.whole("a", "b")
    log = LogStore(bench.store)
    assert "speed" in str(await log.schema("packets"))
    assert "speed" not in str(await log.schema("captures"))


@story
async def test_an_old_stage_is_returned_and_its_captures_read_again() -> None:
    bench = await Bench().start()
    await bench.staged("a")
    bench.days[0] += RETURN_AFTER_MS / HOUR_MS / 24 + 0.01
    await bench.turn()
    assert (bench.source.replayed, bench.head) == (["a"], 0)
    assert await bench.ledger.captures(0, ["a"]) == {}
    await bench.staged("a")
    await bench.turn()
    bench.whole("a")


@story
async def test_head_waits_for_the_replay() -> None:
    bench = await Bench().start()
    await bench.staged("a")
    bench.days[0] += 6

    async def down(captures: Sequence[Capture]) -> None:
        raise OutcomeUnknown("the queue does not answer")

    real, bench.source.replay = bench.source.replay, down  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknown):
        await bench.turn()
    assert bench.head == -1
    bench.source.replay = real  # type: ignore[method-assign]
    other = await Bench(bench).start()
    await other.turn()
    assert (other.source.replayed, other.head) == (["a"], 0)


@story
async def test_a_stage_that_lacks_a_file_is_returned_when_it_is_old_enough_to_be_looked_at() -> None:
    bench = await Bench().start()
    stage = await bench.staged("a")
    whole = await bench.staged("b")
    del bench.store.objects[stage.paths[0]]
    bench.days[0] += CHECK_AFTER_MS / HOUR_MS / 24 + 0.01
    await bench.turn()
    assert bench.source.replayed == ["a"]
    assert bench.rows("packets") == Counter(b=2)
    assert (await bench.ledger.stages(0, [whole.stage_id]))[whole.stage_id].batch == 0


async def fixed_and_then_lost(bench: Bench) -> Stage:
    """The file of "a" in `packets` is deleted after its manifest was put, while the table is blocked."""
    bench.configure("packets", {"delta.setTransactionRetentionDuration": "interval 1 days"})
    stage = await bench.staged("a")
    await bench.turn()
    del bench.store.objects[f"packets/{stage.adds['packets'][0].path}"]
    bench.configure("packets", {})
    bench.days[0] += 2
    bench.now += 60
    return stage


@story
async def test_a_file_lost_after_the_manifest_is_made_again() -> None:
    bench = await Bench().start()
    stage = await fixed_and_then_lost(bench)
    await bench.turn()
    bench.whole("a")
    assert bench.live("packets") != [stage.adds["packets"][0].path]
    assert bench.live("captures") == [stage.adds["captures"][0].path]


@story
async def test_a_file_lost_with_its_capture_blocks_the_table_and_says_which() -> None:
    bench = await Bench().start()
    await fixed_and_then_lost(bench)
    bench.source.there = False
    await bench.turn()
    assert bench.head == -1
    assert "files_missing" in bench.lake.committer.blocked["packets"]
    assert "file:///a.pcap" in bench.lake.committer.blocked["packets"]
    bench.source.there = True
    bench.now += 60
    await bench.turn()
    bench.whole("a")


@pytest.mark.parametrize(
    "error", [NotAllowed("GetObject s3://raw/a.pcap", "AccessDenied"), Refused("GetObject s3://raw/a.pcap")]
)
@story
async def test_a_capture_that_may_not_be_read_again_blocks_its_table_alone(error: Exception) -> None:
    bench = await Bench().start()
    await fixed_and_then_lost(bench)
    real = bench.source.remake

    async def refuse(table: str, captures: Any) -> Any:
        raise error

    bench.source.remake = refuse  # type: ignore[method-assign]
    await bench.turn()
    await bench.staged("b")
    await bench.turn()
    assert "cannot be made again: GetObject s3://raw/a.pcap" in bench.lake.committer.blocked["packets"]
    assert bench.rows("captures") == Counter(a=1, b=1)
    bench.source.remake = real  # type: ignore[method-assign]
    bench.now += 60
    await bench.turn()
    bench.whole("a", "b")


@story
async def test_a_table_whose_transaction_a_checkpoint_dropped_gets_nothing_twice() -> None:
    """Batch 1 is in `packets` and not in `captures`; then somebody has transactions of `packets` forgotten."""
    retention = {"delta.setTransactionRetentionDuration": "interval 1 days"}
    bench = await Bench().start()
    await bench.staged("a")
    await bench.turn()
    bench.configure("captures", {"delta.constraints.some": "rows > 0"})
    await bench.staged("b")
    await bench.turn()
    assert (bench.head, bench.rows("packets")) == (0, Counter(a=2, b=2))
    bench.configure("packets", retention)
    newest = max(int(name[-25:-5]) for name in bench.store.objects if fnmatch(name, "packets/_delta_log/*.json"))
    checkpoint(bench.store, "packets", newest, checkpoint_bytes(schema=SCHEMAS["packets"], configuration=retention))
    bench.configure("packets", {})
    bench.configure("captures", {})
    other = await Bench(bench).start()
    await other.turn()
    assert "batch 0 was in it, and its log says -1" in other.lake.committer.blocked["packets"]
    assert (other.rows("captures"), other.rows("packets")) == (Counter(a=1, b=1), Counter(a=2, b=2))
    other.foreign("packets", {"txn": {"appId": "pcaplake", "version": 1}})
    other.now += 60
    await other.turn()
    other.whole("a", "b")


@story
async def test_overwriting_replaces_every_table_in_one_transaction_each() -> None:
    bench = await Bench().start()
    await bench.staged("a")
    await bench.turn()
    bench.foreign("packets")
    await raise_generation(bench.store)
    other = await Bench(bench).start()
    await other.staged("b", tables=["captures"])
    await other.turn()
    assert other.rows("captures") == Counter(b=1)
    assert other.live("packets") == []
    await other.staged("a")
    await other.turn()
    assert other.rows("packets") == Counter(a=2)


@story
async def test_what_was_staged_before_an_overwrite_was_noticed_is_decoded_again() -> None:
    bench = await Bench().start()
    window = bench.lake.window()
    fill(window, "a")
    stage = window.close()
    assert stage is not None
    await raise_generation(bench.store)
    done = await bench.lake.stage(stage)
    assert ([c.capture_id for c in done.again], done.staged) == (["a"], ())
    await bench.staged("a")
    await bench.turn()
    bench.whole("a")


@story
async def test_what_somebody_staged_before_an_overwrite_is_no_reason_to_forget_it() -> None:
    bench = await Bench().start()
    window = bench.lake.window()
    fill(window, "a")
    stage = window.close()
    assert stage is not None
    await bench.staged("a")
    await raise_generation(bench.store)
    done = await bench.lake.stage(stage)
    assert ([c.capture_id for c in done.again], done.taken) == (["a"], ())
    await bench.staged("a")
    await bench.turn()
    bench.whole("a")


@story
async def test_a_stage_whose_object_is_gone_is_held_and_costs_no_other() -> None:
    bench = await Bench().start()
    await bench.staged("a")
    ((key, item),) = bench.ledger.shared.stages.items()
    await bench.staged("b")
    bench.ledger.shared.stages[key] = replace(item, stage=None)
    await bench.turn()
    bench.whole("b")
    (reason,) = (await bench.ledger.held(0)).values()
    assert "put it back" in reason
    bench.ledger.shared.stages[key] = item
    await bench.ledger.release(0)
    await bench.turn()
    bench.whole("a", "b")


@story
async def test_who_lost_captures_to_another_stage_decodes_the_rest_again() -> None:
    bench = await Bench().start()
    await bench.staged("a")
    window = bench.lake.window()
    for name in ("a", "b"):
        fill(window, name)
    stage = window.close()
    assert stage is not None
    done = await bench.lake.stage(stage)
    assert ([c.capture_id for c in done.taken], [c.capture_id for c in done.again]) == (["a"], ["b"])
    assert all(path in bench.store.objects for path in stage.paths)  # VACUUM takes orphans, not we
    await bench.staged("b")
    await bench.turn()
    bench.whole("a", "b")


@story
async def test_a_ledger_that_does_not_answer_is_asked_again_until_the_time_is_up() -> None:
    bench = await Bench(commit_timeout=60.0).start()
    bench.faults.at("ledger.stage *", "error", times=2)
    bench.faults.at("ledger.stage *", "lost")
    await bench.staged("a")
    assert not bench.faults.waiting
    bench.faults.at("ledger.stage *", "lost", times=2)
    bench.lake.knobs = Knobs(commit_timeout=0.0)
    with pytest.raises(OutcomeUnknown):
        await bench.staged("b")
    bench.faults.waiting.clear()
    assert set(await bench.lake.seen(["a", "b"])) == {"a", "b"}


@story
async def test_checkpoints_are_made_when_an_interval_is_crossed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when somebody else made the version that is the multiple; a failure stops nobody."""
    made: list[int] = []

    async def checkpoint(self: LogStore, table: str) -> None:
        made.append(await self.version(table))
        raise OSError("no room")

    monkeypatch.setattr(LogStore, "checkpoint", checkpoint)
    bench = await Bench(checkpoint_interval=4).start()
    for name in "abc":
        await bench.staged(name, tables=["packets"])
        await bench.turn()
    assert made == []
    bench.foreign("packets")
    await bench.staged("d", tables=["packets"])
    await bench.turn()
    await asyncio.gather(*bench.lake.committer._chores.values())
    assert made == [5]
    assert bench.head == 3


@story
async def test_lost_manifests_are_fatal() -> None:
    bench = await Bench().start()
    await bench.staged("a")
    await bench.turn()
    del bench.store.objects[manifest_path(0)]
    with pytest.raises(Fatal, match="manifest is gone"):
        await (await Bench(bench).start()).turn()
    bench.ledger.shared.head = -1
    with pytest.raises(Fatal, match="tables are ahead"):
        await (await Bench(bench).start()).turn()


@story
async def test_batches_close_at_their_size() -> None:
    bench = await Bench(max_batch_adds=4).start()
    for name in "abcde":
        await bench.staged(name)
    await bench.turn()
    assert bench.rows("captures") == Counter("ab")
    await bench.turn()
    await bench.turn()
    bench.whole(*"abcde")
    assert bench.head == 2


@story
async def test_a_batch_waits_for_more_until_nothing_comes_or_it_is_old() -> None:
    bench = await Bench(max_batch_age=10.0).start()
    await bench.staged("a")
    await bench.turn()
    assert bench.head == -1
    await bench.staged("b")
    await bench.turn()
    assert bench.head == -1
    await bench.turn()
    assert bench.head == 0
    for name in ("c", "d", "e"):
        await bench.staged(name)
        await bench.turn()
        bench.now += 6
    assert bench.head == 1
    bench.whole("a", "b", "c", "d", "e")


@story
async def test_a_lake_is_closed_although_something_has_just_been_staged() -> None:
    """A cancellation and what ends a wait, both at once: `wait_for` of Python 3.11 loses the cancellation."""
    fleet = Fleet()
    async with await fleet.lake(max_batch_age=20.0) as lake:
        while not lake.committer.leading:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)  # it waits for the next look
        lake.committer.nudge()
        await asyncio.wait_for(lake.close(), 30)


@story
async def test_a_follower_looks_at_the_lease_however_long_a_batch_may_wait() -> None:
    fleet = Fleet()
    async with await fleet.lake(max_batch_age=1000.0) as first, await fleet.lake(max_batch_age=1000.0) as second:
        while not first.committer.leading:
            await asyncio.sleep(0.01)

        async def silent() -> None:
            first.committer._leadership.leading = False

        first.committer._leadership.release = silent  # type: ignore[method-assign]
        assert first._task is not None
        first._task.cancel()
        async with asyncio.timeout(30):  # of which 0.4 are needed: twice `lease_timeout`
            while not second.committer.leading:
                await asyncio.sleep(0.01)


@story
async def test_a_ledger_that_does_not_answer_keeps_nobody_from_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet()
    async with await fleet.lake() as lake:
        while not lake.committer.leading:
            await asyncio.sleep(0.01)

        async def never(*_: object) -> Any:
            await asyncio.Event().wait()

        monkeypatch.setattr(fleet.ledger, "lease", never)
        lake.committer.patience = 0.0
        await asyncio.wait_for(lake.close(), 30)


@story
async def test_the_lease_is_taken_when_the_beat_stops_and_not_before() -> None:
    ledger, now, taken = MemoryLedger(), [0.0], []

    async def on_taken() -> None:
        taken.append(now[0])

    one, two = (Leadership(ledger, timeout=2.0, clock=lambda: now[0]) for _ in range(2))
    assert await one.lead(on_taken)
    assert not await two.lead(on_taken)
    now[0] = 1.9
    await one._beat()
    now[0] = 3.0
    assert not await two.lead(on_taken)  # first look at this beat
    now[0] = 4.9
    assert not await two.lead(on_taken)
    now[0] = 5.0
    assert await two.lead(on_taken)
    await one._beat()
    assert (one.leading, two.leading) == (False, True)
    await two.release()
    assert await one.lead(on_taken)
    assert taken == [0.0, 5.0, 5.0]


def test_crash_at_is_refused_when_it_can_never_happen() -> None:
    with pytest.raises(ValueError, match="before <step>"):
        crash_at("commit.3a")


# On a real folder


def options() -> dict[str, object]:
    return {"knobs": Knobs(max_batch_age=0.05), "lease_timeout": 0.3}


async def ingest(lake: Lake, *names: str) -> None:
    """What `pcaplake ingest` does with a lake, with captures of two rows in the real tables."""
    seen = await lake.seen(names)
    for name in names:
        if name not in seen:
            window = lake.window()
            window.begin(capture(name))
            window.write("faults", real_rows(name))
            window.end()
            stage = window.close()
            assert stage is not None
            await lake.stage(stage)
    await lake.drain()


def real_rows(name: str) -> pa.RecordBatch:
    from parser.tables import TABLES as REAL

    schema = REAL["faults"].schema
    given = {"capture_id": name, "sub_no": 0, "layer": "can", "reason": "gap", "date": date(2026, 1, 2)}
    return pa.RecordBatch.from_pylist([{**given, "packet_no": number} for number in (1, 2)], schema)


def counts(folder: Path) -> Counter[str]:
    return Counter(DeltaTable(str(folder / "faults")).to_pyarrow_table()["capture_id"].to_pylist())


@story
async def test_a_lake_on_disk_opens_fills_and_opens_again(tmp_path: Path) -> None:
    async with await Lake.open(tmp_path / "lake", **options()) as lake:  # type: ignore[arg-type]
        await ingest(lake, "a", "b")
        assert await lake.seen(["a", "b", "c"]) == {"a": "COMMITTED", "b": "COMMITTED"}
    async with await Lake.open(tmp_path / "lake", **options()) as lake:  # type: ignore[arg-type]
        await ingest(lake, "a", "b", "c")
        tables = await lake.tables()
        assert (tables["faults"].rows, tables["packets"].rows) == (6, 0)
        assert tables["faults"].files == len(DeltaTable(str(tmp_path / "lake" / "faults")).file_uris())
        assert tables["faults"].bytes > 0
    assert counts(tmp_path / "lake") == Counter(a=2, b=2, c=2)


@story
async def test_overwriting_a_lake_on_disk(tmp_path: Path) -> None:
    async with await Lake.open(tmp_path, **options()) as lake:  # type: ignore[arg-type]
        await ingest(lake, "a")
    async with await Lake.open(tmp_path, overwrite=True, **options()) as lake:  # type: ignore[arg-type]
        await ingest(lake, "b")
    assert counts(tmp_path) == Counter(b=2)
    async with await Lake.open(tmp_path, overwrite=True, **options()) as lake:  # type: ignore[arg-type]
        await lake.drain()  # nothing at all replaces everything too
    assert counts(tmp_path) == Counter()


@story
async def test_a_lost_ledger_is_found_out_and_rebuilt(tmp_path: Path) -> None:
    async with await Lake.open(tmp_path, **options()) as lake:  # type: ignore[arg-type]
        await ingest(lake, "a", "b")
    for file in (tmp_path / "_pcaplake").glob("ledger.sqlite*"):
        file.unlink()
    with pytest.raises(Fatal, match="--adopt"):
        await Lake.open(tmp_path)
    stranger = await SqliteLedger.open(tmp_path / "_pcaplake" / "ledger.sqlite")
    await stranger.close()
    with pytest.raises(Fatal, match="--adopt"):
        await Lake.open(tmp_path)
    async with await Lake.open(tmp_path, adopt=True, **options()) as lake:  # type: ignore[arg-type]
        assert set(await lake.seen(["a", "b"])) == {"a", "b"}
        await ingest(lake, "a", "b", "c")
        assert await lake.seen(["a", "b"]) == {"a": "COMMITTED", "b": "COMMITTED"}
    assert counts(tmp_path) == Counter(a=2, b=2, c=2)


@story
async def test_an_old_copy_of_the_ledger_is_found_out_and_completed(tmp_path: Path) -> None:
    book = tmp_path / "_pcaplake" / "ledger.sqlite"
    async with await Lake.open(tmp_path, **options()) as lake:  # type: ignore[arg-type]
        await ingest(lake, "a")
    copy = book.read_bytes()
    async with await Lake.open(tmp_path, **options()) as lake:  # type: ignore[arg-type]
        await ingest(lake, "b")
    book.write_bytes(copy)
    async with await Lake.open(tmp_path, **options()) as lake:  # type: ignore[arg-type]
        with pytest.raises(Fatal, match="--adopt"):
            await ingest(lake, "b", "c")  # "b" is staged once more before it is found out
    async with await Lake.open(tmp_path, adopt=True, **options()) as lake:  # type: ignore[arg-type]
        await lake.drain()
        replayed = [one.capture_id for one in lake.source.replays]  # type: ignore[attr-defined]
        await ingest(lake, "a", "b", "c")
    assert counts(tmp_path) == Counter(a=2, b=2, c=2)
    assert "b" not in replayed


@story
async def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Fatal, match="--ledger"):
        await Lake.open("memory:///somewhere")
    with pytest.raises(Fatal, match="tables are missing"):
        await Lake.open(tmp_path / "empty", auto_create=False)
    lake = await Lake.open(tmp_path / "lake", ledger=tmp_path / "state")
    await lake.close()
    assert not (tmp_path / "lake" / "_pcaplake" / "ledger.sqlite").exists()
    with pytest.raises(Fatal, match="--ledger"):
        await Lake.open(tmp_path / "lake")
    with pytest.raises(Fatal, match="partition columns"):
        await Lake.open(tmp_path / "lake", ledger=tmp_path / "state", partition_columns=["date", "vehicle_id"])


STEPS = [
    "before stage.4", "after stage.4", "before stage.5", "after stage.5", "after stage.6",
    *(f"{when} commit.{n}" for n in ("1", "2", "3a", "3b", "4", "4 faults", "5", "6") for when in ("before", "after")),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("where", STEPS)
def test_a_process_killed_at_any_step_is_completed_by_the_next(where: str, tmp_path: Path) -> None:
    here = Path(__file__)
    killed = program(here, tmp_path, where, "a", "b")
    assert killed.wait() == -signal.SIGKILL
    done = program(here, tmp_path, "", "a", "b")
    assert done.wait() == 0
    assert counts(tmp_path) == Counter(a=2, b=2)
    versions = sorted(path.name for path in (tmp_path / "faults" / "_delta_log").glob("*.json"))
    assert versions == [f"{number:020d}.json" for number in range(len(versions))]


def program(here: Path, lake: Path, where: str, *names: str) -> subprocess.Popen[bytes]:
    text = (
        "import asyncio, importlib.util, sys\n"
        "here, folder, where, *names = sys.argv[1:]\n"
        "spec = importlib.util.spec_from_file_location('tests_of_the_committer', here)\n"
        "tests = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(tests)\n"
        "async def main():\n"
        "    step = tests.crash_at(where) if where else (lambda name: None)\n"
        "    async with await tests.Lake.open(folder, step=step, **tests.options()) as lake:\n"
        "        await tests.ingest(lake, *names)\n"
        "asyncio.run(main())\n"
    )
    return subprocess.Popen([sys.executable, "-c", text, str(here), str(lake), where, *names], env={**os.environ})


def test_two_processes_on_one_lake_at_once(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(12)]
    both = [program(Path(__file__), tmp_path, "", *some) for some in (names[:8], names[4:])]
    assert [one.wait() for one in both] == [0, 0]
    assert counts(tmp_path) == Counter(dict.fromkeys(names, 2))
