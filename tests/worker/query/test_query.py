"""`pcaplake query` and `connect`: SQL on a lake in a folder and on S3, results for people and programs."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from prompt_toolkit.application import create_app_session
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from pcaplake import connect
from pcaplake.common.errors import Fatal, WrongChoice, WrongUsage
from pcaplake.lake.store.store import Store
from pcaplake.lake.tables import SCHEMAS
from pcaplake.worker.cli import query_prompt
from pcaplake.worker.query.connection import CURRENT_CAPTURES_SQL, LakeDatabase
from pcaplake.worker.query.results import draw, write_text
from pcaplake.worker.query.statements import read_statements
from tests.aws import Aws
from tests.drives import Drive
from tests.worker import lakes

PCAPLAKE = (sys.executable, "-m", "pcaplake")
VALUES = """
    SELECT 'nan'::DOUBLE AS not_a_number, '-inf'::FLOAT AS infinite, 9007199254740993 AS large, NULL AS missing,
        TIMESTAMPTZ '2026-01-01 01:00:00.5+02' AS moment, '\\x00\\xff'::BLOB AS bytes, [1.5, 'nan'::DOUBLE] AS doubles,
        [{'raw': '\\xaa'::BLOB, 'at': TIMESTAMPTZ '2026-01-01 00:00:00+00'}, NULL] AS nested, true AS flag,
        DATE '2026-01-02' AS day, 'a"b,' || chr(10) || 'é' AS text, 1.50::DECIMAL(10, 2) AS exact, 1 AS twice, 2 AS twice
"""


@pytest.fixture(scope="module")
def lake(drive: Drive, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake whose folder has letters that SQL and URLs read as something else."""
    lake = tmp_path_factory.mktemp("query") / "it's a lake"
    run = lakes.cli.run_command_line(
        ["ingest", str(drive.captures[0]), "--lake", str(lake), "--profile", str(drive.profile)]
    )
    assert run == 0
    return lake


@pytest.fixture
def database(lake: Path) -> Iterator[LakeDatabase]:
    database = LakeDatabase(Store.open(str(lake)))
    with closing(database.connection):
        yield database


def rows_of(lake: Path, table: str) -> list[dict[str, Any]]:
    """By a reader that is not DuckDB. (Polars does not find files of such a folder.)"""
    return DeltaTable(lake / table).to_pyarrow_table().to_pylist()


def run(lake: Path | str, *arguments: str, **given: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PCAPLAKE, "query", "--lake", str(lake), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **given,
    )


def test_each_table_has_its_name_and_its_rows(lake: Path) -> None:
    counts = {name: len(rows_of(lake, name)) for name in SCHEMAS}
    with closing(connect(lake)) as connection:
        assert {name: connection.sql(f'SELECT count(*) FROM "{name}"').fetchall() for name in counts} == {
            name: [(count,)] for name, count in counts.items()
        }
        joined = "SELECT count(*) FROM can_frames SEMI JOIN current_captures USING (capture_id)"
        assert connection.sql(joined).fetchall() == [(counts["can_frames"],)]


def test_the_view_is_that_of_the_page() -> None:
    assert CURRENT_CAPTURES_SQL.split() == lakes.current_captures_view().split()


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO captures SELECT * FROM captures",
        "DELETE FROM captures",
        "DROP TABLE captures.captures",
        "CREATE TABLE captures.more AS SELECT 1",
    ],
)
def test_a_connection_only_reads(lake: Path, sql: str) -> None:
    before = sorted((lake / "captures/_delta_log").iterdir())
    with closing(connect(lake)) as connection, pytest.raises(duckdb.Error):
        connection.execute(sql)
    assert sorted((lake / "captures/_delta_log").iterdir()) == before


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("INSERT INTO captures VALUES (1)", "INSERT"),
        ("COPY captures TO 'x.csv'", "COPY"),
        ("CREATE TABLE x AS FROM captures", "CREATE"),
        ("ATTACH 'x.db'", "ATTACH"),
        ("FROM captures; DELETE FROM captures", "DELETE"),
        ("INSTALL spatial", "LOAD"),
    ],
)
def test_what_writes_is_refused_by_name(database: LakeDatabase, sql: str, kind: str) -> None:
    with pytest.raises(WrongUsage, match=rf"{kind}.* is no query.*--parquet FILE"):
        read_statements(database, sql)


@pytest.mark.parametrize(
    ("sql", "count"),
    [
        ("FROM captures;", 1),
        ("DESCRIBE captures", 1),
        ("SUMMARIZE captures", 1),
        ("WITH a AS (SELECT 1) FROM a", 1),
        ("PIVOT captures ON date USING count(*)", 1),
        ("SELECT ';'; SELECT 2", 2),
        ("SET threads = 1", 1),
        ("-- nothing", 0),
    ],
)
def test_what_reads_is_run(database: LakeDatabase, sql: str, count: int) -> None:
    statements = read_statements(database, sql)
    assert len(statements) == count
    for statement in statements:
        relation = database.evaluate(statement)
        assert relation is None or draw(relation, max_rows=3, max_width=100)


def evaluated(database: LakeDatabase, sql: str) -> duckdb.DuckDBPyRelation:
    result = database.evaluate(sql)
    assert result is not None
    return result


def printed(database: LakeDatabase, sql: str, text_format: Any) -> str:
    written = io.BytesIO()
    write_text(evaluated(database, sql), text_format, written)
    return written.getvalue().decode()


def test_values_as_json(database: LakeDatabase) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    assert json.loads(printed(database, VALUES, "json"), parse_constant=refuse) == {
        "not_a_number": "nan",
        "infinite": "-inf",
        "large": 9007199254740993,
        "missing": None,
        "moment": "2025-12-31T23:00:00.500000Z",
        "bytes": "00ff",
        "doubles": [1.5, "nan"],
        "nested": [{"raw": "aa", "at": "2026-01-01T00:00:00.000000Z"}, None],
        "flag": True,
        "day": "2026-01-02",
        "text": 'a"b,\né',
        "exact": 1.5,
        "twice": 1,
        "twice_1": 2,
    }


def test_values_as_csv(database: LakeDatabase) -> None:
    (row,) = csv.DictReader(io.StringIO(printed(database, VALUES, "csv")))
    assert (row["moment"], row["bytes"], row["text"], row["missing"], row["twice"], row["twice_1"]) == (
        "2025-12-31T23:00:00.500000Z",
        "00ff",
        'a"b,\né',
        "",
        "1",
        "2",
    )


def test_a_table_shows_both_columns_of_a_name_and_no_control_characters(database: LakeDatabase) -> None:
    drawn = draw(
        database.evaluate("SELECT 1 AS a, 2 AS a, chr(27) || '[31m' AS b, '\\xAB'::BLOB AS c"), max_rows=5, max_width=99
    )
    assert re.search(r"│\s+1 │\s+2 │ \\(e|x1b)\[31m\s*│ ab", drawn)
    assert "\x1b" not in drawn


@pytest.mark.slow
def test_json_of_a_table_equals_its_rows(lake: Path, database: LakeDatabase) -> None:
    rows = [json.loads(line) for line in printed(database, "FROM captures", "json").splitlines()]
    assert [(row["uri"], row["packets"], row["interfaces"]) for row in rows] == [
        (row["uri"], row["packets"], row["interfaces"]) for row in rows_of(lake, "captures")
    ]
    frames = [
        json.loads(line)
        for line in printed(database, "FROM can_frames ORDER BY packet_no, sub_no", "json").splitlines()
    ]
    expected = sorted(rows_of(lake, "can_frames"), key=lambda row: (row["packet_no"], row["sub_no"]))
    assert [bytes.fromhex(row["payload"]) for row in frames] == [row["payload"] for row in expected]


@pytest.mark.slow
def test_a_filter_opens_few_files(lake: Path, database: LakeDatabase) -> None:
    plan = evaluated(database, "EXPLAIN ANALYZE SELECT * FROM can_frames WHERE date = '1999-01-01'").fetchall()[0][1]
    assert re.search(r"Scanning Files: 0/[1-9]", plan)


@pytest.mark.slow
def test_the_command(lake: Path, tmp_path: Path) -> None:
    frames = len(rows_of(lake, "can_frames"))
    shown = run(lake, "SELECT count(*) AS frames FROM can_frames")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert re.search(rf"│\s*{frames} │", shown.stdout)
    target = tmp_path / "kept's.parquet"
    assert run(lake, "FROM can_frames", "--parquet", str(target)).returncode == 0
    assert pq.read_metadata(target).num_rows == frames
    assert list(tmp_path.iterdir()) == [target]
    piped = run(lake, "--csv", input="SELECT 1 AS a;\n")
    assert (piped.returncode, piped.stdout) == (0, "a\n1\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["SELEC 1"], 2, 'syntax error at or near "SELEC"'),
        (["FROM can_frame"], 2, "Table with name can_frame does not exist! Did you mean can_frames?"),
        (["SELECT nope FROM can_frames"], 2, 'column "nope" not found'),
        (["DELETE FROM can_frames"], 2, "DELETE is no query"),
        ([""], 2, "there is no query"),
        (["SELECT 1; SELECT 2", "--csv"], 2, "the result of one query"),
        (["SELECT 1", "--csv", "--json"], 2, "choose one of them"),
        (["SELECT 1", "--parquet", "no/where/x.parquet"], 2, "its folder does not exist"),
        (["FROM read_csv('nowhere.csv')"], 3, "nowhere.csv"),
        (["SELECT 1", "--parquet", "tests"], 3, "--parquet tests: it cannot be written: Is a directory"),
    ],
)
def test_errors_are_one_line(
    lake: Path, arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exit_code, out, err = lakes.run(capsys, "query", "--lake", lake, *arguments)
    assert (exit_code, out, len(err.splitlines())) == (code, "", 1)
    assert said in err


@pytest.mark.slow
def test_appended_output_keeps_what_is_there(lake: Path, tmp_path: Path) -> None:
    target = tmp_path / "all.csv"
    target.write_text("first\n")
    with target.open("a") as stream:
        command = [*PCAPLAKE, "query", "--lake", str(lake), "SELECT 1 AS a", "--csv"]
        assert subprocess.run(command, stdout=stream, timeout=120, check=False).returncode == 0
    assert target.read_text() == "first\na\n1\n"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--csv"], ["--json"], ["--rows", "9000"]])
def test_a_closed_pipe_is_no_error(lake: Path, arguments: list[str]) -> None:
    command = [*PCAPLAKE, "query", "--lake", str(lake), "FROM range(9000000)", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert (process.stderr.read(), process.wait(60)) == (b"", 0)
    process.stderr.close()


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["--csv"], ["--parquet", "x.parquet"]])
def test_ctrl_c_ends_a_query(lake: Path, tmp_path: Path, arguments: list[str]) -> None:
    endless = "SELECT * FROM range(1000000000000) WHERE sin(range) > 2"
    process = subprocess.Popen(
        [*PCAPLAKE, "query", "--lake", str(lake), endless, *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while len(list(Path(f"/proc/{process.pid}/task").iterdir())) < 3:  # DuckDB has threads of its own
        time.sleep(0.05)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, b"Traceback" in err) == (130, False)
    assert list(tmp_path.iterdir()) == []


def test_there_must_be_a_lake(tmp_path: Path) -> None:
    with pytest.raises(WrongChoice, match="does not exist"):
        connect(tmp_path / "lake")
    with pytest.raises(WrongChoice, match=r"folders and on s3://"):
        LakeDatabase(Store.open("memory:///query"))


def test_without_the_extra(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(Fatal, match=r"pip install 'pcaplake\[query\]'"):
        connect(lake)


@pytest.mark.slow
def test_in_a_notebook(lake: Path) -> None:
    """Which runs an event loop in the thread that connects."""

    async def cell() -> int:
        with closing(connect(lake)) as connection:
            return len(connection.sql("FROM captures").fetchall())

    assert asyncio.run(cell()) == 1


@pytest.mark.slow
def test_a_user_without_a_home_who_may_write_nowhere(lake: Path, tmp_path: Path) -> None:
    folder = tmp_path / "read-only"
    folder.mkdir(mode=0o500)
    environment = {name: value for name, value in os.environ.items() if name != "HOME"}
    ran = run(
        lake, "FROM captures SELECT count(*) AS n", "--csv", cwd=folder, env={**environment, "HOME": "/nonexistent"}
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "n\n1\n", "")


def test_the_prompt(lake: Path, database: LakeDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines until a semicolon, an error, and the history."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    shown = list[str]()
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        keys.send_text("SELECT 1\r+ 1;\rDELETE FROM captures;\rFROM sightings;\rquit\r")
        query_prompt.run_prompt(database, shown.append)
    assert shown == ["SELECT 1\n+ 1", "FROM sightings"]
    history = tmp_path / "pcaplake/query_history"
    assert "FROM sightings;" in history.read_text()
    assert history.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("FROM can_f", {"can_frames"}),
        ("FROM curr", {"current_captures"}),
        ("SELECT payload_p", {"payload_preamble"}),
        ("SELECT count(*) FROM faults WHERE reas", {"reason"}),
        ("SELECT count(*) FROM captures WHERE can_i", set()),
        ("sel", {"SELECT"}),
    ],
)
def test_names_are_completed(database: LakeDatabase, text: str, words: set[str]) -> None:
    completer = query_prompt.NameCompleter([*database.tables, "current_captures"])
    assert {found.text for found in completer.get_completions(Document(text), None)} == words


@pytest.mark.parametrize("given", ["options", "environment"])
def test_a_lake_on_s3(aws: Aws, drive: Drive, given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = aws.name("query")
    aws.client("s3").create_bucket(Bucket=bucket)
    options = {
        "AWS_ENDPOINT_URL": aws.s3,
        "AWS_REGION": aws.region,
        "AWS_ACCESS_KEY_ID": aws.environment["AWS_ACCESS_KEY_ID"],
        "AWS_SECRET_ACCESS_KEY": aws.environment["AWS_SECRET_ACCESS_KEY"],
    }
    for name, value in options.items():
        monkeypatch.setenv(name, value)
    lake = f"s3://{bucket}/a lake"
    ingest = [
        "ingest",
        str(drive.captures[0]),
        "--lake",
        lake,
        "--ledger",
        str(tmp_path),
        "--profile",
        str(drive.profile),
    ]
    assert lakes.cli.run_command_line(ingest) == 0
    if given == "options":
        for name in options:
            monkeypatch.delenv(name)
    with closing(connect(lake, storage_options=options if given == "options" else None)) as connection:
        counted = connection.sql(
            "SELECT count(*) FROM can_frames SEMI JOIN current_captures USING (capture_id)"
        ).fetchall()
        recorded = connection.sql("SELECT rows['can_frames'] FROM captures").fetchall()
    assert counted == recorded != [(0,)]


def test_times_come_back_to_python(lake: Path) -> None:
    with closing(connect(lake)) as connection:
        ((moment,),) = connection.sql("SELECT min(ts) FROM can_frames").fetchall()
    assert moment.utcoffset() == timedelta()
