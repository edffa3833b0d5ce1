"""Checks that all tables have the same rows of a capture: those of its newest content, as one run has decoded them, with the
signals of these rows.
"""

from __future__ import annotations

import asyncio

from pcaplake.common.errors import Fatal
from pcaplake.common.plain_text import counted
from pcaplake.derived.signals.outdated import compare_signals
from pcaplake.lake.commit.swap_records import find_half_swapped, newest_swap, read_swaps
from pcaplake.lake.commit.swaps import read_swap_numbers
from pcaplake.lake.current_captures import find_current
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.ledger.sqlite import SqliteLedger
from pcaplake.signals.tables import SIGNALS
from pcaplake.worker.admin.case import Case

from .findings import Finding, error, ok, warning

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
    findings = [*await _find_unfinished(case, newest, generation)]
    if half := await find_half_swapped(case.store, generation):
        uris = sorted(half.values())
        findings.append(
            warning(
                f"rows of {counted(len(uris), 'capture')} may be of two decodings, because new files were deleted before each "
                f"table had them: {', '.join(uris[:_NAMED])}" + ", ..." * (len(uris) > _NAMED),
                "read them again: `pcaplake ingest --reread FILES`, or for a fleet `pcaplake-spark replace URIS`. Rows of a "
                "capture that is gone stay as they are",
            )
        )
    return findings or [ok("every table has all swaps of rows")]


async def _find_unfinished(case: Case, newest: int, generation: int) -> list[Finding]:
    numbers = await read_swap_numbers(LogStore(case.store, lock_table=case.lock_table), generation)
    recorded = await read_swaps(case.store, range(min(newest, *numbers.values()) + 1, newest + 1))
    swaps = [swap for swap in recorded if swap.generation == generation]
    behind = [table for table, number in numbers.items() if any(swap.number > number for swap in swaps)]
    if not behind:
        return []
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
    """Say what the next run of `signals` will do, and find rows that no run would mend."""
    log = LogStore(case.store, lock_table=case.lock_table)
    if await log.read_version(SIGNALS) < 0:
        return [ok("the lake has no signals")]
    found = await compare_signals(case.store, log)
    findings = [ok(f"{text}: the next run of `signals` decodes these frames again") for text in found.changed]
    findings += [ok(f"{text}: the next run of `signals` decodes them") for text in found.new]
    if found.stray:
        findings.append(
            error(
                f"{found.stray}. No run of `signals` would remove them",
                "delete the folder of the table: the next run makes it again from all frames",
                table=SIGNALS,
            )
        )
    elif found.unknown:
        findings.append(ok(f"rows of {SIGNALS} were not compared with their frames: {found.unknown}"))
    return findings or [ok("the signals are those of the frames")]
