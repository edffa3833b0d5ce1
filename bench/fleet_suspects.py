"""The cost of handling suspects alone (worker/service/suspects.py) after a worker was killed.

A worker receives some of the messages and is killed by SIGKILL. When these are visible again, one or two workers drain the
queue: with the rule, and without it. For comparison, the same queue is drained without a killed worker.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from .fleet_service import ServedCaptures, ServiceBench
from .fleet_site import BenchSite, CountingProxies

CASES = {"no worker killed": (False, True), "with the rule": (True, True), "without it": (True, False)}
"""Case -> whether a worker is killed, and whether the rule applies."""
LATE = 0.02  # seconds that each request to S3, SQS and DynamoDB is delayed: about the latency of AWS
_VISIBILITY_TIMEOUT = 15
_LOOK = 0.02


async def measure_suspects(
    site: BenchSite,
    kinds: Sequence[tuple[ServedCaptures, int]],
    *,
    workers: Sequence[int],
    shares: Sequence[float],
    repeats: int,
) -> list[dict[str, Any]]:
    """Rows per second until all are staged, by kind of capture, number of workers and share of suspects; cases take turns."""
    rows = []
    for captures, count in kinds:
        for many, share in itertools.product(workers, shares):
            held = max(1, int(share * count))
            runs: dict[str, list[dict[str, float]]] = {case: [] for case in CASES}
            for _ in range(repeats):
                for case, (killed, rule) in CASES.items():
                    runs[case].append(
                        await _measure_until_drained(site, captures, count, many, held=held * killed, rule=rule)
                    )
            rows.append(
                {
                    "kilobytes_each": captures.capture_size / 1e3,
                    "captures": count,
                    "suspects": held,
                    "workers": many,
                    "rows_per_second": {case: [run["rows_per_second"] for run in of] for case, of in runs.items()},
                    "cpu_ms": {case: [run["cpu_ms"] for run in of] for case, of in runs.items()},
                }
            )
    return rows


async def _measure_until_drained(
    site: BenchSite, captures: ServedCaptures, count: int, workers: int, *, held: int, rule: bool
) -> dict[str, float]:
    async with AsyncExitStack() as stack:
        counting = await stack.enter_async_context(CountingProxies(site.environment, LATE))
        shared: dict[str, Any] = {"queue": site.make_queue("captures", _VISIBILITY_TIMEOUT)}
        fleet = list[ServiceBench]()
        for _ in range(workers):
            bench = ServiceBench(site, captures, environment=counting.environment, suspects=rule, **shared)
            shared = {name: bench.settings[name] for name in ("queue", "ledger_table", "lock_table", "lake")}
            fleet.append(await stack.enter_async_context(bench))
        if held:
            async with ServiceBench(site, None, **shared) as victim:
                await fleet[0].send_notifications(count)
                await victim.ask_worker("hold", messages=held)
                victim.kill_worker()
            await asyncio.sleep(_VISIBILITY_TIMEOUT + 1)
        else:
            await fleet[0].send_notifications(count)
        start = [await worker.ask_worker("start") for worker in fleet]
        answers = start
        while sum(_tally_sums(answers)) < count:
            await asyncio.sleep(_LOOK)
            answers = [await worker.ask_worker("nothing") for worker in fleet]
        staged = max(answer["at"] for answer in answers)
        if sum(_tally_sums(answers)) != count:
            raise SystemExit(f"{count} captures were announced, but the outcomes are {answers}")
        rows = sum(value for answer in answers for name, value in answer["counts"].items() if name.startswith("rows "))
        cpu = sum(after["cpu"] - before["cpu"] for after, before in zip(answers, start, strict=True))
        return {"rows_per_second": rows / (staged - start[-1]["at"]), "cpu_ms": 1000 * cpu / count}


def _tally_sums(told: Sequence[dict[str, Any]]) -> list[int]:
    return [sum(answer["tally"].values()) for answer in told]
