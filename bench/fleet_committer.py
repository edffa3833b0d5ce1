"""Adds committed a second through the committer, with 1 and with 8 workers that stage.

The stages are real: decoded captures, Parquet files in the store, eight days and so 24 files each. They are made
before the clock runs, for it is the ledger and the committer that are measured: the clock runs from the first stage
that is handed to the ledger until the last one is in every table. The same number of stages, however many workers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from .fleet_child import Child, python
from .fleet_site import Site

PATIENCE = 600.0


async def rates(site: Site, counts: Sequence[int], *, stages: int, days: int, repeats: int) -> list[dict[str, Any]]:
    found: list[list[dict[str, Any]]] = [[] for _ in counts]
    for _ in range(repeats):
        for workers, runs in zip(counts, found, strict=True):
            runs.append(await _rate(site, workers, stages, days))
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
        for workers, runs in zip(counts, found, strict=True)
    ]


async def _rate(site: Site, workers: int, stages: int, days: int) -> dict[str, Any]:
    """On a lake of its own. `cpu` is the committer's."""
    lake = [f"s3://{site.bucket('adds')}/lake", site.ledger_table(), site.lock_table()]
    async with AsyncExitStack() as stack:

        async def start(role: str) -> Child:
            child = await Child.start(python("fleet_stager", *lake, role), site.environment, site.log(role))
            return await stack.enter_async_context(child)

        committer = await start("committer")
        await committer.ask({"until": []}, PATIENCE)  # the lake is made
        crew = [await start("worker") for _ in range(workers)]
        shares = [stages // workers + (number < stages % workers) for number in range(workers)]
        ready = await asyncio.gather(
            *(
                child.ask({"prepare": share, "days": days, "worker": number}, PATIENCE)
                for number, (child, share) in enumerate(zip(crew, shares, strict=True))
            )
        )
        ids = [one for told in ready for one in told["capture_ids"]]
        before = await committer.ask({"until": []}, PATIENCE)
        began = time.monotonic()
        staged = await asyncio.gather(*(child.ask({"stage": True}, PATIENCE) for child in crew))
        done = await committer.ask({"until": ids}, PATIENCE)
        seconds = time.monotonic() - began
    return {
        "adds": sum(told["adds"] for told in ready),
        "seconds": seconds,
        "staging": max(told["seconds"] for told in staged),
        "batches": done["batch"] - before["batch"],
        "cpu": done["cpu"] - before["cpu"],
    }
