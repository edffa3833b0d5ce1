"""The worker service of `pcaplake run` in a child process that reports its progress.

    python -m bench.fleet_worker '{"settings": {...}, "buckets": {"s3://name": "http://..."}, "suspects": true}'

`settings` are fields of `FleetSettings`; `buckets` are read from plain HTTP servers; without `suspects`, no message is
treated as one (worker/service/suspects.py). Requests {"do": ...}:

    fetch   read captures to their end, and discard them     start   start the service
    wait    until it has finished this many captures         drain   until all stages are in the tables
    hold    receive this many messages, and do nothing

The answer has the time, the CPU time of the process so far, and the counters of the service.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from dataclasses import replace
from threading import Lock
from typing import Any

import uvloop
from obstore.store import HTTPStore

from pcaplake.common.runtime import Runtime
from pcaplake.ingest.captures.objects import StoredObjects
from pcaplake.ingest.captures.range_reader import FetchConfig
from pcaplake.ingest.captures.reference import UNKNOWN_SIZE, ObjectRef
from pcaplake.ingest.captures.source import Sources
from pcaplake.worker.config.service_settings import FleetSettings
from pcaplake.worker.service.parts import ServiceParts
from pcaplake.worker.service.queue import Delivery
from pcaplake.worker.service.run import build_service_config, open_service_parts
from pcaplake.worker.service.service import Service
from pcaplake.worker.service.suspects import Suspects

from .fleet_child import answer_requests

_LOOK = 0.005
_AT_ONCE = 4


class CountingMeter:
    """A `Meter` that keeps all counters, by name and labels."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()
        self._lock = Lock()

    def count(self, name: str, by: float = 1, **labels: str) -> None:
        with self._lock:
            self.found[" ".join([name, *labels.values()])] += by  # type: ignore[assignment]

    def observe(self, name: str, value: float, **labels: str) -> None: ...

    def set(self, name: str, value: float, **labels: str) -> None: ...


class Unsuspecting(Suspects):
    """Treats no message as a suspect."""

    is_receiving_singly = False

    def classify_delivery(self, delivery: Delivery) -> tuple[bool, int]:
        return False, 0


class WorkerChild:
    def __init__(
        self, parts: ServiceParts, settings: FleetSettings, sources: Sources, counts: CountingMeter, *, suspects: bool
    ) -> None:
        self._lakes, self._sources, self._counts, self._budget = parts.lakes, sources, counts, parts.budget
        self._queue = parts.queue
        self.service = Service(
            replace(parts, sources=sources), build_service_config(settings, FetchConfig()), Runtime(meter=counts)
        )
        if not suspects:
            self.service._suspects = Unsuspecting()
        self._task: asyncio.Task[None] | None = None

    async def respond_to_request(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["do"]:
            case "fetch":
                await self._fetch_captures(request["uris"])
            case "start":
                self._task = asyncio.create_task(self.service.run())
            case "wait":
                while sum(self.service.tally.values()) < request["captures"] or self.service.messages_in_flight:
                    self._raise_if_stopped()
                    await asyncio.sleep(_LOOK)
            case "hold":
                held = 0
                while held < request["messages"]:
                    held += len(await self._queue.receive(request["messages"] - held, 1.0))
            case "drain":
                await asyncio.gather(*(lake.drain() for lake in self._lakes.values()))
        self._raise_if_stopped()
        return {
            "at": time.monotonic(),
            "cpu": time.process_time(),
            "tally": dict(self.service.tally),
            "counts": dict(self._counts.found),
        }

    def _raise_if_stopped(self) -> None:
        if self._task is not None and self._task.done():
            self._task.result()

    async def _fetch_captures(self, uris: list[str]) -> None:
        slots = asyncio.Semaphore(_AT_ONCE)

        async def fetch_capture(uri: str) -> None:
            ref = ObjectRef(uri=uri, size=UNKNOWN_SIZE, explicit=True)
            async with slots, await self._sources.open_range_reader(ref, budget=self._budget) as body:
                await asyncio.to_thread(_read_to_end, body)

        await asyncio.gather(*map(fetch_capture, uris))


def _read_to_end(body: Any) -> None:
    buffer = bytearray(1 << 20)
    while body.readinto(buffer):
        pass


def main(spec: dict[str, Any]) -> None:
    settings, counts = FleetSettings.load(None, **spec["settings"]), CountingMeter()
    sources = Sources(
        settings.storage_option,
        {
            uri: StoredObjects(uri, HTTPStore.from_url(url, client_options={"allow_http": True}))
            for uri, url in spec["buckets"].items()
        },
    )

    async def run_worker() -> None:
        async with open_service_parts(settings, counts) as parts:
            await answer_requests(
                WorkerChild(parts, settings, sources, counts, suspects=spec.get("suspects", True)).respond_to_request
            )
            os._exit(0)  # messages may remain in the queue

    uvloop.run(run_worker())  # as `pcaplake run`


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
