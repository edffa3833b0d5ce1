"""What `pcaplake signals` would do to a lake, and what it would not mend, for the doctor.

Reads logs, files whose rows changed, and three columns of the newest files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pcaplake.common.plain_text import counted
from pcaplake.lake.delta.log_reader import LogReader
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.follow.captures import CAPTURES, read_changed_captures
from pcaplake.lake.follow.changes import read_changes
from pcaplake.lake.follow.position import UNKNOWN
from pcaplake.lake.follow.table_files import LostVersions, TableFile, TableFiles
from pcaplake.lake.follow.touched import COLUMNS, Rows, summarize
from pcaplake.lake.store.store import Store
from pcaplake.parser.schemas import TABLES as FRAME_TABLES
from pcaplake.signals.sources import TABLES
from pcaplake.signals.tables import SIGNALS, SIGNALS_SCHEMA

from .layout import LONG
from .output import Output
from .state import StateFile, read_generation

_MOST_FILES: Final = 100  # of `signals`, the newest ones
_MOST_FRAME_FILES: Final = 500
_NAMED: Final = 5


@dataclass(slots=True, kw_only=True)
class Comparison:
    """The table `signals` and its frames. `changed`: why rows differ from what the frames give now, `new`: frames that were not
    decoded yet; the next run brings both up to date. `stray`: rows that no run would mend; `unknown`: why these were not looked
    for. Texts; "" or an empty list: there is none."""

    changed: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    stray: str = ""
    unknown: str = ""


async def compare_signals(store: Store, log: LogStore) -> Comparison:
    """Compare them. Raises `Fatal` if their state cannot be read, `Retryable` if files cannot be read."""
    found = Comparison()
    state = await StateFile(store, await read_generation(store, log)).load()
    if state is None:
        found.changed = [f"{SIGNALS} is of another state of the lake"]
        return found
    output = Output(store, log, LONG, state.id)
    if not await output.has_begun():
        found.changed = [f"{SIGNALS} was dropped, or is of another state of the lake"]
        return found
    # before the positions: what changes meanwhile is in `changed`
    version = await log.read_version(SIGNALS)
    frames = {table: await log.read_version(table) for table in TABLES.values()}
    for table in TABLES.values():
        changed, new = await _describe_changes(store, log, output, table)
        found.changed += changed
        found.new += new
    found.changed += await _describe_changed_captures(store, log, output)
    found.changed += await _describe_changes_of_others(log, output)
    if missing := await output.find_missing_sources():
        found.unknown = f"{', '.join(TABLES[kind] for kind in missing)} does not exist"
    elif found.changed:
        found.unknown = "a run is due"
    else:
        try:
            await _find_stray_rows(store, version, frames, found)
        except LostVersions as error:
            found.unknown = str(error)
        if found.stray and await log.read_version(SIGNALS) != version:
            found.stray, found.unknown = "", f"{SIGNALS} changed meanwhile"
    return found


async def _find_stray_rows(store: Store, version: int, frames: Mapping[str, int], found: Comparison) -> None:
    """Rows of `signals` are of frames of the same capture, day and time; compares the newest files of these versions."""
    signals = TableFiles(store, SIGNALS, SIGNALS_SCHEMA)
    files = (await signals.list_live(version))[-_MOST_FILES:]
    days, read = {file.day for file in files}, list[tuple[TableFiles, TableFile]]()
    for table, newest in frames.items():
        if newest >= 0:
            of_table = TableFiles(store, table, FRAME_TABLES[table].schema)
            live = await of_table.list_live(newest)
            read += [(of_table, file) for file in live if not file.has_one_day or file.day in days]
    if len(read) > _MOST_FRAME_FILES:
        found.unknown = f"{counted(len(days), 'day')} of frames have {counted(len(read), 'file')}"
        return

    def compare() -> list[str]:
        rows = summarize(batch for file in files for batch in signals.read(file, COLUMNS))
        there = summarize(batch for source, file in read for batch in source.read(file, COLUMNS))
        return sorted(
            f"{capture} on {day}"
            for (day, capture), some in rows.items()
            if (known := there.get((day, capture))) is None or not _is_within(some, known)
        )

    if stray := await asyncio.to_thread(compare):
        found.stray = (
            f"{SIGNALS} has rows of frames that are not there, of {counted(len(stray), 'capture')}: "
            + ", ".join(stray[:_NAMED])
        )


def _is_within(some: Rows, known: Rows) -> bool:
    if None in (some.first, some.last, known.first, known.last):
        return True
    return (known.first or 0) <= (some.first or 0) and (some.last or 0) <= (known.last or 0)


async def _describe_changes(store: Store, log: LogReader, output: Output, table: str) -> tuple[list[str], list[str]]:
    """Changed rows, and new ones."""
    table_id, newest = await log.read_table_id(table), await log.read_version(table)
    if table_id is None:
        return [], []
    kind = next(kind for kind, name in TABLES.items() if name == table)
    position = await output.read_position(kind, table_id)
    if position.followed <= 0 and position.range is None:
        return [], []  # a new table
    try:
        files = TableFiles(store, table, FRAME_TABLES[table].schema)
        changes = await read_changes(store, files, range(max(position.followed, 0), newest + 1))
    except LostVersions as error:
        return [str(error)], []
    days, appended = len(changes.touched.days), len(changes.appended)
    changed = f"rows of {table} changed on {counted(days, 'day')} since their signals were decoded"
    new = f"{counted(appended, 'new file')} of {table}"
    return [changed] * bool(days), [new] * bool(appended)


async def _describe_changed_captures(store: Store, log: LogReader, output: Output) -> list[str]:
    newest = await log.read_version(CAPTURES)
    try:
        followed = UNKNOWN if newest < 0 else await output.read_followed_captures(newest)
        if followed == UNKNOWN:
            return []
        number = len((await read_changed_captures(store, range(followed, newest + 1))).times)
    except LostVersions as error:
        return [str(error)]
    return [f"URI or vehicle of {counted(number, 'capture')} changed since their signals were decoded"] * bool(number)


async def _describe_changes_of_others(log: LogReader, output: Output) -> list[str]:
    try:
        versions = range(await output.read_checked(), await log.read_version(SIGNALS) + 1)
        touched = await output.read_changes_of_others(versions)
    except LostVersions as error:
        return [str(error)]
    return [f"another program changed rows of {SIGNALS}"] * bool(touched)
