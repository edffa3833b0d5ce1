"""Backfill: every row once, beside the live fleet, after a kill, and in several processes on one machine."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import gzip
import hashlib
import io
import json
import os
import pickle
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.ingest.captures.reference import ObjectRef, local_reference
from pcaplake.ingest.captures.source import LocalFile, Sources
from pcaplake.lake.records import Capture
from pcaplake.lake.store.store import Store
from pcaplake.parser.schemas import TABLES
from pcaplake.spark_jobs.backfill import job as backfill
from pcaplake.spark_jobs.backfill.driver import Driver, ReturnedCaptures, balance_by_size, open_driver
from pcaplake.spark_jobs.backfill.executor import OutcomeCounts, Work, stage_captures
from pcaplake.spark_jobs.backfill.inventory import ListedObject, read_inventory
from pcaplake.spark_jobs.backfill.job import BackfillOptions, prepare_work, run
from pcaplake.spark_jobs.backfill.sources import list_capture_pages
from pcaplake.worker.config.service_settings import FleetSettings
from pcaplake.worker.config.settings import WrongSetting
from pcaplake.worker.service.notification import parse_notification
from tests.integration.stages import FRAMES, PATIENCE, check_all, until
from tests.integration.stages import staged as staging
from tests.spark_jobs.backfill import backfills
from tests.worker import lakes
from tests.worker.fleets import can_capture


def work_of(lake: object, *names: object, **given_: Any) -> Work:
    return prepare_work(FleetSettings.load(lake=str(lake), **given_), BackfillOptions(names=tuple(map(str, names))))


def make(folder: Path, count: int, frames: int = 20) -> list[ObjectRef]:
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{number}.pcap" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_bytes(can_capture(frames, number))
    return [local_reference(path, explicit=False) for path in paths]


def committed(work: Work) -> None:
    """A committer until everything is in the tables."""
    with open_driver(work, commit=True) as driver:
        driver.drain_lakes()


def rows(lake: Path) -> dict[str, int]:
    """Of every table, each row once."""
    return {name: count for name, count in lakes.by_duckdb(lake).items() if count}


# -- what an executor does -----------------------------------------------------------------------------------------
def test_captures_are_staged_once(tmp_path: Path) -> None:
    refs = make(tmp_path / "in", 5)
    work = work_of(tmp_path / "lake", tmp_path / "in")
    with open_driver(work, commit=False):
        first = stage_captures(work, refs)
        assert (dict(first.ends), first.rows["can_frames"]) == ({"staged": 5}, 100)
        assert dict(stage_captures(work, refs).ends) == {"known": 5}
    assert not rows(tmp_path / "lake"), "executors commit nothing"
    committed(work)
    assert rows(tmp_path / "lake") == {"captures": 5, "packets": 100, "can_frames": 100}
    assert dict(stage_captures(work, refs).ends) == {"known": 5}


def test_each_capture_has_its_own_end(tmp_path: Path) -> None:
    good, *_ = make(tmp_path / "in", 1)
    (tmp_path / "none").write_bytes(b"no capture")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "there").write_bytes(b"")
    gone = local_reference(tmp_path / "there", explicit=True)
    (tmp_path / "there").unlink()
    (tmp_path / "folder").mkdir()
    refs = [
        good,
        gone,
        local_reference(tmp_path / "none", explicit=False),
        local_reference(tmp_path / "none", explicit=True),
        local_reference(tmp_path / "empty", explicit=True),
        ObjectRef(uri=f"file://{tmp_path}/folder", size=0, explicit=True),
    ]
    work = work_of(tmp_path / "lake", tmp_path)
    with open_driver(work, commit=False):
        done = stage_captures(work, refs)
    assert dict(done.ends) == {"staged": 1, "gone": 1, "ignored": 1, "quarantined": 2, "failed": 1}
    assert sorted(done.bad) == [f"file://{tmp_path}/empty", f"file://{tmp_path}/none"]
    assert done.bad[f"file://{tmp_path}/empty"] == "not a capture (empty): the file has no bytes"
    assert done.ignored == [f"file://{tmp_path}/none"]
    assert "not a regular file" in done.failed[f"file://{tmp_path}/folder"]
    committed(work)
    assert rows(tmp_path / "lake") == {"captures": 3, "packets": 20, "can_frames": 20, "quarantine": 2}


def test_processes_on_one_machine_share_a_ledger(tmp_path: Path) -> None:
    """Three of them stage the same captures, in other orders: each capture is in one stage."""
    refs = make(tmp_path / "in", 12)
    work = work_of(tmp_path / "lake", tmp_path / "in", max_records=60)
    with open_driver(work, commit=False):
        results = lakes.PROCESSES.Queue()
        started = [
            lakes.PROCESSES.Process(target=backfills.staged, args=(work, refs[at:] + refs[:at], results))
            for at in (0, 4, 8)
        ]
        for process in started:
            process.start()
        total = OutcomeCounts()
        for _ in started:
            total.add_counts(results.get(timeout=PATIENCE))
        for process in started:
            process.join(PATIENCE)
    assert (total.fatal, dict(total.ends)) == (None, {"staged": 12, "known": 24})
    committed(work)
    assert rows(tmp_path / "lake") == {"captures": 12, "packets": 240, "can_frames": 240}


def test_a_lake_that_is_not_there_is_told(tmp_path: Path) -> None:
    work = prepare_work(FleetSettings.load(lake="memory:///nothing"), BackfillOptions(names=("x",), ledger=tmp_path))
    assert "is not a lake yet" in str(stage_captures(work, ()).fatal)


# -- what the driver does -----------------------------------------------------------------------------------------
def test_the_driver_asks_ledgers_before_executors_do(tmp_path: Path) -> None:
    refs = make(tmp_path / "in", 3)
    named = [ObjectRef(uri=ref.uri, size=ref.size, explicit=True, etag="0" * 32) for ref in refs]
    page = tuple(ListedObject(ref=ref) for ref in [*refs, *named])
    old = ListedObject(ref=ObjectRef(uri="s3://b/old.pcap", size=1, explicit=False, etag="0"), archived=True)
    work = work_of(tmp_path / "lake", tmp_path / "in")
    with open_driver(work, commit=False) as driver:
        (wave,) = _waves(driver, [page, (old,)], include=("[01].pcap", "old*"))
        assert [ref.uri[-6:] for ref in wave.refs] == ["0.pcap", "1.pcap", "0.pcap", "1.pcap"]
        assert dict(wave.ends) == {"filtered": 2, "archived": 1}
        assert [len(one.refs) for one in _waves(driver, [page, page, page], most=8)] == [12, 6]


def _waves(
    driver: Driver, said: Sequence[tuple[ListedObject, ...]], include: Sequence[str] = (), most: int = 100
) -> Any:
    async def each() -> Any:
        for page in said:
            yield page

    return list(driver.iterate_waves(each(), include, most))


def test_what_a_committer_gives_back_is_read_again(tmp_path: Path) -> None:
    """A stage whose file is lost before it is committed: the driver stages its captures before the committer continues."""
    refs = make(tmp_path / "in", 2)
    work = work_of(tmp_path / "lake", tmp_path / "in")
    with open_driver(work, commit=False) as driver:
        stack = AsyncExitStack()
        driver.run_coroutine(driver._source.open(stack))
        stage_captures(work, refs)
        lake = driver.lakes[work.routes.lake_uris[0]]
        captures = driver.run_coroutine(_captures(lake))
        ids = {capture.capture_id for capture in captures}
        stages = {one: item.stage_id for one, item in driver.run_coroutine(lake.find_captures(ids)).items()}
        driver.run_coroutine(lake.ledger.forget_captures(0, stages, last_swap=1))
        driver.run_coroutine(lake.source.replay_captures(captures))
        assert driver.run_coroutine(lake.find_captures(ids)).keys() == ids
        assert (driver.restaged.ends, driver.restaged.rows["can_frames"]) == ({"staged": 2}, 40)
        with pytest.raises(Retryable, match=r"cannot read these captures again: .*has another content now"):
            driver.run_coroutine(lake.source.replay_captures([replace(captures[0], etag="1")]))
        driver.run_coroutine(stack.aclose())
        (add,) = driver.run_coroutine(lake.source.rebuild_files("can_frames", lakes.stage_of(captures)))
        assert json.loads(add.stats)["numRecords"] == 40
        first = Path(refs[0].uri.removeprefix("file://"))
        first.unlink()
        assert driver.run_coroutine(lake.source.rebuild_files("can_frames", lakes.stage_of(captures))) is None
        os.mkfifo(first)
        with pytest.raises(OSError, match="not a regular file"):  # which the committer takes for a reason to wait
            driver.run_coroutine(lake.source.rebuild_files("can_frames", lakes.stage_of(captures)))


async def test_the_message_of_what_a_committer_gives_back_names_the_lake() -> None:
    sent: list[str] = []

    class Sends:
        async def send(self, bodies: Sequence[str]) -> None:
            sent.extend(bodies)

    again = ReturnedCaptures(work_of("memory:///lake", "s3://raw/a.pcap"))
    again._queue = Sends()  # type: ignore[assignment]
    one = Capture(capture_id="1", uri="s3://raw/a.pcap", etag="e", size=1)
    await again.create_capture_source("memory:///lake").replay_captures([one])
    (body,) = sent
    assert [ref.owed_to for ref in parse_notification(body).objects] == ["memory:///lake"]


async def _captures(lake: Any) -> Any:
    generation = await lake.ledger.list_pending_stages(0, 10)
    items = await lake.ledger.get_stage_items(0, generation)
    return [capture for item in items.values() for capture in item.stage.captures]


def test_settings_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(WrongSetting, match="nothing to read"):
        work_of(tmp_path)
    with pytest.raises(WrongSetting, match="no lake"):
        prepare_work(FleetSettings.load(), BackfillOptions(names=("x",)))
    assert work_of(tmp_path, "x").lake_config.flush_interval == 60
    assert work_of(tmp_path, "x", flush_interval=3.0).lake_config.flush_interval == 3


def test_executors_reach_stores_as_the_workers_do() -> None:
    """A region that the store's options name is there once; stores of others know none."""
    given_ = {"region": "eu-central-1", "storage_option": {"aws_region": "eu-west-1"}}
    work = pickle.loads(pickle.dumps(work_of("s3://lake/a", "x", **given_)))
    assert not work.has_local_ledger("s3://lake/a")
    assert Sources(work.storage_options).open_store("s3://raw/in/a.pcap")[1] == "in/a.pcap"
    assert work_of("s3://lake/a", "x", region="eu-central-1").storage_options("az://raw") == {}


@given(st.lists(st.integers(-1, 100), max_size=30), st.integers(1, 8))
def test_parts_are_balanced(sizes: list[int], parts: int) -> None:
    refs = [ObjectRef(uri=f"s3://b/{number}", size=size, explicit=True) for number, size in enumerate(sizes)]
    made = balance_by_size(refs, parts)
    assert sorted(ref.uri for part in made for ref in part) == sorted(ref.uri for ref in refs)
    assert len(made) == min(parts, len(refs))
    weights = [sum(max(ref.size, 1) for ref in part) for part in made]
    most = max([max(size, 1) for size in sizes], default=0)
    assert not weights or max(weights) - min(weights) <= most, "the heaviest would be lighter by its last capture"


# -- where captures are named ---------------------------------------------------------------------------------------
def _all(**said: Any) -> list[ListedObject]:
    async def collect() -> list[ListedObject]:
        return [one async for page in list_capture_pages(said.pop("names", ()), **said) for one in page]

    return asyncio.run(collect())


def test_a_list_names_captures(tmp_path: Path) -> None:
    (tmp_path / "a.pcap").write_bytes(b"12345")
    file = tmp_path / "list.txt"
    file.write_text(f"# a drive\n\n{tmp_path}/a.pcap\n  s3a://bucket/b ü.pcap\nfile://{tmp_path}/gone.pcap\n")
    found = [one.ref for one in _all(lists=[str(file)])]
    assert [ref.uri for ref in found] == [
        f"file://{tmp_path}/a.pcap",
        "s3://bucket/b ü.pcap",
        f"file://{tmp_path}/gone.pcap",
    ]
    assert [ref.size for ref in found] == [5, -1, -1]
    assert all(ref.explicit for ref in found)
    with pytest.raises(Fatal, match="cannot be read"):
        _all(lists=[str(tmp_path / "nowhere")])
    with pytest.raises(Fatal, match="does not exist"):
        _all(names=[str(tmp_path / "nowhere")])


COLUMNS = ("bucket", "key", "version_id", "is_latest", "is_delete_marker", "size", "e_tag", "storage_class")
OBJECTS = [
    ("raw", "in/a b+ü.pcap", "v1", True, False, 24, "aa", "STANDARD"),
    ("raw", "in/a b+ü.pcap", "v0", False, False, 20, "a0", "STANDARD"),
    ("raw", "in/gone.pcap", "v2", True, True, None, None, None),
    ("raw", "in/", "", True, False, 0, "dd", "STANDARD"),
    ("raw", "in/cold.pcap", "", True, False, 9, "cc", "GLACIER"),
]


def _file(kind: str) -> bytes:
    out = io.BytesIO()
    if kind == "CSV":
        from urllib.parse import quote_plus

        text = io.StringIO()
        writer = csv.writer(text, quoting=csv.QUOTE_ALL)
        for row in OBJECTS:
            plain = ["" if one is None else str(one).lower() if isinstance(one, bool) else one for one in row]
            writer.writerow([plain[0], quote_plus(str(plain[1]), safe="/"), *plain[2:]])
        return gzip.compress(text.getvalue().encode())
    table = pa.table({name: [row[at] for row in OBJECTS] for at, name in enumerate(COLUMNS)})
    if kind == "Parquet":
        pq.write_table(table, out)
    else:
        orc.write_table(table, out)
    return out.getvalue()


@pytest.mark.parametrize("kind", ["CSV", "Parquet", "ORC"])
def test_an_inventory_names_the_newest_contents(kind: str) -> None:
    body = _file(kind)
    manifest = {
        "sourceBucket": "raw",
        "destinationBucket": f"arn:aws:s3:::inventory-{kind.lower()}",
        "fileFormat": kind,
        "fileSchema": "Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, ETag, StorageClass",
        "files": [{"key": "raw/all/data/1", "size": len(body), "MD5checksum": hashlib.md5(body).hexdigest()}],
    }
    store = Store.open(f"memory:///inventory-{kind.lower()}")
    uri = f"{store.uri}/raw/all/2026-09-01T01-00Z/manifest.json"

    def collect() -> list[ListedObject]:
        async def every() -> list[ListedObject]:
            await store.put("raw/all/2026-09-01T01-00Z/manifest.json", json.dumps(manifest).encode())
            return [one async for page in read_inventory(uri, Sources()) for one in page]

        return asyncio.run(every())

    with pytest.raises(Fatal, match="does not exist, but"):
        collect()
    asyncio.run(store.put("raw/all/data/1", body))
    first, cold = collect()
    assert first == ListedObject(
        ref=ObjectRef(uri="s3://raw/in/a b+ü.pcap", size=24, explicit=False, etag="aa", version_id="v1")
    )
    assert (cold.ref.uri, cold.ref.version_id, cold.archived) == ("s3://raw/in/cold.pcap", None, True)
    asyncio.run(store.put("raw/all/data/1", body[:-1]))
    with pytest.raises(Fatal, match="does not have the checksum"):
        collect()
    manifest["fileFormat"] = "Avro"
    with pytest.raises(Fatal, match="its format is Avro"):
        collect()


# -- the job on a local lake ------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_local_lake(spark: Any, tmp_path: Path) -> None:
    refs = make(tmp_path / "in", 9)
    (tmp_path / "in" / "notes.txt").write_text("no capture")
    lake = str(tmp_path / "lake")
    options = BackfillOptions(names=(str(tmp_path / "in"),), wave=4)
    said: list[str] = []
    done = run(spark, lake, options, say=said.append)
    assert (done.captures, done.staged, done.ignored, done.committed) == (10, 9, 1, True)
    assert done.rows == {"can_frames": 180, "captures": 9, "packets": 180}
    assert done.bytes == sum(ref.size for ref in refs)
    assert rows(tmp_path / "lake") == {"captures": 9, "packets": 180, "can_frames": 180}
    assert any("in 2 tasks" in line for line in said)
    make(tmp_path / "in", 10)
    again = run(spark, lake, options)
    assert (again.skipped, again.staged, again.ignored) == (9, 1, 1)
    assert rows(tmp_path / "lake")["captures"] == 10


def test_a_capture_that_comes_back_is_counted_once(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in the tables by then is told of, and no capture of its own."""
    refs = make(tmp_path / "in", 3)
    drain = Driver.drain_lakes

    def lost(driver: Driver) -> None:
        (lake,) = driver.lakes.values()
        captures = []
        for ref in refs[:2]:
            with LocalFile(ref.uri) as file:
                captures.append(file.identify_capture())
        driver.run_coroutine(lake.source.replay_captures(captures))
        drain(driver)

    monkeypatch.setattr(Driver, "drain_lakes", lost)
    done = run(spark, str(tmp_path / "lake"), BackfillOptions(names=(str(tmp_path / "in"),)))
    assert (done.captures, done.staged, done.skipped, done.returned) == (3, 3, 0, {"known": 2})
    assert rows(tmp_path / "lake")["captures"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("ended", [signal.SIGKILL, signal.SIGTERM])
def test_ended_in_the_middle_it_goes_on(spark: Any, tmp_path: Path, ended: signal.Signals) -> None:
    """With captures staged, in the tables, in windows, and not yet read. SIGKILL: of driver, JVM and executors."""
    make(tmp_path / "in", 60, frames=2000)
    lake, log = tmp_path / "lake", tmp_path / "log"
    process = backfills.start(
        [str(tmp_path / "in"), "--lake", str(lake), "--master", "local[2]", "--conf", "spark.driver.memory=512m"],
        log,
        PCAPLAKE_MAX_RECORDS="20000",
        PCAPLAKE_MAX_BATCH_AGE="0.1",
    )
    try:
        deadline = time.monotonic() + 2 * PATIENCE
        while not 0 < _staged_in(lake) < 60:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        if ended is signal.SIGTERM:
            process.send_signal(ended)
            assert process.wait(PATIENCE) == 130, log.read_text()
            assert "Traceback" not in log.read_text(), log.read_text()
            assert "interrupted: what is committed stays" in log.read_text()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE)
    before = _staged_in(lake)
    assert 0 < before < 60, "it was ended in the middle"
    done = run(spark, str(lake), BackfillOptions(names=(str(tmp_path / "in"),)))
    assert (done.skipped + done.staged, done.failed) == (60, 0)
    assert done.skipped >= before
    assert rows(lake) == {"captures": 60, "packets": 120_000, "can_frames": 120_000}


def _staged_in(lake: Path) -> int:
    file = lake / "_pcaplake" / "ledger.sqlite"
    if not file.exists():
        return 0
    ledger = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    try:
        return int(ledger.execute("SELECT count(*) FROM captures").fetchone()[0])
    except sqlite3.OperationalError:
        return 0
    finally:
        ledger.close()


def test_a_ledger_of_one_machine_needs_one_machine(tmp_path: Path) -> None:
    class Cluster:
        class sparkContext:
            master = "spark://elsewhere:7077"

    with pytest.raises(Fatal, match="on one machine only"):
        run(Cluster(), str(tmp_path / "lake"), BackfillOptions(names=("x",)))  # type: ignore[arg-type]


def test_help_and_usage(capsys: pytest.CaptureFixture[str]) -> None:
    from pcaplake.spark_jobs.__main__ import main

    assert main(["backfill", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Exit codes" in shown
    assert "--inventory" in shown
    assert main(["backfill", "--lake", "x"]) == 2
    assert "nothing to read" in capsys.readouterr().err


# -- beside the live fleet ----------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_the_fleet_and_a_backfill_given_the_same_captures(spark: Any, site: Any, tmp_path: Path) -> None:
    """Two workers take notifications while Spark lists the same prefix; a second run finds nothing left to do."""
    with staging(site.aws, tmp_path) as stage_:
        settings = FleetSettings.load(
            lake=stage_.uri,
            ledger_table=stage_.ledger,
            lock_table=stage_.locks,
            storage_option={"allow_http": "true"},
            max_records=FRAMES * 6,
        )
        stage_.start()
        stage_.upload(range(30))
        options = BackfillOptions(names=(f"s3://{stage_.raw}/in/",), wave=20, flush_interval=1.0)
        first = run(spark, None, options, settings=settings)
        stage_.upload(range(30, 60))
        stage_.start("--role", "worker")
        second = run(spark, None, options, settings=settings)
        until(lambda: len(stage_.captures()) == 60 and not stage_.left(), stage_)
        third = run(spark, None, options, settings=settings)
        assert (third.captures, third.skipped, third.staged, third.committed) == (60, 60, 0, False)
        assert first.failed + second.failed == 0
        assert first.skipped + first.staged == 30
        assert second.skipped + second.staged == 60
        check_all(stage_, dict.fromkeys(stage_.uris(range(60)), FRAMES))


@pytest.mark.slow
def test_a_prefix_with_foreign_objects_committed_here(spark: Any, site: Any, tmp_path: Path) -> None:
    """No fleet runs: the driver commits. What is named like a capture or in a list is quarantined, the rest ignored."""
    with staging(site.aws, tmp_path, announces=False) as stage_:
        routes = tmp_path / "routes.yaml"
        routes.write_text(f'routes:\n  - {{bucket: "{stage_.raw}", key: "in/*", lake: "{stage_.uri}"}}\n')
        settings = FleetSettings.load(
            routes=routes,
            ledger_table=stage_.ledger,
            lock_table=stage_.locks,
            storage_option={"allow_http": "true"},
        )
        stage_.upload(range(4))
        for key in ("in/readme.txt", "in/bad.pcap", "out/other.pcap", "in/folder/"):
            stage_.put(key, b"" if key.endswith("/") else b"no capture")
        names = BackfillOptions(names=(f"s3://{stage_.raw}/",), commit=True)
        done = run(spark, None, names, settings=settings)
        assert (done.captures, done.staged, done.ignored, done.no_route, done.committed) == (7, 5, 1, 1, True)
        assert (done.quarantined, [*done.bad]) == (1, [f"s3://{stage_.raw}/in/bad.pcap"])
        assert done.ignored_files == (f"s3://{stage_.raw}/in/readme.txt",)
        listed = tmp_path / "list"
        listed.write_text(f"s3://{stage_.raw}/in/readme.txt\ns3://{stage_.raw}/in/gone.pcap\n")
        again = run(spark, None, BackfillOptions(lists=(str(listed),), commit=True), settings=settings)
        assert (again.quarantined, again.gone, [*again.bad]) == (1, 1, [f"s3://{stage_.raw}/in/readme.txt"])
        bad = {f"s3://{stage_.raw}/in/{name}" for name in ("bad.pcap", "readme.txt")}
        assert stage_.captures() == Counter({*stage_.uris(range(4)), *bad})
        assert stage_.read("quarantine").num_rows == 2
        assert stage_.read("can_frames").num_rows == 4 * FRAMES


def test_the_report_counts_everything() -> None:
    ends = {"known": 1, "staged": 2, "quarantined": 3, "gone": 4, "ignored": 5, "no_route": 6, "failed": 7}
    total = backfills.outcome(ends={**ends, "filtered": 8, "archived": 9})
    work = work_of("lake", "x")
    back = backfills.outcome(ends={"staged": 10})
    report = backfill._build_report(work, total, back, False, 1.0)
    assert report.captures == sum(range(1, 10))
    assert (report.skipped, report.staged, report.quarantined) == (1, 5, 3)
    assert (report.failed, report.returned) == (7, {"staged": 10})
    assert set(report.rows) <= set(TABLES)
