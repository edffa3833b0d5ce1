"""An overwrite that has begun is written down: no batch opens its generation without all of its stages."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.lake.commit.capture_source import NullSource
from pcaplake.lake.commit.overwrite import begin_generation, overwrite_record_path
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.delta import AddFile
from pcaplake.lake.identity import LAKE_JSON, LEDGER_FILE
from pcaplake.lake.lake import Lake
from pcaplake.lake.records import Capture, Stage
from tests.lake.commit.bench import counts, filled, generation, ingest, opening, options, real_rows

OLD = Counter(a=2)


async def opened(folder: Path, *, commits: bool = True, **given: Any) -> Lake:
    return await Lake.open(folder, **options(commits=commits), **given)


async def begun(folder: Path, *names: str, keep: Callable[[], None] = lambda: None) -> None:
    """A lake with `a`; an overwrite by `names` that has begun and died; `keep` is called between their stages."""
    async with await opened(folder) as lake:
        await ingest(lake, "a")
    async with await opening(folder, commits=False) as lake:
        for name in names:
            await filled(lake, name)
            keep()
        await lake.replace_all()
    assert counts(folder) == OLD


def lose_ledger(folder: Path) -> None:
    for path in folder.glob(f"{LEDGER_FILE}*"):
        path.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("adopts", [True, False], ids=["and does", "and the next does"])
async def test_a_ledger_that_is_built_anew_knows_what_began(tmp_path: Path, adopts: bool) -> None:
    await begun(tmp_path, "b", "c")
    lose_ledger(tmp_path)
    async with await opened(tmp_path, adopt=True, commits=False) as lake:
        assert set(await lake.capture_states(["a", "b", "c"])) == {"b", "c"}
        if adopts:
            await filled(lake, "e")
    async with await opened(tmp_path) as lake:
        await ingest(lake, *"e" * (not adopts))
        await lake.drain()
    assert counts(tmp_path) == Counter("bbcc" + "ee")


@pytest.mark.slow
async def test_an_older_copy_of_the_ledger_learns_the_stages_that_it_lacks(tmp_path: Path) -> None:
    copies: list[Path] = []

    def keep() -> None:
        copies.append(tmp_path.parent / f"{tmp_path.name}-{len(copies)}")
        copies[-1].mkdir()
        for path in tmp_path.glob(f"{LEDGER_FILE}*"):
            shutil.copy(path, copies[-1])

    await begun(tmp_path, "b", "c", keep=keep)
    lose_ledger(tmp_path)
    for path in copies[0].iterdir():
        shutil.copy(path, tmp_path / "_pcaplake")
    async with await opened(tmp_path) as lake:
        await lake.drain()
        await ingest(lake, "e")
    assert counts(tmp_path) == Counter("bbccee")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["another ledger", "another lake"])
async def test_what_is_not_the_opened_lake_any_more_is_left_alone(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "lake"
    async with await opened(folder) as lake:
        await ingest(lake, "a")
    async with await opening(folder) as lake:
        await filled(lake, "b")

        async def changed() -> None:
            if what == "another lake":
                folder.rename(tmp_path / "before")
            else:
                lose_ledger(folder)
            async with await opened(folder, adopt=what == "another ledger") as other:
                if what == "another lake":
                    await ingest(other, "a")

        stages = [
            item.stage
            for item in (await lake.ledger.get_stage_items(1, await lake.ledger.list_pending_stages(1, 9))).values()
        ]
        await changed()
        with pytest.raises(Fatal, match=r"ledger was|this lake was deleted"):
            await begin_generation(lake.store, lake._current.identity, 1, [one for one in stages if one is not None])
    assert generation(folder) == 0
    assert not (folder / overwrite_record_path(1)).exists()
    async with await opened(folder) as lake:
        await ingest(lake, "e")
    assert counts(folder) == Counter("aaee")


@pytest.mark.slow
async def test_without_all_of_its_rows_it_does_not_begin_to_remove(tmp_path: Path) -> None:
    await begun(tmp_path, "b", "c")
    record = json.loads((tmp_path / overwrite_record_path(1)).read_bytes())
    assert [one["captures"][0]["capture_id"] for one in record["stages"]] != []
    lose_ledger(tmp_path)
    next((tmp_path / "faults").rglob(record["stages"][0]["adds"]["faults"][0]["path"].rpartition("/")[2])).unlink()
    async with await opened(tmp_path, adopt=True) as lake:
        with pytest.raises(
            Fatal, match=r"overwrite 1 has begun, and 1 of its stages .*Nothing was removed.*Repeat the overwrite"
        ):
            await ingest(lake, "e")
    assert counts(tmp_path) == OLD
    async with await opening(tmp_path) as lake:
        await filled(lake, "b", "c")
        await lake.replace_all()
        await lake.drain()
    assert counts(tmp_path) == Counter("bbcc")


class ReadsAgain(NullSource):
    """Makes the files of captures again, as `pcaplake ingest` does where they are still there."""

    lake: Lake

    async def find_unreadable(self, captures: Sequence[Capture]) -> Sequence[Capture]:
        return ()

    async def rebuild_files(self, table: str, lost: Stage) -> Sequence[AddFile] | None:
        window = self.lake.window(tables=[table])
        for one in lost.captures:
            window.begin(one)
            window.write(table, real_rows(one.capture_id))
            window.end()
        stage = window.close()
        return () if stage is None else stage.adds[table]


@pytest.mark.slow
@pytest.mark.parametrize("ledger", ["lost", "kept"])
async def test_a_file_that_is_gone_is_made_again_from_its_captures(tmp_path: Path, ledger: str) -> None:
    await begun(tmp_path, "b", "c")
    record = json.loads((tmp_path / overwrite_record_path(1)).read_bytes())
    next((tmp_path / "faults").rglob(record["stages"][0]["adds"]["faults"][0]["path"].rpartition("/")[2])).unlink()
    if ledger == "lost":
        lose_ledger(tmp_path)
    source = ReadsAgain()
    async with await opened(tmp_path, adopt=ledger == "lost", source=source) as lake:
        source.lake = lake
        await ingest(lake, "e")
    assert counts(tmp_path) == Counter("bbccee")


@pytest.mark.slow
async def test_it_says_that_nothing_is_left_of_it_although_nothing_waits(tmp_path: Path) -> None:
    await begun(tmp_path, "b", "c")
    record = json.loads((tmp_path / overwrite_record_path(1)).read_bytes())
    lose_ledger(tmp_path)
    lost = [f"{t}/{add['path']}" for stage in record["stages"] for t, adds in stage["adds"].items() for add in adds]
    for path in lost:
        (tmp_path / path).unlink()
    async with await opened(tmp_path, adopt=True, commits=False) as lake:
        lake.committer.flush_now = True
        for _ in range(2):  # the first one holds both stages
            with pytest.raises(Fatal, match="overwrite 1 has begun, and 2 of its stages"):
                await lake.committer.run_turn()
    assert counts(tmp_path) == OLD


@pytest.mark.slow
async def test_a_stage_of_it_that_is_held_holds_the_others(tmp_path: Path) -> None:
    await begun(tmp_path, "b", "c")
    async with await opened(tmp_path, commits=False) as lake:
        (held, _) = await lake.ledger.list_pending_stages(1, 9)
        await filled(lake, "e")
        await lake.ledger.hold_stage(1, held, "a file of it is gone")
    lake = await opened(tmp_path)
    lake.committer._on_lease_taken = _recovers(lake)  # type: ignore[method-assign]
    async with lake:
        with pytest.raises(Fatal, match=f"{held} .a file of it is gone"):
            await lake.drain()
    assert counts(tmp_path) == OLD


@pytest.mark.slow
async def test_an_overwrite_that_a_newer_one_has_replaced_stops_nobody(tmp_path: Path) -> None:
    """Whoever leads may read lake.json less often than overwrites begin."""
    await begun(tmp_path, "b", "c")
    late = await opened(tmp_path, commits=False)
    late.committer._composer._lake_config = LakeConfig(max_batch_age=3600.0)  # it reads lake.json once an hour
    (first, _) = await late.ledger.list_pending_stages(1, 9)
    assert await late.committer._composer._read_generation(0, flush_now=False) == 1
    async with await opening(tmp_path, commits=False) as lake:
        await filled(lake, "d")
        await lake.replace_all()
    await late.ledger.hold_stage(1, first, "a file of it is gone")
    await late.committer.run_turn()
    with pytest.raises(Retryable, match="newer one has begun"):
        await late.committer.run_turn()
    late.committer._progress.batch = None  # as `run` does
    await late.committer.run_turn()
    await late.committer.run_turn()
    await late.close()
    assert counts(tmp_path) == Counter("dd")


def _recovers(lake: Lake):  # type: ignore[no-untyped-def]
    """To take over releases what is held; a file that is still gone holds it again."""

    async def take_over() -> None:
        lake.committer._progress.batch = None

    return take_over


async def test_files_are_looked_for_however_young_they_are(tmp_path: Path) -> None:
    async with await opened(tmp_path) as lake:
        await ingest(lake, "a")
    before = set((tmp_path / "faults").rglob("*.parquet"))
    async with await opening(tmp_path) as lake:
        await filled(lake, "b")
        for path in set((tmp_path / "faults").rglob("*.parquet")) - before:
            path.unlink()
        with pytest.raises(Fatal, match=r"nothing was replaced.* were deleted"):
            await lake.replace_all()
    assert (counts(tmp_path), generation(tmp_path)) == (OLD, 0)


@pytest.mark.slow
async def test_of_two_with_one_number_the_second_replaces_nothing(tmp_path: Path) -> None:
    """lake.json was rolled back to before the first one reserved its number, and the ledger with it."""
    async with await opened(tmp_path) as lake:
        await ingest(lake, "a")
    before = (tmp_path / LAKE_JSON).read_bytes()
    async with await opening(tmp_path, commits=False) as lake:
        await filled(lake, "b")
        await lake.replace_all()
    (tmp_path / LAKE_JSON).write_bytes(before)
    lose_ledger(tmp_path)
    async with await opened(tmp_path, adopt=True):
        pass
    async with await opening(tmp_path) as lake:
        await filled(lake, "c")
        with pytest.raises(Fatal, match="another overwrite has the number 1"):
            await lake.replace_all()
    assert (counts(tmp_path), generation(tmp_path)) == (OLD, 0)
    async with await opening(tmp_path) as lake:
        await filled(lake, "c")
        await lake.replace_all()
        await lake.drain()
    assert counts(tmp_path) == Counter("cc")
