"""Runs of `pcaplake signals` in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pcaplake.common.runtime import Runtime
from pcaplake.derived.signals.run import Options, SignalsRun, Tally
from pcaplake.lake.store.store import Store
from pcaplake.signals import Databases
from tests.signals.lakes import SignalLake


def decode(lake: SignalLake, known: Databases, step: Callable[[str], None] = lambda name: None, **given: Any) -> Tally:
    """One run to its end; by default each file of frames is a batch."""

    async def run() -> Tally:
        options = Options(databases=known, **{"threads": 2, "batch_bytes": 1, **given})
        one = SignalsRun(Store.open(str(lake.folder)), options, runtime=Runtime(step=step))
        await one.run()
        return one.tally

    return asyncio.run(run())
