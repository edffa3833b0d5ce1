"""The format `pcap`: its rows are the worker's, filters change no answer, streams lose and double nothing."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import EqualNullSafe, EqualTo, GreaterThan, In, IsNotNull, IsNull, LessThan, Not

from pcaplake.ingest.captures.reference import ObjectRef
from pcaplake.parser.schemas import TABLES
from pcaplake.spark_jobs.pcap.filters import filter_batch, split_pushed_filters
from pcaplake.spark_jobs.pcap.options import READABLE, PcapOptions
from pcaplake.spark_jobs.pcap.source import PUSHDOWN, balance_partitions, decode, register
from pcaplake.spark_jobs.pcap.stream import Offset, captures_of_batch, list_captures_so_far, take_within_limits
from pcaplake.spark_jobs.pcap.types import table_spark_schema
from pcaplake.worker import sample
from tests.oracles import captures as real
from tests.parser import captures
from tests.worker import lakes
from tests.worker.fleets import can_capture

OF_THE_RUN = {"captures": ("ingested_at",), "quarantine": ("first_seen",)}  # when they were read, twice


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """Captures, and the lake that the worker made of them."""

    names: list[str]
    profile: str
    lake: Path
    rows: dict[str, int]


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Ingested:
    """A short drive, a broken file and, where they are, the real captures."""
    root = tmp_path_factory.mktemp("drive")
    *_, profile = sample.write_sample_captures(root / "drive", "drive", 0.1, seed=5)
    profile = profile.rename(root / "profile.yaml")
    (root / "drive" / "notes.txt").write_text("no capture, and nobody named it")
    broken = root / "broken.pcap"
    broken.write_bytes(b"this was named, and is none")
    names = [root / "drive", broken, *([real.FOLDER] if real.paths() else [])]
    code, result = lakes.ingest(names, root / "lake", root / "log", profile=str(profile))
    assert code == 1, (root / "log").read_text()
    return Ingested(names=[str(one) for one in names], profile=str(profile), lake=root / "lake", rows=result["rows"])


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    """With settings of its own, in the one JVM."""
    own = spark.newSession()
    register(own)
    return own


def read(session: SparkSession, ingested: Ingested, table: str, **options: str) -> Any:
    reader = session.read.format("pcap").option("table", table).option("profile", ingested.profile)
    return reader.options(**options).load(ingested.names)


def by_key(rows: pa.Table, table: str) -> list[dict[str, Any]]:
    kept = rows.drop_columns([name for name in OF_THE_RUN.get(table, ()) if name in rows.schema.names])
    return sorted(kept.to_pylist(), key=lambda row: tuple(str(row[name]) for name in TABLES[table].key))


@pytest.mark.slow
@pytest.mark.parametrize("table", READABLE)
def test_rows_are_the_workers(session: SparkSession, ingested: Ingested, table: str) -> None:
    theirs = DeltaTable(str(ingested.lake / table)).to_pyarrow_table()
    ours = read(session, ingested, table).toArrow()
    assert ours.num_rows == ingested.rows[table]
    assert ours.schema.names == TABLES[table].columns
    assert by_key(ours, table) == by_key(theirs, table)


@pytest.mark.parametrize("table", READABLE)
def test_schema_is_the_lakes(session: SparkSession, ingested: Ingested, table: str) -> None:
    lake = session.read.format("delta").load(f"file://{ingested.lake / table}")
    assert table_spark_schema(table) == lake.schema
    assert read(session, ingested, table).schema == lake.schema


FILTERS = [
    "can_id = 256",
    "can_id in (256, 257, 1280) and bus is not null",
    "not (can_id = 256)",
    "can_id > 500 and can_id <= 1300",
    "ts >= timestamp'2020-01-01 00:00:00Z' and extended = false",
    "date = date'1970-01-01'",
    "interface like 'c%' or can_id = 1",
    "interface = 'nobody'",
    "esi is null and dlc < 8",
    "vehicle_id = 'vehicle-001'",
    "vehicle_id <=> null",
    "source != 'socketcan'",
    "length(payload) > 4 and rtr",
]


@pytest.mark.slow
def test_filters_change_no_answer(session: SparkSession, ingested: Ingested) -> None:
    """One pass: counts of what every filter leaves, and of what the source leaves to Spark of them."""
    plain = read(session, ingested, "can_frames", pushdown="false").cache()
    try:
        middle = plain.agg(f.percentile_approx("ts_ns", 0.5)).first()[0]
        times = [f"ts_ns >= {middle}", f"ts_ns < {middle}", f"ts > timestamp_micros({middle // 1000})"]
        for text in [*FILTERS, *times]:
            pushing = read(session, ingested, "can_frames").where(text)
            summed = [f.count("*"), f.sum("packet_no"), f.sum("sub_no"), f.sum("can_id"), f.min("ts"), f.max("ts_ns")]
            assert pushing.agg(*summed).first() == plain.where(text).agg(*summed).first(), text
    finally:
        plain.unpersist()


def test_filters_are_taken(session: SparkSession, ingested: Ingested) -> None:
    wanted = read(session, ingested, "can_frames").where("can_id = 256 and length(payload) = 8")
    plan = wanted._jdf.queryExecution().executedPlan().toString()  # type: ignore[operator, union-attr]
    assert "length(payload" in plan
    assert "can_id" not in plan.partition("Filter")[2].partition("\n")[0]


VALUES = st.one_of(st.none(), st.integers(-3, 3))


@given(st.lists(VALUES, max_size=12), st.integers(-3, 3), st.lists(st.integers(-3, 3), max_size=3))
def test_predicates_are_sql(values: list[int | None], one: int, some: list[int]) -> None:
    """Three-valued logic, as Spark has it; `Not` of each too."""
    column = ("can_id",)
    meanings = [
        (EqualTo(column, one), lambda v: None if v is None else v == one),
        (EqualNullSafe(column, one), lambda v: v == one),
        (GreaterThan(column, one), lambda v: None if v is None else v > one),
        (LessThan(column, one), lambda v: None if v is None else v < one),
        (In(column, tuple(some)), lambda v: None if v is None else v in some),
        (IsNull(column), lambda v: v is None),
        (IsNotNull(column), lambda v: v is not None),
    ]
    batch = pa.record_batch({"can_id": pa.array(values, pa.int64())})
    for each, means in meanings:
        for negated in (False, True):
            here, left = split_pushed_filters([Not(each) if negated else each], "can_frames", ["can_id"])
            assert not left
            wanted = [v for v in values if (said := means(v)) is not None and said != negated]
            assert filter_batch(batch, here)["can_id"].to_pylist() == wanted


def test_what_cannot_be_said_is_left_to_spark() -> None:
    left = [
        In(("can_id",), (1, None)),
        EqualTo(("can_id",), 2**70),
        EqualTo(("can_id", "inner"), 1),
        EqualTo(("elsewhere",), 1),
        EqualTo(("can_id",), "a word"),
    ]
    assert split_pushed_filters(left, "can_frames", ["can_id"]) == ((), left)
    assert split_pushed_filters([EqualTo(("vlan_ids",), [1])], "packets", ["vlan_ids"])[1]


def test_a_capture_of_another_vehicle_is_not_opened(session: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.pcap").write_bytes(can_capture(3))
    (tmp_path / "b.pcap").write_bytes(can_capture(4))
    profile = "vehicle_id: '/(?P<vehicle_id>[^/]+)[.]pcap'\n"
    frames = session.read.format("pcap").options(table="can_frames", profile=profile).load(str(tmp_path))
    assert frames.where("vehicle_id = 'a'").count() == 3
    assert frames.where("vehicle_id = 'a'").rdd.getNumPartitions() == 1
    (tmp_path / "b.pcap").unlink()
    assert frames.where("vehicle_id = 'a'").count() == 3


def test_columns(session: SparkSession, ingested: Ingested) -> None:
    both = read(session, ingested, "can_frames", columns="can_id, ts_ns")
    assert both.columns == ["ts_ns", "can_id"]
    assert both.count() == ingested.rows["can_frames"]
    reader = session.read.format("pcap").option("table", "can_frames").schema("payload binary, can_id long")
    assert reader.load(ingested.names).toArrow().schema.names == ["payload", "can_id"]
    with pytest.raises(Exception, match=r"can_frames.can_id is bigint, not string"):
        session.read.format("pcap").option("table", "can_frames").schema("can_id string").load(ingested.names).count()


def test_raw_bytes(session: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.pcap").write_bytes(can_capture(2))
    packets = session.read.format("pcap").load(str(tmp_path / "a.pcap"))
    assert [row.raw for row in packets.collect()] == [None, None]
    packets = session.read.format("pcap").option("raw", "true").load(str(tmp_path / "a.pcap"))
    assert [len(row.raw) for row in packets.collect()] == [row.captured_len for row in packets.collect()]


def test_modes(session: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.pcap").write_bytes(can_capture(2))
    (tmp_path / "b.pcap").write_bytes(b"none")
    both = [str(tmp_path / "a.pcap"), str(tmp_path / "b.pcap")]

    def outcomes(mode: str, table: str) -> int:
        return int(session.read.format("pcap").options(table=table, mode=mode).load(both).count())

    assert [outcomes("PERMISSIVE", table) for table in ("can_frames", "captures", "quarantine")] == [2, 2, 1]
    assert [outcomes("dropmalformed", table) for table in ("can_frames", "captures", "quarantine")] == [2, 1, 0]
    with pytest.raises(Exception, match=r"b.pcap: not a capture \(unknown_format\)"):
        outcomes("FAILFAST", "can_frames")


def test_wrong_options_say_what_to_write(session: SparkSession, tmp_path: Path) -> None:
    def load(**options: str) -> None:
        session.read.format("pcap").options(**options).load(str(tmp_path))

    with pytest.raises(Exception, match=r"did you mean 'table'"):
        load(tabel="packets")
    with pytest.raises(Exception, match=r"choose from captures, packets"):
        load(table="frames")
    with pytest.raises(Exception, match=r"write PERMISSIVE"):
        load(mode="strict")
    with pytest.raises(Exception, match=r"unknown protocol"):
        load(profile="ports: {udp: {1: nothing}}")
    with pytest.raises(Exception, match=r"nowhere does not exist"):
        session.read.format("pcap").load(str(tmp_path / "nowhere")).count()


def test_pushdown_may_be_off(session: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.pcap").write_bytes(can_capture(2))
    session.conf.set(PUSHDOWN, "false")
    try:
        frames = session.read.format("pcap").options(table="can_frames", pushdown="false").load(str(tmp_path))
        assert frames.where("can_id >= 0").count() == 2
    finally:
        session.conf.set(PUSHDOWN, "true")


# -- object stores -------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_captures_on_s3(session: SparkSession, site: Any) -> None:
    bucket = site.aws.bucket("raw")
    for number in range(3):
        site.aws.client("s3").put_object(Bucket=bucket, Key=f"in/{number} ü+.pcap", Body=can_capture(5, number))
    site.aws.client("s3").put_object(Bucket=bucket, Key="in/readme", Body=b"no capture")
    options = {"table": "can_frames", "storage.allow_http": "true"}
    frames = session.read.format("pcap").options(**options).load(f"s3a://{bucket}/in/")
    assert frames.count() == 15
    named = session.createDataFrame([(f"s3a://{bucket}/in/1 ü+.pcap",)], "uri string")
    again = decode(named, "can_frames", storage={"allow_http": "true"})
    assert again.select("capture_id").distinct().count() == 1
    assert again.join(frames, ["capture_id", "packet_no", "sub_no"], "left_semi").count() == 5


# -- mapInArrow -----------------------------------------------------------------------------------------------------
def test_decode_of_a_dataframe(session: SparkSession, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.pcap").write_bytes(can_capture(4, number))
    held = session.read.format("binaryFile").load(str(tmp_path))
    paths = session.createDataFrame([(str(path),) for path in tmp_path.iterdir()], "path string")
    source = session.read.format("pcap").option("table", "can_frames").load(str(tmp_path))
    expected = by_key(source.toArrow(), "can_frames")
    assert len(expected) == 12
    assert by_key(decode(held, "can_frames").toArrow(), "can_frames") == expected
    assert by_key(decode(paths, "can_frames").toArrow(), "can_frames") == expected
    assert decode(paths, "can_frames", columns=["can_id"]).columns == ["can_id"]
    with pytest.raises(ValueError, match="need a column uri or path"):
        decode(session.range(1), "can_frames")


# -- streams --------------------------------------------------------------------------------------------------------
def frames_of(session: SparkSession, folder: Path, **options: str) -> Any:
    given_ = {"table": "can_frames", "columns": "capture_id, packet_no, can_id", **options}
    return session.readStream.format("pcap").options(**given_).load(str(folder))


def run(session: SparkSession, root: Path, **options: str) -> Any:
    """What is there now, to its end -> the query."""
    query = (
        frames_of(session, root / "in", **options)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(root / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(root / "out"))
    )
    assert query.awaitTermination(120)
    return query


def by_capture(session: SparkSession, root: Path) -> Counter[int]:
    """How many captures have how many rows; a row twice fails."""
    rows = session.read.parquet(str(root / "out"))
    assert rows.count() == rows.distinct().count()
    return Counter(row["count"] for row in rows.groupBy("capture_id").count().collect())


@pytest.mark.slow
def test_a_stream_that_is_started_again_loses_and_doubles_nothing(session: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()

    def put(name: str, frames: int, age: float = 0.0) -> None:
        path = tmp_path / name
        path.write_bytes(can_capture(frames, frames))
        when = dt.datetime.now(dt.UTC).timestamp() - age
        os.utime(path, (when, when))
        path.rename(tmp_path / "in" / name)

    for number in range(4):
        put(f"m{number}.pcap", 10 + number)
    query = run(session, tmp_path, maxFilesPerTrigger="3")
    assert [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]] == [33, 13]
    assert by_capture(session, tmp_path) == Counter({10: 1, 11: 1, 12: 1, 13: 1})

    put("a-late-one.pcap", 20, age=1_000_000.0)  # an older name and a much older time
    put("m9.pcap", 21)
    (tmp_path / "in" / "notes.txt").write_text("no capture")
    shutil.copy(tmp_path / "in" / "m1.pcap", tmp_path / "again.pcap")  # the same content under another name
    (tmp_path / "again.pcap").rename(tmp_path / "in" / "again.pcap")
    run(session, tmp_path)
    expected = Counter({10: 1, 11: 2, 12: 1, 13: 1, 20: 1, 21: 1})
    assert by_capture(session, tmp_path) == expected

    # killed after the batch was planned and before it was known to be done: planned again from what was written down
    put("m10.pcap", 30)
    run(session, tmp_path)
    for folder in ("commits",):
        last = max((tmp_path / "checkpoint" / folder).glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    put("m11.pcap", 31)
    run(session, tmp_path)
    assert by_capture(session, tmp_path) == expected + Counter({30: 1, 31: 1})

    run(session, tmp_path)
    assert by_capture(session, tmp_path) == expected + Counter({30: 1, 31: 1})


def ref(number: int, *, at: float = 1e9, size: int = 10, etag: str | None = None) -> ObjectRef:
    when = dt.datetime.fromtimestamp(at, dt.UTC)
    return ObjectRef(uri=f"file:///{number}.pcap", size=size, explicit=False, etag=etag, event_time=when)


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 2)), max_size=5), max_size=6),
    st.integers(1, 3),
)
def test_offsets_take_every_capture_once(turns: list[list[tuple[int, int]]], most: int) -> None:
    """Whatever appears in whatever order, with restarts in between: each content of each name is in one batch."""
    there: dict[int, ObjectRef] = {}
    seen, wanted, offset = Counter[tuple[str, int]](), set(), Offset()
    for turn in [*turns, *([[]] * 30)]:
        for number, content in turn:
            there[number] = ref(number, at=1e9 - 50 * number, size=content + 1)
        new = take_within_limits(offset.unread_captures(there.values()), max_files=most)
        wanted |= {(one.uri, one.size) for one in new}
        after = Offset.from_json(json.loads(json.dumps(offset.advance_past(new).to_json())))
        assert [*captures_of_batch(offset, after)] == new
        seen.update((one.uri, one.size) for one in new)
        offset = after
    assert set(seen.values()) <= {1}
    assert {(one.uri, one.size) for one in there.values()} <= seen.keys()


def test_marks_that_are_forgotten_are_not_taken_again() -> None:
    first = Offset().advance_past([ref(1, at=1000), ref(2, at=5000)], forget_after=2000)
    assert (len(first.marks), first.horizon) == (1, 3000)
    assert [one.uri for one in first.unread_captures([ref(1, at=1000), ref(2, at=5000), ref(3, at=4000)])] == [
        "file:///3.pcap"
    ]
    later = first.advance_past([ref(3, at=4000)], forget_after=10_000)
    assert later.horizon == 3000, "what was forgotten once is never taken again"


def test_offsets_that_do_not_follow_are_refused() -> None:
    one = Offset().advance_past([ref(1)])
    two = one.advance_past([ref(2)])
    assert not captures_of_batch(one, one)
    with pytest.raises(ValueError, match="has lost offsets"):
        captures_of_batch(Offset(), two)
    with pytest.raises(ValueError, match="another source"):
        Offset.from_json({})


def test_limits_let_one_pass() -> None:
    three = [ref(1, size=10), ref(2, size=10), ref(3, size=1)]
    assert take_within_limits(three, max_bytes=5) == three[:1]
    assert take_within_limits(three, max_bytes=20) == three[:2]
    assert take_within_limits(three) == three


def test_a_folder_must_be_there_and_a_pattern_need_not(tmp_path: Path) -> None:
    given_ = PcapOptions.from_spark_options({"path": str(tmp_path / "*.pcap")})
    assert list_captures_so_far(given_) == []
    with pytest.raises(ValueError, match="does not exist"):
        list_captures_so_far(PcapOptions.from_spark_options({"path": str(tmp_path / "gone")}))
    (tmp_path / "a.pcap").write_bytes(captures.pcap_header(1))
    (tmp_path / "b.txt").write_bytes(b"")
    found = list_captures_so_far(PcapOptions.from_spark_options({"path": str(tmp_path), "pathGlobFilter": "*.pcap"}))
    assert [one.uri for one in found] == [f"file://{tmp_path / 'a.pcap'}"]


# -- parts -----------------------------------------------------------------------------------------------------------
@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 60))
def test_parts_are_balanced(sizes: list[int], most: int) -> None:
    refs = [ref(number, size=size) for number, size in enumerate(sizes)]
    parts = balance_partitions(refs, most)
    assert sorted(one.uri for part in parts for one in part) == sorted(one.uri for one in refs)
    weights = [sum(max(one.size, 1) for one in part) for part in parts]
    assert all(weight <= most or len(part) == 1 for weight, part in zip(weights, parts, strict=True))
    assert weights == sorted(weights, reverse=True)
    lightest = sorted(weights)[:2]
    assert len(lightest) < 2 or sum(lightest) > most, "two of them would have been one"
