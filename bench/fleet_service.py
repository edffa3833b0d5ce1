"""The service of `pcaplake run`: messages and bytes per second, and the cost of a million rows and of a terabyte of captures.

Captures come from a plain HTTP file server, so that the local S3 does not limit the rate. The notifications are in the queue
before the measurement begins. There is one worker process, with its committer. Every measurement has its own lake.
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

from pcaplake.ingest.captures.objects import StoredObjects
from pcaplake.ingest.captures.reference import ObjectRef
from pcaplake.worker.service.notification import build_s3_event
from pcaplake.worker.service.queue.sqs import SqsQueue

from .fleet_child import OPTIONS, ChildProcess, python_module_command
from .fleet_files import build_tiny_capture
from .fleet_prices import price_captures
from .fleet_site import BenchSite, CountingProxies
from .ingest import measure_ingest

PATIENCE = 1800.0
TERABYTE, MILLION, HOUR = 1e12, 1e6, 3600.0
_SETTLING = 1.0  # seconds until a new leader has read all state
_FOLLOWER_SETTLING = 80.0  # seconds until a follower has reached its longest interval between reads of the lease
TINY_FRAMES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedCaptures:
    """One file that is served as many captures, and the profile to read it with."""

    name: str
    path: Path
    profile: Path | None

    @property
    def capture_size(self) -> int:
        return self.path.stat().st_size


def tiny_captures(folder: Path) -> ServedCaptures:
    path = folder / "tiny.pcap"
    path.write_bytes(build_tiny_capture(TINY_FRAMES))
    return ServedCaptures(name="tiny", path=path, profile=None)


class ServiceBench:
    """`async with`: a queue, a lake, a file server, and a worker process whose service has not started yet."""

    def __init__(
        self,
        site: BenchSite,
        captures: ServedCaptures | None,
        *,
        environment: Mapping[str, str] | None = None,
        raw: str = "raw",
        suspects: bool = True,
        **settings: Any,
    ) -> None:
        self.queue, self.raw = settings.get("queue") or site.make_queue("captures"), raw
        self.lake = f"s3://{site.make_bucket('lake')}/drives"
        self._site, self._captures, self._suspects = site, captures, suspects
        self._environment = dict(site.environment if environment is None else environment)
        self.settings = {
            "queue": self.queue,
            "lake": self.lake,
            "ledger_table": site.make_ledger_table(),
            "lock_table": site.make_lock_table(),
            "storage_option": OPTIONS,
            "region": site.environment["AWS_REGION"],
            **settings,
        }
        self._stack = AsyncExitStack()
        self._worker: ChildProcess
        self._files: ChildProcess
        self._url = ""

    async def __aenter__(self) -> Self:
        captures, buckets = self._captures, dict[str, str]()
        if captures is not None:
            command = python_module_command("fleet_files", f"{captures.name}={captures.path.absolute()}")
            child = await ChildProcess.start(command, os.environ, self._site.make_log_path("files"))
            self._files = await self._stack.enter_async_context(child)
            self._url = buckets[f"s3://{self.raw}"] = (await self._files.request_answer({}, PATIENCE))["url"]
            if captures.profile is not None:
                self.settings["profile"] = str(captures.profile.absolute())
        spec = json.dumps({"settings": self.settings, "buckets": buckets, "suspects": self._suspects})
        child = await ChildProcess.start(
            python_module_command("fleet_worker", spec), self._environment, self._site.make_log_path("worker")
        )
        self._worker = await self._stack.enter_async_context(child)
        await self.ask_worker("nothing")  # the lake is made, and the kernels are loaded
        return self

    async def __aexit__(self, *error: object) -> None:
        self._worker.kill()
        await self._stack.aclose()

    async def ask_worker(self, what: str, **given: Any) -> dict[str, Any]:
        return await self._worker.request_answer({"do": what, **given}, PATIENCE)

    def kill_worker(self) -> None:
        """Kill the worker by SIGKILL."""
        self._worker.kill()

    async def count_capture_requests(self) -> int:
        """The number of requests for captures so far."""
        return int((await self._files.request_answer({}, PATIENCE))["requests"])

    def capture_uris(self, count: int) -> list[str]:
        assert self._captures is not None
        return [f"s3://{self.raw}/{self._captures.name}/{number:06}.pcap" for number in range(count)]

    async def send_notifications(self, count: int) -> None:
        """Send `count` notifications to the queue."""
        objects = StoredObjects("s3://raw", HTTPStore.from_url(self._url, client_options={"allow_http": True}))
        uris = self.capture_uris(count)
        content = await objects.head_object(uris[0].removeprefix(f"s3://{self.raw}/"))
        queue = await SqsQueue.open(self.queue)
        await queue.send(
            [build_s3_event(ObjectRef(uri=uri, size=content.size, etag=content.etag, explicit=True)) for uri in uris]
        )
        await queue.close()


def _count_rows(told: Mapping[str, Any]) -> int:
    return int(sum(value for name, value in told["counts"].items() if name.startswith("rows ")))


async def measure_until_drained(bench: ServiceBench, count: int) -> dict[str, Any]:
    """Send notifications, and measure until their captures are staged and the messages deleted, and until all rows are in
    the tables."""
    await bench.send_notifications(count)
    start = await bench.ask_worker("start")
    staged = await bench.ask_worker("wait", captures=count)
    done = await bench.ask_worker("drain")
    if staged["tally"] != {"staged": count}:
        raise SystemExit(f"{count} captures were announced, but the outcomes are {staged['tally']}")
    return {
        "seconds": staged["at"] - start["at"],
        "seconds_to_tables": done["at"] - start["at"],
        "cpu": done["cpu"] - start["cpu"],
        "rows": _count_rows(done),
        "stages": done["counts"].get("stages", 0),
    }


async def measure_messages(site: BenchSite, *, count: int, repeats: int) -> dict[str, Any]:
    """Messages per second; each announces one tiny capture."""
    runs = []
    for _ in range(repeats):
        async with ServiceBench(site, tiny_captures(site.folder)) as bench:
            runs.append(await measure_until_drained(bench, count))
    return {
        "captures": count,
        "rows_each": runs[0]["rows"] / count,
        "per_second": [count / run["seconds"] for run in runs],
        "per_second_to_tables": [count / run["seconds_to_tables"] for run in runs],
        "cpu_ms": [1000 * run["cpu"] / count for run in runs],
        "captures_per_stage": [count / run["stages"] for run in runs],
    }


def measure_local_ingest(site: BenchSite, captures: ServedCaptures, count: int) -> float:
    """CPU seconds of `pcaplake ingest` on the same captures as local files, with all cores, without those of its start."""
    folder = site.folder / site.unique_name("local")

    def measure_cpu_seconds(name: str, path: Path, copies: int) -> float:
        source = folder / name
        source.mkdir(parents=True)
        if captures.profile is not None:
            shutil.copy(captures.profile, source / "profile.yaml")
        first = Path(shutil.copy(path, source))
        for number in range(1, copies):
            os.link(first, source / f"{number:06}.pcap")
        return float(measure_ingest(source, folder / "lake", threads=os.cpu_count() or 1)["cpu_seconds"])

    start = measure_cpu_seconds("start", tiny_captures(site.folder).path, 1)
    spent = measure_cpu_seconds("all", captures.path, count) - start
    shutil.rmtree(folder)
    return spent


async def measure_volume(site: BenchSite, captures: ServedCaptures, *, count: int, repeats: int) -> dict[str, Any]:
    """Megabytes of captures per second, only fetched, and through the whole service; `pcaplake ingest` for comparison."""
    alone, files, whole, size = list[float](), list[float](), list[dict[str, Any]](), captures.capture_size * count
    for _ in range(repeats):
        files.append(await asyncio.to_thread(measure_local_ingest, site, captures, count))
        async with ServiceBench(site, captures) as bench:
            before = await bench.ask_worker("nothing")
            after = await bench.ask_worker("fetch", uris=bench.capture_uris(count))
            alone.append(size / (after["at"] - before["at"]) / 1e6)
            whole.append(await measure_until_drained(bench, count))
    return {
        "captures": count,
        "megabytes_each": captures.capture_size / 1e6,
        "rows": whole[0]["rows"],
        "fetched_mb_per_second": alone,
        "mb_per_second": [size / run["seconds"] / 1e6 for run in whole],
        "million_rows_per_second": [run["rows"] / run["seconds"] / MILLION for run in whole],
        "cpu_seconds_per_gb": [run["cpu"] / size * 1e9 for run in whole],
        "cpu_seconds_per_million_rows": [run["cpu"] / run["rows"] * MILLION for run in whole],
        "cpu_seconds_per_million_rows_ingest": [spent / whole[0]["rows"] * MILLION for spent in files],
    }


async def measure_costs(site: BenchSite, kinds: Sequence[tuple[ServedCaptures, int]]) -> list[dict[str, Any]]:
    """Core-seconds and requests, counted as they go over the wire, per million rows and per terabyte."""
    rows = []
    for captures, count in kinds:
        async with (
            CountingProxies(site.environment) as counting,
            ServiceBench(site, captures, environment=counting.environment) as bench,
        ):
            counting.take_request_counts()
            before = await bench.count_capture_requests()
            run = await measure_until_drained(bench, count)
            operations = counting.take_request_counts()[0]
            size = captures.capture_size * count
            # `send_notifications` did not go through the proxies; it asks for one capture's eTag
            operations["S3 GetObject of captures"] = await bench.count_capture_requests() - before - 1
        rows.append(
            {
                "megabytes_each": captures.capture_size / 1e6,
                "captures": count,
                "rows": run["rows"],
                "core_seconds_per_million_rows": run["cpu"] / run["rows"] * MILLION,
                "core_hours_per_terabyte": run["cpu"] / size * TERABYTE / HOUR,
                "requests_per_million_rows": _scale_counts(operations, MILLION / run["rows"]),
                "requests_per_terabyte": _scale_counts(operations, TERABYTE / size),
                "dollars": price_captures(operations, captures=count, stages=run["stages"], core_seconds=run["cpu"]),
                "bytes": size,
            }
        )
    return rows


async def measure_idle_costs(site: BenchSite, *, seconds: float) -> list[dict[str, Any]]:
    """Requests and CPU of an idle worker in an hour: of the leader, then of a follower."""
    leader = CountingProxies(site.environment)
    async with leader, ServiceBench(site, None, environment=leader.environment) as leading:
        await leading.ask_worker("start")
        idle_hours = [await _measure_idle_hour("leader", leader, leading, settling=_SETTLING, seconds=seconds)]
        follower = CountingProxies(site.environment)
        same = {name: leading.settings[name] for name in ("queue", "ledger_table", "lock_table", "lake")}
        async with follower, ServiceBench(site, None, environment=follower.environment, **same) as following:
            await following.ask_worker("start")
            settling = min(4 * seconds, _FOLLOWER_SETTLING)
            idle_hours.append(
                await _measure_idle_hour("follower", follower, following, settling=settling, seconds=4 * seconds)
            )
    return idle_hours


async def _measure_idle_hour(
    role: str, counting: CountingProxies, bench: ServiceBench, *, settling: float, seconds: float
) -> dict[str, Any]:
    await asyncio.sleep(settling)
    start = await bench.ask_worker("nothing")
    counting.take_request_counts()
    await asyncio.sleep(seconds)
    operations = counting.take_request_counts()[0]
    end = await bench.ask_worker("nothing")
    return {
        "role": role,
        "seconds": seconds,
        "requests_per_hour": _scale_counts(operations, HOUR / seconds),
        "core_seconds_per_hour": (end["cpu"] - start["cpu"]) * HOUR / seconds,
    }


def _scale_counts(found: Counter[str], factor: float) -> dict[str, float]:
    return {name: count * factor for name, count in found.most_common()}
