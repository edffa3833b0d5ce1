"""The worker service of `pcaplake run` in a process that is asked how far it is.

    python -m bench.fleet_worker '{"settings": {...}, "buckets": {"s3://name": "http://..."}}'

`settings` as `FleetSettings` names them; `buckets` are read from plain HTTP servers. Asked {"do": ...}:

    fetch   captures, read to their end and forgotten     start   the service; it runs from here on
    wait    until it has done so many captures            drain   until everything staged is in the tables

The answer is the time, the CPU of the process so far, and what the service counted.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from threading import Lock
from typing import Any

from obstore.store import HTTPStore

from worker.fetch import Fetching
from worker.fleet_settings import FleetSettings
from worker.objects import StoredObjects
from worker.serve import Parts, opened
from worker.service import Service
from worker.source import UNKNOWN_SIZE, ObjectRef, Sources
from worker.warm import warm

from .fleet_child import answer

_LOOK = 0.005
_AT_ONCE = 4


class Counts:
    """A `Meter` that keeps what is counted, by name and labels."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()
        self._lock = Lock()

    def count(self, name: str, by: float = 1, **labels: str) -> None:
        with self._lock:
            self.found[" ".join([name, *labels.values()])] += by  # type: ignore[assignment]

    def observe(self, name: str, value: float, **labels: str) -> None: ...

    def set(self, name: str, value: float, **labels: str) -> None: ...


class Worker:
    def __init__(self, parts: Parts, settings: FleetSettings, sources: Sources, counts: Counts) -> None:
        self._lakes, self._sources, self._counts, self._budget = parts.lakes, sources, counts, parts.budget
        self.service = Service(
            parts.queue,
            parts.routes,
            parts.lakes,
            parts.readers,
            sources,
            threads=settings.threads,
            budget=parts.budget,
            max_inflight=settings.max_inflight,
            poll_wait=settings.poll_wait,
            fetching=Fetching(),
            meter=counts,
        )
        self._task: asyncio.Task[None] | None = None

    async def respond(self, asked: dict[str, Any]) -> dict[str, Any]:
        match asked["do"]:
            case "fetch":
                await self._fetch(asked["uris"])
            case "start":
                self._task = asyncio.create_task(self.service.run())
            case "wait":
                while sum(self.service.tally.values()) < asked["captures"] or self.service.in_flight:
                    self._check()
                    await asyncio.sleep(_LOOK)
            case "drain":
                await asyncio.gather(*(lake.drain() for lake in self._lakes.values()))
        self._check()
        return {
            "at": time.monotonic(),
            "cpu": time.process_time(),
            "tally": dict(self.service.tally),
            "counts": dict(self._counts.found),
        }

    def _check(self) -> None:
        if self._task is not None and self._task.done():
            self._task.result()

    async def _fetch(self, uris: list[str]) -> None:
        slots = asyncio.Semaphore(_AT_ONCE)

        async def one(uri: str) -> None:
            ref = ObjectRef(uri=uri, size=UNKNOWN_SIZE, explicit=True)
            async with slots, await self._sources.fetch(ref, budget=self._budget) as body:
                await asyncio.to_thread(_read, body)

        await asyncio.gather(*map(one, uris))


def _read(body: Any) -> None:
    buffer = bytearray(1 << 20)
    while body.readinto(buffer):
        pass


def main(spec: dict[str, Any]) -> None:
    settings, counts = FleetSettings.load(None, **spec["settings"]), Counts()
    sources = Sources(
        settings.storage_option,
        {
            uri: StoredObjects(uri, HTTPStore.from_url(url, client_options={"allow_http": True}))
            for uri, url in spec["buckets"].items()
        },
    )

    async def run() -> None:
        async with opened(settings, counts) as parts:
            await answer(Worker(parts, settings, sources, counts).respond)
            os._exit(0)  # what is left in the queue is nobody's

    warm()
    asyncio.run(run())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
