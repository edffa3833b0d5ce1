"""CPU time of one commit to tables of 0 to 1,000,000 live files, with deltalake in the same run for comparison.

    python -m bench.commit [--live 0 10000 100000 1000000] [--commits 100] [--folder /tmp] [--markdown FILE]

A table consists of a checkpoint, written with pyarrow: the Adds with statistics in one row group, and after them protocol,
metaData and txn, which is the worst order for a reader that looks for these. CPU time is that of all threads of the process
(`time.process_time`); for checkpoints, that of the process that makes them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from pcaplake.lake.delta import AddFile, LogStore, Txn
from pcaplake.lake.store.store import Store

STATS = (
    '{"numRecords":262144,"minValues":{"id":%d,"name":"aaaaaaaa"},"maxValues":{"id":%d,"name":"zzzzzzzz"},'
    '"nullCount":{"id":0,"name":0}}'
)
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("date", pa.date32())])
PAIRS = pa.map_(pa.string(), pa.string())
ADD = {
    "path": pa.string(),
    "partitionValues": PAIRS,
    "size": pa.int64(),
    "modificationTime": pa.int64(),
    "dataChange": pa.bool_(),
    "stats": pa.string(),
}
FORMAT = pa.struct([("provider", pa.string()), ("options", PAIRS)])
METADATA = {
    "id": pa.string(),
    "format": FORMAT,
    "schemaString": pa.string(),
    "partitionColumns": pa.list_(pa.string()),
    "configuration": PAIRS,
    "createdTime": pa.int64(),
}
CHECKPOINT = pa.schema(
    {
        "add": pa.struct(ADD),
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64()}),
        "protocol": pa.struct({"minReaderVersion": pa.int32(), "minWriterVersion": pa.int32()}),
        "metaData": pa.struct(METADATA),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median and percentiles of CPU milliseconds."""

    n: int
    median: float
    low: float  # 5 %
    high: float  # 95 %

    @classmethod
    def from_seconds(cls, seconds: Sequence[float]) -> Spread:
        ms = sorted(1000 * each for each in seconds)
        return cls(n=len(ms), median=statistics.median(ms), low=ms[len(ms) // 20], high=ms[len(ms) - 1 - len(ms) // 20])

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}–{self.high:.2f}, n={self.n})"


def checkpoint_add_actions(live: int) -> pa.Table:
    """`live` rows of a checkpoint."""
    days = [f"2026-01-{number % 28 + 1:02d}" for number in range(live)]
    offsets = pa.array(range(live + 1), pa.int32())
    columns = {
        "path": pa.array([f"date={day}/{number:032x}-0.zstd.parquet" for number, day in enumerate(days)]),
        "partitionValues": pa.MapArray.from_arrays(offsets, pa.array(["date"] * live), pa.array(days)),
        "size": pa.array([134_217_728] * live),
        "modificationTime": pa.array([1_790_000_000_000] * live),
        "dataChange": pa.array([True] * live),
        "stats": pa.array([STATS % (number, number + 1) for number in range(live)]),
    }
    struct = pa.StructArray.from_arrays(
        [column.cast(ADD[name]) for name, column in columns.items()], fields=list(pa.struct(ADD))
    )
    rest = {name: pa.nulls(live, CHECKPOINT.field(name).type) for name in CHECKPOINT.names[1:]}
    return pa.table({"add": struct, **rest}, CHECKPOINT)


async def create_table_with_files(root: Path, name: str, live: int) -> None:
    log = LogStore(Store.open(root), properties={"delta.checkpointInterval": "100000000"})
    await log.create(name, SCHEMA, partition_columns=["date"])
    folder = root / name / "_delta_log"
    lines = [json.loads(line) for line in (folder / f"{0:020d}.json").read_text().splitlines()]
    metadata = next(line["metaData"] for line in lines if "metaData" in line)
    last = [
        {"txn": {"appId": "bench", "version": 0}},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": {**metadata, "configuration": list(metadata["configuration"].items())}},
    ]
    whole = pa.concat_tables([checkpoint_add_actions(live), pa.Table.from_pylist(last, CHECKPOINT)])
    pq.write_table(whole, folder / f"{0:020d}.checkpoint.parquet", row_group_size=live + len(last))
    (folder / "_last_checkpoint").write_text(json.dumps({"version": 0, "size": live + len(last)}))


def build_add_file(number: int) -> AddFile:
    return AddFile(
        path=f"date=2026-02-01/new-{number}.zstd.parquet",
        size=134_217_728,
        partition_values={"date": "2026-02-01"},
        modification_time=1_790_000_000_000,
        stats=STATS % (number, number + 1),
    )


async def measure_warm_commits(root: Path, names: Sequence[str], commits: int) -> list[Spread]:
    """Commits of one file and a txn by a LogStore that has read the tables; tables take turns, so that all see the same load."""
    log = LogStore(Store.open(root))
    times: list[list[float]] = [[] for _ in names]
    for number in range(commits + 10):
        for name, mine in zip(names, times, strict=True):
            file, txn = build_add_file(number), Txn(app_id="bench", version=number + 1)
            start = time.process_time()
            commit = await log.commit(name, [file], txn=txn)
            mine.append(time.process_time() - start)
            assert not commit.already
    return [Spread.from_seconds(mine[10:]) for mine in times]


async def measure_first_catch_up(root: Path, name: str, repeats: int) -> Spread:
    """First catch-up from the checkpoint and the one version after it."""
    times = []
    for _ in range(repeats):
        log = LogStore(Store.open(root))
        start = time.process_time()
        await log.read_transaction(name, "bench")
        times.append(time.process_time() - start)
    return Spread.from_seconds(times)


def measure_action(action: Callable[[], object], repeats: int) -> Spread:
    times = []
    for _ in range(repeats):
        gc.collect()
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return Spread.from_seconds(times)


def measure_peer_cold_commit(root: Path, name: str, repeats: int) -> Spread:
    """write_deltalake of one row: it reads the table, writes a small file and commits."""
    row = pa.table({"id": [1], "name": ["a"], "date": pa.array([20_000], pa.date32())}, SCHEMA)
    return measure_action(lambda: deltalake.write_deltalake(str(root / name), row, mode="append"), repeats)


def measure_peer_warm_commit(root: Path, name: str, repeats: int) -> Spread:
    """The same Add through a loaded DeltaTable; like the pcaplake case, it writes no Parquet file."""
    table = deltalake.DeltaTable(str(root / name))
    schema = table.schema()

    def commit_add_action() -> None:
        action = AddAction("date=2026-02-01/x.parquet", 1, {"date": "2026-02-01"}, 1, True, STATS % (1, 2))
        table.create_write_transaction([action], "append", schema, ["date"])

    return measure_action(commit_add_action, repeats)


async def measure_checkpoint(root: Path, name: str) -> float:
    """CPU seconds of the process that creates a checkpoint."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    await LogStore(Store.open(root)).checkpoint(name)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


async def measure_live_counts(root: Path, live: Sequence[int], commits: int) -> list[dict[str, object]]:
    names = [f"live{each}" for each in live]
    rows: list[dict[str, object]] = [{"live": each} for each in live]
    for each, name in zip(live, names, strict=True):
        await create_table_with_files(root, name, each)
    for row, name in zip(rows, names, strict=True):
        row["first"] = await measure_first_catch_up(root, name, 20)
    for row, spread in zip(rows, await measure_warm_commits(root, names, commits), strict=True):
        row["warm"] = spread
    for row, each, name in zip(rows, live, names, strict=True):
        few = 20 if each < 100_000 else 5 if each < 1_000_000 else 3
        row["checkpoint"] = await measure_checkpoint(root, name)
        row["first_after"] = await measure_first_catch_up(root, name, 20)
        row["peer_warm"] = measure_peer_warm_commit(root, name, few)
        row["peer_cold"] = measure_peer_cold_commit(root, name, few)
    return rows


def format_commit_report(rows: Sequence[dict[str, object]]) -> str:
    lines = [
        "| live files | commit, log already read | first catch-up | first catch-up, checkpoint by deltalake "
        "| checkpoint / 100 commits | deltalake, loaded table | write_deltalake, one row |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        seconds = row["checkpoint"]
        assert isinstance(seconds, float)
        lines.append(
            f"| {row['live']:,} | {row['warm']} | {row['first']} | {row['first_after']} "
            f"| {10 * seconds:.1f} | {row['peer_warm']} | {row['peer_cold']} |"
        )
    medians = [row["warm"].median for row in rows if isinstance(row["warm"], Spread)]
    ratio = max(medians) / min(medians)
    lines += [
        "",
        f"Commit, log already read: slowest median / fastest median = {ratio:.2f}; slowest {max(medians):.2f} ms.",
    ]
    return "\n".join(lines)


async def run_commit_benchmark(live: Sequence[int], commits: int, folder: str | None) -> list[dict[str, object]]:
    with tempfile.TemporaryDirectory(dir=folder) as root:
        await measure_live_counts(Path(root, "first"), [1], 20)  # imports, pools, caches
        return await measure_live_counts(Path(root), live, commits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--live", type=int, nargs="*", default=[0, 10_000, 100_000, 1_000_000])
    parser.add_argument("--commits", type=int, default=100)
    parser.add_argument("--folder", help="folder for the tables (default: the system's temporary folder)")
    parser.add_argument("--markdown", type=Path, help="also write the table to this file")
    arguments = parser.parse_args()
    text = format_commit_report(asyncio.run(run_commit_benchmark(arguments.live, arguments.commits, arguments.folder)))
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    text = f"CPU milliseconds, median (5 %–95 %, n); {machine}, deltalake {deltalake.__version__}.\n\n{text}\n"
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)


if __name__ == "__main__":
    main()
