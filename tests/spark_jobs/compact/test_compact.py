"""Compaction: which partitions, what becomes of rows, files and the log, and what a Z-order is good for."""

from __future__ import annotations

import datetime
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from pcaplake.common.errors import Fatal
from pcaplake.lake.store.store import Store
from pcaplake.spark_jobs.__main__ import build_command_line
from pcaplake.spark_jobs.common import job
from pcaplake.spark_jobs.common.lake_tables import read_table, table_path
from pcaplake.spark_jobs.common.maintenance import CLEAN_UP, read_snapshot
from pcaplake.spark_jobs.compact import job as compact
from pcaplake.spark_jobs.compact.job import run
from pcaplake.spark_jobs.compact.plan import (
    CompactOptions,
    Partition,
    choose_partitions,
    partition_predicate,
    summarize_partitions,
)
from pcaplake.worker.config.settings import WrongSetting
from tests.spark_jobs.conftest import Site
from tests.spark_jobs.drives import DAY, Drive, fill, fill_fleet
from tests.spark_jobs.tables import files_read

KB = 1024
WEEK = 7 * 86_400


def partition(
    day: int, *, table: str = "t", files: int = 20, size: int = 20 * KB, small: int | None = None
) -> Partition:
    few = files if small is None else small
    return Partition(
        table=table,
        values=(("date", DAY + datetime.timedelta(days=day)),),
        files=files,
        bytes=size,
        small_files=few,
        small_bytes=size * few // max(files, 1),
        newest=day,
    )


class TestPlan:
    def test_newest_first(self) -> None:
        found = choose_partitions([partition(1), partition(3), partition(2)], CompactOptions())
        assert [one.newest for one in found.chosen] == [3, 2, 1]

    def test_only_what_has_gathered_enough(self) -> None:
        assert choose_partitions(
            [partition(1, small=9), partition(2, small=10)], CompactOptions(min_files=10)
        ).chosen == (partition(2, small=10),)

    def test_a_budget_passes_over_what_is_too_large_for_it(self) -> None:
        large, middle, small = partition(9, files=60), partition(8, files=100), partition(7, files=30)
        found = choose_partitions([small, large, middle, partition(6, files=300)], CompactOptions(max_files=100))
        assert found.chosen == (large, small)
        assert found.left == (middle,)
        assert [one.files for one in found.never] == [300]

    def test_a_zorder_costs_the_whole_partition(self) -> None:
        one = partition(1, files=40, small=10)
        assert choose_partitions([one], CompactOptions(max_files=10)).chosen == (one,)
        assert choose_partitions([one], CompactOptions(max_files=10, zorder={"t": ("x",)})).never == (one,)

    def test_only_partitions_that_were_named(self) -> None:
        wanted = {"date": ("2026-09-22", "2026-09-24")}
        found = choose_partitions([partition(1), partition(2), partition(3)], CompactOptions(partitions=wanted))
        assert [one.newest for one in found.chosen] == [3, 1]

    @given(
        st.lists(
            st.builds(
                partition,
                st.integers(0, 30),
                files=st.integers(0, 50),
                size=st.integers(0, 1 << 20),
                small=st.integers(0, 50),
            )
        ),
        st.none() | st.integers(0, 200),
        st.none() | st.integers(0, 1 << 21),
    )
    def test_everything_due_is_somewhere_and_the_budget_is_kept(
        self, found: list[Partition], files: int | None, size: int | None
    ) -> None:
        made = choose_partitions(found, CompactOptions(max_files=files, max_bytes=size))
        due = [one for one in found if one.small_files >= 10]
        assert sorted((*made.chosen, *made.left, *made.never), key=repr) == sorted(due, key=repr)
        assert files is None or sum(one.small_files for one in made.chosen) <= files
        assert size is None or sum(one.small_bytes for one in made.chosen) <= size
        assert [one.partition_date for one in made.chosen] == sorted(
            (one.partition_date for one in made.chosen), reverse=True
        )

    @pytest.mark.parametrize(
        "wrong", [{"min_files": 1}, {"target_file_size": 1 << 15}, {"small_file": 0}, {"small_file": 129 << 20}]
    )
    def test_what_can_do_no_good_is_refused(self, wrong: dict[str, int]) -> None:
        with pytest.raises(ValueError, match="--" + next(iter(wrong)).replace("_", "-")):
            CompactOptions(**wrong)  # type: ignore[arg-type]

    def test_a_type_without_a_literal_is_refused(self) -> None:
        with pytest.raises(Fatal, match="bytes"):
            partition_predicate([("x", b"")])  # type: ignore[list-item]


@pytest.mark.parametrize("value", ["o'brien", "a\\b", "\\'", "%_", "${x}", "ü\n\t", "`", "--", "'' OR 1=1"])
def test_a_partition_is_named_as_it_is(spark: Any, value: str) -> None:
    frame = spark.createDataFrame([(value,), ("other",), (None,)], "`we``ird` string")
    assert [row[0] for row in frame.where(partition_predicate([("we`ird", value)]) or "").collect()] == [value]
    assert frame.where(partition_predicate([("we`ird", None)]) or "").count() == 1


def rows(lake: str | Path, table: str) -> list[dict[str, Any]]:
    found = DeltaTable(f"{lake}/{table}").to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: (row["capture_id"], row.get("packet_no", 0)))


def counted(lake: str | Path, table: str) -> dict[str, int]:
    """Files by day."""
    found: dict[str, int] = {}
    for add in pa.table(DeltaTable(f"{lake}/{table}").get_add_actions(flatten=True)).to_pylist():
        found[str(add["partition.date"])] = found.get(str(add["partition.date"]), 0) + 1
    return found


def txn(lake: str | Path, table: str) -> int:
    return int(DeltaTable(f"{lake}/{table}").transaction_version("pcaplake"))


def drives(count: int, *, first: int = 0, days: int = 2) -> list[Drive]:
    return [Drive(number=no, day=DAY + datetime.timedelta(days=no % days)) for no in range(first, first + count)]


@pytest.mark.slow
def test_few_files_with_the_same_rows(spark: Any, lake: str) -> None:
    fill(lake, [*drives(8), Drive(number=90, day=None)])
    before, batch = rows(lake, "can_frames"), txn(lake, "can_frames")
    asked = spark.conf.get("spark.sql.parquet.compression.codec")
    told: list[str] = []
    report = run(spark, lake, CompactOptions(tables=("can_frames",), min_files=4), say=told.append)
    assert [(one.partition, one.files_before, one.files_after) for one in report.partitions] == [
        ("date=2026-09-22", 4, 1),
        ("date=2026-09-21", 4, 1),
    ]
    assert report.left == 0
    assert told[0].startswith("1/2 can_frames date=2026-09-22: 4 of 4 files")
    assert counted(lake, "can_frames") == {"2026-09-21": 1, "2026-09-22": 1, "None": 1}
    table = read_snapshot(Store.open(lake), "can_frames")
    assert table is not None
    assert sum(one.bytes_after for one in report.partitions) + 0 < table.total_bytes  # the third is the day of none
    assert rows(lake, "can_frames") == before
    assert txn(lake, "can_frames") == batch
    made = next(uri for uri in DeltaTable(f"{lake}/can_frames").file_uris() if "part-" in uri)
    metadata = pq.read_metadata(made)
    assert metadata.row_group(0).column(0).compression == "ZSTD"
    assert {str(metadata.schema.column(i).physical_type) for i in range(metadata.num_columns)} & {"INT96"} == set()
    assert spark.conf.get("spark.sql.parquet.compression.codec") == asked
    # the ledger knows what is in: nothing comes twice, new ones come
    fill(lake, [*drives(8), Drive(number=91)])
    assert len(rows(lake, "can_frames")) == len(before) + 20
    assert run(spark, lake, CompactOptions(tables=("can_frames",), min_files=4)).partitions == ()


def test_a_dry_run_and_budgets(spark: Any, lake: str) -> None:
    fill(lake, drives(6, days=3))
    version = DeltaTable(f"{lake}/packets").version()
    dry = run(spark, lake, CompactOptions(tables=("packets",), min_files=2, dry_run=True))
    assert (dry.dry_run, len(dry.partitions), dry.files_before, dry.files_after) == (True, 3, 6, 6)
    assert DeltaTable(f"{lake}/packets").version() == version
    late = run(spark, lake, CompactOptions(tables=("packets",), min_files=2, max_seconds=0.0))
    assert (late.partitions, late.left) == ((), 3)
    one = run(spark, lake, CompactOptions(tables=("packets",), min_files=2, max_files=2))
    assert ([each.partition for each in one.partitions], one.left) == (["date=2026-09-23"], 2)
    named = run(spark, lake, CompactOptions(tables=("packets",), min_files=2, partitions={"date": ("2026-09-21",)}))
    assert [each.partition for each in named.partitions] == ["date=2026-09-21"]
    assert counted(lake, "packets") == {"2026-09-21": 1, "2026-09-22": 2, "2026-09-23": 1}
    with pytest.raises(Fatal, match="no table colours"):
        run(spark, lake, CompactOptions(tables=("colours",)))


def test_partitions_of_another_kind(spark: Any, lake: str) -> None:
    names = ["o'brien\\", None]
    fill(lake, [Drive(number=no, vehicle=names[no % 2]) for no in range(4)], partition_columns=("vehicle_id", "date"))
    before = rows(lake, "can_frames")
    report = run(spark, lake, CompactOptions(tables=("can_frames",), min_files=2))
    assert sorted((one.partition, one.files_after) for one in report.partitions) == [
        ("vehicle_id=/date=2026-09-21", 1),
        ("vehicle_id=o'brien\\/date=2026-09-21", 1),
    ]
    assert rows(lake, "can_frames") == before


def test_a_zorder_leaves_out_the_columns_of_the_partitions(spark: Any, lake: str) -> None:
    fill(lake, [Drive(number=no) for no in range(4)], partition_columns=("date", "vehicle_id"))
    before = rows(lake, "can_frames")
    tables = ("can_frames", "packets")
    zorder = compact._parse_zorder(["ids", "packets=vehicle_id,date"], tables)
    options = CompactOptions(tables=tables, min_files=2, zorder=zorder)
    assert {one.files_after for one in run(spark, lake, options).partitions} == {1}
    last = {name: DeltaTable(f"{lake}/{name}").history(1)[0]["operationParameters"] for name in options.tables}
    assert last["can_frames"]["zOrderBy"] == '["can_id","ts"]'
    assert last["packets"]["zOrderBy"] == "[]"
    assert rows(lake, "can_frames") == before


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            {"zorder": {"can_frame": ("can_id",)}},
            r"--zorder: table can_frame does not exist; the tables are .*can_frames",
        ),
        ({"zorder": {"can_frames": ("nope",)}}, r"--zorder: can_frames has no column nope; it has .*can_id"),
        (
            {"zorder": {"packets": ("vehicle_id",)}, "tables": ("can_frames",)},
            r"--zorder: packets is not compacted in this run; --table names can_frames; add --table packets",
        ),
        (
            {"partitions": {"dat": ("2026-09-21",)}},
            r"--partition: no table is partitioned by dat; partition columns: date",
        ),
    ],
)
def test_names_that_no_table_has_are_refused(lake: str, wrong: dict[str, Any], said: str) -> None:
    fill(lake, [Drive(number=1)])
    with pytest.raises(WrongSetting, match=said):
        run(None, lake, CompactOptions(min_files=2, **wrong))


def test_a_known_table_that_has_not_come_yet_is_no_mistake(lake: str) -> None:
    fill(lake, [Drive(number=1)])
    assert run(None, lake, CompactOptions(zorder=compact.BY_IDS)).partitions == ()


def test_a_mistyped_lake_is_refused(lake: str) -> None:
    with pytest.raises(Fatal, match="is not a lake: it has no tables; name a lake that workers have written"):
        run(None, lake, CompactOptions())


@pytest.mark.parametrize("option", ["--target-file-size", "--small-file", "--max-bytes"])
def test_what_is_no_size_names_its_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lake: str, option: str
) -> None:
    monkeypatch.setattr(job.session, "open_session", lambda **given: None)
    assert job.run(build_command_line(["compact"]), ["compact", "--lake", lake, option, "abc"]) == job.USAGE
    assert f"'{option}': 'abc' is not a size" in capsys.readouterr().err


def test_who_compacts_the_same_files_is_told(spark: Any, lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from delta.exceptions import ConcurrentDeleteReadException

    fill(lake, drives(4))
    real = compact._optimize_partition
    failing = iter([True, False])

    def optimize(*given: Any) -> Any:
        if next(failing):
            raise ConcurrentDeleteReadException("a file\nwas deleted")
        return real(*given)

    monkeypatch.setattr(compact, "_optimize_partition", optimize)
    report = run(spark, lake, CompactOptions(tables=("can_frames",), min_files=2))
    first, second = report.partitions
    assert first.problem is not None
    assert "a file" in first.problem
    assert (first.files_after, second.files_after, second.problem) == (2, 1, None)


def test_an_interrupt_says_what_was_done(spark: Any, lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(lake, drives(4))
    real, told = compact._optimize_partition, list[str]()

    def optimize(*given: Any) -> Any:
        if len(told) > 2:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(compact, "_optimize_partition", optimize)
    with pytest.raises(KeyboardInterrupt):
        run(spark, lake, CompactOptions(tables=("can_frames",), min_files=2), say=told.append)
    assert told[-1] == "compacted 1 partition"
    assert counted(lake, "can_frames") == {"2026-09-21": 2, "2026-09-22": 1}


@pytest.mark.slow
def test_sigterm_ends_it_and_the_next_run_goes_on(spark: Any, lake: str, tmp_path: Path) -> None:
    fill(lake, drives(8, days=4))
    before = rows(lake, "can_frames")
    command = [
        sys.executable,
        "-m",
        "pcaplake.spark_jobs",
        "compact",
        "--lake",
        lake,
        "--table",
        "can_frames",
        "--min-files",
        "2",
    ]
    root, pipe = Path(__file__).parents[3], subprocess.PIPE
    with subprocess.Popen(command, cwd=root, stderr=pipe, stdout=pipe, text=True) as process:
        assert process.stderr is not None
        told = []
        for line in process.stderr:
            # once: Python writes a line again whose writing was interrupted, and a second SIGTERM ends it at once
            if line.startswith("compact: 1/4 ") and line not in told:
                process.send_signal(signal.SIGTERM)
            told.append(line)
        out = process.stdout.read() if process.stdout else ""
    assert process.returncode == 130, told
    assert any("compacted " in line and "partition" in line for line in told)
    assert out == ""
    assert rows(lake, "can_frames") == before
    run(spark, lake, CompactOptions(tables=("can_frames",), min_files=2))
    assert set(counted(lake, "can_frames").values()) == {1}
    assert rows(lake, "can_frames") == before


@pytest.mark.slow
def test_spark_leaves_the_log_to_the_committer(spark: Any, lake: str) -> None:
    """N.json are old enough for clean-up, and each version that Spark makes comes with a checkpoint.

    The tables say that every writer may clean up, as others may have made them.
    """
    others = {CLEAN_UP: "true", "delta.checkpointInterval": "1"}
    fill(lake, drives(2, days=1), table_properties=others)
    fill(lake, drives(4, days=1), table_properties=others)

    def versions(table: str) -> set[str]:
        return {path.name for path in (Path(lake) / table / "_delta_log").glob("*.json")}

    long_ago = time.time() - 5 * WEEK
    for path in Path(lake).glob("*/_delta_log/*.json"):
        os.utime(path, (long_ago, long_ago))
    before = {table: versions(table) for table in ("can_frames", "packets")}
    run(spark, lake, CompactOptions(tables=("can_frames",), min_files=2))
    assert before["can_frames"] < versions("can_frames")
    assert list((Path(lake) / "can_frames" / "_delta_log").glob("*.checkpoint.parquet")), "so this proves nothing"
    assert DeltaTable(f"{lake}/can_frames").metadata().configuration[CLEAN_UP] == "false"
    # Spark as it is: what this is about
    spark.sql(f"OPTIMIZE delta.`{table_path(lake, 'packets')}`").collect()
    assert not before["packets"] <= versions("packets")


@pytest.mark.slow
def test_a_zorder_lets_a_query_of_one_vehicle_and_one_id_read_few_files(spark: Any, lake: str) -> None:
    """Each file holds one vehicle with all of its ids; put together in any order, a file holds some vehicles and all ids;
    in Z-order it holds some vehicles and some ids."""
    fill(lake, [Drive(number=no, vehicle=f"v{no % 8}", packets=1_000, payload=64) for no in range(24)])
    copy = shutil.copytree(lake, f"{lake}-copy")

    def query(of: str | Path, where: str) -> Any:
        return read_table(spark, str(of), "can_frames").where(where).select("payload")

    one, by_id = "vehicle_id = 'v3' AND can_id = 263", "can_id = 263"
    assert files_read(query(lake, "true")) == 24
    assert files_read(query(lake, one)) == 3, "the statistics of our own files tell the vehicles apart"
    assert files_read(query(lake, by_id)) == 24
    expected = sorted(bytes(row[0]) for row in query(lake, one).collect())

    options = CompactOptions(tables=("can_frames",), min_files=2, target_file_size=192 * KB, small_file=192 * KB)
    plain = run(spark, str(copy), options)
    ordered = run(spark, lake, replace(options, zorder={"can_frames": ("vehicle_id", "can_id")}))
    assert 6 <= ordered.files_after <= plain.files_after * 1.5
    assert files_read(query(copy, by_id)) == plain.files_after
    assert files_read(query(lake, by_id)) <= ordered.files_after / 2
    assert files_read(query(lake, one)) < files_read(query(copy, one))
    for place in (lake, copy):
        assert sorted(bytes(row[0]) for row in query(place, one).collect()) == expected


@pytest.mark.slow
def test_on_s3_under_the_lock_table(spark: Any, site: Site) -> None:
    lake, settings_ = site.lake(), site.settings()
    fill_fleet(lake, settings_, drives(6, days=1))
    storage = settings_.storage_option
    before = sorted(
        tuple(row) for row in read_table(spark, lake, "can_frames").select("capture_id", "packet_no").collect()
    )
    report = run(spark, lake, CompactOptions(tables=("can_frames", "packets"), min_files=4), storage=storage)
    assert [(one.table, one.files_before, one.files_after) for one in report.partitions] == [
        ("can_frames", 6, 1),
        ("packets", 6, 1),
    ]
    fill_fleet(lake, settings_, drives(8, days=1))
    after = sorted(
        tuple(row) for row in read_table(spark, lake, "can_frames").select("capture_id", "packet_no").collect()
    )
    assert len(after) == len(set(after)) == len(before) + 40
    scan = site.aws.client("dynamodb").scan(TableName=site.locks)["Items"]
    of_lake = [item for item in scan if item["tablePath"]["S"].startswith(f"s3a://{lake.partition('://')[2]}/")]
    assert of_lake
    assert {item["complete"]["S"] for item in of_lake} == {"true"}


def test_partitions_of_a_table_are_counted(lake: str) -> None:
    fill(lake, drives(3))
    table = read_snapshot(Store.open(lake), "packets")
    assert table is not None
    found = sorted(summarize_partitions(table, 1 << 20), key=lambda one: one.partition_date)
    assert [(one.partition_path, one.files, one.small_files) for one in found] == [
        ("date=2026-09-21", 2, 2),
        ("date=2026-09-22", 1, 1),
    ]
    assert sum(one.bytes for one in found) == table.total_bytes
    assert [one.small_files for one in summarize_partitions(table, 1)] == [0, 0]
    assert read_snapshot(Store.open(lake), "colours") is None
