"""The committer and the lake's front, step by step, over adapters in memory and on a real folder with a real ledger."""

from __future__ import annotations

import asyncio
import errno
import json
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from pcaplake.common.errors import Fatal, NotAllowed, OutcomeUnknown, Retryable
from pcaplake.ingest.captures.objects import Changed, Gone, Refused
from pcaplake.lake.commit.capture_source import NullSource
from pcaplake.lake.config import Creation, LakeConfig
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.identity import LAKE_JSON
from pcaplake.lake.lake import Lake
from pcaplake.lake.ledger.sqlite import SqliteLedger
from pcaplake.lake.records import Capture, Manifest, Stage, manifest_path
from pcaplake.lake.staging.stage_files import CHECK_AFTER_MS, HOUR_MS
from pcaplake.lake.tables import count_tables
from tests.lake.commit.bench import SCHEMAS, Bench, counts, exit_code, fill, filled, ingest, options, program
from tests.lake.delta.deltas import checkpoint, checkpoint_bytes
from tests.lake.generations import raise_generation
from tests.worker.adapters.faults import Killed, crash_at_step
from tests.worker.fleets import Fleet


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
async def test_any_one_fault_and_another_process_finishes(point: str, kind: str) -> None:
    bench = await Bench().start()
    bench.faults.inject_fault(point, kind)  # type: ignore[arg-type]
    try:
        await bench.staged("a")
        await bench.turn()
    except (Retryable, Killed):
        pass
    assert not bench.faults.waiting, "the fault was never met"
    other = await Bench(bench).start()
    seen = await other.lake.capture_states(["a"])
    if "a" not in seen:
        await other.staged("a")
    await other.staged("b")
    await other.turn()
    other.whole("a", "b")


async def test_a_frozen_leader_that_wakes_up_does_no_harm() -> None:
    """It composed batch 0 and slept; the other fixed and drove another batch 0 with the same stage."""
    frozen = await Bench().start()
    await frozen.staged("a")
    await frozen.lake.committer._recover_state()
    composed = await frozen.lake.committer._compose_batch()
    assert composed is not None
    other = await Bench(frozen).start()
    await other.staged("b")
    await other.turn()
    await other.staged("c")
    assert not await frozen.lake.committer._persist_manifest(composed)
    await frozen.turn()
    frozen.whole("a", "b", "c")


async def test_two_drive_one_manifest() -> None:
    one = await Bench().start()
    two = await Bench(one).start()
    await one.staged("a")
    await one.lake.committer._recover_state()
    composed = await one.lake.committer._compose_batch()
    assert composed is not None
    assert await one.lake.committer._persist_manifest(composed)
    await two.turn()
    await one.lake.committer._commit_open_batches()
    one.whole("a")
    assert len(one.live("packets")) == 1
    await one.staged("b")
    await one.turn()
    assert one.head == 1
    assert not one.lake.committer._composed_at, "the other process finished batch 0"


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
    assert bench.lake.committer.is_stuck
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
    held = await bench.ledger.list_held_stages(0)
    assert "packets: column packet_no is long in the table and string in the rows" in held[stage.stage_id]


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
    assert "speed" in str(await log.read_schema_struct("packets"))
    assert "speed" not in str(await log.read_schema_struct("captures"))


async def test_head_waits_for_the_replay() -> None:
    bench = await Bench().start()
    stage = await bench.staged("a")
    del bench.store.objects[stage.file_paths[0]]
    bench.days[0] += 6

    async def down(captures: Sequence[Capture]) -> None:
        raise OutcomeUnknown("the queue does not answer")

    real, bench.source.replay_captures = bench.source.replay_captures, down  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknown):
        await bench.turn()
    assert bench.head == -1
    bench.source.replay_captures = real  # type: ignore[method-assign]
    other = await Bench(bench).start()
    await other.turn()
    assert (other.source.replayed, other.head) == (["a"], 0)


async def test_a_stage_that_lacks_a_file_is_returned_when_it_is_old_enough_to_be_looked_at() -> None:
    bench = await Bench().start()
    stage = await bench.staged("a")
    whole = await bench.staged("b")
    del bench.store.objects[stage.file_paths[0]]
    bench.days[0] += CHECK_AFTER_MS / HOUR_MS / 24 + 0.01
    await bench.turn()
    assert bench.source.replayed == ["a"]
    assert bench.rows("packets") == Counter(b=2)
    assert (await bench.ledger.get_stage_items(0, [whole.stage_id]))[whole.stage_id].batch == 0


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


async def test_a_file_lost_after_the_manifest_is_made_again() -> None:
    bench = await Bench().start()
    stage = await fixed_and_then_lost(bench)
    await bench.turn()
    bench.whole("a")
    assert bench.live("packets") != [stage.adds["packets"][0].path]
    assert bench.live("captures") == [stage.adds["captures"][0].path]


async def test_a_file_that_is_made_again_with_other_rows_blocks_the_table_and_nothing_is_committed() -> None:
    """Another profile reads fewer rows from the same capture."""
    bench = await Bench().start()
    stage = await fixed_and_then_lost(bench)
    bench.source.packets = 1
    for _ in range(2):
        await bench.turn()
        bench.now += 60
    assert (
        "now have 1 instead of 2 rows in this table: another profile or decoder"
        in bench.lake.committer.blocked["packets"]
    )
    assert (bench.head, bench.rows("packets"), bench.source.remade) == (-1, Counter(), 1), (
        "nor is it tried again and again"
    )
    other = await Bench(bench).start()
    await other.turn()
    other.whole("a")
    assert other.live("packets") != [stage.adds["packets"][0].path]


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
    "error",
    [
        NotAllowed("GetObject s3://raw/a.pcap", "AccessDenied"),
        Refused("GetObject s3://raw/a.pcap"),
        Gone("GetObject s3://raw/a.pcap"),
        Changed("GetObject s3://raw/a.pcap"),
        OSError(errno.EIO, "GetObject s3://raw/a.pcap"),
        ExceptionGroup("GetObject s3://raw/a.pcap", [ValueError("no capture")]),
        AssertionError(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_capture_that_cannot_be_read_again_blocks_its_table_alone(error: Exception) -> None:
    bench = await Bench().start()
    await fixed_and_then_lost(bench)
    real = bench.source.rebuild_files

    async def refuse(table: str, captures: Any) -> Any:
        raise error

    bench.source.rebuild_files = refuse  # type: ignore[method-assign]
    await bench.turn()
    await bench.staged("b")
    await bench.turn()
    assert f"cannot be rebuilt: {str(error) or repr(error)}" in bench.lake.committer.blocked["packets"]
    assert bench.rows("captures") == Counter(a=1, b=1)
    bench.source.rebuild_files = real  # type: ignore[method-assign]
    bench.now += 60
    await bench.turn()
    bench.whole("a", "b")


@pytest.mark.parametrize(
    "error", [Refused("asked for a.pcap"), OSError(errno.EIO, "asked for a.pcap"), AssertionError()]
)
async def test_a_lost_stage_whose_capture_cannot_be_asked_for_is_held_alone(error: Exception) -> None:
    async def refuse(captures: Any) -> Any:
        raise error

    bench = Bench()
    bench.source.find_unreadable = refuse  # type: ignore[method-assign]
    await bench.start()
    stage = await bench.staged("a")
    bench.days[0] += 2
    del bench.store.objects[f"packets/{stage.adds['packets'][0].path}"]
    await bench.staged("b")
    await bench.turn()
    (why,) = bench.ledger.shared.held.values()
    assert (str(error) or repr(error)) in why
    bench.whole("b")


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
    assert "it had batch 0, and its log says -1" in other.lake.committer.blocked["packets"]
    assert (other.rows("captures"), other.rows("packets")) == (Counter(a=1, b=1), Counter(a=2, b=2))
    other.foreign("packets", {"txn": {"appId": "pcaplake", "version": 1}})
    other.now += 60
    await other.turn()
    other.whole("a", "b")


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


async def test_no_batch_has_a_lower_generation_than_the_one_before() -> None:
    """lake.json was rolled back, and the ledger, restored too, does not know the later generation."""
    bench = await Bench().start()
    await bench.staged("a")
    await bench.turn()
    copy = bench.store.objects[LAKE_JSON]
    await raise_generation(bench.store)
    bench = await Bench(bench).start()
    await bench.staged("b")
    await bench.turn()
    bench.store.objects[LAKE_JSON] = copy
    bench.ledger.shared.enrolled = None
    other = await Bench(bench).start()
    await other.staged("c")
    with pytest.raises(Fatal, match="the last batch is of generation 1: an older copy"):
        await other.turn()
    assert other.rows("packets") == Counter(b=2)


async def test_what_was_staged_before_an_overwrite_was_noticed_is_decoded_again() -> None:
    bench = await Bench().start()
    window = bench.lake.window()
    fill(window, "a")
    stage = window.close()
    assert stage is not None
    await raise_generation(bench.store)
    done = await bench.lake.stage(stage)
    assert ([c.capture_id for c in done.retry], done.staged) == (["a"], ())
    await bench.staged("a")
    await bench.turn()
    bench.whole("a")


async def test_what_somebody_staged_before_an_overwrite_is_no_reason_to_forget_it() -> None:
    bench = await Bench().start()
    window = bench.lake.window()
    fill(window, "a")
    stage = window.close()
    assert stage is not None
    await bench.staged("a")
    await raise_generation(bench.store)
    done = await bench.lake.stage(stage)
    assert ([c.capture_id for c in done.retry], done.already_staged) == (["a"], ())
    await bench.staged("a")
    await bench.turn()
    bench.whole("a")


async def test_a_stage_whose_object_is_gone_is_held_and_costs_no_other() -> None:
    bench = await Bench().start()
    await bench.staged("a")
    ((key, item),) = bench.ledger.shared.stages.items()
    await bench.staged("b")
    bench.ledger.shared.stages[key] = replace(item, stage=None)
    await bench.turn()
    bench.whole("b")
    (reason,) = (await bench.ledger.list_held_stages(0)).values()
    assert "restore it" in reason
    bench.ledger.shared.stages[key] = item
    await bench.ledger.release_held_stages(0)
    await bench.turn()
    bench.whole("a", "b")


async def test_who_lost_captures_to_another_stage_decodes_the_rest_again() -> None:
    bench = await Bench().start()
    await bench.staged("a")
    window = bench.lake.window()
    for name in ("a", "b"):
        fill(window, name)
    stage = window.close()
    assert stage is not None
    done = await bench.lake.stage(stage)
    assert ([c.capture_id for c in done.already_staged], [c.capture_id for c in done.retry]) == (["a"], ["b"])
    assert all(path in bench.store.objects for path in stage.file_paths)  # VACUUM takes orphans, not we
    await bench.staged("b")
    await bench.turn()
    bench.whole("a", "b")


async def test_a_ledger_that_does_not_answer_is_asked_again_until_the_time_is_up() -> None:
    bench = await Bench(commit_timeout=60.0).start()
    bench.faults.inject_fault("ledger.stage *", "error", times=2)
    bench.faults.inject_fault("ledger.stage *", "lost")
    await bench.staged("a")
    assert not bench.faults.waiting
    bench.faults.inject_fault("ledger.stage *", "lost", times=2)
    bench.lake.lake_config = LakeConfig(commit_timeout=0.0)
    with pytest.raises(OutcomeUnknown):
        await bench.staged("b")
    bench.faults.waiting.clear()
    assert set(await bench.lake.capture_states(["a", "b"])) == {"a", "b"}


async def test_checkpoints_are_made_when_an_interval_is_crossed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when somebody else made the version that is the multiple; a failure stops nobody."""
    made: list[int] = []

    async def checkpoint(self: LogStore, table: str) -> None:
        made.append(await self.read_version(table))
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
    await asyncio.gather(*bench.lake.committer.checkpoints.tasks.values())
    assert made == [5]
    assert bench.head == 3


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


async def test_a_lake_is_closed_although_something_has_just_been_staged() -> None:
    """A cancellation and what ends a wait, both at once: `wait_for` of Python 3.11 loses the cancellation."""
    fleet = Fleet()
    async with await fleet.lake(max_batch_age=20.0) as lake:
        while not lake.committer.is_leading:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)  # it waits for the next look
        lake.committer.wake()
        await asyncio.wait_for(lake.close(), 30)


@pytest.mark.slow
async def test_a_follower_looks_at_the_lease_however_long_a_batch_may_wait() -> None:
    fleet = Fleet()
    async with await fleet.lake(max_batch_age=1000.0) as first, await fleet.lake(max_batch_age=1000.0) as second:
        while not first.committer.is_leading:
            await asyncio.sleep(0.01)

        async def silent() -> None:
            first.committer._leadership.is_leading = False

        first.committer._leadership.release_lease = silent  # type: ignore[method-assign]
        assert first._task is not None
        first._task.cancel()
        async with asyncio.timeout(30):  # of which 0.4 are needed: twice `lease_timeout`
            while not second.committer.is_leading:
                await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_a_ledger_that_does_not_answer_keeps_nobody_from_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet()
    async with await fleet.lake() as lake:
        while not lake.committer.is_leading:
            await asyncio.sleep(0.01)

        async def never(*_: object) -> Any:
            await asyncio.Event().wait()

        monkeypatch.setattr(fleet.ledger, "read_lease", never)
        lake.committer.stop_timeout = 0.0
        await asyncio.wait_for(lake.close(), 30)


def test_crash_at_is_refused_when_it_can_never_happen() -> None:
    with pytest.raises(ValueError, match="before <step>"):
        crash_at_step("commit.3a")


# On a real folder


@pytest.mark.slow
async def test_a_lake_on_disk_opens_fills_and_opens_again(tmp_path: Path) -> None:
    async with await Lake.open(tmp_path / "lake", **options()) as lake:
        await ingest(lake, "a", "b")
        assert await lake.capture_states(["a", "b", "c"]) == {"a": "COMMITTED", "b": "COMMITTED"}
    async with await Lake.open(tmp_path / "lake", **options()) as lake:
        await ingest(lake, "a", "b", "c")
        tables = await count_tables(lake.store)
        assert (tables["faults"].rows, tables["packets"].rows) == (6, 0)
        assert tables["faults"].files == len(DeltaTable(str(tmp_path / "lake" / "faults")).file_uris())
        assert tables["faults"].bytes > 0
    assert counts(tmp_path / "lake") == Counter(a=2, b=2, c=2)


@pytest.mark.slow
async def test_overwriting_a_lake_on_disk(tmp_path: Path) -> None:
    async with await Lake.open(tmp_path, **options()) as lake:
        await ingest(lake, "a")
    async with await Lake.open(tmp_path, overwrite=True, **options()) as lake:
        await filled(lake, "b")
        assert counts(tmp_path) == Counter(a=2)
        await lake.replace_all()
        await lake.drain()
    assert counts(tmp_path) == Counter(b=2)


@pytest.mark.slow
async def test_a_lost_ledger_is_found_out_and_rebuilt(tmp_path: Path) -> None:
    async with await Lake.open(tmp_path, **options()) as lake:
        await ingest(lake, "a", "b")
    for file in (tmp_path / "_pcaplake").glob("ledger.sqlite*"):
        file.unlink()
    with pytest.raises(Fatal, match="--adopt"):
        await Lake.open(tmp_path)
    stranger = await SqliteLedger.open(tmp_path / "_pcaplake" / "ledger.sqlite")
    await stranger.close()
    with pytest.raises(Fatal, match="--adopt"):
        await Lake.open(tmp_path)
    async with await Lake.open(tmp_path, adopt=True, **options()) as lake:
        assert set(await lake.capture_states(["a", "b"])) == {"a", "b"}
        await ingest(lake, "a", "b", "c")
        assert await lake.capture_states(["a", "b"]) == {"a": "COMMITTED", "b": "COMMITTED"}
    assert counts(tmp_path) == Counter(a=2, b=2, c=2)


@pytest.mark.slow
async def test_an_old_copy_of_the_ledger_is_found_out_and_completed(tmp_path: Path) -> None:
    book = tmp_path / "_pcaplake" / "ledger.sqlite"
    async with await Lake.open(tmp_path, **options()) as lake:
        await ingest(lake, "a")
    copy = book.read_bytes()
    async with await Lake.open(tmp_path, **options()) as lake:
        await ingest(lake, "b")
    book.write_bytes(copy)
    async with await Lake.open(tmp_path, **options()) as lake:
        with pytest.raises(Fatal, match="--adopt"):
            await ingest(lake, "b", "c")  # "b" is staged once more before it is found out
    replayed: list[str] = []

    class Noting(NullSource):
        async def replay_captures(self, captures: Sequence[Capture]) -> None:
            replayed.extend(one.capture_id for one in captures)

    async with await Lake.open(tmp_path, adopt=True, source=Noting(), **options()) as lake:
        await lake.drain()
        await ingest(lake, "a", "b", "c")
    assert counts(tmp_path) == Counter(a=2, b=2, c=2)
    assert "b" not in replayed


async def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Fatal, match="--ledger"):
        await Lake.open("memory:///somewhere")
    with pytest.raises(Fatal, match="is not a lake yet"):
        await Lake.open(tmp_path / "empty", lake_config=LakeConfig(creation=Creation(allowed=False)))
    lake = await Lake.open(tmp_path / "lake", ledger=tmp_path / "state")
    await lake.close()
    assert not (tmp_path / "lake" / "_pcaplake" / "ledger.sqlite").exists()
    with pytest.raises(Fatal, match="--ledger"):
        await Lake.open(tmp_path / "lake")
    other = LakeConfig(creation=Creation(partition_columns=("date", "vehicle_id")))
    with pytest.raises(Fatal, match="partition columns"):
        await Lake.open(tmp_path / "lake", lake_config=other, ledger=tmp_path / "state")


STEPS = [
    "before stage.4", "after stage.4", "before stage.5", "after stage.5", "after stage.6",
    *(f"{when} commit.{n}" for n in ("1", "2", "3a", "3b", "4", "4 faults", "5", "6") for when in ("before", "after")),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("where", STEPS)
def test_a_process_killed_at_any_step_is_completed_by_the_next(where: str, tmp_path: Path) -> None:
    killed = program(tmp_path, where, "a", "b")
    assert exit_code(killed) == -signal.SIGKILL
    done = program(tmp_path, "", "a", "b")
    assert exit_code(done) == 0
    assert counts(tmp_path) == Counter(a=2, b=2)
    versions = sorted(path.name for path in (tmp_path / "faults" / "_delta_log").glob("*.json"))
    assert versions == [f"{number:020d}.json" for number in range(len(versions))]


@pytest.mark.slow
def test_two_processes_on_one_lake_at_once(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(12)]
    both = [program(tmp_path, "", *some) for some in (names[:8], names[4:])]
    assert [exit_code(one) for one in both] == [0, 0]
    assert counts(tmp_path) == Counter(dict.fromkeys(names, 2))
