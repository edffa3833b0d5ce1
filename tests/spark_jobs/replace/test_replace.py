"""Captures decoded again with another profile: each row of the one decoding or of the other, beside a live ingest."""

from __future__ import annotations

import dataclasses
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from bench import mixes
from pcaplake.common.errors import Fatal
from pcaplake.parser import Profile
from pcaplake.parser.schemas import TABLES
from pcaplake.signals import Databases
from pcaplake.signals.someip.decoder import SERVICE_DISCOVERY_ID
from pcaplake.signals.someip.description import MESSAGE_TYPES, BaseType, Member, PayloadMessage, Struct
from pcaplake.spark_jobs.replace.job import ReplaceOptions, ReplaceReport, run
from pcaplake.worker import sample
from pcaplake.worker.config.service_settings import FleetSettings
from pcaplake.worker.config.settings import WrongSetting
from tests.signals.lakes import SignalLake
from tests.signals.someip.wireshark_tables import TableWriter
from tests.spark_jobs.signals.runs import decode as decode_signals
from tests.worker import lakes

KEY = ["service_id", "method_id", "message_type", "interface_version"]
DATED_NOW = ("ingested_at", "first_seen")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drives:
    """Captures, the profile they were read with, and another that names the buses differently."""

    captures: list[Path]
    profile: Path
    other: Path
    databases: Databases


BUSES = "buses:\n  tecmp:\n    16: body\n    17: chassis\n    18: powertrain\n    19: doors\n"


@pytest.fixture(scope="module")
def drives(tmp_path_factory: pytest.TempPathFactory) -> Drives:
    """Six captures with rows in six tables: a swap of each table by Spark takes a second or two."""
    root = tmp_path_factory.mktemp("replace")
    *captures, profile = mixes.write_captures(root / "drive", "c", 0.02, vehicles=6, seed=7)
    profile.write_text(profile.read_text() + BUSES)
    return make_drives(root, captures, profile)


@pytest.fixture(scope="module")
def drives_of_all_tables(tmp_path_factory: pytest.TempPathFactory) -> Drives:
    root = tmp_path_factory.mktemp("replace-all")
    *captures, profile = sample.write_sample_captures(root / "drive", "drive", 0.2, seed=7)
    return make_drives(root, captures, profile)


def make_drives(root: Path, captures: list[Path], profile: Path) -> Drives:
    profile = profile.rename(root / "profile.yaml")
    other = root / "other.yaml"
    other.write_text(_renamed(profile.read_text()))
    lake = root / "lake"
    assert lakes.ingest([root / "drive"], lake, root / "log", profile=str(profile))[0] == 0
    ids = sorted(set(DeltaTable(str(lake / "can_frames")).to_pyarrow_table()["can_id"].drop_null().to_pylist()))
    dbc = root / "all.dbc"
    lines = [f'BO_ {one if one < 2048 else one | 1 << 31} M{one}: 8 A\n SG_ s : 0|8@1+ (1,0) [0|0] "" A' for one in ids]
    dbc.write_text('VERSION ""\nBU_: A\n' + "\n".join(lines) + "\n")
    TableWriter().write(root / "tables", first_bytes(lake))
    databases = Databases.from_database_files([str(dbc), str(root / "tables")])
    assert databases.services.messages
    return Drives(captures=captures, profile=profile, other=other, databases=databases)


def first_bytes(lake: Path) -> list[PayloadMessage]:
    """The SOME/IP messages of a lake, described by their first byte."""
    columns = DeltaTable(str(lake / "someip_messages")).to_pyarrow_table().select(KEY).to_pylist()
    first = Struct(name="p", members=(Member(name="first", type=BaseType(name="byte", coding="uint", bits=8)),))
    return [
        PayloadMessage(**dict(key), service=f"S{number}", method=f"m{number}", parameters=first)
        for number, key in enumerate(sorted({tuple(row.items()) for row in columns}))
        if dict(key)["message_type"] in MESSAGE_TYPES and dict(key)["service_id"] != SERVICE_DISCOVERY_ID
    ]


def _renamed(profile: str) -> str:
    """Another name for every bus."""
    lines, inside = [], False
    for line in profile.splitlines():
        if line and not line.startswith((" ", "#")):
            inside = line.startswith("buses")
        key, colon, value = line.partition(": ")
        lines.append(f"{key}: new_{value}" if inside and colon and line.startswith("    ") else line)
    assert any("new_" in line for line in lines), profile
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A lake of these drives, in which some are to be replaced."""

    spark: Any
    lake: Path
    drives: Drives

    def replace(
        self,
        names: list[Path],
        *,
        step: Callable[[str], None] = lambda name: None,
        profile: Path | None = None,
        **given: Any,
    ) -> ReplaceReport:
        settings = FleetSettings.load(lake=str(self.lake), profile=profile or self.drives.other)
        uris = tuple(f"file://{path.resolve()}" for path in names)
        return run(self.spark, str(self.lake), ReplaceOptions(names=uris, **given), settings=settings, step=step)

    def decode(self) -> None:
        decode_signals(self.spark, self.lake, self.drives.databases, batch_bytes=1 << 30)

    def table(self, name: str, captures: set[str] | None = None) -> list[tuple[Any, ...]]:
        """Rows without the time they were written, sorted; of some captures, by id."""
        return rows(self.lake, name, captures)

    def ids(self, names: list[Path]) -> set[str]:
        found = DeltaTable(str(self.lake / "captures")).to_pyarrow_table()
        uris = {f"file://{path.resolve()}" for path in names}
        return {one["capture_id"] for one in found.to_pylist() if one["uri"] in uris}


def rows(lake: Path, name: str, captures: set[str] | None = None) -> list[tuple[Any, ...]]:
    found: pa.Table = DeltaTable(str(lake / name)).to_pyarrow_table()
    found = found.drop_columns([one for one in DATED_NOW if one in found.column_names])
    if captures is not None:
        found = found.filter(pc.is_in(found["capture_id"], pa.array(sorted(captures), pa.string())))
    return sorted(zip(*(found[one].to_pylist() for one in found.column_names), strict=True), key=str)


@pytest.fixture
def place(spark: Any, drives: Drives, tmp_path: Path) -> Place:
    return Place(spark=spark, lake=ingested(drives, drives.profile, tmp_path), drives=drives)


@pytest.fixture(scope="module")
def wanted(drives: Drives, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake of the same captures as the other profile has them."""
    return ingested(drives, drives.other, tmp_path_factory.mktemp("wanted"))


def ingested(drives: Drives, profile: Path, root: Path) -> Path:
    code, _ = lakes.ingest(drives.captures, root / "lake", root / "log", profile=str(profile))
    assert code == 0, (root / "log").read_text()
    return root / "lake"


def check(place: Place, wanted: Path, before: dict[str, list[tuple[Any, ...]]], names: list[Path]) -> None:
    """Those captures as the other profile has them, all others as they were."""
    replaced = place.ids(names)
    for table in TABLES:
        theirs = {row[0] for row in rows(wanted, table)}
        assert place.table(table, replaced) == rows(wanted, table, replaced), table
        untouched = [row for row in before[table] if row[0] not in replaced]
        assert place.table(table, theirs - replaced) == untouched, table


def test_rows_are_swapped_and_the_others_stay(
    spark: Any, drives_of_all_tables: Drives, tmp_path_factory: pytest.TempPathFactory
) -> None:
    drives = drives_of_all_tables
    wanted = ingested(drives, drives.other, tmp_path_factory.mktemp("other"))
    lake = ingested(drives, drives.profile, tmp_path_factory.mktemp("old"))
    place = Place(spark=spark, lake=lake, drives=drives)
    before = {name: place.table(name) for name in TABLES}
    names = place.drives.captures[:2]
    report = place.replace(names)
    assert (report.replaced, report.done, report.failed) == (2, 0, {})
    check(place, wanted, before, names)
    assert place.table("can_frames") != before["can_frames"], "the profiles make no difference"
    assert report.rows["captures"] == 2
    assert not list((place.lake / "_pcaplake" / "spark").rglob("*.parquet")), "files of the run are left"
    versions = {name: DeltaTable(str(place.lake / name)).version() for name in TABLES}
    again = place.replace(names)
    assert (again.replaced, again.done) == (0, 2)
    assert versions == {name: DeltaTable(str(place.lake / name)).version() for name in TABLES}


@pytest.mark.slow
@pytest.mark.parametrize(
    "where",
    [
        "before swap lin_frames",
        *(
            pytest.param(where, marks=pytest.mark.torture)
            for where in ("after swap record", "before swap faults", "before swap captures")
        ),
    ],
)
def test_killed_between_two_tables(place: Place, wanted: Path, where: str) -> None:
    """The next run finishes it without the captures. Signals follow, whether their job had read the frames before or not."""
    names = place.drives.captures[:3]
    if where != "before swap faults":
        place.decode()
    before = {name: place.table(name) for name in TABLES}

    def step(name: str) -> None:
        if name == where:
            raise RuntimeError(f"killed {where}")

    with pytest.raises(RuntimeError, match=f"killed {where}"):
        place.replace(names, step=step)
    moved = [path.rename(path.with_suffix(".away")) for path in names]
    try:
        report = place.replace(names)
    finally:
        for path, away in zip(names, moved, strict=True):
            away.rename(path)
    assert (report.replaced, report.done) == (0, 3)
    check(place, wanted, before, names)
    place.decode()
    lake = SignalLake(place.lake)
    assert lake.signals() == lake.expected(place.drives.databases)
    assert max(lake.signals().values()) == 1
    assert lake.table("signals")["service_id"].drop_null()


@pytest.mark.parametrize("where", ["before swap", "before swap can_frames"])
def test_an_overwrite_between_choosing_and_swapping_leaves_nothing_of_the_old_rows(
    place: Place, tmp_path: Path, where: str
) -> None:
    """It fails and says so, whether the overwrite comes before the swap is recorded, or before a table has it."""
    done: list[str] = []

    def step(name: str) -> None:
        if name == where and not done:
            done.append(where)
            log = tmp_path / "overwrite"
            given = {"profile": str(place.drives.profile), "mode": "overwrite"}
            assert lakes.ingest([place.drives.captures[-1]], place.lake, log, **given)[0] == 0, log.read_text()

    with pytest.raises(Fatal, match="the lake was overwritten while captures were replaced"):
        place.replace(place.drives.captures[:2], step=step)
    assert done
    (one,) = place.ids(place.drives.captures)
    for table in TABLES:
        assert {row[0] for row in place.table(table)} <= {one}, table
    assert place.table("packets")


@pytest.mark.slow
def test_beside_a_live_ingest_with_signals(spark: Any, drives: Drives, wanted: Path, tmp_path: Path) -> None:
    """The first captures are replaced while the last are committed, a capture in a version."""
    place = Place(spark=spark, lake=tmp_path / "lake", drives=drives)
    first, last = drives.captures[:3], drives.captures[3:]
    given = {"profile": str(drives.profile)}
    assert lakes.ingest(first, place.lake, tmp_path / "log", **given)[0] == 0
    place.decode()
    before = {name: place.table(name) for name in TABLES}
    live = lakes.start(last, place.lake, tmp_path / "live", max_records=1, threads=1, **given)
    report = place.replace(first[:2])
    live.join(120)
    assert live.exitcode == 0, (tmp_path / "live").read_text()
    assert report.replaced == 2
    done, all_ids = place.ids(first[:2]), place.ids(drives.captures)
    assert len(all_ids) == len(drives.captures)
    for table in TABLES:
        assert place.table(table, done) == rows(wanted, table, done), table
        kept = place.ids(first) - done
        assert place.table(table, kept) == [row for row in before[table] if row[0] in kept], table
        assert len(place.table(table)) == len(rows(wanted, table)), table
    place.decode()
    lake = SignalLake(place.lake)
    assert lake.signals() == lake.expected(drives.databases)


@pytest.mark.parametrize(
    "where", ["before swap lin_frames", pytest.param("before swap captures", marks=pytest.mark.torture)]
)
def test_killed_and_then_as_it_was(place: Place, where: str) -> None:
    """`captures` still names the first profile, three other tables, or all, have rows of the second."""
    names = place.drives.captures[:1]
    before = {name: place.table(name) for name in TABLES}

    def step(name: str) -> None:
        if name == where:
            raise RuntimeError("killed here")

    with pytest.raises(RuntimeError, match="killed here"):
        place.replace(names, step=step)
    assert place.table("can_frames") != before["can_frames"]
    assert place.replace(names, profile=place.drives.profile).replaced == 1
    assert {name: place.table(name) for name in TABLES} == before
    assert place.replace(names, profile=place.drives.profile).done == 1


def test_a_quarantined_capture_that_can_be_read_now(place: Place, wanted: Path) -> None:
    """As an older decoder would have left it: rows in `captures` and `quarantine` alone."""
    name = place.drives.captures[0]
    (capture,) = place.ids([name])
    before = {one: place.table(one) for one in TABLES}
    known = DeltaTable(str(place.lake / "captures")).to_pyarrow_table(filters=[("capture_id", "=", capture)])
    named = known.select(["capture_id", "uri", "etag", "object_size", "modified_at", "sequencer"]).to_pylist()[0]
    for table in TABLES:
        DeltaTable(str(place.lake / table)).delete(f"capture_id = '{capture}'")
    now = datetime(2026, 1, 1, tzinfo=UTC)
    old = {
        "captures": {**named, "outcome": "quarantined", "decoder_version": "0", "ingested_at": now},
        "quarantine": {"stage": "open", "error": "unknown_format", "offset": 0, "first_seen": now},
    }
    for table, row in old.items():
        schema = pa.schema([one.with_nullable(True) for one in TABLES[table].schema])
        made = pa.Table.from_pylist([{"capture_id": capture, "uri": named["uri"], **row}], schema)
        write_deltalake(str(place.lake / table), made, mode="append")
    report = place.replace([], where="outcome = 'quarantined'")
    assert report.replaced == 1
    check(place, wanted, before, [name])


@pytest.mark.parametrize("table", [pytest.param("packets", marks=pytest.mark.torture), "captures"])
def test_rows_of_a_dropped_table_come_back(place: Place, capsys: pytest.CaptureFixture[str], table: str) -> None:
    """As docs/doctor.md says it: the loss is accepted, then `replace` is run with the URIs, and with nothing else."""
    names, profile = place.drives.captures, place.drives.profile
    captures = place.ids(names)
    before = {name: place.table(name, captures) for name in TABLES}
    shutil.rmtree(place.lake / table)
    with pytest.raises(Fatal, match=f"{table} does not exist"):
        place.replace(names, profile=profile)
    assert not (place.lake / table).exists()
    accept = ("doctor", "--lake", place.lake, "--repair", "--accept-loss", table, "--yes")
    _, out, _ = lakes.run(capsys, *accept)
    assert f"{table} can be written again" in out
    report = place.replace(names, profile=profile)
    assert (report.replaced, report.done, report.unknown) == (len(captures), 0, ())
    assert {name: place.table(name, captures) for name in TABLES} == before
    report = place.replace(names, profile=profile)
    assert (report.replaced, report.done) == (0, len(captures))
    code, out, _ = lakes.run(capsys, "ingest", *names, "--lake", place.lake, "--profile", profile)
    assert code == 0, out
    assert {name: place.table(name, captures) for name in TABLES} == before


def test_rows_that_are_gone_or_twice_are_put_right(place: Place) -> None:
    first, second, third, *_ = names = place.drives.captures
    before = {name: place.table(name) for name in TABLES}
    for path, table in ((first, "can_frames"), (second, "captures")):
        (capture,) = place.ids([path])
        found = DeltaTable(str(place.lake / table))
        some = found.to_pyarrow_table(filters=[("capture_id", "=", capture)]).slice(0, 3)
        write_deltalake(found, some, mode="append")
    (capture,) = place.ids([third])
    DeltaTable(str(place.lake / "packets")).delete(f"capture_id = '{capture}' AND packet_no > 1")
    report = place.replace(names, profile=place.drives.profile)
    assert (report.replaced, report.done) == (3, len(names) - 3)
    assert {name: place.table(name) for name in TABLES} == before


def test_what_cannot_be_replaced_stays(place: Place, tmp_path: Path) -> None:
    before = {name: place.table(name) for name in TABLES}
    first, second, *_ = place.drives.captures
    (capture,) = place.ids([first])
    with sqlite3.connect(place.lake / "_pcaplake" / "ledger.sqlite") as ledger:
        ledger.execute("UPDATE captures SET state = 'STAGED' WHERE capture_id = ?", (capture,))
    ledger.close()
    moved = second.with_suffix(".away")
    second.rename(moved)
    try:
        report = place.replace([first, second, tmp_path / "nothing.pcap"])
    finally:
        moved.rename(second)
    assert report.waiting == (f"file://{first.resolve()}",)
    assert report.unknown == (f"file://{tmp_path.resolve()}/nothing.pcap",)
    assert (list(report.gone), report.failed) == ([f"file://{second.resolve()}"], {})
    assert (report.replaced, report.exit_code) == (0, 3)
    assert dataclasses.replace(report, waiting=(), unknown=()).exit_code == 1  # also if these are never there again
    assert {name: place.table(name) for name in TABLES} == before


def test_a_profile_is_not_lost_by_mistake(place: Place) -> None:
    before = {name: place.table(name) for name in TABLES}
    names = place.drives.captures[:2]
    settings = FleetSettings.load(lake=str(place.lake))
    uris = tuple(f"file://{path.resolve()}" for path in names)
    said = r"2 of these captures were read with a profile \(profile@[0-9a-f]{12}\), .* --without-profile"
    with pytest.raises(WrongSetting, match=said):
        run(place.spark, str(place.lake), ReplaceOptions(names=uris), settings=settings)
    assert {name: place.table(name) for name in TABLES} == before
    wanted = ReplaceOptions(names=uris, without_profile=True)
    assert run(place.spark, str(place.lake), wanted, settings=settings).replaced == 2
    found = DeltaTable(str(place.lake / "captures")).to_pyarrow_table().to_pylist()
    assert {row["profile"] for row in found if row["uri"] in uris} == {str(Profile.default())}
    assert run(place.spark, str(place.lake), ReplaceOptions(names=uris), settings=settings).done == 2, (
        "nothing is lost now"
    )


def test_what_is_refused(place: Place, tmp_path: Path) -> None:
    with pytest.raises(WrongSetting, match="nothing to replace"):
        place.replace([])
    settings = FleetSettings.load(lake=str(tmp_path / "other"), profile=place.drives.other)
    with pytest.raises(Fatal, match="is not a lake"):
        run(place.spark, str(tmp_path / "other"), ReplaceOptions(names=("x",)), settings=settings)
