"""From an upload to a row that can be queried, at half of what the service can do.

Here everything goes the way it goes in production: captures are put into a bucket, which tells the queue. First a heap
of captures is drained, which gives the rate the service can do; then captures are put at random moments, half as many
a second. The clock of a capture runs from the answer to its PUT until this process has read the version of the table
`can_frames`, and the Parquet file in it, that have its rows. At the end `deltalake` must find every row once.
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

from worker.lake.identity import capture_id
from worker.lake.store import ObjectStore, Store

from .fleet_child import OPTIONS
from .fleet_files import tiny_capture
from .fleet_service import TINY_FRAMES, Bench
from .fleet_site import Site

TABLE = "can_frames"
LOAD = 0.5
PATIENCE = 120.0
_LOOK = 0.05
_AT_ONCE = 16


class Watch:
    """Reads a table's log as it grows; `seen` has the time at which each capture's rows were there."""

    def __init__(self, lake: str) -> None:
        self.seen: dict[str, float] = {}
        self._store, self._version = Store.open(lake, OPTIONS), 0

    async def run(self) -> None:
        while True:
            found = await self._store.get(f"{TABLE}/_delta_log/{self._version:020d}.json")
            if found is None:
                await asyncio.sleep(_LOOK)
                continue
            self._version += 1
            paths = [action["add"]["path"] for action in map(json.loads, found[0].splitlines()) if "add" in action]
            for ids in await asyncio.gather(*map(self._captures, paths)):
                for one in ids:
                    self.seen.setdefault(one, time.monotonic())

    async def _captures(self, path: str) -> list[str]:
        found = await self._store.get(f"{TABLE}/{path}")
        assert found is not None
        column = pq.read_table(pa.BufferReader(found[0]), columns=["capture_id"])["capture_id"]
        return [str(one) for one in column.unique().to_pylist()]


class Uploads:
    """Puts captures; `done` has the time at which each was acknowledged, by capture_id."""

    def __init__(self, bucket: str) -> None:
        self.done: dict[str, float] = {}
        store = Store.open(f"s3://{bucket}", OPTIONS)
        assert isinstance(store, ObjectStore)
        self._bucket, self._client, self._number = bucket, store.client, 0
        self._data = tiny_capture(TINY_FRAMES)

    async def put(self) -> None:
        key, self._number = f"in/{self._number:06}.pcap", self._number + 1
        result = await obstore.put_async(self._client, key, self._data, use_multipart=False)
        etag = (result["e_tag"] or "").strip('"')
        self.done[capture_id(f"s3://{self._bucket}/{key}", etag)] = time.monotonic()

    async def heap(self, count: int) -> None:
        slots = asyncio.Semaphore(_AT_ONCE)

        async def one() -> None:
            async with slots:
                await self.put()

        await asyncio.gather(*(one() for _ in range(count)))

    async def drizzle(self, rate: float, seconds: float, rng: random.Random) -> None:
        """At random moments, whether the service keeps up or not."""
        loop, tasks = asyncio.get_running_loop(), list[asyncio.Task[None]]()
        moment = start = loop.time()
        while (moment := moment + rng.expovariate(rate)) < start + seconds:
            await asyncio.sleep(moment - loop.time())
            tasks.append(asyncio.create_task(self.put()))
        await asyncio.gather(*tasks)


async def lag(site: Site, preset: str, *, heap: int, seconds: float) -> dict[str, Any]:
    """With one of the presets, everything else as it is by default."""
    raw = site.bucket("raw")
    async with Bench(site, None, raw=raw, preset=preset) as bench:
        site.announce(raw, bench.queue)
        uploads, watch = Uploads(raw), Watch(bench.lake)
        await uploads.heap(heap)
        start = await bench.ask("start")
        full = heap / ((await bench.ask("wait", captures=heap))["at"] - start["at"])
        await bench.ask("drain")
        before = set(uploads.done)
        watching = asyncio.create_task(watch.run())
        try:
            await uploads.drizzle(LOAD * full, seconds, random.Random(1))
            await _until_all(watch, uploads, watching)
        finally:
            watching.cancel()
    mine = sorted(watch.seen[one] - at for one, at in uploads.done.items() if one not in before)
    table = DeltaTable(f"{bench.lake}/{TABLE}", storage_options=OPTIONS)
    rows = table.to_pyarrow_table(columns=["capture_id", "packet_no"])
    if rows.num_rows != len(uploads.done) * TINY_FRAMES or set(rows["capture_id"].to_pylist()) != set(uploads.done):
        raise SystemExit(f"{len(uploads.done)} captures of {TINY_FRAMES} rows, and {rows.num_rows} rows in {TABLE}")
    cuts = quantiles(mine, n=100, method="inclusive")
    return {
        "preset": preset,
        "full_load_per_second": full,
        "offered_per_second": LOAD * full,
        "captures": len(mine),
        "p50_seconds": cuts[49],
        "p99_seconds": cuts[98],
        "most_seconds": mine[-1],
        "versions": table.version(),
    }


async def _until_all(watch: Watch, uploads: Uploads, watching: asyncio.Task[None]) -> None:
    deadline = time.monotonic() + PATIENCE
    while uploads.done.keys() - watch.seen.keys():
        if watching.done():
            watching.result()
        if time.monotonic() > deadline:
            raise SystemExit(
                f"after {PATIENCE:.0f} s {len(uploads.done.keys() - watch.seen.keys())} captures have no row"
            )
        await asyncio.sleep(_LOOK)
