"""Checks that all tables have the same rows of a capture: those of its newest content, as one run has decoded them, with the
signals of these rows.
"""

from __future__ import annotations

from pcaplake.signals.tables import SIGNALS
from pcaplake.worker.admin.case import Case
from pcaplake.worker.lake.commit.replaced import tables_behind
from pcaplake.worker.lake.commit.swaps import read_notes
from pcaplake.worker.lake.delta.log_store import LogStore
from pcaplake.worker.lake.signal_tables import is_served_by_spark
from pcaplake.worker.plain_text import counted
from pcaplake.worker.signals.outdated import find_outdated_signals

from .findings import Finding, ok, warning


async def check_replaced_contents(case: Case) -> list[Finding]:
    """Find tables with rows of replaced contents. A table that was restored to an older version has them again."""
    behind = await tables_behind(case.store, LogStore(case.store, lock_table=case.lock_table))
    if not behind:
        return [ok("no table has rows of replaced contents")]
    return [
        warning(
            f"{', '.join(behind)}: the table may contain rows of replaced contents: their removal was interrupted, or the "
            "table was restored to an older version",
            "run `pcaplake ingest`, which first removes these rows",
        )
    ]


async def check_swapped_rows(case: Case) -> list[Finding]:
    """Find captures whose rows a run has begun to swap: some tables may have the rows of one decoding, others of another."""
    notes = await read_notes(case.store, await case.generation_in_use())
    begun = frozenset().union(*notes.values())
    if not begun:
        return [ok("no capture has rows of two decodings")]
    return [
        warning(
            f"{counted(len(begun), 'capture')} may have rows of two profiles or versions in different tables: a run of "
            "`pcaplake ingest --reread` or `pcaplake-spark replace` is active, or was interrupted",
            "if no such run is active, run it again with the same captures: it swaps the rows in the other tables too",
        )
    ]


async def check_signals(case: Case) -> list[Finding]:
    """Find out whether `pcaplake signals` would change rows. It looks at new frames when it runs, so these are no finding."""
    log = LogStore(case.store, lock_table=case.lock_table)
    if await log.read_version(SIGNALS) < 0:
        return [ok("the lake has no signals")]
    if await is_served_by_spark(case.store, await case.generation_in_use()):
        return [ok("the Spark job decodes the signals, and follows only new frames")]
    outdated = await find_outdated_signals(case.store, log)
    if not outdated:
        return [ok("the signals are those of the frames that were there when they were decoded last")]
    return [
        warning(text, "run `pcaplake signals` with the same databases: it decodes these frames again")
        for text in outdated
    ]
