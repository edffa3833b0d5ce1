"""The cost of a commit through each log store for Spark, and the time to open a table as its log grows."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from deltalake import DeltaTable

from pcaplake.lake.delta import LogStore
from tests.integration.fault_proxy import FaultProxy
from tests.lake.delta.deltas import add
from tests.spark_jobs.tables import Shared

from .spark import SparkBench, format_markdown_table, format_median_range

STORES = {
    "pcaplake, with the lock table": "io.pcaplake.logstore.DynamoDBLogStore",
    "pcaplake, only conditional puts": "io.pcaplake.logstore.PutIfAbsentLogStore",
    "Delta's for one driver (no lock, no condition)": "io.delta.storage.S3SingleDriverLogStore",
}
LINE = json.dumps({"commitInfo": {"txnId": "x", "operation": "bench", "padding": "x" * 4000}})


def commit_section(bench: SparkBench) -> str:
    """Commits of N.json through each class in turn, called as by Delta. Proxies count the requests in a separate run."""
    counts, times = {}, {}
    for title, name in STORES.items():
        times[title] = _measure_commits(bench, name, 5 if bench.quick else 100)
        with _count_through_proxies(bench) as log:
            _measure_commits(bench, name, 1, through=log)
            before = [len(proxy.log) for proxy in log]
            _measure_commits(bench, name, 5, through=log)
            seen = [
                request.operation for proxy, start in zip(log, before, strict=True) for request in proxy.log[start:]
            ]
        counts[title] = ", ".join(f"{count / 5:.1f} {operation}" for operation, count in sorted(Counter(seen).items()))
    rows = [[title, format_median_range(times[title]), counts[title]] for title in STORES]
    return f"## The log store\n\n{format_markdown_table(['log store', 'a commit of 4 KB', 'requests'], rows)}"


def _measure_commits(bench: SparkBench, name: str, count: int, through: Any = None) -> list[float]:
    """The milliseconds of each of `count` versions of a new table."""
    jvm, conf = bench.spark._jvm, bench.spark._jsparkSession.sessionState().newHadoopConf()
    if through is not None:
        s3, dynamodb = through
        conf.set("fs.s3a.endpoint", s3.url)
        conf.set("fs.s3a.impl.disable.cache", "true")
        conf.set("spark.pcaplake.logstore.endpoint", dynamodb.url)
    store = jvm
    for part in name.split("."):
        store = getattr(store, part)
    store = store(conf)
    where = f"s3a://{bench.aws.bucket('bench')}/t/_delta_log"
    milliseconds = []
    for version in range(count):
        actions = jvm.java.util.ArrayList()
        actions.add(LINE)
        file = jvm.org.apache.hadoop.fs.Path(f"{where}/{version:020d}.json")
        begun = time.perf_counter()
        store.write(file, actions.iterator(), False, conf)
        milliseconds.append((time.perf_counter() - begun) * 1000)
    return milliseconds


@contextmanager
def _count_through_proxies(bench: SparkBench) -> Iterator[tuple[FaultProxy, FaultProxy]]:
    """Proxies in front of S3 and DynamoDB, in a separate event loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    s3, dynamodb = FaultProxy(bench.aws.s3), FaultProxy(bench.aws.dynamodb)

    def run_on_event_loop(what: Any) -> None:
        asyncio.run_coroutine_threadsafe(what, loop).result(30)

    try:
        for proxy in (s3, dynamodb):
            run_on_event_loop(proxy.__aenter__())
        yield s3, dynamodb
    finally:
        for proxy in (s3, dynamodb):
            run_on_event_loop(proxy.__aexit__(None, None, None))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def table_opening_section(bench: SparkBench) -> str:
    """The time to open two tables of up to 2,000 versions with one file each, with and without checkpoints."""
    marks = (20, 40) if bench.quick else (100, 500, 1000, 2000)
    rows: list[list[object]] = []
    for interval in (20 if bench.quick else 100, None):
        shared = Shared(bench.site, bench.spark)
        for version, spark_times, deltalake_times in asyncio.run(
            _measure_growing_table(bench, shared, marks, interval)
        ):
            title = f"by the committer, every {interval}" if interval else "no checkpoints"
            rows.append([title, f"{version:,}", format_median_range(spark_times), format_median_range(deltalake_times)])
    columns = ["checkpoints", "versions", "Spark", "`deltalake`"]
    return f"## Opening a table as its log grows\n\n{format_markdown_table(columns, rows)}"


async def _measure_growing_table(
    bench: SparkBench, shared: Shared, marks: tuple[int, ...], interval: int | None
) -> list[tuple[int, list[float], list[float]]]:
    measurements = []
    async with shared.log() as log:
        for version in range(1, marks[-1] + 1):
            await _commit_version(log, version)
            if interval and version % interval == 0:
                await log.checkpoint("t")
            if version in marks:
                measurements.append(
                    (version, _measure_spark_opening(bench, shared), _measure_deltalake_opening(bench, shared))
                )
    return measurements


async def _commit_version(log: LogStore, version: int) -> None:
    await log.commit("t", [add(version)])


def _measure_spark_opening(bench: SparkBench, shared: Shared) -> list[float]:
    """The milliseconds until Spark, with an empty cache, knows the table's files."""
    times = []
    for _ in range(3):
        bench.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        begun = time.perf_counter()
        bench.spark.read.format("delta").load(shared.path).inputFiles()
        times.append((time.perf_counter() - begun) * 1000)
    return times


def _measure_deltalake_opening(bench: SparkBench, shared: Shared) -> list[float]:
    options = {"AWS_ALLOW_HTTP": "true", **bench.aws.environment}
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        DeltaTable(f"{shared.lake}/t", storage_options=options).file_uris()
        times.append((time.perf_counter() - begun) * 1000)
    return times
