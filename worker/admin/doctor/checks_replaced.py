"""Checks that all tables have the same rows of a capture: those of its newest content, as one run has decoded them, with the
signals of these rows.
"""

from __future__ import annotations

import asyncio

from pcaplake.common.errors import Fatal
from pcaplake.common.plain_text import counted
from pcaplake.derived.signals.outdated import find_outdated_signals
from pcaplake.lake.commit.swap_records import newest_swap, read_swaps
from pcaplake.lake.commit.swaps import read_swap_numbers
from pcaplake.lake.current_captures import find_current
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.ledger.sqlite import SqliteLedger
from pcaplake.signals.tables import SIGNALS
from pcaplake.worker.admin.case import Case

from .findings import Finding, ok, warning

_LOOKED_AT = 1_000  # objects; a local one is read as a whole
_NAMED = 5


async def check_current_contents(case: Case) -> list[Finding]:
    """Find objects that have another content now than `current_captures` says. Looks at objects with several contents only."""
    _, ledger = case.require_identity_and_ledger()
    if not isinstance(ledger, SqliteLedger):
        return [ok("`pcaplake reconcile` compares the contents of a fleet's objects with the lake")]
    contents = await ledger.find_contents_by_uri(await case.generation_in_use())
    if not contents:
        return [ok("no object has several contents in the lake")]
    current = await find_current(case.store, contents)
    wrong, gone = list[str](), 0
    loop = asyncio.get_running_loop()
    for uri in sorted(current)[:_LOOKED_AT]:
        now = await asyncio.to_thread(_identify, case, uri, loop)
        gone += now is None
        if now is not None and now in contents[uri] and now != current[uri].capture_id:
            wrong.append(uri)
    several = f"{counted(len(contents), 'object')} of the lake with several contents"
    looked = f" ({counted(_LOOKED_AT, 'object')} looked at)" if len(current) > _LOOKED_AT else ""
    if wrong:
        return [
            warning(
                f"{several}: {len(wrong)} of them have an older one again, which `current_captures` does not say{looked}: "
                + ", ".join(wrong[:_NAMED])
                + ", ..." * (len(wrong) > _NAMED),
                "run `pcaplake ingest` with them",
            )
        ]
    return [ok(f"{several}: `current_captures` says which is the current one; {gone} are gone{looked}")]


def _identify(case: Case, uri: str, loop: asyncio.AbstractEventLoop) -> str | None:
    """The capture that an object has now; None if it cannot be read. Blocks."""
    try:
        with case.sources.open_blocking(uri, loop) as file:
            return file.identify_capture().capture_id
    except (OSError, Fatal):
        return None


async def check_swapped_rows(case: Case) -> list[Finding]:
    """Find tables that lack a swap of rows: other tables have rows of another decoding or content of its captures."""
    newest, generation = await newest_swap(case.store), await case.generation_in_use()
    if not newest:
        return [ok("no rows were ever swapped")]
    numbers = await read_swap_numbers(LogStore(case.store, lock_table=case.lock_table), generation)
    recorded = await read_swaps(case.store, range(min(newest, *numbers.values()) + 1, newest + 1))
    swaps = [swap for swap in recorded if swap.generation == generation]
    behind = [table for table, number in numbers.items() if any(swap.number > number for swap in swaps)]
    if not behind:
        return [ok("every table has all swaps of rows")]
    captures = {capture_id for swap in swaps for capture_id in swap.captures}
    return [
        warning(
            f"{', '.join(behind)}: {'has' if len(behind) == 1 else 'have'} older rows of {counted(len(captures), 'capture')} "
            "than other tables: rows are being replaced (`ingest`, `delete` or `pcaplake-spark replace`), this was "
            "interrupted, or the table was restored to an older version",
            "if no such run is active, run `pcaplake ingest`; in a fleet, the committer finishes this within ten minutes",
        )
    ]


async def check_signals(case: Case) -> list[Finding]:
    """Say what the next run of `signals` will make again. It looks at new frames when it runs, so these are not listed."""
    log = LogStore(case.store, lock_table=case.lock_table)
    if await log.read_version(SIGNALS) < 0:
        return [ok("the lake has no signals")]
    outdated = await find_outdated_signals(case.store, log)
    if not outdated:
        return [ok("the signals are those of the frames that were there when they were decoded last")]
    return [ok(f"{text}: the next run of `signals` decodes these frames again") for text in outdated]
