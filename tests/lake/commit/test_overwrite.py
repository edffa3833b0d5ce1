"""An overwrite replaces all rows at once, or none: wherever it is cut off, the lake keeps what it had."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.lake.commit.history import SWAPPED, opening_version
from pcaplake.lake.commit.overwrite import LONGEST_MS
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.identity import LAKE_JSON
from pcaplake.lake.lake import Lake
from pcaplake.lake.records import Capture, Manifest, manifest_path
from tests.lake.commit.bench import Bench, counts, fill, filled, generation, ingest, opening, options
from tests.lake.generations import raise_generation


async def lake_with_a(folder: Path) -> None:
    async with await Lake.open(folder, **options()) as lake:
        await ingest(lake, "a")


@pytest.mark.slow
async def test_cut_off_before_it_replaces_it_leaves_everything_as_it_was(tmp_path: Path) -> None:
    await lake_with_a(tmp_path)
    async with await opening(tmp_path) as lake:
        await filled(lake, "b")
    assert (counts(tmp_path), generation(tmp_path)) == (Counter(a=2), 0)
    async with await Lake.open(tmp_path, **options()) as lake:
        assert set(await lake.capture_states(["a", "b"])) == {"a"}
        await ingest(lake, "c")
    assert counts(tmp_path) == Counter(a=2, c=2)
    async with await opening(tmp_path) as lake:
        assert await lake.capture_states(["a", "b"]) == {}, "the leftovers of the first one are nobody's"
        await filled(lake, "d")
        await lake.replace_all()
        await lake.drain()
    assert (counts(tmp_path), generation(tmp_path)) == (Counter(d=2), 2)


@pytest.mark.slow
async def test_once_it_has_begun_whoever_comes_next_completes_it(tmp_path: Path) -> None:
    await lake_with_a(tmp_path)
    async with await opening(tmp_path, commits=False) as lake:
        await filled(lake, "b")
        await lake.replace_all()
    assert counts(tmp_path) == Counter(a=2), "old rows go with the transaction that brings new ones"
    async with await Lake.open(tmp_path, **options()) as lake:
        await lake.drain()
    assert counts(tmp_path) == Counter(b=2)


async def test_with_nothing_staged_it_is_refused(tmp_path: Path) -> None:
    await lake_with_a(tmp_path)
    async with await opening(tmp_path) as lake:
        with pytest.raises(Fatal, match="nothing was replaced, and the lake stays as it is: nothing was staged"):
            await lake.replace_all()
    assert counts(tmp_path) == Counter(a=2)


@pytest.mark.slow
async def test_the_one_that_began_last_wins_and_the_other_is_refused(tmp_path: Path) -> None:
    async with await opening(tmp_path) as slow, await opening(tmp_path) as fast:
        await filled(slow, "a")
        await filled(fast, "b")
        await fast.replace_all()
        await fast.drain()
        with pytest.raises(Fatal, match="another overwrite finished"):
            await slow.replace_all()
    assert counts(tmp_path) == Counter(b=2)


async def test_stages_of_somebody_else_do_not_come_along(tmp_path: Path) -> None:
    """Of an overwrite that was cut off, after which lake.json was rolled back: the same number is given once more."""
    await lake_with_a(tmp_path)
    before = (tmp_path / LAKE_JSON).read_bytes()
    async with await opening(tmp_path) as lake:
        await filled(lake, "b")
    (tmp_path / LAKE_JSON).write_bytes(before)
    async with await opening(tmp_path) as lake:
        await filled(lake, "c")
        with pytest.raises(Fatal, match="generation 1 does not have the stages of this overwrite"):
            await lake.replace_all()
    assert counts(tmp_path) == Counter(a=2)


@pytest.mark.parametrize("what", ["blocked", "deleted", "old"])
async def test_what_cannot_replace_is_refused_before_anything_is(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lake_with_a(tmp_path)
    async with await opening(tmp_path) as lake:
        await filled(lake, "b")
        if what == "blocked":
            last = max((tmp_path / "packets" / "_delta_log").glob("*.json"))
            action = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["x"]}}
            path = last.with_name(f"{int(last.stem) + 1:020d}.json")
            path.write_text(json.dumps(action) + "\n")
        else:
            shift = LONGEST_MS + 1 if what == "old" else LONGEST_MS - 60_000
            monkeypatch.setattr("pcaplake.lake.staging.stage_files.StageFiles.read_store_clock", _later(shift))
            for path in (tmp_path / "faults").rglob("*.parquet") if what == "deleted" else ():
                path.unlink()
        with pytest.raises(Fatal, match="nothing was replaced") as refused:
            await lake.replace_all()
    said = {"blocked": "packets: ", "deleted": "were deleted", "old": "longer than five days"}
    assert said[what] in str(refused.value)
    assert generation(tmp_path) == 0


def _later(by: int):  # type: ignore[no-untyped-def]
    from pcaplake.lake.staging.stage_files import StageFiles

    real = StageFiles.read_store_clock

    async def now(self: StageFiles) -> int:
        return await real(self) + by

    return now


async def test_all_of_it_comes_in_one_batch() -> None:
    """However many files a batch has else: a reader never sees a part of the new rows without the old ones."""
    bench = await Bench().start()
    await bench.staged("a")
    await bench.turn()
    await raise_generation(bench.store)
    other = await Bench(bench).start()
    other.lake.committer._composer._lake_config = replace(other.lake.lake_config, max_batch_adds=1)
    for name in "bcde":
        await other.staged(name)
    await other.turn()
    other.whole("b", "c", "d", "e")
    assert other.head == 1
    for table in ("captures", "packets"):
        assert await LogStore(bench.store).read_transaction(table, SWAPPED) == opening_version(1) > 0, (
            "who swaps rows conflicts with it"
        )
    for name in "fg":
        await other.staged(name)
    await other.turn()
    assert other.head == 2, "one stage by batch again"
    assert LakeConfig().max_batch_adds > 1


async def test_a_generation_that_has_only_given_back_is_not_opened_yet() -> None:
    bench = await Bench().start()
    await bench.staged("a")
    await bench.turn()
    await raise_generation(bench.store)
    other = await Bench(bench).start()
    await other.staged("b")
    for key, item in other.ledger.shared.stages.items():
        if key[0] == 1:
            other.ledger.shared.stages[key] = replace(item, displaced=True)
    await other.turn()
    manifest = Manifest.from_json(bench.store.objects[manifest_path(1)][0])
    assert (manifest.generation, manifest.shown_generation, manifest.opens, len(manifest.returned)) == (1, 0, False, 1)
    assert other.rows("captures") == Counter("a")
    third = await Bench(other).start()
    window = third.lake.window()
    fill(window, "c")
    stage = window.close()
    assert stage is not None
    await third.lake.stage(stage)
    await third.turn()
    third.whole("c")
    assert Manifest.from_json(bench.store.objects[manifest_path(2)][0]).opens


async def test_what_a_batch_before_it_gave_back_does_not_come_into_it() -> None:
    """The process died before it had the captures read again, and the lake was overwritten meanwhile."""
    bench = await Bench().start()
    stage = await bench.staged("a")
    del bench.store.objects[stage.file_paths[0]]
    bench.days[0] += 2

    async def down(captures: Sequence[Capture]) -> None:
        raise Retryable("killed")

    bench.source.replay_captures = down  # type: ignore[method-assign]
    with pytest.raises(Retryable):
        await bench.turn()
    await raise_generation(bench.store)
    other = await Bench(bench).start()
    await other.staged("b")
    await other.turn()
    assert other.source.replayed == []
    other.whole("b")
