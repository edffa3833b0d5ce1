"""The cost of a compaction while a committer commits, and what a Z-order saves a query.

Two sections of `python -m bench.spark`: `compact` and `zorder`. A lake in a folder, so that Spark and the committer are
measured and not the local S3. Captures of CAN frames are staged and committed by the real committer with default settings, one
every EVERY seconds, alone and then during a compaction.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from pcaplake.lake.lake import Lake
from pcaplake.lake.records import Capture
from pcaplake.parser.schemas import TABLES
from pcaplake.spark_jobs.common.lake_tables import read_table
from pcaplake.spark_jobs.compact import job as compact
from pcaplake.spark_jobs.compact.plan import CompactOptions
from tests.spark_jobs.tables import files_read

from .spark import SparkBench, format_markdown_table

DAY = np.datetime64("2026-09-21T08:00", "ns")
VEHICLES, IDS = 50, 200
FILES, FRAMES = 200, 5_000
RUNS, ALONE = 3, 30.0  # compactions; seconds of commits without one
EVERY = 2.0  # seconds between two stages: the default max_batch_age
KB = 1024


def build_can_frames(number: int, count: int = FRAMES) -> pa.RecordBatch:
    """One capture of one vehicle: `count` CAN frames, every id about as often as any other."""
    schema = TABLES["can_frames"].schema
    rng = np.random.default_rng(number)
    times = DAY.astype(np.int64) + number * 60_000_000_000 + np.arange(count) * 1_000_000
    day = (times // 86_400_000_000_000).astype(np.int32)
    columns: dict[str, pa.Array] = {
        "capture_id": pa.array(np.repeat(f"{number:032x}", count)),
        "vehicle_id": pa.array(np.repeat(f"VIN{number % VEHICLES:014d}", count)),
        "date": pa.array(day, pa.int32()).cast(pa.date32()),
        "ts": pa.array(times // 1000, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        "ts_ns": pa.array(times),
        "packet_no": pa.array(np.arange(1, count + 1)),
        "sub_no": pa.array(np.zeros(count, np.int32)),
        "source": pa.array(np.repeat("socketcan", count)),
        "can_id": pa.array(rng.integers(0, IDS, count) + 0x100),
        "data_len": pa.array(np.full(count, 8, np.int32)),
        "payload": pa.array([bytes(row) for row in rng.integers(0, 256, (count, 8), np.uint8)], pa.binary()),
    }
    return pa.RecordBatch.from_arrays(
        [columns.get(column.name, pa.nulls(count, column.type)) for column in schema], schema=schema
    )


async def stage_capture(lake: Lake, number: int) -> None:
    """Stage one capture, as a worker does."""
    window = lake.window(tables=["can_frames"])
    window.begin(Capture(capture_id=f"{number:032x}", uri=f"s3://raw/{number}", etag="e", size=1))
    window.write("can_frames", build_can_frames(number))
    window.end()
    stage = window.close()
    assert stage is not None
    await lake.stage(stage)


async def fill_lake(folder: str, count: int) -> None:
    async with await Lake.open(folder) as lake:
        for number in range(count):
            await stage_capture(lake, number)
        await lake.drain()


@dataclass(slots=True, kw_only=True)
class BackgroundCommits:
    """Stages captures in the background. `seconds`: from a stage until its rows are in the table."""

    folder: str
    first: int
    seconds: list[float] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    @contextlib.contextmanager
    def run_in_background(self) -> Iterator[None]:
        thread = threading.Thread(target=lambda: asyncio.run(self._commit_until_stopped()))
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    async def _commit_until_stopped(self) -> None:
        async with await Lake.open(self.folder) as lake:
            number = self.first
            while not self._over.is_set():
                start = time.monotonic()
                await stage_capture(lake, number)
                while await lake._has_uncommitted_stages(set(lake._own)):  # noqa: ASYNC110 -- there is no event for it, and drain() would flush at once
                    await asyncio.sleep(0.02)
                self.seconds.append(time.monotonic() - start)
                number += 1
                await asyncio.sleep(max(0.0, EVERY - (time.monotonic() - start)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    report: compact.CompactReport
    alone: list[float]
    during: list[float]


def compaction_section(bench: SparkBench) -> str:
    """Files and seconds of a compaction, and commits at the default rate, with and without it."""
    files, runs = (20, 1) if bench.quick else (FILES, RUNS)
    compaction_runs = [
        _measure_compaction(bench, f"{bench.folder}/compact-{number}", files) for number in range(runs + 1)
    ][1:]  # the first warms
    reports = [run.report for run in compaction_runs]
    megabytes = [report.bytes_before / 1e6 for report in reports]
    rows = [
        ("files before", _format_median_range([report.files_before for report in reports], 0)),
        ("files after", _format_median_range([report.files_after for report in reports], 0)),
        ("MB before", _format_median_range(megabytes)),
        ("MB after", _format_median_range([report.bytes_after / 1e6 for report in reports])),
        ("seconds", _format_median_range([report.seconds for report in reports])),
        (
            "MB/s",
            _format_median_range([size / report.seconds for size, report in zip(megabytes, reports, strict=True)]),
        ),
        (
            "from stage to row without a compaction: median s",
            _format_median_range([statistics.median(run.alone) for run in compaction_runs]),
        ),
        (
            "from stage to row during the compaction: median s",
            _format_median_range([statistics.median(run.during) for run in compaction_runs]),
        ),
        (
            "from stage to row during the compaction: longest s",
            _format_median_range([max(run.during) for run in compaction_runs]),
        ),
        ("commits during the compaction", _format_median_range([len(run.during) for run in compaction_runs], 0)),
    ]
    head = f"one day of `can_frames` in files of {FRAMES:,} frames; median (least–most) of {runs}"
    return f"## A compaction during commits\n\n{format_markdown_table((head, ''), rows)}"


def _measure_compaction(bench: SparkBench, folder: str, files: int) -> _Run:
    asyncio.run(fill_lake(folder, files))
    alone = BackgroundCommits(folder=folder, first=files)
    with alone.run_in_background():
        time.sleep(5 if bench.quick else ALONE)
    busy = BackgroundCommits(folder=folder, first=files + 300)
    with busy.run_in_background():
        report = compact.run(bench.spark, folder, CompactOptions(tables=("can_frames",)))
    return _Run(report=report, alone=alone.seconds, during=busy.seconds)


def data_skipping_section(bench: SparkBench) -> str:
    """Files that a query reads: as the workers wrote them, compacted, and in Z-order."""
    files = 20 if bench.quick else FILES
    wheres = {
        "one vehicle, one id": "vehicle_id = 'VIN00000000000007' AND can_id = 300",
        "one vehicle": "vehicle_id = 'VIN00000000000007'",
        "one id": "can_id = 300",
        "every row of the day": "true",
    }
    options = CompactOptions(tables=("can_frames",), min_files=2, target_file_size=512 * KB, small_file=512 * KB)
    ordered = replace(options, zorder={"can_frames": ("vehicle_id", "can_id")})

    def count_files_read(folder: str) -> list[int]:
        day = read_table(bench.spark, folder, "can_frames").where("date = '2026-09-21'").select("ts_ns", "payload")
        return [files_read(day.where(where)) for where in wheres.values()]

    file_counts: list[list[int]] = []
    for name, chosen in (("plain", options), ("ordered", ordered)):
        folder = f"{bench.folder}/zorder-{name}"
        asyncio.run(fill_lake(folder, files))
        if not file_counts:
            file_counts.append(count_files_read(folder))
        compact.run(bench.spark, folder, chosen)
        file_counts.append(count_files_read(folder))
    columns = (
        "query",
        f"as the workers wrote them ({files})",
        "compacted to 512 KB",
        "in Z-order (vehicle_id, can_id)",
    )
    table = format_markdown_table(columns, list(zip(wheres, *file_counts, strict=True)))
    return f"## Files that a query reads\n\n{table}"


def _format_median_range(values: list[float] | list[int], digits: int = 1) -> str:
    middle = statistics.median(values)
    return f"{middle:,.{digits}f} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"
