"""The service of `pcaplake run`: messages and bytes a second, and what a million rows and a terabyte of captures cost.

Captures come from a plain HTTP file server, so that the local S3 is not what is measured there; the notifications lie
in the queue before the clock runs. One worker process, with its committer. Every measurement has a lake of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from obstore.store import HTTPStore

from worker.notification import event
from worker.objects import StoredObjects
from worker.queue.sqs import SqsQueue
from worker.source import ObjectRef

from .fleet_child import OPTIONS, Child, python
from .fleet_files import tiny_capture
from .fleet_site import Counting, Site
from .ingest import ingest

PATIENCE = 1800.0
TERABYTE, MILLION, HOUR = 1e12, 1e6, 3600.0
_SETTLING = 1.0  # seconds until a new leader has looked at everything once
TINY_FRAMES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Captures:
    """`path` served as many captures; `profile` to read it with."""

    name: str
    path: Path
    profile: Path | None

    @property
    def size(self) -> int:
        return self.path.stat().st_size


def tiny(folder: Path) -> Captures:
    path = folder / "tiny.pcap"
    path.write_bytes(tiny_capture(TINY_FRAMES))
    return Captures(name="tiny", path=path, profile=None)


class Bench:
    """One worker, started and not running yet, a queue, a lake and a file server; `async with`."""

    def __init__(
        self,
        site: Site,
        captures: Captures | None,
        *,
        environment: Mapping[str, str] | None = None,
        raw: str = "raw",
        **settings: Any,
    ) -> None:
        self.queue, self.raw = site.queue("captures"), raw
        self.lake = f"s3://{site.bucket('lake')}/drives"
        self._site, self._captures = site, captures
        self._environment = dict(site.environment if environment is None else environment)
        self._settings = {
            "queue": self.queue,
            "lake": self.lake,
            "ledger_table": site.ledger_table(),
            "lock_table": site.lock_table(),
            "storage_option": OPTIONS,
            "region": site.environment["AWS_REGION"],
            **settings,
        }
        self._stack = AsyncExitStack()
        self._worker: Child
        self._files: Child
        self._url = ""

    async def __aenter__(self) -> Self:
        captures, buckets = self._captures, dict[str, str]()
        if captures is not None:
            command = python("fleet_files", f"{captures.name}={captures.path.absolute()}")
            child = await Child.start(command, os.environ, self._site.log("files"))
            self._files = await self._stack.enter_async_context(child)
            self._url = buckets[f"s3://{self.raw}"] = (await self._files.ask({}, PATIENCE))["url"]
            if captures.profile is not None:
                self._settings["profile"] = str(captures.profile.absolute())
        spec = json.dumps({"settings": self._settings, "buckets": buckets})
        child = await Child.start(python("fleet_worker", spec), self._environment, self._site.log("worker"))
        self._worker = await self._stack.enter_async_context(child)
        await self.ask("nothing")  # the lake is made, and the kernels are loaded
        return self

    async def __aexit__(self, *error: object) -> None:
        self._worker.kill()
        await self._stack.aclose()

    async def ask(self, what: str, **given: Any) -> dict[str, Any]:
        return await self._worker.ask({"do": what, **given}, PATIENCE)

    async def fetched(self) -> int:
        """Requests for captures so far."""
        return int((await self._files.ask({}, PATIENCE))["requests"])

    def uris(self, count: int) -> list[str]:
        assert self._captures is not None
        return [f"s3://{self.raw}/{self._captures.name}/{number:06}.pcap" for number in range(count)]

    async def announce(self, count: int) -> None:
        """So many notifications into the queue."""
        objects = StoredObjects("s3://raw", HTTPStore.from_url(self._url, client_options={"allow_http": True}))
        uris = self.uris(count)
        content = await objects.head(uris[0].removeprefix(f"s3://{self.raw}/"))
        queue = await SqsQueue.open(self.queue)
        await queue.send(
            [event(ObjectRef(uri=uri, size=content.size, etag=content.etag, explicit=True)) for uri in uris]
        )
        await queue.close()


def _rows(told: Mapping[str, Any]) -> int:
    return int(sum(value for name, value in told["counts"].items() if name.startswith("rows ")))


async def drained(bench: Bench, count: int) -> dict[str, Any]:
    """Notifications for so many captures, until they are staged and deleted, and until all is in the tables."""
    await bench.announce(count)
    start = await bench.ask("start")
    staged = await bench.ask("wait", captures=count)
    done = await bench.ask("drain")
    if staged["tally"] != {"staged": count}:
        raise SystemExit(f"{count} captures were announced, and this became of them: {staged['tally']}")
    return {
        "seconds": staged["at"] - start["at"],
        "seconds_to_tables": done["at"] - start["at"],
        "cpu": done["cpu"] - start["cpu"],
        "rows": _rows(done),
        "stages": done["counts"].get("stages", 0),
    }


async def messages(site: Site, *, count: int, repeats: int) -> dict[str, Any]:
    """One message, one tiny capture."""
    runs = []
    for _ in range(repeats):
        async with Bench(site, tiny(site.folder)) as bench:
            runs.append(await drained(bench, count))
    return {
        "captures": count,
        "rows_each": runs[0]["rows"] / count,
        "per_second": [count / run["seconds"] for run in runs],
        "per_second_to_tables": [count / run["seconds_to_tables"] for run in runs],
        "cpu_ms": [1000 * run["cpu"] / count for run in runs],
        "captures_per_stage": [count / run["stages"] for run in runs],
    }


def local(site: Site, captures: Captures, count: int) -> float:
    """CPU seconds of `pcaplake ingest` on the same captures as local files, with all cores; without those of a start."""
    folder = site.folder / site.name("local")

    def cpu(name: str, path: Path, copies: int) -> float:
        source = folder / name
        source.mkdir(parents=True)
        if captures.profile is not None:
            shutil.copy(captures.profile, source / "profile.yaml")
        first = Path(shutil.copy(path, source))
        for number in range(1, copies):
            os.link(first, source / f"{number:06}.pcap")
        return float(ingest(source, folder / "lake", threads=os.cpu_count() or 1)["cpu_seconds"])

    start = cpu("start", tiny(site.folder).path, 1)
    spent = cpu("all", captures.path, count) - start
    shutil.rmtree(folder)
    return spent


async def volume(site: Site, captures: Captures, *, count: int, repeats: int) -> dict[str, Any]:
    """Megabytes of captures a second: fetched alone, and through the whole service; beside it `pcaplake ingest`."""
    alone, files, whole, size = list[float](), list[float](), list[dict[str, Any]](), captures.size * count
    for _ in range(repeats):
        files.append(await asyncio.to_thread(local, site, captures, count))
        async with Bench(site, captures) as bench:
            before = await bench.ask("nothing")
            after = await bench.ask("fetch", uris=bench.uris(count))
            alone.append(size / (after["at"] - before["at"]) / 1e6)
            whole.append(await drained(bench, count))
    return {
        "captures": count,
        "megabytes_each": captures.size / 1e6,
        "rows": whole[0]["rows"],
        "fetched_mb_per_second": alone,
        "mb_per_second": [size / run["seconds"] / 1e6 for run in whole],
        "million_rows_per_second": [run["rows"] / run["seconds"] / MILLION for run in whole],
        "cpu_seconds_per_gb": [run["cpu"] / size * 1e9 for run in whole],
        "cpu_seconds_per_million_rows": [run["cpu"] / run["rows"] * MILLION for run in whole],
        "cpu_seconds_per_million_rows_ingest": [spent / whole[0]["rows"] * MILLION for spent in files],
    }


async def cost(site: Site, kinds: Sequence[tuple[Captures, int]]) -> list[dict[str, Any]]:
    """Core-seconds and requests, counted as they go over the wire, per million rows and per terabyte."""
    rows = []
    for captures, count in kinds:
        async with (
            Counting(site.environment) as counting,
            Bench(site, captures, environment=counting.environment) as bench,
        ):
            counting.take()
            before = await bench.fetched()
            run = await drained(bench, count)
            found = counting.take()[0]
            size = captures.size * count
            # `announce` did not go through the proxies; it asks for one capture's eTag
            found["S3 GetObject of captures"] = await bench.fetched() - before - 1
        rows.append(
            {
                "megabytes_each": captures.size / 1e6,
                "captures": count,
                "rows": run["rows"],
                "core_seconds_per_million_rows": run["cpu"] / run["rows"] * MILLION,
                "core_hours_per_terabyte": run["cpu"] / size * TERABYTE / HOUR,
                "requests_per_million_rows": _scaled(found, MILLION / run["rows"]),
                "requests_per_terabyte": _scaled(found, TERABYTE / size),
            }
        )
    return rows


async def idle(site: Site, *, seconds: float) -> dict[str, Any]:
    """What one worker that leads, and has nothing to do, asks for in an hour, and how much CPU it takes."""
    async with (
        Counting(site.environment) as counting,
        Bench(site, None, environment=counting.environment) as bench,
    ):
        await bench.ask("start")
        await asyncio.sleep(_SETTLING)
        start = await bench.ask("nothing")
        counting.take()
        await asyncio.sleep(seconds)
        found = counting.take()[0]
        end = await bench.ask("nothing")
    return {
        "seconds": seconds,
        "requests_per_hour": _scaled(found, HOUR / seconds),
        "core_seconds_per_hour": (end["cpu"] - start["cpu"]) * HOUR / seconds,
    }


def _scaled(found: Counter[str], factor: float) -> dict[str, float]:
    return {name: count * factor for name, count in found.most_common()}
