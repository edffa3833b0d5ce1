"""The table `captures` beside a table that is followed: what must wait for it, and which of its rows changed.

The tables of a lake are committed side by side, so frames may be there before their captures are. URI and vehicle of a capture
decide what is made of its frames. Batches come to each table in order, so the number of the last one says what `captures` has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any, Final

from pcaplake.lake.delta.actions import Json, parse_json_lines
from pcaplake.lake.delta.log_reader import LogReader
from pcaplake.lake.delta.log_state import LAKE, version_file_path
from pcaplake.lake.store.store import Store
from pcaplake.parser.schemas import TABLES

from .changes import read_versions
from .table_files import LostVersions, TableFile, TableFiles
from .touched import Day, Rows, Touched

CAPTURES: Final = "captures"
_DECIDING: Final = ("uri", "vehicle_id")
_TIMES: Final = ("first_ts_ns", "last_ts_ns")
_ONE_DAY: Final = timedelta(days=1)  # to be sure


async def find_first_ahead(store: Store, log: LogReader, table: str, versions: range) -> int:
    """The first of these versions of a table that has a batch which `captures` lacks; their end: there is none.

    The versions are older than this call. Those that the log no longer has count as not ahead.
    """
    known = await log.read_transaction(CAPTURES, LAKE)
    end = versions.stop
    # rule: frames wait until `captures` has their batch
    if await log.read_transaction(table, LAKE) <= known:
        return end
    for version in reversed(versions):
        stored = await store.get(version_file_path(table, version))
        batch = None if stored is None else _batch(parse_json_lines(stored[0]))
        if stored is None or (batch is not None and batch <= known):
            break
        if batch is not None:
            end = version
    return end


def _batch(lines: list[Json]) -> int | None:
    return next((line["txn"]["version"] for line in lines if line.get("txn", {}).get("appId") == LAKE), None)


@dataclass(slots=True)
class ChangedCaptures:
    """Captures whose URI or vehicle changed, with the times of their first and last packets, None if not known."""

    times: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)

    def add(self, capture: str, first: int | None, last: int | None) -> None:
        """What more versions change only adds rows."""
        old = self.times.get(capture, (first, last))
        unknown = None in (*old, first, last)
        self.times[capture] = (None, None) if unknown else (min(old[0] or 0, first or 0), max(old[1] or 0, last or 0))

    def __bool__(self) -> bool:
        return bool(self.times)

    def touch(self, touched: Touched, days: Collection[Day]) -> None:
        """Add their rows on these days, which are all that the tables have."""
        for capture, (first, last) in self.times.items():
            for day in days:
                if day is None or first is None or last is None:
                    touched.add_rows({(day, capture): Rows(0, None, None)})
                elif _day(first) - _ONE_DAY <= day <= _day(last) + _ONE_DAY:
                    touched.add_rows({(day, capture): Rows(0, first, last)})


def _day(ns: int) -> date:
    return (datetime(1970, 1, 1) + timedelta(microseconds=ns // 1_000)).date()


async def read_changed_captures(store: Store, versions: range) -> ChangedCaptures:
    """The captures whose rows these versions of `captures` changed. Raises `LostVersions` if nobody can know."""
    files, changed = TableFiles(store, CAPTURES, TABLES[CAPTURES].schema), ChangedCaptures()
    async for version in read_versions(store, CAPTURES, versions):
        if version.ours and not version.removes:
            continue  # new captures, whose frames waited for them
        if await files.find_missing([*version.adds, *version.removes]):
            raise LostVersions(f"files of {CAPTURES} were deleted before their rows were read")
        before, after = [await asyncio.to_thread(_read_rows, files, some) for some in (version.removes, version.adds)]
        if version.ours:  # a capture that is removed loses its frames, too
            before = {capture: row for capture, row in before.items() if capture in after}
        for capture, (deciding, times) in {**after, **before}.items():
            # rule: frames of a capture whose URI or vehicle changed are touched
            if capture not in before or capture not in after or after[capture][0] != deciding:
                changed.add(capture, *times)
    return changed


def _read_rows(
    files: TableFiles, some: Sequence[TableFile]
) -> dict[str, tuple[Sequence[Any], tuple[int | None, int | None]]]:
    """What decides, and the times, by capture."""
    columns = ("capture_id", *_DECIDING, *_TIMES)
    rows = [list(row.values()) for file in some for batch in files.read(file, columns) for row in batch.to_pylist()]
    return {row[0]: (row[1:-2], (row[-2], row[-1])) for row in rows}
