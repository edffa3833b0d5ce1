"""Checks of a lake with a lock table before anything is written: settings with which writers would not see each other.

A table that cannot be written is not an error here: it blocks only itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from pcaplake.common.errors import Fatal
from pcaplake.lake.store.store import Store

from .lock_table import LockTable, TablePath

FAR_OFF = 300.0  # seconds; an entry expires after a day, and S3 refuses requests from 15 minutes on


async def check_lock_table(
    store: Store, lock_table: LockTable, tables: Sequence[str], *, now: Callable[[], float] = time.time
) -> None:
    """Raises Fatal with all problems and what to do about them, Retryable when a service does not answer.

    `now`: epoch seconds. A table that does not exist yet is not a problem.
    """
    clock, problems = await lock_table.verify_and_read_clock(), []
    if clock is not None and abs(now() - clock) > FAR_OFF:
        problems.append(
            f"the clock of this machine differs by {now() - clock:+.0f} s from that of the lock table, whose entries would "
            "expire at the wrong time: set the clock (NTP)"
        )
    for table_problems in await asyncio.gather(
        *(_find_other_spellings(lock_table, TablePath.for_table(store.uri, table)) for table in tables)
    ):
        problems += table_problems
    if problems:
        raise Fatal("; ".join(problems))


async def _find_other_spellings(lock_table: LockTable, path: TablePath) -> list[str]:
    others = list(path.other_spellings())
    known = await asyncio.gather(*map(lock_table.has_entries_for, others))
    return [
        f"the lock table has entries of {other}, and this table is {path} here: writers with the other spelling do not "
        f"see our locks. Let all writers use {path}; then delete the entries of the other spelling"
        for other, there in zip(others, known, strict=True)
        if there
    ]
