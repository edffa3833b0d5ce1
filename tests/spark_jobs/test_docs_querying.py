"""The examples of docs/querying.md run, one after the other: they print what stands there, which loops over the drives
confirm, and open only the files that they need. Each reader opens as many files as the page says.

The lake: nine drives, a commit and a file each. What a reader has to fill in is given here: LAKE and CHECKPOINT.
All but the first two came within the last hour. DuckDB's extension comes from its package, not over the network.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from pcaplake.spark_jobs.common.lake_tables import table_path
from tests.spark_jobs.drives import DAY, Drive, fill
from tests.worker.lakes import connect
from tests.worker.opened_files import opened

PAGE = Path(__file__).resolve().parents[2] / "docs" / "querying.md"
TEXT = PAGE.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```", TEXT, re.DOTALL)
NETWORK = 'db = duckdb.connect()\ndb.sql("INSTALL delta; LOAD delta")\n'
NEXT, LAST = DAY + datetime.timedelta(days=1), DAY + datetime.timedelta(days=2)
DRIVES = (
    Drive(number=1),
    Drive(number=2, vehicle="v2"),
    Drive(number=3, day=NEXT),
    Drive(number=4, vehicle="v2", hour=15),
    Drive(number=5, vehicle="v3"),
    Drive(number=6, vehicle="v2", day=NEXT),
    Drive(number=7, vehicle="v3", day=NEXT),
    Drive(number=8, day=LAST),
    Drive(number=9, vehicle="v3", day=LAST),
)
Row = dict[str, Any]
MIDNIGHT, DAY_NS = 1790035200000000000, 86400 * 10**9  # of NEXT

# the conditions of the page: the rows that match, and what they are in Polars
day, ts, ts_ns, vehicle, can_id = (pl.col(name) for name in ("date", "ts", "ts_ns", "vehicle_id", "can_id"))
CONDITIONS: dict[str, tuple[Callable[[Row], bool], pl.Expr]] = {
    "date = '2026-09-22'": (lambda row: row["date"] == NEXT, day == NEXT),
    "date BETWEEN '2026-09-21' AND '2026-09-22'": (lambda row: row["date"] in (DAY, NEXT), day.is_between(DAY, NEXT)),
    "date IN ('2026-09-21', '2026-09-23')": (lambda row: row["date"] in (DAY, LAST), day.is_in([DAY, LAST])),
    "extract(day FROM date) = 22": (lambda row: row["date"].day == 22, day.dt.day() == 22),
    "CAST(ts AS DATE) = '2026-09-22'": (lambda row: row["ts"].date() == NEXT, ts.dt.date() == NEXT),
    "ts >= '2026-09-22' AND ts < '2026-09-23'": (
        lambda row: row["ts"].date() == NEXT,
        (ts >= datetime.datetime(2026, 9, 22, tzinfo=datetime.UTC))
        & (ts < datetime.datetime(2026, 9, 23, tzinfo=datetime.UTC)),
    ),
    f"ts_ns >= {MIDNIGHT} AND ts_ns < {MIDNIGHT + DAY_NS}": (
        lambda row: MIDNIGHT <= row["ts_ns"] < MIDNIGHT + DAY_NS,
        (ts_ns >= MIDNIGHT) & (ts_ns < MIDNIGHT + DAY_NS),
    ),
    "vehicle_id = 'v1'": (lambda row: row["vehicle_id"] == "v1", vehicle == "v1"),
    "vehicle_id BETWEEN 'v1' AND 'v2'": (
        lambda row: row["vehicle_id"] != "v3",
        vehicle.is_between(pl.lit("v1"), pl.lit("v2")),
    ),
    "vehicle_id IN ('v1', 'v3')": (lambda row: row["vehicle_id"] in ("v1", "v3"), vehicle.is_in(["v1", "v3"])),
    "vehicle_id LIKE 'v1%'": (lambda row: row["vehicle_id"] == "v1", vehicle.str.starts_with("v1")),
    "lower(vehicle_id) = 'v1'": (lambda row: row["vehicle_id"] == "v1", vehicle.str.to_lowercase() == "v1"),
    "can_id = 291": (lambda row: row["can_id"] == 291, can_id == 291),
    "error = true": (lambda row: row["error"], pl.col("error") == True),  # noqa: E712
    "date = '2026-09-21' AND vehicle_id = 'v2' AND can_id = 258": (
        lambda row: (row["date"], row["vehicle_id"], row["can_id"]) == (DAY, "v2", 258),
        (day == DAY) & (vehicle == "v2") & (can_id == 258),
    ),
}
# what else the page says of DuckDB, and the files that it opens
DUCKDB = {
    "SELECT count(payload) FROM f WHERE vehicle_id IN ('v1', 'v2') AND vehicle_id BETWEEN 'v1' AND 'v2'": 6,
    "SELECT count(payload) FROM f WHERE vehicle_id = 'v1' OR vehicle_id = 'v2'": 9,
    "SELECT count(payload) FROM f WHERE ts_ns < epoch_ns(TIMESTAMP '2026-09-22 08:00:00')": 4,
    "SELECT count(payload) FROM f WHERE date = DATE '2026-09-23' - 1": 3,
    "SELECT count(payload) FROM f WHERE date = DATE '2026-09-23' - INTERVAL 1 day": 9,
    "SELECT sum(n) FROM (SELECT *, count(*) OVER (PARTITION BY bus) AS n FROM f) WHERE date = '2026-09-22'": 9,
    "SELECT sum(n) FROM (SELECT *, count(*) OVER (PARTITION BY bus) AS n FROM f WHERE date = '2026-09-22')": 3,
    "SELECT count(payload) FROM f WHERE capture_id IN (SELECT capture_id FROM c WHERE uri = 's3://raw/v1/1.pcap')": 1,
    "SELECT count(*) FROM f": 9,
    "SELECT max(date) FROM f": 9,
    "SELECT max(ts) FROM f": 9,
}


@pytest.fixture
def filled(lake: str) -> str:
    for drive in DRIVES:
        fill(lake, [drive])
    return lake


@pytest.fixture
def namespace(spark: Any, filled: str, tmp_path: Path) -> dict[str, Any]:
    log = Path(filled) / "can_frames" / "_delta_log"
    for version in range(3):  # time travel goes by the times of the log's files
        at = time.time() - 2 * 3600 + 60 * version
        os.utime(log / f"{version:020d}.json", (at, at))
    return {
        "__name__": "__main__",
        "spark": spark,
        "LAKE": filled,
        "CHECKPOINT": str(tmp_path / "checkpoint"),
        "connect_duckdb": connect,
    }


def rows(name: str = "can_frames", **wanted: Any) -> Iterator[Row]:
    """Of all drives, in which these columns have these values."""
    for drive in DRIVES:
        for row in drive.tables()[name].to_pylist():
            if all(row[column] == value for column, value in wanted.items()):
                yield row


def cells(shown: str) -> list[list[str]]:
    """Of a table that Spark printed."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in shown.splitlines() if line[:1] == "|"][1:]


def ids_of_a_day() -> list[list[str]]:
    counts = Counter((row["bus"], f"{row['can_id']:X}") for row in rows(date=DAY, vehicle_id="v1"))
    return [[bus, number, str(count)] for (bus, number), count in sorted(counts.items())[:3]]


def captures_of_a_day() -> list[list[str]]:
    found = []
    for drive in DRIVES:
        times = [row["ts"] for row in rows(date=NEXT, capture_id=drive.capture_id)]
        if times:
            first = f"{min(times):%Y-%m-%d %H:%M:%S.%f}".rstrip("0")
            found.append([str(drive.vehicle), drive.uri, str(len(times)), first])
    return sorted(found)


def spans() -> list[tuple[Any, ...]]:
    times: dict[tuple[str, int], list[int]] = {}
    for row in rows(date=DAY, vehicle_id="v2"):
        if 257 <= row["can_id"] <= 258:
            times.setdefault((row["bus"], row["can_id"]), []).append(row["ts_ns"])
    return [(*key, len(some), max(some) - min(some)) for key, some in sorted(times.items())]


def vehicles_of_a_day() -> list[tuple[Any, ...]]:
    ids: dict[str, list[Any]] = {}
    for row in rows(date=NEXT):
        ids.setdefault(row["vehicle_id"], []).append((row["bus"], row["can_id"]))
    return [(name, len(some), len(set(some))) for name, some in sorted(ids.items())]


def first_payload() -> str:
    found = sorted(rows(date=NEXT, vehicle_id="v1"), key=lambda row: row["ts_ns"])
    return f"{len(found)} {found[0]['payload'].hex()}"


# how the first examples print what a loop over the rows finds, the files that they open, and the loop
LOOPS: tuple[tuple[Callable[[str], Any], int, Callable[[], Any]], ...] = (
    (eval, 3, lambda: [(name, frames) for name, frames, _ in vehicles_of_a_day()]),
    (cells, 1, ids_of_a_day),
    (cells, 3, captures_of_a_day),
    (int, len(DRIVES), lambda: len(list(rows()))),
    (eval, 2, spans),
    (eval, 3, vehicles_of_a_day),
    (str.strip, 1, first_payload),
    (str.strip, 1, lambda: f"{len(list(rows(date=NEXT, vehicle_id='v1')))} 1"),
)


def test_every_example_is_run() -> None:
    assert len(EXAMPLES) == TEXT.count("```python") == 14
    assert sum(NETWORK in code for code, _ in EXAMPLES) == 1


def test_they_print_what_stands_there(namespace: dict[str, Any]) -> None:
    for number, (code, printed) in enumerate(EXAMPLES):
        out = io.StringIO()
        with opened(Path(namespace["LAKE"]) / "can_frames") as files, contextlib.redirect_stdout(out):
            exec(compile(code.replace(NETWORK, "db = connect_duckdb()\n"), str(PAGE), "exec"), namespace)
        assert out.getvalue() == printed, code
        if number < len(LOOPS):
            parse, count, loop = LOOPS[number]
            assert parse(printed) == loop(), code
            assert len(files) == count, code
    namespace["db"].close()
    namespace["lake"].close()


def test_readers_open_as_many_files_as_the_page_says(spark: Any, filled: str) -> None:
    path = f"{filled}/can_frames"
    table, frames = DeltaTable(path), spark.read.format("delta").load(path)
    with contextlib.closing(connect()) as db:
        db.execute("SET TimeZone = 'UTC'")
        db.register("dataset", table.to_pyarrow_dataset())
        db.execute(f"CREATE TEMP VIEW f AS SELECT * FROM delta_scan('{path}')")
        db.execute(f"CREATE TEMP VIEW c AS SELECT * FROM delta_scan('{filled}/captures')")

        def ask_duckdb(query: str) -> Any:
            row = db.execute(query).fetchone()
            assert row is not None
            return row[0]

        def ask_datafusion(query: str) -> Any:
            """By a new session: one that has read the footers of files also skips files by them."""
            return pa.table(QueryBuilder().register("f", table).execute(query).read_all())["n"][0].as_py()

        def count_in_pruned_files(condition: str) -> int | None:
            """The rows of the files that are left; None if it is refused."""
            try:
                dataset = table.to_pyarrow_dataset(file_pruning_predicate=condition)
            except DeltaError:
                return None
            return sum(CONDITIONS[condition][0](row) for row in dataset.to_table().to_pylist())

        readers: dict[str, Callable[[str], int | None]] = {
            "DuckDB `delta_scan`": lambda condition: ask_duckdb(f"SELECT count(payload) FROM f WHERE {condition}"),
            "DuckDB over a dataset": lambda condition: ask_duckdb(
                f"SELECT count(payload) FROM dataset WHERE {condition}"
            ),
            "Polars": lambda condition: (
                pl.scan_delta(path).filter(CONDITIONS[condition][1]).select(pl.col("payload").count()).collect().item()
            ),
            "`file_pruning_predicate`": count_in_pruned_files,
            "`QueryBuilder`": lambda condition: ask_datafusion(f"SELECT count(payload) AS n FROM f WHERE {condition}"),
            "Spark": lambda condition: frames.where(condition).selectExpr("count(payload)").first()[0],
        }
        shown = [line.strip("|").split(" | ") for line in TEXT.splitlines() if line.startswith("| `")]
        found = re.search(r"^\| condition \| rows \| (.*) \|$", TEXT, re.MULTILINE)
        assert found is not None
        assert found[1].split(" | ") == list(readers)
        lines = {line[0].strip(" `"): [cell.strip() for cell in line[1:]] for line in shown if len(line) == 8}
        assert set(lines) == set(CONDITIONS)
        for condition, (expected, *cells_shown) in lines.items():
            matching = sum(CONDITIONS[condition][0](row) for row in rows())
            assert matching == int(expected), condition
            for (reader, ask), cell in zip(readers.items(), cells_shown, strict=True):
                with opened(Path(path)) as files:
                    answer = ask(condition)
                assert (cell == "refused") == (answer is None), (condition, reader)
                assert answer in (None, matching), (condition, reader)
                assert len(files) == (0 if answer is None else int(cell)), (condition, reader)
        for query, count in DUCKDB.items():
            with opened(Path(path)) as files:
                ask_duckdb(query)
            assert len(files) == count, query
        with opened(Path(path)) as files:
            assert ask_datafusion("SELECT count(*) AS n FROM f") == table.count() == frames.count() == len(list(rows()))
        assert not files
        with opened(Path(path)) as files:
            pl.read_delta(path).filter(day == NEXT)
        assert len(files) == len(DRIVES)


def test_spark_spells_the_lake_like_this(lake: str) -> None:
    assert table_path("s3://bucket/drives", "can_frames").startswith("s3a://")
