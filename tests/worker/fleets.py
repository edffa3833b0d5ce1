"""A fleet in memory: one queue, one bucket, one lake in a folder or in memory, and services that share them."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pcaplake.common.meter import SILENT, Meter
from pcaplake.common.runtime import Runtime
from pcaplake.ingest.captures.range_reader import Budget, FetchConfig
from pcaplake.ingest.captures.source import Sources
from pcaplake.ingest.pipeline import Reader
from pcaplake.ingest.rebuild_files import CaptureSource
from pcaplake.lake import identity
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.lake import Lake
from pcaplake.lake.lake_parts import LakeParts
from pcaplake.lake.tables import create_tables
from pcaplake.parser import Profile
from pcaplake.worker.config.routes import Routes
from pcaplake.worker.config.service_settings import FleetSettings
from pcaplake.worker.service.announce import create_queue_source
from pcaplake.worker.service.parts import ServiceParts
from pcaplake.worker.service.run import build_service_config
from pcaplake.worker.service.service import Service
from tests.parser import captures
from tests.worker.adapters.faults import Faults
from tests.worker.adapters.memory_ledger import MemoryLedger
from tests.worker.adapters.memory_store import MemoryStore
from tests.worker.adapters.queue import FakeClock, MemoryBucket, MemoryQueue

ROUTES = Routes.parse_routes([{"name": "all", "bucket": "*", "lake": "memory:///test"}])
LAKE = ROUTES.lake_uris[0]


def can_capture(frames: int, first_id: int = 0) -> bytes:
    """A pcap of classic CAN frames with identifiers from `first_id` on; after 0x7FF comes 0."""
    made = [struct.pack(">IB3x8s", (first_id + i) & 0x7FF, 8, bytes(8)) for i in range(frames)]
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
        body = self.bucket.put_object(key, data)
        self.queue.put_message(body)
        return body

    async def lake(self, *, commits: bool = True, source: Any = None, **lake_config: Any) -> Lake:
        known = await identity.open_identity(self.store, self.ledger)
        log = LogStore(self.store)
        await create_tables(self.store, self.ledger, log, known.partition_columns, True)
        given = {
            "flush_interval": 5.0,
            "max_batch_age": 0.05,
            "commit_timeout": 2.0,
            "lease_timeout": 0.2,
            **lake_config,
        }
        current = identity.CurrentIdentity(self.store, known, self.ledger)
        return Lake(
            LakeParts(store=self.store, log_store=log, ledger=self.ledger, current=current),
            lake_config=LakeConfig(commits=commits, **given),
            source=source,
        )

    def parts(self) -> tuple[dict[str, Reader], Sources]:
        reader = Reader(profile=Profile.default(), decoder_version="test", now=lambda: 0.0)
        return {"all": reader}, Sources({}, {"s3://raw": self.bucket})

    def source(self) -> CaptureSource:
        return create_queue_source(self.queue, ROUTES, *self.parts(), LAKE)

    def service(
        self,
        lake: Lake,
        *,
        routes: Routes = ROUTES,
        meter: Meter = SILENT,
        now: Callable[[], float] = time.time,
        **given: Any,
    ) -> Service:
        readers, sources = self.parts()
        return Service(
            ServiceParts(
                queue=self.queue,
                routes=routes,
                lakes={LAKE: lake},
                readers=readers,
                sources=sources,
                budget=Budget(1 << 30),
            ),
            replace(
                build_service_config(
                    FleetSettings.load(threads=2, drain_timeout=10.0, poll_wait=1.0),
                    FetchConfig(first_pause=0.0, longest_pause=0.0),
                ),
                **given,
            ),
            Runtime(sleep=self.clock.sleep, now=now, meter=meter),
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
    while (len(fleet.queue) or service.messages_in_flight) and not task.done():
        await asyncio.sleep(0.01)
