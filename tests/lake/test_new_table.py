"""A lake of a version that did not have some tables yet: the next start creates them, and captures fill them."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pcaplake.common import VERSION
from pcaplake.ingest.captures.reference import local_reference
from pcaplake.ingest.captures.source import Sources
from pcaplake.ingest.local_run import Ingest
from pcaplake.ingest.pipeline import Reader
from pcaplake.lake.lake import Lake
from pcaplake.parser import TABLES, Profile
from tests.drives import Drive
from tests.parser.captures import pcap
from tests.worker import lakes
from tests.worker.fleets import can_capture

pytestmark = pytest.mark.slow
Capsys = pytest.CaptureFixture[str]
FRAME = bytes.fromhex("81107123053b6adeadbeef")


def _can(folder: Path) -> Path:
    path = folder / "can.pcap"
    path.write_bytes(can_capture(5))
    return path


@pytest.fixture
def old_lake(tmp_path: Path, capsys: Capsys) -> Path:
    """A lake with a capture and without flexray_frames, which nothing has ever written."""
    lake = tmp_path / "lake"
    assert lakes.run(capsys, "ingest", _can(tmp_path), "--lake", lake)[0] == 0
    shutil.rmtree(lake / "flexray_frames")
    return lake


def test_the_next_start_creates_it(old_lake: Path, tmp_path: Path, capsys: Capsys) -> None:
    code, _, err = lakes.run(capsys, "ingest", _can(tmp_path), "--lake", old_lake)
    assert (code, "flexray_frames" in err) == (0, False)
    table = DeltaTable(old_lake / "flexray_frames")
    assert [field.name for field in table.schema().fields] == TABLES["flexray_frames"].columns
    assert table.to_pyarrow_table().num_rows == 0


def test_its_rows_are_committed(old_lake: Path, tmp_path: Path, capsys: Capsys) -> None:
    capture = tmp_path / "flexray.pcap"
    capture.write_bytes(pcap([FRAME] * 3, 210))
    assert lakes.run(capsys, "ingest", capture, "--lake", old_lake)[0] == 0
    rows = DeltaTable(old_lake / "flexray_frames").to_pyarrow_table().to_pylist()
    assert [(row["packet_no"], row["frame_id"], row["channel"], row["payload"]) for row in rows] == [
        (n, 0x123, "B", b"\xde\xad\xbe\xef") for n in (1, 2, 3)
    ]


def test_the_doctor_says_so_until_then(old_lake: Path, tmp_path: Path, capsys: Capsys) -> None:
    code, out, _ = lakes.run(capsys, "doctor", "--lake", old_lake)
    assert code == 1
    assert "flexray_frames: the table does not exist\n      the next start of a process creates it" in out
    assert lakes.run(capsys, "ingest", _can(tmp_path), "--lake", old_lake)[0] == 0
    assert lakes.run(capsys, "doctor", "--lake", old_lake)[0] == 0


# -- an older version that had many tables less ------------------------------------------------------------------------
OLD_TABLES = (
    "captures",
    "packets",
    "can_frames",
    "lin_frames",
    "someip_messages",
    "someip_sd_entries",
    "faults",
    "quarantine",
)
NEW_TABLES = [name for name in TABLES if name not in OLD_TABLES]


async def _ingest_as_before(lake: Path, captures: list[Path], profile: Path) -> None:
    """What a version with these tables alone leaves."""
    reader = Reader(profile=Profile.load(profile), decoder_version="0.0.1", now=lambda: 0.0, tables=OLD_TABLES)
    async with await Lake.open(lake) as opened:
        await Ingest(Sources(), reader, threads=2).run(
            opened, [local_reference(one, explicit=True) for one in captures]
        )
    for name in NEW_TABLES:
        assert DeltaTable(lake / name).version() == 0, "nothing has written it"
        shutil.rmtree(lake / name)


def _read_rows(lake: Path) -> dict[str, list[str]]:
    """The rows of each table, but those columns of `captures` that say when and by what it was decoded."""
    found = {}
    for name, spec in TABLES.items():
        columns = [
            column for column in spec.columns if column not in ("ingested_at", "decoder_version", "decode_seconds")
        ]
        found[name] = sorted(map(str, DeltaTable(lake / name).to_pyarrow_table(columns=columns).to_pylist()))
    return found


def _versions(lake: Path) -> set[str]:
    return set(DeltaTable(lake / "captures").to_pyarrow_table()["decoder_version"].to_pylist())


def test_captures_that_an_older_version_read_are_decoded_again_on_request(
    drive: Drive, tmp_path: Path, capsys: Capsys
) -> None:
    """The next start creates all new tables, empty. `--reread` then fills them, and nothing is there twice."""
    lake, fresh, captures = tmp_path / "lake", tmp_path / "fresh", drive.captures[:3]
    asyncio.run(_ingest_as_before(lake, captures, drive.profile))
    options = ("--profile", drive.profile, "--json")
    code, out, _ = lakes.run(capsys, "ingest", *captures, "--lake", lake, *options)
    found = json.loads(out)
    assert (code, found["other_version"], found["other_profile"]) == (0, len(captures), 0)
    assert _versions(lake) == {"0.0.1"}
    assert all(DeltaTable(lake / name).to_pyarrow_table().num_rows == 0 for name in NEW_TABLES)
    code, out, _ = lakes.run(capsys, "ingest", *captures, "--lake", lake, *options, "--reread")
    assert (code, json.loads(out)["reread"]) == (0, len(captures))
    assert _versions(lake) == {VERSION}
    assert lakes.run(capsys, "ingest", *captures, "--lake", fresh, *options)[0] == 0
    rows, wanted = _read_rows(lake), _read_rows(fresh)
    assert {name for name in NEW_TABLES if wanted[name]} >= {"doip_messages", "uds_messages"}
    assert rows == wanted
    code, out, _ = lakes.run(capsys, "doctor", "--lake", lake)
    assert code == 0, out
