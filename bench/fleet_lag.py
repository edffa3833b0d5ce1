"""From an upload to a row that can be queried, at half of what the service can do.

Captures take the path of production: they are put into a bucket, which notifies the queue. First a backlog of captures is
drained, which gives the service's highest rate; then captures are put at random moments, at half this rate. The lag of a
capture is measured from the answer to its PUT until this process has read the version of the table `can_frames`, and the
Parquet file in it, with the capture's rows. At the end `deltalake` must find every row once.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from statistics import quantiles
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from pcaplake.lake.records import compute_capture_id
from pcaplake.lake.store.object_store import ObjectStore
from pcaplake.lake.store.store import Store

from .fleet_child import OPTIONS
from .fleet_files import build_tiny_capture
from .fleet_service import TINY_FRAMES, ServiceBench
from .fleet_site import BenchSite

TABLE = "can_frames"
LOAD = 0.5
PATIENCE = 120.0
_LOOK = 0.05
_AT_ONCE = 16


class TableWatch:
    """Reads a table's log as it grows. `seen`: capture_id -> when its rows were read."""

    def __init__(self, lake: str) -> None:
        self.seen: dict[str, float] = {}
        self._store, self._version = Store.open(lake, OPTIONS), 0

    async def follow_log(self) -> None:
        while True:
            commit_bytes = await self._store.get(f"{TABLE}/_delta_log/{self._version:020d}.json")
            if commit_bytes is None:
                await asyncio.sleep(_LOOK)
                continue
            self._version += 1
            paths = [
                action["add"]["path"] for action in map(json.loads, commit_bytes[0].splitlines()) if "add" in action
            ]
            for ids in await asyncio.gather(*map(self._read_capture_ids, paths)):
                for capture_id in ids:
                    self.seen.setdefault(capture_id, time.monotonic())

    async def _read_capture_ids(self, path: str) -> list[str]:
        stored = await self._store.get(f"{TABLE}/{path}")
        assert stored is not None
        column = pq.read_table(pa.BufferReader(stored[0]), columns=["capture_id"])["capture_id"]
        return [str(capture_id) for capture_id in column.unique().to_pylist()]


class CaptureUploads:
    """Puts captures. `done`: capture_id -> when the PUT was acknowledged."""

    def __init__(self, bucket: str) -> None:
        self.done: dict[str, float] = {}
        store = Store.open(f"s3://{bucket}", OPTIONS)
        assert isinstance(store, ObjectStore)
        self._bucket, self._client, self._number = bucket, store.obstore_client, 0
        self._data = build_tiny_capture(TINY_FRAMES)

    async def upload_capture(self) -> None:
        key, self._number = f"in/{self._number:06}.pcap", self._number + 1
        result = await obstore.put_async(self._client, key, self._data, use_multipart=False)
        etag = (result["e_tag"] or "").strip('"')
        self.done[compute_capture_id(f"s3://{self._bucket}/{key}", etag)] = time.monotonic()

    async def upload_at_once(self, count: int) -> None:
        slots = asyncio.Semaphore(_AT_ONCE)

        async def upload_until_done() -> None:
            async with slots:
                await self.upload_capture()

        await asyncio.gather(*(upload_until_done() for _ in range(count)))

    async def upload_at_random(self, rate: float, seconds: float, rng: random.Random) -> None:
        """Upload at random moments, whether or not the service keeps up."""
        loop, tasks = asyncio.get_running_loop(), list[asyncio.Task[None]]()
        moment = start = loop.time()
        while (moment := moment + rng.expovariate(rate)) < start + seconds:
            await asyncio.sleep(moment - loop.time())
            tasks.append(asyncio.create_task(self.upload_capture()))
        await asyncio.gather(*tasks)


async def measure_ingest_lag(site: BenchSite, preset: str, *, heap: int, seconds: float) -> dict[str, Any]:
    """Measure one preset, with all other settings at their defaults."""
    raw = site.make_bucket("raw")
    async with ServiceBench(site, None, raw=raw, preset=preset) as bench:
        site.notify_queue_of_uploads(raw, bench.queue)
        uploads, watch = CaptureUploads(raw), TableWatch(bench.lake)
        await uploads.upload_at_once(heap)
        start = await bench.ask_worker("start")
        full = heap / ((await bench.ask_worker("wait", captures=heap))["at"] - start["at"])
        await bench.ask_worker("drain")
        before = set(uploads.done)
        watching = asyncio.create_task(watch.follow_log())
        try:
            await uploads.upload_at_random(LOAD * full, seconds, random.Random(1))
            await _wait_until_all_seen(watch, uploads, watching)
        finally:
            watching.cancel()
    lags = sorted(watch.seen[capture_id] - at for capture_id, at in uploads.done.items() if capture_id not in before)
    table = DeltaTable(f"{bench.lake}/{TABLE}", storage_options=OPTIONS)
    rows = table.to_pyarrow_table(columns=["capture_id", "packet_no"])
    if rows.num_rows != len(uploads.done) * TINY_FRAMES or set(rows["capture_id"].to_pylist()) != set(uploads.done):
        raise SystemExit(f"{len(uploads.done)} captures of {TINY_FRAMES} rows, and {rows.num_rows} rows in {TABLE}")
    cuts = quantiles(lags, n=100, method="inclusive")
    return {
        "preset": preset,
        "full_load_per_second": full,
        "offered_per_second": LOAD * full,
        "captures": len(lags),
        "p50_seconds": cuts[49],
        "p99_seconds": cuts[98],
        "most_seconds": lags[-1],
        "versions": table.version(),
    }


async def _wait_until_all_seen(watch: TableWatch, uploads: CaptureUploads, watching: asyncio.Task[None]) -> None:
    deadline = time.monotonic() + PATIENCE
    while uploads.done.keys() - watch.seen.keys():
        if watching.done():
            watching.result()
        if time.monotonic() > deadline:
            raise SystemExit(
                f"after {PATIENCE:.0f} s {len(uploads.done.keys() - watch.seen.keys())} captures have no row"
            )
        await asyncio.sleep(_LOOK)
