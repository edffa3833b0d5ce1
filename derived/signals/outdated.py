"""What `pcaplake signals` would do to a lake, for the doctor. Reads logs, and files whose rows changed."""

from __future__ import annotations

from pcaplake.common.plain_text import counted
from pcaplake.lake.delta.log_reader import LogReader
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.follow.captures import CAPTURES, read_changed_captures
from pcaplake.lake.follow.changes import read_changes
from pcaplake.lake.follow.position import UNKNOWN
from pcaplake.lake.follow.table_files import LostVersions, TableFiles
from pcaplake.lake.store.store import Store
from pcaplake.parser.schemas import TABLES as FRAME_TABLES
from pcaplake.signals.sources import TABLES
from pcaplake.signals.tables import SIGNALS

from .layout import LONG
from .output import Output
from .state import StateFile, read_generation


async def find_outdated_signals(store: Store, log: LogStore) -> list[str]:
    """Why rows of the table `signals` differ from what the frames give now; new frames do not count.

    Raises `Fatal` if their state cannot be read.
    """
    state = await StateFile(store, await read_generation(store, log)).load()
    if state is None:
        return [f"{SIGNALS} is of another state of the lake"]
    output = Output(store, log, LONG, state.id)
    if not await output.has_begun():
        return [f"{SIGNALS} was dropped, or is of another state of the lake"]
    found = [await _describe_changes(store, log, output, table) for table in TABLES.values()]
    found += [await _describe_changed_captures(store, log, output), await _describe_changes_of_others(log, output)]
    return [text for text in found if text]


async def _describe_changes(store: Store, log: LogReader, output: Output, table: str) -> str:
    table_id, newest = await log.read_table_id(table), await log.read_version(table)
    if table_id is None:
        return ""
    kind = next(kind for kind, name in TABLES.items() if name == table)
    position = await output.read_position(kind, table_id)
    if position.followed <= 0 and position.range is None:
        return ""  # a new table
    try:
        files = TableFiles(store, table, FRAME_TABLES[table].schema)
        changes = await read_changes(store, files, range(max(position.followed, 0), newest + 1))
    except LostVersions as error:
        return str(error)
    days = len(changes.touched.days)
    return f"rows of {table} changed on {counted(days, 'day')} since their signals were decoded" if days else ""


async def _describe_changed_captures(store: Store, log: LogReader, output: Output) -> str:
    newest = await log.read_version(CAPTURES)
    try:
        followed = UNKNOWN if newest < 0 else await output.read_followed_captures(newest)
        if followed == UNKNOWN:
            return ""
        number = len((await read_changed_captures(store, range(followed, newest + 1))).times)
    except LostVersions as error:
        return str(error)
    return f"URI or vehicle of {counted(number, 'capture')} changed since their signals were decoded" if number else ""


async def _describe_changes_of_others(log: LogReader, output: Output) -> str:
    try:
        versions = range(await output.read_checked(), await log.read_version(SIGNALS) + 1)
        touched = await output.read_changes_of_others(versions)
    except LostVersions as error:
        return str(error)
    return f"another program changed rows of {SIGNALS}" if touched else ""
