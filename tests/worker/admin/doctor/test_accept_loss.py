"""`pcaplake doctor --repair --accept-loss TABLE`: a lake goes on without rows that nobody can bring back, and says which."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable

from pcaplake.lake.commit import losses
from pcaplake.lake.ledger.sqlite import SqliteLedger
from pcaplake.worker.admin.doctor import accept_loss as of_doctor
from tests.drives import Drive
from tests.worker import lakes
from tests.worker.lakes import configure, parquet

Capsys = pytest.CaptureFixture[str]
DAY_MS = 86_400_000


def quarantined(lake: Path) -> list[tuple[str, str]]:
    """URI and detail of what was given up."""
    found = DeltaTable(lake / "quarantine").to_pyarrow_table(columns=["uri", "error", "detail"]).to_pylist()
    return sorted((one["uri"], one["detail"]) for one in found if one["error"] == of_doctor.ERROR)


def waits_without_file(bus_drive: Drive, tmp_path: Path, capsys: Capsys) -> tuple[Path, Path, int]:
    """A batch is not in `packets`; its file there and its capture are gone -> lake, capture, rows that are lost."""
    lake, captures = tmp_path / "lake", tmp_path / "captures"
    options = ("--lake", lake, "--profile", bus_drive.profile)
    assert lakes.run(capsys, "ingest", bus_drive.captures[0], *options)[0] == 0
    before = parquet(lake / "packets")
    configure(lake / "packets", **{"delta.setTransactionRetentionDuration": "interval 1 days"})
    captures.mkdir()
    capture = Path(shutil.copy(bus_drive.captures[1], captures))
    assert lakes.run(capsys, "ingest", capture, *options)[0] == 3
    (manifest,) = sorted((lake / "_pcaplake" / "batches").glob("*.json"))[-1:]
    said = json.loads(manifest.read_text())
    for stage in said["stages"]:
        stage["written_at"] -= 2 * DAY_MS
    manifest.write_text(json.dumps(said))
    lost, *_ = sorted(parquet(lake / "packets") - before)  # what else it has is committed
    with duckdb.connect() as db:
        row = db.sql(f"SELECT count(*) FROM '{lost}'").fetchone()
    lost.unlink()
    capture.unlink()
    configure(lake / "packets")
    assert lakes.run(capsys, "ingest", bus_drive.captures[0], *options)[0] == 3, "it waits for the file"
    assert row is not None
    return lake, capture, row[0]


@pytest.mark.slow
@pytest.mark.parametrize("killed", [None, "before it is staged", "before the record", "after the record"])
def test_a_batch_goes_on_without_files_and_quarantine_says_so_once(
    killed: str | None, bus_drive: Drive, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, capture, rows = waits_without_file(bus_drive, tmp_path, capsys)
    options = ("--lake", lake, "--profile", bus_drive.profile)
    code, out, _ = lakes.run(capsys, "doctor", "--lake", lake)
    assert code == 1
    assert f"missing, with {rows} rows" in out
    assert str(capture) in out
    assert "--repair --accept-loss packets" in out
    _, out, _ = lakes.run(capsys, "doctor", "--lake", lake, "--repair", "--accept-loss", "packets")
    assert f"give up {rows} rows of packets in 1 file" in out
    assert not (lake / losses.FOLDER).exists(), "nothing is done without --yes"
    accept = ("doctor", "--lake", lake, "--repair", "--accept-loss", "packets", "--yes")
    if killed is not None:
        owner, name = {
            "before it is staged": (SqliteLedger, "put_stage_if_absent"),
            "before the record": (losses, "accept_file_loss"),
            "after the record": (SqliteLedger, "release_held_stages"),
        }[killed]

        async def dead(*given: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, dead)
            lakes.run(capsys, *accept)
    assert lakes.run(capsys, *accept)[0] in (0, 1)
    assert lakes.run(capsys, *accept)[0] in (0, 1)
    code, _, err = lakes.run(capsys, "ingest", bus_drive.captures[2], *options)
    assert code == 0, err
    ((uri, detail),) = quarantined(lake)
    assert uri.endswith(capture.name)
    assert f"1 missing file of packets with {rows} rows" in detail
    found = lakes.by_duckdb(lake)
    expected = tmp_path / "expected"
    assert (
        lakes.run(capsys, "ingest", *bus_drive.captures[:3], "--lake", expected, "--profile", bus_drive.profile)[0] == 0
    )
    wanted = lakes.by_duckdb(expected)
    assert found == {**wanted, "packets": wanted["packets"] - rows, "quarantine": wanted["quarantine"] + 1}
    code, out, _ = lakes.run(capsys, "doctor", "--lake", lake)
    assert code == 0, out


@pytest.mark.slow
def test_a_dropped_table_goes_on_without_its_rows(bus_drive: Drive, tmp_path: Path, capsys: Capsys) -> None:
    lake = tmp_path / "lake"
    options = ("--lake", lake, "--profile", bus_drive.profile)
    assert lakes.run(capsys, "ingest", bus_drive.captures[0], *options)[0] == 0
    rows = lakes.by_duckdb(lake)["packets"]
    shutil.rmtree(lake / "packets")
    code, out, _ = lakes.run(capsys, "doctor", "--lake", lake, "--repair", "--accept-loss", "packets")
    assert f"the table was dropped, with the batches 0 ({rows:,} rows of 1 capture when they were committed)" in out
    assert f"make packets writable again without {rows:,} rows of 1 capture, lost of the batches up to 0" in out
    code, out, _ = lakes.run(capsys, "doctor", "--lake", lake, "--repair", "--accept-loss", "packets", "--yes")
    assert f"packets can be written again; {rows:,} rows of 1 capture of the batches up to 0 are given up" in out
    lakes.run(capsys, "doctor", "--lake", lake, "--repair", "--accept-loss", "packets", "--yes")
    code, _, err = lakes.run(capsys, "ingest", bus_drive.captures[1], *options)
    assert code == 0, err
    ((uri, detail),) = quarantined(lake)
    assert uri == f"file://{lake}/packets"
    assert f"its missing rows are given up: {rows:,} rows of 1 capture" in detail
    assert lakes.by_duckdb(lake)["packets"] > 0


@pytest.mark.slow
def test_rows_that_an_overwrite_removed_are_not_counted(bus_drive: Drive, tmp_path: Path, capsys: Capsys) -> None:
    lake = tmp_path / "lake"
    options = ("--lake", lake, "--profile", bus_drive.profile)
    for one, mode in zip(bus_drive.captures[:3], ("append", "overwrite", "append"), strict=True):
        assert lakes.run(capsys, "ingest", one, *options, "--mode", mode, "--yes")[0] == 0
    rows = lakes.by_duckdb(lake)["packets"]
    shutil.rmtree(lake / "packets")
    _, out, _ = lakes.run(capsys, "doctor", "--lake", lake)
    assert f"the table was dropped, with the batches 1, 2 ({rows:,} rows of 2 captures" in out


@pytest.mark.slow
@pytest.mark.parametrize("yes", [(), ("--yes",)])
def test_nothing_to_accept(yes: tuple[str, ...], bus_drive: Drive, tmp_path: Path, capsys: Capsys) -> None:
    lake = tmp_path / "lake"
    assert lakes.run(capsys, "ingest", bus_drive.captures[0], "--lake", lake)[0] == 0
    accept = ("doctor", "--lake", lake, "--repair", "--accept-loss", "captures", *yes)
    code, out, _ = lakes.run(capsys, *accept)
    assert code == 0
    assert "ok accept loss: captures: captures has lost no rows, so there is nothing to accept" in out
    shutil.rmtree(lake / "packets")
    code, out, _ = lakes.run(capsys, *accept)
    assert code == 1
    assert "nothing to accept" in out, "another table has lost rows"
    (lake / "_pcaplake" / "ledger.sqlite").write_bytes(b"no ledger")
    _, out, _ = lakes.run(capsys, "doctor", "--lake", lake, "--repair", "--accept-loss", "packets")
    assert "nothing to accept" not in out
    assert "not examined: whether packets has lost rows" in out


def test_usage(capsys: Capsys, tmp_path: Path) -> None:
    for arguments, message in (
        (["--accept-loss", "packets"], "needs --repair"),
        (["--repair", "--accept-loss", "x"], "table x does not exist"),
    ):
        code, _, err = lakes.run(capsys, "doctor", "--lake", tmp_path, *arguments)
        assert code == 2
        assert message in err
