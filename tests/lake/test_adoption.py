"""Lakes that were copied or moved: a copy gets an identity of its own, and its original goes on as if nothing had been."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pcaplake.common.errors import Fatal, NotAllowed
from pcaplake.lake.identity import LAKE_JSON, Identity, open_identity
from pcaplake.lake.lake import Lake
from pcaplake.lake.ledger import Ledger
from pcaplake.worker.admin.doctor.doctor import collect_repairs
from pcaplake.worker.admin.pending_stages import find_uncommitted_stages
from tests.drives import Drive
from tests.worker import lakes
from tests.worker.adapters.memory_ledger import MemoryLedger
from tests.worker.adapters.memory_store import MemoryStore
from tests.worker.patients import Ground, error, unwell

Capsys = pytest.CaptureFixture[str]


@dataclass(kw_only=True)
class Table:
    """One table with the ledgers of many lakes, kept apart by the id of the lake, as in DynamoDB."""

    kind: str = "memory"
    ledgers: dict[str, MemoryLedger] = field(default_factory=dict)

    def ledger_name(self, lake: Identity) -> str:
        return "memory"

    async def open(self, lake: Identity, *, create: bool) -> Ledger:
        return self.of(lake.lake_id)

    def of(self, lake_id: str) -> MemoryLedger:
        ledger = self.ledgers.setdefault(lake_id, MemoryLedger())
        ledger.shared.lake_id = lake_id
        return ledger


class Lakes:
    """The lakes of one table of ledgers, each at a URI of its own."""

    def __init__(self) -> None:
        self.table, self.places = Table(), dict[str, MemoryStore]()

    def ground(self, uri: str) -> Ground:
        ground = Ground(locks=False)
        ground.store.uri, ground.store.places = uri, self.places
        self.places[uri] = ground.store
        ground.place = self.table  # type: ignore[assignment]
        return ground

    async def original(self) -> Ground:
        """With the captures `a` and `b`, and one that is staged and waits."""
        ground = await self.ground("s3://one/lake").start("a", "b")
        self.table.ledgers[lake_id(ground)] = ground.ledger
        await ground.staged("waits")
        return ground

    def copied(self, ground: Ground, uri: str) -> Ground:
        copy = self.ground(uri)
        copy.store.objects.update(ground.store.objects)
        copy.ledger = self.table.of(lake_id(copy))
        return copy

    async def adopted(self, ground: Ground) -> Ground:
        """Its ledger is that of the id that it has then."""
        assert len(await ground.mended(adopt=True)) == 1
        ground.ledger = self.table.of(lake_id(ground))
        assert error("lake.json") not in unwell(await ground.examined())
        return ground


async def lake_and_copy(uri: str = "s3://two/lake") -> tuple[Lakes, Ground, Ground]:
    """All lakes, the original with what waits in its ledger, and its copy at `uri`."""
    lakes = Lakes()
    original = await lakes.original()
    return lakes, original, lakes.copied(original, uri)


def lake_id(ground: Ground) -> str:
    return str(json.loads(ground.store.objects[LAKE_JSON][0])["lake_id"])


async def test_a_copy_that_is_adopted_leaves_its_original_whole() -> None:
    """Both go on, one after the other and in turn; what waited in the ledger stays the original's."""
    lakes, original, copy = await lake_and_copy()
    with pytest.raises(Fatal, match="the lake is a copy of s3://one/lake"):
        await find_uncommitted_stages(copy.case())  # what `maintain` and Spark's VACUUM ask first
    found = await copy.examined()
    assert unwell(found) == {error("lake.json")}
    assert "this lake is a copy of s3://one/lake, and the original still exists" in next(
        one.what for one in found if one.level == "error"
    )
    assert collect_repairs(found) == []
    await lakes.adopted(copy)
    assert lake_id(copy) != lake_id(original)
    await copy.process()
    await copy.batch("c", "d")
    await original.process()
    await original.batch("d", "e")
    await copy.batch("e")
    await copy.goes_on("a", "b", "c", "d", "e")
    await original.goes_on("a", "b", "waits", "d", "e")
    for ground in (original, copy):
        assert unwell(await ground.examined()) == set()


async def test_a_copy_is_refused_until_it_is_adopted() -> None:
    lakes, original, copy = await lake_and_copy()
    before = original.snapshot()
    with pytest.raises(Fatal, match="the URI s3://one/lake, not s3://two/lake"):
        await copy.process()
    raw = json.loads(copy.store.objects[LAKE_JSON][0])
    copy.store.put_past_faults(
        LAKE_JSON, json.dumps({**raw, "uri": "s3://two/lake"}).encode()
    )  # as versions before adopted it
    with pytest.raises(Fatal, match="a copy of s3://one/lake and would use its ledger"):
        await copy.process()
    assert original.snapshot() == before
    await lakes.adopted(copy)
    await copy.goes_on("a", "b")
    await original.goes_on("a", "b", "waits")


async def test_a_lake_that_was_moved_keeps_its_identity_and_what_waits() -> None:
    lakes, original, moved = await lake_and_copy()
    original.store.objects.clear()
    assert "use the URI in lake.json; if the lake was moved" in {
        one.do.split(", stop")[0] for one in await moved.examined()
    }
    await lakes.adopted(moved)
    assert moved.ledger is original.ledger
    await moved.goes_on("a", "b", "waits")


async def test_of_two_copies_of_a_lake_that_is_gone_the_second_is_a_copy_of_the_first() -> None:
    lakes = Lakes()
    original = await lakes.original()
    first, second = (lakes.copied(original, f"s3://{name}/lake") for name in ("two", "three"))
    original.store.objects.clear()
    await lakes.adopted(first)
    await lakes.adopted(second)
    assert lake_id(first) != lake_id(second)
    await second.goes_on("a", "b")
    await first.goes_on("a", "b", "waits")


async def test_one_lake_by_another_name_is_no_copy() -> None:
    lakes, original, other = await lake_and_copy("s3://alias/lake")
    other.store.objects = original.store.objects
    await lakes.adopted(other)
    assert other.ledger is original.ledger
    await other.goes_on("a", "b", "waits")


async def test_where_the_original_cannot_be_looked_at_nothing_is_adopted() -> None:
    lakes, _, copy = await lake_and_copy()

    class Closed(MemoryStore):
        async def get(self, path: str) -> Any:
            raise NotAllowed("GetObject", "no")

    lakes.places["s3://one/lake"] = Closed()
    found = await copy.examined(adopt=True)
    assert unwell(found) == {error("lake.json")}
    (said,) = [one.what for one in found if one.level == "error"]
    assert "cannot tell whether s3://two/lake is a copy of s3://one/lake" in said
    assert collect_repairs(found) == []
    with pytest.raises(Fatal):
        await open_identity(copy.store, copy.ledger)


@pytest.mark.parametrize("ledger", ["inside", "in a folder of its own"])
async def test_a_copied_folder_is_a_lake_of_its_own(ledger: str, tmp_path: Path) -> None:
    books = None if ledger == "inside" else tmp_path / "books"
    await (await Lake.open(tmp_path / "one", ledger=books)).close()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    if books is not None:
        with pytest.raises(Fatal, match="--adopt"):
            await Lake.open(tmp_path / "two", ledger=books)
    copy = await Lake.open(tmp_path / "two", ledger=books, adopt=books is not None)
    original = await Lake.open(tmp_path / "one", ledger=books)
    assert copy.ledger.name != original.ledger.name
    for lake in (copy, original):
        enrolled = await lake.ledger.read_enrollment()
        assert enrolled is not None
        assert enrolled.uri == lake.store.uri
        await lake.close()


def doctor(capsys: Capsys, lake: Path, ledgers: Path, *options: object) -> tuple[int, dict[str, Any]]:
    code, out, err = lakes.run(capsys, "doctor", "--lake", lake, "--ledger", ledgers, "--json", *options)
    return code, json.loads(out or err)


def waiting(drive: Drive, tmp_path: Path) -> Path:
    """A lake with its ledger in `books`: one capture is in the tables, another is staged and waits."""
    given = {"profile": str(drive.profile), "ledger": str(tmp_path / "books")}
    lake, log = tmp_path / "lake", tmp_path / "log"
    assert lakes.ingest(drive.captures[:1], lake, log, **given)[0] == 0
    assert lakes.ingest(drive.captures[1:2], lake, log, kill="after stage.6", **given)[0] not in (0, 2, 3)
    return lake


@pytest.mark.slow
@pytest.mark.parametrize("adopt", [[], ["--adopt"]])
@pytest.mark.parametrize("books", ["books", "moved too"])
def test_a_folder_that_was_moved_keeps_what_waits_in_a_ledger_beside_it(
    adopt: list[str], books: str, drive: Drive, tmp_path: Path, capsys: Capsys
) -> None:
    """The ledger is found by what lake.json says of it, whatever the lake's URI is now."""
    moved = waiting(drive, tmp_path).rename(tmp_path / "moved")
    ledgers = (tmp_path / "books").rename(tmp_path / books)
    options = ("--lake", moved, "--profile", drive.profile, "--ledger", ledgers)
    code, _, err = lakes.run(capsys, "ingest", drive.captures[2], *options, *adopt)
    assert code == 0, err
    expected = tmp_path / "expected"
    assert lakes.run(capsys, "ingest", *drive.captures[:3], "--lake", expected, "--profile", drive.profile)[0] == 0
    assert lakes.by_duckdb(moved) == lakes.by_duckdb(expected)
    assert len(list(ledgers.glob("*.sqlite"))) == 1, "no empty one was made"
    assert doctor(capsys, moved, ledgers)[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("by", ["doctor", "ingest"])
def test_a_copied_folder_that_is_adopted_has_a_ledger_that_ingest_finds(
    by: str, drive: Drive, tmp_path: Path, capsys: Capsys
) -> None:
    lake, books = waiting(drive, tmp_path), tmp_path / "books"
    copy = shutil.copytree(lake, tmp_path / "copy")
    profile = ("--profile", drive.profile, "--ledger", books)
    (original,) = books.glob("*.sqlite")
    code, _, err = lakes.run(capsys, "ingest", drive.captures[2], "--lake", copy, *profile)
    assert (code, "--adopt" in err) == (3, True), err
    if by == "doctor":
        assert doctor(capsys, copy, books, "--repair", "--yes", "--adopt")[1]["errors"] == 0
        adopted = []
    else:
        adopted = ["--adopt"]
    code, _, err = lakes.run(capsys, "ingest", drive.captures[2], "--lake", copy, *profile, *adopted)
    assert code == 0, err
    assert lakes.run(capsys, "ingest", drive.captures[1], "--lake", lake, *profile)[0] == 0
    rows = dict[str, dict[str, int]]()
    for name, captures in {"lake": drive.captures[:2], "copy": [drive.captures[0], drive.captures[2]]}.items():
        expected = tmp_path / f"expected-{name}"
        assert lakes.run(capsys, "ingest", *captures, "--lake", expected, "--profile", drive.profile)[0] == 0
        rows[name] = lakes.by_duckdb(expected)
    assert lakes.by_duckdb(copy) == rows["copy"]
    assert lakes.by_duckdb(lake) == rows["lake"], "what waited is the original's"
    recorded = {Path(json.loads((one / LAKE_JSON).read_text())["ledger_name"]) for one in (lake, copy)}
    assert len(recorded) == 2
    assert original in recorded
    for one in (lake, copy):
        assert doctor(capsys, one, books)[0] == 0


@pytest.mark.slow
def test_a_damaged_ledger_of_a_moved_folder_is_told_of(drive: Drive, tmp_path: Path, capsys: Capsys) -> None:
    """It is not taken for one that is not there, which --adopt would make anew."""
    moved = waiting(drive, tmp_path).rename(tmp_path / "moved")
    (ledger,) = (tmp_path / "books").glob("*.sqlite")
    for suffix in ("-wal", "-shm"):
        ledger.with_name(ledger.name + suffix).unlink(missing_ok=True)
    ledger.write_bytes(b"no ledger" * 1000)
    for adopt in ([], ["--adopt"]):
        options = ("--lake", moved, "--ledger", tmp_path / "books", *adopt)
        code, _, err = lakes.run(capsys, "ingest", drive.captures[2], *options)
        assert (code, "is damaged" in err) == (3, True), err
