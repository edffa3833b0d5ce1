"""What becomes of captures: found, read, ignored, quarantined, refused; twice, by two processes, after Ctrl-C."""

from __future__ import annotations

import asyncio
import errno
import gzip
import os
import shutil
import signal
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from obstore import put

from bench import mixes
from pcaplake.common.errors import Fatal
from pcaplake.ingest.captures.discovery import NotThere, find_captures
from pcaplake.ingest.captures.source import LocalFile, Sources
from pcaplake.ingest.local_run import Ingest
from pcaplake.ingest.pipeline import Reader
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.delta import AddFile, LogStore, Txn
from pcaplake.lake.lake import Lake
from pcaplake.lake.store.object_store import ObjectStore
from pcaplake.lake.store.store import Store
from pcaplake.parser import Profile
from pcaplake.parser.schemas import TABLES
from tests.drives import Drive
from tests.lake.store.object_servers import serving
from tests.worker import lakes

NO_ROWS = dict.fromkeys(TABLES, 0)


@pytest.mark.slow
def test_a_folder_twice(drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake, log = tmp_path / "lake", tmp_path / "log"
    code, first = lakes.ingest([drive.folder], lake, log, profile=str(drive.profile))
    assert (code, first["captures"], first["rows"]) == (0, len(drive.captures), drive.rows)
    code, again = lakes.ingest([drive.folder], lake, log, profile=str(drive.profile))
    assert (code, again["captures"], again["already_ingested"]) == (0, 0, len(drive.captures))
    assert (again["packets"], again["rows"], again["faults"]) == (0, NO_ROWS, {})
    lakes.check(lake, drive.rows, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("max_records", [1, 5_000_000])
def test_two_processes_on_overlapping_folders(
    max_records: int, drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = tmp_path / "lake"
    names = [[drive.folder], [drive.captures[0].parent, drive.captures[-1].parent]]
    given = {"profile": str(drive.profile), "threads": 2, "max_records": max_records}
    processes = [lakes.start(some, lake, tmp_path / f"log-{n}", **given) for n, some in enumerate(names)]
    for number, process in enumerate(processes):
        process.join(120)
        assert process.exitcode == 0, (tmp_path / f"log-{number}").read_text()
    lakes.check(lake, drive.rows, capsys)


@pytest.mark.slow
def test_what_is_no_capture(drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Named, or found in a folder where its name or its first bytes are those of a capture: quarantined. Else ignored."""
    folder, lake, log = tmp_path / "mixed", tmp_path / "lake", tmp_path / "log"
    folder.mkdir()
    shutil.copy(drive.captures[0], folder / "good.txt")
    (folder / "packed.bin").write_bytes(gzip.compress(drive.captures[1].read_bytes()))
    (folder / "notes.pcap").write_bytes(b"no capture at all" * 1000)
    (folder / "notes.gz").write_bytes(gzip.compress(b"no capture either"))
    (folder / "notes").write_bytes(b"no capture")
    (folder / "empty.pcap").touch()
    (folder / "empty.bin").touch()
    (folder / "three.pcapng").write_bytes(b"\n\r\r")
    (folder / "broken.gz").write_bytes(b"\x1f\x8b\x08 and then nothing of the kind")
    (folder / "nowhere").symlink_to(tmp_path / "missing")
    os.mkfifo(folder / "pipe")
    code, result = lakes.ingest([folder], lake, log, profile=str(drive.profile))
    assert (code, result["captures"], result["ignored"], result["quarantined"]) == (1, 6, 5, 4)
    assert result["rows"]["quarantine"] == 4
    bad = pl.read_delta(f"{lake}/quarantine").sort("uri")
    names = ["broken.gz", "empty.pcap", "notes.pcap", "three.pcapng"]
    assert bad["uri"].to_list() == [f"file://{folder}/{name}" for name in names]
    assert bad["stage"].to_list() == ["open"] * 4
    assert bad["error"].to_list() == ["broken_compression", "empty", "unknown_format", "truncated"]
    assert bad["raw"].to_list() == [(folder / name).read_bytes()[:4096] for name in names]
    outcomes = pl.read_delta(f"{lake}/captures").group_by("outcome").len().sort("outcome")
    assert dict(outcomes.iter_rows()) == {"ok": 2, "quarantined": 4}
    code, result = lakes.ingest([folder / "notes.pcap", folder / "notes"], lake, log)
    assert (code, result["captures"], result["already_ingested"], result["quarantined"]) == (1, 1, 1, 1)
    readable = "captures are pcap or pcapng, optionally compressed with gzip, zstd or lz4"
    assert f"/notes: not a capture (unknown_format): it starts with 6e6f2063; {readable}" in log.read_text()


def test_a_folder_that_cannot_be_read_costs_nobody_else(
    drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a file that cannot: all others come in, and the exit code says that something is missing."""
    folder, real = tmp_path / "mixed", os.scandir
    for name in ("a", "secret", "z"):
        (folder / name).mkdir(parents=True)
        shutil.copy(drive.captures[0], folder / name)

    def scandir(path: str) -> object:
        if Path(path) in closed:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    closed = {folder / "secret"}
    code, out, err = lakes.run(capsys, "ingest", folder, "--lake", tmp_path / "lake", "--json")
    assert (code, lakes.json.loads(out)["captures"]) == (3, 2)
    assert f"not read: file://{folder}/secret: " in err
    closed = {folder}
    code, _, err = lakes.run(capsys, "ingest", folder, "--lake", tmp_path / "lake")
    assert (code, err) == (2, f"pcaplake: the folder {folder} cannot be read: Permission denied\n")


def test_a_path_that_is_not_utf8_costs_itself_only(
    drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, lake = tmp_path / "mixed", tmp_path / "lake"
    for name in (b"a.pcapng", b"b\xff.pcapng", b"notes\xff.txt", b"d\xfe/c.pcapng"):
        path = folder / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if b"notes" in name:
            path.write_text("no capture")
        else:
            shutil.copy(drive.captures[0], path)
    code, out, err = lakes.run(capsys, "ingest", folder, "--lake", lake, "--json")
    report = lakes.json.loads(out)
    assert (code, report["captures"], report["not_read"], report["ignored"]) == (3, 1, 2, 1)
    why = "its path is not UTF-8, and tables hold only UTF-8 text: rename it, for example with `convmv`"
    assert f"not read: file://{folder}/b\\udcff.pcapng: {why}" in err
    assert f"not read: file://{folder}/d\\udcfe/c.pcapng: {why}" in err
    assert "codec" not in err
    code, _, err = lakes.run(capsys, "ingest", folder / "a.pcapng", "--lake", tmp_path / os.fsdecode(b"lake\xff"))
    assert (code, err) == (
        2,
        f"pcaplake: --lake: the path '{tmp_path}/lake\\udcff' is not UTF-8: name another path, or rename the folder\n",
    )
    code, _, err = lakes.run(capsys, "doctor", "--lake", tmp_path / os.fsdecode(b"lake\xff"))
    assert code == 2
    assert "is not UTF-8: name another path" in err
    assert sorted(one.name for one in tmp_path.iterdir()) == ["lake", "mixed"]


@pytest.mark.parametrize("odd", ["drives//b.pcap", "drives/b\x01.pcap"])
@pytest.mark.parametrize("kind", ["gs", "az"])
async def test_a_key_that_cannot_be_named_beside_others_outside_s3(kind: str, odd: str) -> None:
    """These two stores cannot be listed beside it; the message says which key it is, and what is beside it can be named."""
    with serving(kind) as (bucket, store):
        root = store.uri.rpartition("/")[2]

        await store.put("drives/a.pcap", b"0123")
        await store.put("drives/z/c.pcap", b"0123")
        bucket.put(f"{root}/{odd}", b"0123", {})
        sources = Sources(store.options)
        with pytest.raises(Fatal, match="rename or delete that object, or name the other folders and objects") as why:
            await find_captures([f"{store.uri}/drives/"], sources)
        assert f"{root}/{odd}" in str(why.value)
        found = await find_captures([f"{store.uri}/drives/a.pcap", f"{store.uri}/drives/z/"], sources)
        assert [one.uri.removeprefix(store.uri) for one in found] == ["/drives/a.pcap", "/drives/z/c.pcap"]


@pytest.mark.slow
def test_a_region_of_garbage_is_quarantined_and_the_rest_is_kept(drive: Drive, tmp_path: Path) -> None:
    whole = drive.captures[0].read_bytes()
    middle = whole.index((6).to_bytes(4, "little"), len(whole) // 2)
    while int.from_bytes(whole[middle + 4 : middle + 8], "little") % 4 or middle % 4:
        middle = whole.index((6).to_bytes(4, "little"), middle + 1)
    damaged = tmp_path / "damaged.pcapng"
    damaged.write_bytes(whole[:middle] + b"\xff" * 1000 + whole[middle:])
    code, result = lakes.ingest([damaged], tmp_path / "lake", tmp_path / "log", profile=str(drive.profile))
    assert (code, result["captures"], result["quarantined"], result["rows"]["quarantine"]) == (0, 1, 0, 1)
    row = pl.read_delta(f"{tmp_path}/lake/quarantine").row(0, named=True)
    assert (row["stage"], row["error"], row["offset"]) == ("decode", "unreadable", middle)
    assert row["raw"][:1000] == b"\xff" * 1000
    assert result["faults"]["unreadable"] == 1


@pytest.mark.slow
def test_columns_of_captures(drive: Drive, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    lakes.ingest([drive.folder], lake, tmp_path / "log", profile=str(drive.profile))
    rows = {row["uri"]: row for row in pl.read_delta(f"{lake}/captures").iter_rows(named=True)}
    cut = next(row for row in rows.values() if row["truncated"])
    packed = next(row for name, row in rows.items() if name.endswith(".gz"))
    assert cut["faults"]["truncated"] == 1
    assert (packed["compression"], packed["format"], packed["sections"]) == ("gzip", "pcapng", 1)
    assert packed["object_size"] == next(path for path in drive.captures if path.suffix == ".gz").stat().st_size
    assert {one["name"] for one in packed["interfaces"]} >= {"can0", "eth0"}
    assert {row["vehicle_id"] for row in rows.values()} == {"vehicle-001", "vehicle-002"}
    assert sum(row["packets"] for row in rows.values()) == drive.packets
    for row in rows.values():
        in_table = row["rows"]
        packets = pl.scan_delta(f"{lake}/packets").filter(pl.col("capture_id") == row["capture_id"])
        assert packets.select(pl.len()).collect().item() == in_table["packets"] == row["packets"]


@pytest.mark.slow
def test_raw_bytes_only_when_asked_for(drive: Drive, tmp_path: Path) -> None:
    one = drive.captures[0]
    lakes.ingest([one], tmp_path / "without", tmp_path / "log")
    lakes.ingest([one], tmp_path / "with", tmp_path / "log", raw=True)
    without, with_ = (pl.read_delta(f"{tmp_path}/{name}/packets") for name in ("without", "with"))
    assert without["raw"].null_count() == len(without) > 0
    assert with_["raw"].null_count() == 0
    assert (with_["raw"].bin.size() == with_["captured_len"]).all()


@pytest.mark.slow
def test_what_cannot_be_read_is_tried_twice_and_told(drive: Drive, tmp_path: Path) -> None:
    """The others are in; the exit code says that something is missing."""
    pipe, log = tmp_path / "pipe.pcap", tmp_path / "log"
    os.mkfifo(pipe)
    code, result = lakes.ingest([pipe, drive.folder], tmp_path / "lake", log, profile=str(drive.profile))
    assert (code, result["captures"], result["quarantined"]) == (3, len(drive.captures), 0)
    assert f"not read: file://{pipe}: file://{pipe} is not a regular file" in log.read_text()


@pytest.mark.slow
def test_a_lake_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No file may grow beyond 300 KB, as on a full disk: that is no fault of the captures; later all is put right."""
    lake, log, folder = tmp_path / "lake", tmp_path / "log", tmp_path / "captures"
    *_, profile = mixes.write_captures(folder, "a", 6)
    given = {"profile": str(profile), "threads": 2}
    code, result = lakes.ingest([folder], lake, log, largest=300_000, commit_timeout="1s", **given)
    assert (code, result) == (3, {})
    assert "cannot be written" in log.read_text()
    assert "File too large" in log.read_text()
    code, result = lakes.ingest([folder], lake, log, **given)
    assert (code, result["captures"], result["quarantined"], result["rows"]["faults"]) == (0, 1, 0, 0)
    lakes.check(lake, result["rows"], capsys)


def test_a_store_that_ignores_conditions_gets_nothing(
    drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving("s3", honors=()) as (bucket, store):
        options = [one for pair in store.options.items() for one in ("--storage-option", "=".join(pair))]
        code, _, err = lakes.run(
            capsys, "ingest", drive.captures[0], "--lake", store.uri, "--ledger", tmp_path / "ledger", *options
        )
        assert code == 3
        assert "ignores If-None-Match" in " ".join(err.split())
        assert not bucket.objects


@pytest.mark.slow
def test_a_table_whose_checkpoint_is_damaged_stops_itself_only(
    drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = tmp_path / "lake"
    options = ("--lake", lake, "--profile", drive.profile, "--json")
    assert lakes.run(capsys, "ingest", drive.captures[0], *options)[0] == 0
    log = lake / "can_frames/_delta_log"
    damaged = log / f"{0:020d}.checkpoint.parquet"
    damaged.write_bytes(b"damaged")
    (log / "_last_checkpoint").write_text('{"version":0,"size":1}')
    code, _, err = lakes.run(capsys, "ingest", drive.folder, *options)
    assert code == 3
    assert f"can_frames/_delta_log/{damaged.name} is damaged" in " ".join(err.split())
    assert DeltaTable(lake / "captures").to_pyarrow_table().num_rows == len(drive.captures)
    damaged.unlink()
    (log / "_last_checkpoint").unlink()
    code, out, err = lakes.run(capsys, "ingest", drive.folder, *options)
    assert code == 0, err
    assert lakes.json.loads(out.splitlines()[-1])["captures"] == 0
    lakes.check(lake, drive.rows, capsys)


@pytest.mark.slow
def test_a_disk_that_is_full_when_all_is_staged(
    drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run ends by `commit_timeout` and says why; with room again, the next one commits what was staged."""
    with lakes.small_disk(tmp_path / "disk"):
        lake, log = tmp_path / "disk" / "lake", tmp_path / "log"
        given = {"profile": str(drive.profile), "commit_timeout": "1s"}
        code, result = lakes.ingest([drive.captures[0]], lake, log, fill="before commit.3a", **given)
        assert (code, result) == (3, {})
        said = log.read_text().splitlines()[-1]
        assert "no commit has succeeded for 1 s" in said
        assert "free space on this file system" in said
        assert not list(lake.rglob("*.tmp"))
        (lake / lakes.FILLER).unlink()
        code, result = lakes.ingest([drive.captures[0]], lake, log, **given)
        assert (code, result["captures"], result["already_ingested"]) == (0, 0, 1)
        lakes.check(lake, lakes.by_polars(lake), capsys)
        assert lakes.by_polars(lake)["captures"] == 1


@pytest.mark.slow
def test_what_a_killed_run_had_half_written_is_deleted(drive: Drive, tmp_path: Path) -> None:
    """By the next run on that lake; what a living writer has half written stays."""
    lake, log = tmp_path / "lake", tmp_path / "log"
    lakes.ingest([drive.captures[0]], lake, log, kill="before stage.4 packets", profile=str(drive.profile))
    left = list(lake.rglob("*.tmp"))
    assert left
    upload = Store.open(lake).upload("packets/half")
    (living,) = set(lake.rglob("*.tmp")) - set(left)
    assert lakes.ingest([drive.captures[0]], lake, log, profile=str(drive.profile))[0] == 0
    assert list(lake.rglob("*.tmp")) == [living]
    upload.finish()
    assert (lake / "packets/half").exists()


@pytest.mark.slow
def test_a_lost_ledger_is_adopted_anew(drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = tmp_path / "lake"
    options = ("ingest", drive.folder, "--lake", lake, "--profile", drive.profile, "--json")
    assert lakes.run(capsys, *options)[0] == 0
    for path in (lake / "_pcaplake").glob("ledger.sqlite*"):
        path.unlink()
    code, _, err = lakes.run(capsys, *options)
    assert code == 3
    assert "--adopt" in err
    code, out, err = lakes.run(capsys, *options, "--adopt")
    assert code == 0, err
    result = lakes.json.loads(out.splitlines()[-1])
    assert (result["captures"], result["already_ingested"]) == (0, len(drive.captures))
    lakes.check(lake, drive.rows, capsys)


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_whole(drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake, log = tmp_path / "lake", tmp_path / "log"
    given = {"profile": str(drive.profile), "threads": 1, "max_records": 1}
    code, result = lakes.ingest([drive.folder], lake, log, interrupt="before stage.5", **given)
    assert code == 130
    assert 0 < result["captures"] < len(drive.captures)
    assert "run the same command again" in log.read_text()
    lakes.check(lake, result["rows"], capsys)
    code, rest = lakes.ingest([drive.folder], lake, log, **given)
    assert (code, rest["already_ingested"]) == (0, result["captures"])
    lakes.check(lake, drive.rows, capsys)


@pytest.mark.slow
def test_second_ctrl_c_ends_at_once(drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake, log = tmp_path / "lake", tmp_path / "log"
    given = {"profile": str(drive.profile), "threads": 1, "max_records": 1}
    code, result = lakes.ingest([drive.folder], lake, log, interrupt="before stage.5,before commit.3a", **given)
    assert (code, result) == (130, {})
    assert lakes.ingest([drive.folder], lake, log, **given)[0] == 0
    lakes.check(lake, drive.rows, capsys)


@pytest.mark.slow
def test_a_table_of_an_older_version_grows(drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its columns stay where they are, new ones come behind them, old rows have nulls there."""
    lake = tmp_path / "lake"
    new = {"bus_time_ns", "xl_acceptance", "direction"}
    schema = pa.schema([field for field in TABLES["can_frames"].schema if field.name not in new])
    row = {"capture_id": "old", "packet_no": 1, "sub_no": 0, "source": "socketcan", "data_len": 0, "payload": b""}
    table = pa.Table.from_pylist([row], schema).drop_columns(["date"])

    async def old() -> None:
        log = LogStore(Store.open(lake))
        await log.create("can_frames", schema, partition_columns=["date"])
        path = lake / "can_frames" / "date=__HIVE_DEFAULT_PARTITION__" / "old.parquet"
        path.parent.mkdir()
        pq.write_table(table, path)
        values = {"date": None}
        size = path.stat().st_size
        name = f"{path.parent.name}/{path.name}"
        add = AddFile(path=name, size=size, partition_values=values, modification_time=0, stats='{"numRecords":1}')
        await log.commit("can_frames", [add], txn=Txn(app_id="older", version=0))

    asyncio.run(old())
    code, result = lakes.ingest([drive.folder], lake, tmp_path / "log", profile=str(drive.profile))
    assert (code, result["rows"]) == (0, drive.rows)
    names = [field.name for field in DeltaTable(f"{lake}/can_frames").schema().fields]
    assert names[: len(schema)] == schema.names
    assert set(names[len(schema) :]) == new
    rows = pl.read_delta(f"{lake}/can_frames")
    assert rows.filter(capture_id="old").select(pl.col(*new).null_count()).row(0) == (1, 1, 1)
    assert rows.filter(pl.col("capture_id") != "old")["direction"].null_count() < len(rows) - 1
    lakes.check(lake, drive.rows | {"can_frames": drive.rows["can_frames"] + 1}, capsys)


@pytest.mark.slow
async def test_the_lake_is_never_ingested(drive: Drive, tmp_path: Path) -> None:
    folder = tmp_path / "all"
    folder.mkdir()
    shutil.copy(drive.captures[0], folder / "one.pcapng")
    lake = folder / "lake"
    (lake / "captures").mkdir(parents=True)
    shutil.copy(drive.captures[1], lake / "captures" / "inside.pcapng")
    for _ in range(2):
        refs = await find_captures([str(folder), str(lake)], Sources(), Store.open(lake))
        assert [ref.uri for ref in refs] == [f"file://{folder}/one.pcapng"]
        assert lakes.ingest([folder], lake, tmp_path / "log")[0] == 0


def test_names_files_globs_and_links(tmp_path: Path) -> None:
    lake = Store.open(tmp_path / "lake")

    def found(*names: object) -> list[tuple[str, bool]]:
        refs = asyncio.run(find_captures([str(name) for name in names], Sources(), lake))
        return [(ref.uri.rpartition("/")[2], ref.explicit) for ref in refs]

    (tmp_path / "deep" / "er").mkdir(parents=True)
    for name in ("b.pcap", "a.pcap", "deep/c.pcapng", "deep/er/d [1].pcap"):
        (tmp_path / name).touch()
    (tmp_path / "link.pcap").symlink_to(tmp_path / "a.pcap")
    assert found(tmp_path / "deep") == [("c.pcapng", False), ("d [1].pcap", False)]
    assert found(tmp_path / "*.pcap") == [("a.pcap", True), ("b.pcap", True)]
    assert found(tmp_path / "**" / "*.pcap*") == [
        ("a.pcap", True), ("b.pcap", True), ("c.pcapng", True), ("d [1].pcap", True),
    ]  # fmt: skip
    assert found(tmp_path / "deep", tmp_path / "deep" / "er" / "d [1].pcap")[1] == ("d [1].pcap", True)
    assert found(f"file://{tmp_path}/a.pcap", tmp_path / "link.pcap") == [("a.pcap", True)]
    for missing in (tmp_path / "z.pcap", tmp_path / "z*.pcap", tmp_path / "**" / "z.pcap"):
        with pytest.raises(NotThere, match=r"z\*?\.pcap (does not exist|matches nothing)"):
            found(missing)


def test_links_to_folders_are_followed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by `**`. Two loops have more than 2**40 paths."""
    drives, disk = tmp_path / "drives", tmp_path / "disk"
    for name in ("drives/a", "drives/.hidden", "disk/b"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "one.pcap").touch()
    for name, target in {
        "a/up": drives,
        "a/top": tmp_path,
        "disk": disk,
        "again": disk,
        "self": drives / "self",
    }.items():
        (drives / name).symlink_to(target)

    def found(name: object) -> list[str]:
        refs = asyncio.run(find_captures([str(name)], Sources(), skipped=skipped.append, follow_links=True))
        return sorted(ref.uri.removeprefix(f"file://{tmp_path}/") for ref in refs)

    skipped: list[str] = []
    linked = ["disk/b/one.pcap", "drives/.hidden/one.pcap", "drives/a/one.pcap"]
    assert found(drives) == linked
    assert skipped == [f"file://{drives}/self"]
    assert found(drives / "**" / "*.pcap") == [linked[0], linked[2]]
    monkeypatch.chdir(drives)
    assert found("**/*.pcap") == found("*/**/o*") == [linked[0], linked[2]]
    assert found("**") == linked
    assert set(skipped) == {f"file://{drives}/self"}
    skipped.clear()
    assert found("*") == linked
    assert skipped == [f"file://{drives}/self"]


async def test_an_empty_object_is_found_if_it_is_named_like_a_capture() -> None:
    store = Store.open("memory:///emptied")
    assert isinstance(store, ObjectStore)
    for name in ("in/a.pcap", "in/notes.txt"):
        put(store._inner, name, b"")
    skipped: list[str] = []
    refs = await find_captures(["memory:///emptied/in"], Sources(), skipped=skipped.append)
    assert [ref.uri for ref in refs] == ["memory:///emptied/in/a.pcap"]
    assert skipped == ["memory:///emptied/in/notes.txt"]


@pytest.mark.slow
def test_captures_in_an_object_store(drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By prefix, glob and name; the same rows as from local files, and nothing read twice."""
    store = Store.open("memory:///bucket")
    assert isinstance(store, ObjectStore)
    for number, path in enumerate(drive.captures):
        put(store._inner, f"drives/{path.parent.name}/{number}{path.suffix}", path.read_bytes())
    put(store._inner, "drives/notes.txt", b"no capture")
    lake = tmp_path / "lake"
    for name, expected in (
        ("memory:///bucket/drives/vehicle-001/0.pcapng", (1, 0, 0)),
        ("memory:///bucket/drives/*/*.pcapng", (5, 1, 0)),
        ("memory:///bucket/drives/", (2, 6, 1)),
    ):
        code, out, err = lakes.run(capsys, "ingest", name, "--lake", lake, "--profile", drive.profile, "--json")
        assert code == 0, err
        result = lakes.json.loads(out.splitlines()[-1])
        assert (result["captures"], result["already_ingested"], result["ignored"]) == expected
    lakes.check(lake, drive.rows, capsys)
    code, _, err = lakes.run(capsys, "ingest", "memory:///bucket/nowhere", "--lake", lake)
    assert (code, err.count("\n")) == (2, 1)


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["duckdb", "polars"])
def test_files_are_skipped_by_their_statistics(reader: str, drive: Drive, tmp_path: Path) -> None:
    """Every other file is deleted: a query that must not open them still answers, one that must fails."""
    lake = tmp_path / "lake"
    code, _ = lakes.ingest([drive.folder], lake, tmp_path / "log", profile=str(drive.profile), max_records=1)
    assert code == 0
    packets = pl.read_delta(f"{lake}/packets")
    spans = packets.group_by("capture_id").agg(pl.col("ts").min().alias("low"), pl.len().alias("rows")).sort("low")
    wanted, _, rows = spans.row(3)
    table = DeltaTable(f"{lake}/packets")
    adds = pl.DataFrame(pa.table(table.get_add_actions(flatten=True)))
    kept = adds.filter((pl.col("min.capture_id") <= wanted) & (pl.col("max.capture_id") >= wanted))["path"].to_list()
    assert 0 < len(kept) < len(adds)
    for path in set(adds["path"].to_list()) - set(kept):
        (lake / "packets" / path).unlink()

    def count(where: bool) -> int:
        if reader == "polars":
            rows = pl.scan_delta(f"{lake}/packets")
            rows = rows.filter(pl.col("capture_id") == wanted) if where else rows
            return int(rows.select(pl.col("packet_no").count()).collect().item())
        condition = f"WHERE capture_id = '{wanted}'" if where else ""
        with lakes.contextlib.closing(lakes.connect()) as connection:
            row = connection.sql(
                f"SELECT count(payload) FROM (SELECT packet_no AS payload FROM delta_scan('{lake}/packets') {condition})"
            ).fetchone()
        assert row is not None
        return int(row[0])

    assert count(where=True) == rows
    with pytest.raises(Exception, match=r"(?i)no such file|not found|cannot open"):
        count(where=False)


def test_interrupted_process_is_gone(drive: Drive, tmp_path: Path) -> None:
    """A real SIGINT from outside, at whatever moment it comes, ends the process with 130."""
    process = lakes.start([drive.folder], tmp_path / "lake", tmp_path / "log", max_records=1, threads=1)
    while not (tmp_path / "lake" / "_pcaplake" / "lake.json").exists():
        process.join(0.01)
    os.kill(process.pid, signal.SIGINT)
    process.join(60)
    assert process.exitcode == 130


async def test_what_cannot_be_read_again_is_told_and_leaves_no_file(drive: Drive, tmp_path: Path) -> None:
    """The committer asks for rows of a capture that is as it was, that grows while it is read, is gone, or is no file."""
    path = tmp_path / "a.pcapng"
    shutil.copy(drive.captures[0], path)

    class Grows(Reader):
        def read(self, file: object, *given: object, **named: object) -> object:  # type: ignore[override]
            summary = super().read(file, *given, **named)  # type: ignore[arg-type]
            with path.open("ab") as more:
                more.write(b"more")
            return summary

    given = {"profile": Profile(), "decoder_version": "1", "now": lambda: 0.0}
    async with await Lake.open(tmp_path / "lake", lake_config=LakeConfig(commits=False)) as lake:
        for reader in (Reader(**given), Grows(**given)):
            work = Ingest(Sources(), reader, threads=1)
            work.source.lake = lake
            with LocalFile(f"file://{path}") as file:
                capture = file.identify_capture()
            made = await work.source.rebuild_files("packets", lakes.stage_of([capture]))
            assert (made is None) == isinstance(reader, Grows)
        path.unlink()
        assert await work.source.rebuild_files("packets", lakes.stage_of([capture])) is None
        os.mkfifo(path)
        with pytest.raises(OSError, match="not a regular file"):
            await work.source.rebuild_files("packets", lakes.stage_of([capture]))
    assert not list(tmp_path.rglob("*.tmp"))
