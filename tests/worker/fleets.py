"""A fleet in memory: one queue, one bucket, one lake in a folder or in memory, and services that share them."""

from __future__ import annotations

import asyncio
import json
import struct
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from parser import Profile
from tests.parser import captures
from worker.fetch import Budget, Fetching
from worker.lake import identity
from worker.lake.delta.log import LogStore
from worker.lake.knobs import Knobs
from worker.lake.lake import Lake, create_tables
from worker.pipeline import Reader
from worker.replay import Replays
from worker.routes import Routes
from worker.service import Service
from worker.source import Sources
from worker.testing import Faults, MemoryLedger, MemoryStore
from worker.testing_queue import FakeClock, MemoryBucket, MemoryQueue

ROUTES = Routes.parse([{"name": "all", "bucket": "*", "lake": "memory:///test"}])
LAKE = ROUTES.lakes[0]


def can_capture(frames: int, first_id: int = 0) -> bytes:
    """A pcap of classic CAN frames with ids from `first_id` on."""
    made = [struct.pack(">IB3x8s", first_id + i, 8, bytes(8)) for i in range(frames)]
    return captures.pcap(made, 227)


class Fleet:
    """What outlives a process. `faults` are those of the services."""

    def __init__(self, *, visibility_timeout: float = 30.0, max_receives: int | None = None) -> None:
        self.clock = FakeClock()
        self.faults = Faults()
        self.queue = MemoryQueue(
            self.clock, visibility_timeout=visibility_timeout, max_receives=max_receives, faults=self.faults
        )
        self.bucket = MemoryBucket("raw", self.faults)
        self.store = MemoryStore(self.faults)
        self.ledger = MemoryLedger(self.faults)

    def upload(self, key: str, data: bytes) -> str:
        """A capture, and its notification in the queue -> the notification."""
        body = self.bucket.put(key, data)
        self.queue.put(body)
        return body

    async def lake(self, *, commits: bool = True, source: Any = None, **knobs: Any) -> Lake:
        known = await identity.open_lake(self.store, self.ledger)
        log = LogStore(self.store)
        await create_tables(log, known.partition_columns, True)
        return Lake(
            self.store,
            log,
            self.ledger,
            identity.Current(self.store, known),
            knobs=Knobs(**{"flush_interval": 5.0, "max_batch_age": 0.05, "commit_timeout": 2.0, **knobs}),
            source=source,
            lease_timeout=0.2,
            commits=commits,
        )

    def parts(self) -> tuple[dict[str, Reader], Sources]:
        reader = Reader(profile=Profile.default(), decoder_version="test", now=lambda: 0.0)
        return {"all": reader}, Sources({}, {"s3://raw": self.bucket})

    def replays(self) -> Replays:
        readers, sources = self.parts()
        return Replays(self.queue, ROUTES, readers, sources)

    def service(self, lake: Lake, **given: Any) -> Service:
        readers, sources = self.parts()
        return Service(
            self.queue,
            ROUTES,
            {LAKE: lake},
            readers,
            sources,
            **{
                "threads": 2,
                "budget": Budget(1 << 30),
                "drain_timeout": 10.0,
                "poll_wait": 1.0,
                "fetching": Fetching(first_pause=0.0, longest_pause=0.0),
                "sleep": self.clock.sleep,
                **given,
            },
        )

    def rows(self, table: str) -> pa.Table:
        """What the log of a table says is in it."""
        live: dict[str, None] = {}
        prefix = f"{table}/_delta_log/"
        for path in sorted(self.store.objects):
            if path.startswith(prefix) and path.endswith(".json"):
                for line in self.store.objects[path][0].splitlines():
                    action = json.loads(line)
                    if "add" in action:
                        live[action["add"]["path"]] = None
                    if "remove" in action:
                        live.pop(action["remove"]["path"], None)
        parts = [pq.read_table(pa.BufferReader(self.store.objects[f"{table}/{path}"][0])) for path in live]
        return pa.concat_tables(parts) if parts else pa.table({})

    def captures(self) -> Counter[str]:
        """uri -> how often it is in the table `captures`."""
        table = self.rows("captures")
        return Counter(table["uri"].to_pylist()) if table.num_rows else Counter()


async def emptied(fleet: Fleet, service: Service, task: Any) -> None:
    """Until nothing is in the queue, or the service has ended."""
    while (len(fleet.queue) or service.in_flight) and not task.done():
        await asyncio.sleep(0.01)
