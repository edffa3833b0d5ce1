"""The command line: exit codes, what is shown where, one line for every mistake."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import shutil
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from pcaplake.ingest.local_run import Tally
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.delta import LogStore
from pcaplake.lake.store.store import Store
from pcaplake.lake.tables import count_tables
from pcaplake.parser import Profile
from pcaplake.parser.capture import programs
from pcaplake.parser.engine import kernel, specialize
from pcaplake.parser.schemas import TABLES
from pcaplake.worker import sample
from pcaplake.worker.cli import app as cli
from pcaplake.worker.cli.ingest_report import progress_values, tally_as_dict
from pcaplake.worker.config.settings import Settings, WrongSetting
from tests.drives import Drive
from tests.worker import lakes

KEYS = [
    "captures",
    "already_ingested",
    "quarantined",
    "ignored",
    "not_read",
    "kept",
    "changed",
    "replaced",
    "other_profile",
    "other_version",
    "two_decodings",
    "reread",
    "packets",
    "rows",
    "seconds",
    "cpu_seconds",
]
KEYS += ["rows_per_second", "faults", "quarantined_files", "ignored_files", "not_read_files"]
Capsys = pytest.CaptureFixture[str]


@pytest.mark.slow
def test_json_of_ingest_and_tables(drive: Drive, tmp_path: Path, capsys: Capsys) -> None:
    lake = tmp_path / "lake"
    arguments = ("ingest", drive.folder, "--lake", lake, "--profile", drive.profile, "--json")
    code, out, err = lakes.run(capsys, *arguments)
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert list(result) == KEYS
    assert list(result["rows"]) == list(TABLES)
    assert (result["captures"], result["packets"]) == (len(drive.captures), drive.packets)
    assert result["rows_per_second"] == pytest.approx(sum(result["rows"].values()) / result["seconds"], rel=0.01)
    assert result["cpu_seconds"] > 0
    assert sum(result["faults"].values()) == result["rows"]["faults"]
    code, out, _ = lakes.run(capsys, "tables", "--lake", lake, "--json")
    shown = json.loads(out)
    assert list(shown) == list(TABLES)
    for name, one in shown.items():
        assert list(one) == ["rows", "files", "bytes", "version"]
        data = list((lake / name).rglob("*.parquet"))
        assert one["rows"] == drive.rows[name]
        assert one["files"] == len(data)
        assert one["bytes"] == sum(path.stat().st_size for path in data)
    code, out, err = lakes.run(capsys, *arguments)
    again = json.loads(out)
    assert (code, again["already_ingested"]) == (0, len(drive.captures))
    assert not any((again["captures"], again["packets"], again["faults"], *again["rows"].values()))


def test_piped_output_is_plain_and_on_stdout(drive: Drive, tmp_path: Path, capsys: Capsys) -> None:
    code, out, err = lakes.run(capsys, "ingest", drive.folder, "--lake", tmp_path / "lake", "--profile", drive.profile)
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert f"{len(drive.captures)} captures read" in out
    assert f"{drive.rows['can_frames']:,}" in out
    assert "rows/s" in out
    code, out, _ = lakes.run(capsys, "tables", "--lake", tmp_path / "lake")
    assert [line.split()[0] for line in out.splitlines()] == ["table", *TABLES]


@pytest.mark.parametrize(("gone", "rest"), [("_pcaplake", "tables"), ("_pcaplake/lake.json", "manifests")])
def test_every_command_says_what_a_lake_has_lost(
    gone: str, rest: str, bus_drive: Drive, tmp_path: Path, capsys: Capsys
) -> None:
    """`ingest` refuses to begin a lake there, so no other command may advise that."""
    lake, lost = tmp_path / "lake", tmp_path / "lake" / gone
    shutil.copytree(bus_drive.lake, lake)
    shutil.rmtree(lost) if lost.is_dir() else lost.unlink()
    for arguments in (["ingest", bus_drive.captures[0]], ["tables"], ["maintain"], ["doctor"]):
        code, _, err = lakes.run(capsys, *arguments, "--lake", lake)
        assert code == 3, arguments
        assert f"has no _pcaplake/lake.json, but {rest}" in err
        assert f"restore {gone} from a backup" in err


def test_a_table_that_cannot_be_read_hides_no_other(drive: Drive, tmp_path: Path, capsys: Capsys) -> None:
    lake = tmp_path / "lake"
    assert lakes.run(capsys, "ingest", drive.captures[0], "--lake", lake, "--profile", drive.profile)[0] == 0
    last = max((lake / "packets/_delta_log").glob("*.json"))
    last.write_bytes(bytes(last.stat().st_size))  # as a file system leaves it that lost its power
    code, out, err = lakes.run(capsys, "tables", "--lake", lake, "--json")
    assert (code, list(json.loads(out))) == (3, [name for name in TABLES if name != "packets"])
    assert err.startswith("pcaplake: table packets cannot be read, see `pcaplake doctor`: ")
    assert len(err.splitlines()) == 1
    assert len(err) < 300
    overwrite = (
        "ingest",
        drive.captures[0],
        "--lake",
        lake,
        "--profile",
        drive.profile,
        "--mode",
        "overwrite",
        "--yes",
    )
    assert lakes.run(capsys, *overwrite)[0] == 3


@pytest.mark.slow
def test_a_bar_on_a_terminal_only(drive: Drive, tmp_path: Path) -> None:
    """stderr is a terminal: bytes, captures and rows a second are drawn there; stdout stays one JSON line."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "pcaplake.worker", "ingest", drive.folder, "--lake", tmp_path / "lake", "--json"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=slave, env=environment)
    os.close(slave)
    drawn = b""
    while True:
        try:
            drawn += os.read(master, 65536)
        except OSError:  # the other end is closed
            break
    assert process.stdout is not None
    out = process.stdout.read()
    process.stdout.close()
    os.close(master)
    assert process.wait() == 0
    assert b"captures" in drawn
    assert b"rows/s" in drawn
    assert json.loads(out)["captures"] == len(drive.captures)


@pytest.mark.slow
@pytest.mark.parametrize("form", [["--json"], []])
def test_a_closed_pipe_changes_no_exit_code_and_hides_no_message(tmp_path: Path, form: list[str]) -> None:
    """`pcaplake ingest ... | head -0`: the capture is quarantined all the same, and stderr says so."""
    (tmp_path / "bad.pcap").write_bytes(b"bad")
    command = [sys.executable, "-m", "pcaplake.worker", "ingest", tmp_path / "bad.pcap", "--lake", tmp_path / "lake"]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*command, *form], stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("quarantined: ")
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*command, *form], stdout=write, stderr=write, check=False)
    os.close(write)
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ingest", "{drive}"], "--lake is missing: give it, or set PCAPLAKE_LAKE"),
        (["ingest", "{tmp}/nothing", "--lake", "{tmp}/lake"], "nothing does not exist"),
        (["ingest", "{tmp}/*.x", "--lake", "{tmp}/lake"], "matches nothing"),
        (["ingest", "{drive}", "--lake", "ftp://x/y"], "no store for ftp://"),
        (["ingest", "{drive}", "--lake", "{drive}/profile"], "is a file"),
        (
            ["ingest", "{drive}", "--lake", "s3://bucket/lake"],
            "name a folder on this machine for its ledger with --ledger",
        ),
        (["ingest", "{drive}", "--lake", "{tmp}/lake", "--target-file-size", "big"], "write for example 128MB"),
        (["ingest", "{drive}", "--lake", "{tmp}/lake", "--flush-interval", "soon"], "write for example 60s"),
        (["ingest", "{drive}", "--lake", "{tmp}/lake", "--compression", "rar"], "--compression: must be"),
        (["ingest", "{drive}", "--lake", "{tmp}/lake", "--mode", "replace"], "--mode: must be 'append' or 'overwrite'"),
        (["ingest", "{drive}", "--lake", "{tmp}/lake", "--threads", "0"], "--threads: must be"),
        (["ingest", "{drive}", "--lake", "{tmp}/lake", "--threads", "many"], "--threads"),
        (["ingest", "{drive}", "--lake", "{tmp}/lake", "--partition-by", "colour"], "no table has a column 'colour'"),
        (
            ["ingest", "{drive}", "--lake", "{tmp}/lake", "--partition-by", "date", "--partition-by", "date"],
            "date is there twice",
        ),
        *(
            (
                ["ingest", "{drive}", "--lake", "{tmp}/lake", "--partition-by", "date", "--partition-by", name],
                f"{name} cannot be a partition column, because it is {kind}",
            )
            for name, kind in (
                ("payload", "binary in the table"),
                ("vlan_ids", "list<"),
                ("faults", "map<"),
                ("ts", "timestamp["),
                ("correction_ns", "double in the table"),
            )
        ),
        (["ingest", "{drive}", "--lake", "{tmp}/lake", "--storage-option", "x"], "'x' is not KEY=VALUE"),
        (["ingest", "{drive}", "--lake", "{tmp}/lake", "--profile", "{tmp}/no.yaml"], "cannot read the profile"),
        (["ingest", "{drive}", "--lake", "{tmp}/lake", "--profile", "{drive}/profile"], "line 1: "),
        (["tables", "--lake", "{tmp}/lake"], "lake does not exist; `pcaplake ingest` creates it"),
        (["maintain", "--lake", "{tmp}/lake"], "lake does not exist; `pcaplake ingest` creates it"),
        (["inspect", "{tmp}/no.pcap"], "no.pcap does not exist"),
        (["inspect", "{tmp}/*.pcap"], "matches nothing"),
        (["inspect", "{drive}", "--profile", "{drive}/profile"], "line 1: "),
        (["sample", "{tmp}/out", "--mix", "z"], "no mix 'z'"),
        (["sample", "{drive}/profile", "--mix", "charging"], "{drive}/profile is not a folder"),
        (["sample", "{drive}/profile/sub", "--mix", "charging"], "{drive}/profile is not a folder"),
        (["brew"], "No such command"),
    ],
)
def test_usage_and_settings_exit_2_with_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: Capsys
) -> None:
    folder = tmp_path / "captures"
    folder.mkdir()
    (folder / "profile").write_text("porst: {}\n")
    code, out, err = lakes.run(capsys, *(one.format(drive=folder, tmp=tmp_path) for one in arguments))
    assert (code, out) == (2, "")
    assert message.format(drive=folder) in err
    assert len(err.splitlines()) == 1
    assert "Traceback" not in err
    assert not (tmp_path / "lake").exists()


def test_fatal_is_3(drive: Drive, tmp_path: Path, capsys: Capsys) -> None:
    """lake.json of another kind."""
    lake = tmp_path / "lake"
    assert lakes.run(capsys, "ingest", drive.captures[0], "--lake", lake)[0] == 0
    path = lake / "_pcaplake" / "lake.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 99'))
    code, _, err = lakes.run(capsys, "ingest", drive.captures[0], "--lake", lake)
    assert (code, len(err.splitlines())) == (3, 1)
    assert "use a newer pcaplake" in err


def test_a_choice_that_does_not_fit_the_lake_is_2(drive: Drive, tmp_path: Path, capsys: Capsys) -> None:
    """Tables that are missing while none may be made; other partition columns than the lake has."""
    given = ("ingest", drive.captures[0], "--lake", tmp_path / "lake")
    code, _, err = lakes.run(capsys, *given, "--no-create")
    assert (code, "is not a lake yet" in err, len(err.splitlines())) == (2, True, 1)
    assert lakes.run(capsys, *given)[0] == 0
    code, _, err = lakes.run(capsys, *given, "--partition-by", "vehicle_id")
    assert (code, "this lake has the partition columns date" in err, len(err.splitlines())) == (2, True, 1)


def test_quarantined_is_1(tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "x.pcap").write_bytes(b"?")
    code, out, _ = lakes.run(capsys, "ingest", tmp_path / "x.pcap", "--lake", tmp_path / "lake")
    assert code == 1
    assert "1 capture read, 1 quarantined; 0 packets" in out


def test_files_are_named_with_reasons(drive: Drive, tmp_path: Path, capsys: Capsys) -> None:
    """On stderr, the ignored files only if that is asked for; in the JSON always."""
    folder, lake = tmp_path / "in", tmp_path / "lake"
    folder.mkdir()
    (folder / "empty.pcap").touch()
    (folder / "notes.txt").write_text("no capture")
    (folder / "nowhere").symlink_to(tmp_path / "missing")
    shutil.copy(drive.captures[0], folder / "a.pcapng")
    given = ("ingest", folder, "--lake", lake)
    code, out, err = lakes.run(capsys, *given)
    why = "not a capture (empty): the file has no bytes"
    assert (code, err) == (1, f"quarantined: file://{folder}/empty.pcap: {why}\n")
    assert out.startswith("2 captures read, 1 quarantined, 2 ignored (--verbose names the ignored files); ")
    earlier = "in an earlier run; the table quarantine has the reason"
    code, out, err = lakes.run(capsys, *given, "-v", "--json")
    shown = json.loads(out)
    assert shown["quarantined_files"] == {f"file://{folder}/empty.pcap": earlier}
    assert shown["ignored_files"] == [f"file://{folder}/notes.txt", f"file://{folder}/nowhere"]
    assert (shown["ignored"], shown["not_read_files"]) == (2, {})
    assert err.splitlines() == [
        f"quarantined: file://{folder}/empty.pcap: {earlier}",
        f"ignored: file://{folder}/notes.txt",
        f"ignored: file://{folder}/nowhere",
    ]


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_folder_without_captures_is_2_and_makes_no_lake(mode: str, tmp_path: Path, capsys: Capsys) -> None:
    folder, lake = tmp_path / "in", tmp_path / "lake"
    folder.mkdir()
    for content in (None, b"no capture"):
        if content is not None:
            (folder / "notes.txt").write_bytes(content)
        code, out, err = lakes.run(capsys, "ingest", folder, "--lake", lake, "--mode", mode)
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        assert err.startswith(f"pcaplake: {folder}: no captures, because ")
        assert not lake.exists()


def test_progress_counts_captures_and_decoded_rows() -> None:
    tally = Tally(captures=1, already_ingested=1, total=3, read_bytes=5, total_bytes=10, unstaged_rows=1000)
    tally.rows["packets"] = 3000
    assert progress_values(tally, 2.0) == (5, 10, "2/3 captures, 2,000 rows/s")
    assert progress_values(Tally(total=1), 0.0) == (0, 0, "0/1 capture, 0 rows/s")


def test_nothing_unexpected_gets_a_traceback(tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("something nobody thought of")

    monkeypatch.setattr(sample, "write_sample_captures", broken)
    monkeypatch.setattr("pcaplake.worker.cli.sample.write_sample_captures", broken)
    code, _, err = lakes.run(capsys, "sample", tmp_path)
    assert code == 3
    assert "unexpected RuntimeError: something nobody thought of" in err
    assert "Traceback" not in err
    monkeypatch.setenv("PCAPLAKE_DEBUG", "1")
    with pytest.raises(RuntimeError):
        cli.run_command_line(["sample", str(tmp_path)])


def test_every_knob_is_an_option_and_a_variable(monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = lakes.run(capsys, "ingest", "--help")
    assert code == 0
    for name in Settings.model_fields.keys() & set(LakeConfig.__slots__):
        assert f"--{name.replace('_', '-')}" in out
    for name, text, value in (
        ("target_file_size", "64 MB", 64 << 20),
        ("max_records", "10", 10),
        ("flush_interval", "2m", 120.0),
        ("max_batch_adds", "7", 7),
        ("max_batch_age", "500ms", 0.5),
        ("compression", "snappy", "snappy"),
        ("compression_level", "3", 3),
        ("row_group_rows", "1000", 1000),
        ("checkpoint_interval", "5", 5),
        ("commit_timeout", "90", 90.0),
    ):
        monkeypatch.setenv(f"PCAPLAKE_{name.upper()}", text)
        assert getattr(Settings.load(lake="x").lake_config, name) == value
    monkeypatch.setenv("PCAPLAKE_MAX_RECORDS", "11")
    assert Settings.load(lake="x", max_records=12).max_records == 12
    monkeypatch.setenv("PCAPLAKE_STORAGE_OPTION", '{"aws_region": "x"}')
    assert Settings.load(lake="x").storage_option == {"aws_region": "x"}
    monkeypatch.setenv("PCAPLAKE_STORAGE_OPTION", "{")
    with pytest.raises(WrongSetting, match="cannot be read"):
        Settings.load(lake="x")


def test_flush_interval_of_ingest_is_a_minute() -> None:
    assert Settings.load(lake="x").lake_config.flush_interval == 60.0


@pytest.mark.slow
def test_options_reach_the_tables(drive: Drive, tmp_path: Path, capsys: Capsys) -> None:
    lake, ledger = tmp_path / "lake", tmp_path / "state"
    options = ("--table-property", "delta.checkpointInterval=7", "--partition-by", "vehicle_id", "--ledger", ledger)
    more = ("--compression", "snappy", "--row-group-rows", 1000, "--profile", drive.profile)
    code, _, err = lakes.run(capsys, "ingest", drive.folder, "--lake", lake, *options, *more)
    assert code == 0, err
    table = lakes.DeltaTable(f"{lake}/packets")
    assert table.metadata().partition_columns == ["vehicle_id"]
    assert table.metadata().configuration["delta.checkpointInterval"] == "7"
    assert {path.name for path in (lake / "packets").iterdir()} > {"vehicle_id=vehicle-001", "vehicle_id=vehicle-002"}
    # of all files, because a small one may have no column that gains from compression
    files = [lakes.pq.ParquetFile(uri).metadata for uri in table.file_uris()]
    groups = [file.row_group(number) for file in files for number in range(file.num_row_groups)]
    assert "SNAPPY" in {group.column(n).compression for group in groups for n in range(group.num_columns)}
    assert max(group.num_rows for group in groups) <= 1000
    assert list(ledger.glob("*.sqlite"))
    assert not (lake / "_pcaplake" / "ledger.sqlite").exists()
    lakes.check(lake, drive.rows, capsys)
    code, _, err = lakes.run(capsys, "ingest", drive.folder, "--lake", lake)
    assert code == 3, "the ledger must be named again"
    assert "--ledger" in err


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["zstd", "snappy", "gzip", "lz4", "none"])
def test_every_compression_is_read_by_all(compression: str, drive: Drive, tmp_path: Path, capsys: Capsys) -> None:
    lake = tmp_path / "lake"
    arguments = ("ingest", drive.folder, "--lake", lake, "--profile", drive.profile, "--compression", compression)
    assert lakes.run(capsys, *arguments)[0] == 0
    sizes = pl.read_delta(f"{lake}/can_frames")["payload"].bin.size()
    with contextlib.closing(lakes.connect()) as connection:
        row = connection.sql(f"SELECT sum(octet_length(payload)) FROM delta_scan('{lake}/can_frames')").fetchone()
    assert row == (sizes.sum(),)
    lakes.check(lake, drive.rows, capsys)


def test_sample_is_deterministic_and_says_what_it_made(tmp_path: Path, capsys: Capsys) -> None:
    made = []
    for name in ("one", "two"):
        arguments = ("sample", tmp_path / name, "--mix", "charging", "--seconds", "0.05", "--vehicles", 2, "--seed", 3)
        code, out, err = lakes.run(capsys, *arguments)
        assert (code, err) == (0, "")
        made.append([path.read_bytes() for path in sorted((tmp_path / name).rglob("*")) if path.is_file()])
        assert len(out.splitlines()) == 3
    assert made[0] == made[1]


def test_maintain_where_nothing_may_be_written(
    drive: Drive, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first table is not begun: deltalake would panic, and tell everybody."""
    lake = tmp_path / "lake"
    assert lakes.run(capsys, "ingest", drive.captures[0], "--lake", lake)[0] == 0
    locked = str(lake / "packets" / "_delta_log")
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != locked)

    def maintain_table(store: object, name: str, *rest: object) -> None:
        assert name != "packets"
        raise TableNotFoundError

    monkeypatch.setattr("pcaplake.lake.maintenance._maintain_table", maintain_table)
    code, _, err = lakes.run(capsys, "maintain", "--lake", lake)
    assert (code, err.splitlines()[-1]) == (
        3,
        f"pcaplake: {locked} cannot be written: run this as the owner of the lake",
    )


@pytest.mark.slow
def test_maintain_keeps_every_row_and_every_transaction(drive: Drive, tmp_path: Path, capsys: Capsys) -> None:
    lake, folder = tmp_path / "lake", tmp_path / "captures"
    shutil.copytree(drive.folder, folder)
    later = next(folder.rglob("*1.pcapng"))
    later = later.rename(tmp_path / "later.pcapng")
    options = ("--lake", lake, "--profile", drive.profile)
    assert lakes.run(capsys, "ingest", folder, *options, "--max-records", 1)[0] == 0
    before = lakes.by_duckdb(lake)
    head = asyncio.run(LogStore(Store.open(lake)).read_transaction("packets", "pcaplake"))
    sizes = {name: one.bytes for name, one in asyncio.run(count_tables(Store.open(lake))).items()}
    code, out, _ = lakes.run(capsys, "maintain", "--lake", lake, "--json")
    assert code == 0
    assert asyncio.run(count_tables(Store.open(lake)))["packets"].bytes < sizes["packets"]
    for path in DeltaTable(lake / "packets").file_uris():
        group = pq.read_metadata(path).row_group(0)
        columns = {(one := group.column(n)).path_in_schema: one for n in range(group.num_columns)}
        assert {one.compression for one in columns.values()} <= {"ZSTD", "UNCOMPRESSED"}
        assert "DELTA_BINARY_PACKED" in columns["ts_ns"].encodings
    report = json.loads(out)
    assert list(report) == list(TABLES)
    assert report["packets"]["compacted"] > report["packets"]["added"] > 0
    assert all(one["deleted"] == 0 for one in report.values()), "nothing is a week old"
    assert lakes.by_duckdb(lake) == before
    assert list((lake / "packets" / "_delta_log").glob("*.checkpoint.parquet"))
    assert asyncio.run(LogStore(Store.open(lake)).read_transaction("packets", "pcaplake")) == head
    code, out, err = lakes.run(capsys, "ingest", folder, *options, "--json")
    assert (code, json.loads(out)["captures"]) == (0, 0), err
    code, out, err = lakes.run(capsys, "ingest", later, *options, "--json")
    assert (code, json.loads(out)["captures"]) == (0, 1), err
    assert asyncio.run(LogStore(Store.open(lake)).read_transaction("packets", "pcaplake")) > head
    assert lakes.by_duckdb(lake) == before | {n: before[n] + c for n, c in json.loads(out)["rows"].items()}
    code, out, err = lakes.run(capsys, "maintain", "--lake", lake, "--retention-days", 6)
    assert (code, out) == (2, "")
    assert "the minimum is 7" in err


def test_help_teaches(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    for command in ("ingest", "inspect", "tables", "sample", "maintain"):
        code, out, _ = lakes.run(capsys, command, "--help")
        assert code == 0
        assert f"pcaplake {command} " in out.split("Usage", 1)[1].split("\n", 1)[1], "an example"
    code, out, _ = lakes.run(capsys)
    assert code == 2
    assert "ingest" in out


@pytest.mark.parametrize("command", ["ingest", "inspect"])
def test_a_command_compiles_one_program(
    command: str, drive: Drive, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the profile."""
    profile, given = tmp_path / "profile.yaml", ("--lake", tmp_path / "lake") if command == "ingest" else ()
    profile.write_text("ports:\n  udp:\n    40001: someip\n")
    monkeypatch.setattr(programs, "_PROGRAMS", OrderedDict())
    made: list[Profile] = []
    compile_program = programs._compile_program

    def count(profile: Profile, tables: Any) -> Any:
        made.append(profile)
        return compile_program(profile, tables)

    monkeypatch.setattr(programs, "_compile_program", count)
    code, _, err = lakes.run(capsys, command, drive.captures[0], "--profile", profile, *given)
    assert code == 0, err
    assert len(made) == 1


def test_kernels_that_cannot_be_used_end_a_command_with_what_to_do(
    drive: Drive, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "_PROGRAMS", OrderedDict())  # these have chosen their walk
    monkeypatch.setattr(specialize, "compiled_module", kernel.compiled_module.__wrapped__)
    monkeypatch.setattr(kernel, "digest_sources", lambda package: "edited")
    for command in (("ingest", drive.captures[0], "--lake", tmp_path / "lake"), ("inspect", drive.captures[0])):
        code, _, err = lakes.run(capsys, *command)
        assert code == 3
        assert "pcaplake.core.walk was compiled from other sources" in err
        assert "run `make setup`" in err
        assert "Traceback" not in err


@pytest.mark.slow
def test_nothing_is_imported_that_nobody_uses(drive: Drive, tmp_path: Path) -> None:
    """pyarrow would import pandas, where it is installed, with the first array: 0.4 s of CPU in each process."""
    lake = str(tmp_path / "lake")
    capture = str(next(drive.folder.glob("*/*.pcapng")))
    for arguments in (["inspect", capture], ["ingest", str(drive.folder), "--lake", lake], ["tables", "--lake", lake]):
        command = [sys.executable, "-X", "importtime", "-m", "pcaplake.worker", *arguments]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        imported = {line.rpartition("|")[2].strip() for line in told.splitlines() if line.startswith("import time:")}
        assert "pyarrow" in imported
        assert not {name for name in imported if name.startswith("pandas.")}  # it is asked for, in vain


def test_report_of_nothing() -> None:
    shown = tally_as_dict(Tally(), 0.0, 0.0)
    assert list(shown) == KEYS
    assert shown["rows"] == dict.fromkeys(TABLES, 0)
    assert shown["rows_per_second"] == 0
