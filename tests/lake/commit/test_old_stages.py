"""Stages that waited for days: their files may be gone, or their captures, or both. No row is lost without a word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pcaplake.common.errors import OutcomeUnknown, Retryable
from pcaplake.lake.records import Capture
from pcaplake.lake.staging.stage_files import COPY_AFTER_MS, HOUR_MS
from tests.lake.commit.bench import TABLES, Bench


@pytest.mark.parametrize("there", [True, False])
async def test_an_old_stage_whose_files_are_there_is_committed(there: bool) -> None:
    """Its capture may be gone. What is committed are copies: a VACUUM that has listed the old files takes only those."""
    bench = await Bench().start()
    stage = await bench.staged("a")
    young = await bench.staged("b")
    bench.source.there = there
    bench.days[0] += COPY_AFTER_MS / HOUR_MS / 24 + 0.01
    young = replace(young, written_at=young.written_at + COPY_AFTER_MS)
    bench.ledger.shared.stages[0, young.stage_id] = replace(bench.ledger.shared.stages[0, young.stage_id], stage=young)
    await bench.turn()
    assert (bench.source.replayed, bench.head) == ([], 0)
    for path in stage.file_paths:
        del bench.store.objects[path]
    bench.whole("a", "b")
    live = {f"{table}/{path}" for table in TABLES for path in bench.live(table)}
    assert live >= set(young.file_paths)
    assert not live.intersection(stage.file_paths)


async def test_a_copy_is_made_once_however_often_the_commit_is_tried() -> None:
    """And none while the table is blocked."""
    bench = await Bench().start()
    bench.configure("packets", {"delta.setTransactionRetentionDuration": "interval 1 days"})
    await bench.staged("a")
    bench.days[0] += 6
    for _ in range(3):
        await bench.turn()
        bench.now += 60
    assert len(files_of(bench, "packets")) == 1
    bench.configure("packets", {})

    async def down(*given: object, **more: object) -> None:
        raise OutcomeUnknown("the store does not answer")

    real, bench.lake.log.commit = bench.lake.log.commit, down  # type: ignore[assignment, method-assign]
    for _ in range(3):
        with pytest.raises(OutcomeUnknown):
            await bench.turn()
        bench.now += 60
    bench.lake.log.commit = real  # type: ignore[method-assign]
    await bench.turn()
    assert len(files_of(bench, "packets")) == 2
    bench.whole("a")


async def test_a_stage_without_files_and_captures_is_held_and_says_what_is_lost() -> None:
    bench = await Bench().start()
    stage = await bench.staged("a")
    path = stage.file_paths[0]
    data = bench.store.objects.pop(path)
    bench.source.there = False
    bench.days[0] += 2
    await bench.staged("b")
    await bench.turn()
    assert bench.source.replayed == []
    (reason,) = (await bench.ledger.list_held_stages(0)).values()
    assert reason.startswith("files of it are gone, and 1 capture with 3 rows cannot be read again: ")
    assert stage.captures[0].uri in reason
    assert bench.rows("packets") == Counter(b=2)
    bench.store.objects[path] = data  # somebody puts it back
    await bench.ledger.release_held_stages(0)
    await bench.turn()
    bench.whole("a", "b")


async def test_a_stage_that_lacks_files_is_held_while_nobody_knows_whether_its_captures_are_there() -> None:
    bench = await Bench().start()
    stage = await bench.staged("a")
    del bench.store.objects[stage.file_paths[0]]
    bench.days[0] += 2

    async def down(captures: Sequence[Capture]) -> Sequence[Capture]:
        raise OutcomeUnknown("the bucket does not answer")

    composer = bench.lake.committer._composer
    real, composer._unreadable = composer._unreadable, down
    await bench.turn()
    (reason,) = (await bench.ledger.list_held_stages(0)).values()
    assert "the bucket does not answer" in reason
    composer._unreadable = real
    await bench.ledger.release_held_stages(0)
    await bench.turn()
    assert bench.source.replayed == ["a"]


async def test_a_displaced_stage_is_held_when_what_only_it_has_cannot_be_read_again() -> None:
    """What another stage has is no reason: that one's rows count."""
    bench = await Bench().start()
    await bench.staged("a", "b")
    key, item = next(iter(bench.ledger.shared.stages.items()))
    bench.ledger.shared.stages[key] = replace(item, displaced=True)
    mine = bench.ledger.shared.captures[0, "a"]
    bench.ledger.shared.captures[0, "a"] = replace(mine, stage_id="another")
    bench.source.there = False
    await bench.turn()
    (reason,) = (await bench.ledger.list_held_stages(0)).values()
    assert "a capture of it is in a batch, and 1 capture" in reason
    bench.ledger.shared.captures[0, "b"] = replace(mine, stage_id="another")
    await bench.ledger.release_held_stages(0)
    await bench.turn()
    assert (bench.source.replayed, bench.head) == ([], 0)


def files_of(bench: Bench, table: str) -> list[str]:
    return [path for path in bench.store.objects if path.startswith(f"{table}/") and "_delta_log" not in path]


async def test_head_waits_for_captures_that_nobody_can_read_again_and_tables_do_not() -> None:
    bench = await Bench().start()
    stage = await bench.staged("a")
    del bench.store.objects[stage.file_paths[0]]
    bench.days[0] += 2

    async def fails(captures: Sequence[Capture]) -> None:
        raise Retryable("just gone")

    real, bench.source.replay_captures = bench.source.replay_captures, fails  # type: ignore[method-assign]
    for name in ("b", "c"):
        await bench.staged(name)
        with pytest.raises(Retryable, match="just gone"):
            await bench.turn()
    assert bench.head == -1
    assert bench.rows("packets") == Counter(b=2, c=2)
    other = await Bench(bench).start()
    other.source.replay_captures = fails  # type: ignore[method-assign]
    with pytest.raises(Retryable, match="just gone"):
        await other.turn()
    bench.source.replay_captures = real  # type: ignore[method-assign]
    await bench.turn()
    assert bench.source.replayed == ["a"]
    assert bench.head == 1
