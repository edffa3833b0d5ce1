"""May we start? What is found out about a lake under an arbiter before anything is written.

Knows which settings of others make commits invisible to each other. Must not know how the settings are given.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from worker.errors import Fatal

from ..store import Store
from .arbiter import Arbiter, TablePath
from .log import LogStore

FAR_OFF = 300.0  # seconds; an entry is to live for a day, and S3 refuses requests at 15 minutes


async def check(
    store: Store,
    log: LogStore,
    arbiter: Arbiter,
    tables: Sequence[str],
    *,
    now: Callable[[], float] = time.time,
) -> None:
    """Raises Fatal that says everything that is wrong and what to do; Retryable when somebody does not answer.

    `log` writes with this arbiter; `now`: epoch seconds. A table that does not exist yet is fine.
    """
    clock, problems = await arbiter.verify(), []
    if clock is not None and abs(now() - clock) > FAR_OFF:
        problems.append(
            f"the clock of this machine is {now() - clock:+.0f} s from that of the lock table, whose entries would "
            "expire at the wrong time: set it (NTP)"
        )
    for found in await asyncio.gather(*(_spellings(arbiter, TablePath.of(store.uri, table)) for table in tables)):
        problems += found
    if not problems:  # reading may already finish what somebody left behind
        problems = [why for why in await asyncio.gather(*map(log.blocked, tables)) if why is not None]
    if problems:
        raise Fatal("; ".join(problems))


async def _spellings(arbiter: Arbiter, path: TablePath) -> list[str]:
    others = list(path.misspelled())
    known = await asyncio.gather(*map(arbiter.knows, others))
    return [
        f"the lock table has entries of {other}, and this table is {path} here: who uses the other spelling does not "
        f"see our locks. Let all writers use {path}, and when nobody commits by the other, delete its entries"
        for other, there in zip(others, known, strict=True)
        if there
    ]
