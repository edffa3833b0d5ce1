"""Adds per second through the committer, with 1 and with 8 workers that stage.

The stages are real: decoded captures, and Parquet files in the store, with eight days and therefore 24 files each. They are
made before the measurement, which covers the ledger and the committer only: from the first stage that the ledger gets until
the last one is in every table. The number of stages is the same for any number of workers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from .fleet_child import ChildProcess, python_module_command
from .fleet_site import BenchSite

PATIENCE = 600.0


async def measure_committer_rates(
    site: BenchSite, counts: Sequence[int], *, stages: int, days: int, repeats: int
) -> list[dict[str, Any]]:
    rates_by_count: list[list[dict[str, Any]]] = [[] for _ in counts]
    for _ in range(repeats):
        for workers, runs in zip(counts, rates_by_count, strict=True):
            runs.append(await _measure_committer_rate(site, workers, stages, days))
    return [
        {
            "workers": workers,
            "stages": stages,
            "adds": runs[0]["adds"],
            "adds_per_second": [run["adds"] / run["seconds"] for run in runs],
            "staged_per_second": [run["adds"] / run["staging"] for run in runs],
            "batches": [run["batches"] for run in runs],
            "cpu_ms_per_add": [1000 * run["cpu"] / run["adds"] for run in runs],
        }
        for workers, runs in zip(counts, rates_by_count, strict=True)
    ]


async def _measure_committer_rate(site: BenchSite, workers: int, stages: int, days: int) -> dict[str, Any]:
    """Measure on a new lake. `cpu`: seconds of the committer."""
    lake = [f"s3://{site.make_bucket('adds')}/lake", site.make_ledger_table(), site.make_lock_table()]
    async with AsyncExitStack() as stack:

        async def start_role(role: str) -> ChildProcess:
            child = await ChildProcess.start(
                python_module_command("fleet_stager", *lake, role), site.environment, site.make_log_path(role)
            )
            return await stack.enter_async_context(child)

        committer = await start_role("committer")
        await committer.request_answer({"until": []}, PATIENCE)  # the lake is made
        crew = [await start_role("worker") for _ in range(workers)]
        shares = [stages // workers + (number < stages % workers) for number in range(workers)]
        ready = await asyncio.gather(
            *(
                child.request_answer({"prepare": share, "days": days, "worker": number}, PATIENCE)
                for number, (child, share) in enumerate(zip(crew, shares, strict=True))
            )
        )
        ids = [capture_id for told in ready for capture_id in told["capture_ids"]]
        before = await committer.request_answer({"until": []}, PATIENCE)
        began = time.monotonic()
        staged = await asyncio.gather(*(child.request_answer({"stage": True}, PATIENCE) for child in crew))
        done = await committer.request_answer({"until": ids}, PATIENCE)
        seconds = time.monotonic() - began
    return {
        "adds": sum(told["adds"] for told in ready),
        "seconds": seconds,
        "staging": max(told["seconds"] for told in staged),
        "batches": done["batch"] - before["batch"],
        "cpu": done["cpu"] - before["cpu"],
    }
