"""Statements of other programs on a table of signals: their rows are made again from the frames that are followed, one day of
all sources in one transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Protocol

import pyarrow.compute as pc

from pcaplake.common.runtime import Runtime
from pcaplake.lake.delta.actions import AddFile
from pcaplake.lake.delta.log_reader import LogReader
from pcaplake.lake.follow.table_files import LostVersions, TableFile
from pcaplake.lake.follow.touched import COLUMNS, Day, Touched
from pcaplake.signals.sources import Source

from .follow import EMPTY_VERSIONS, Planner
from .frames import FrameTable
from .output import Output


class Decode(Protocol):
    """Decodes the frames of files that match a condition, and counts them."""

    async def __call__(
        self, output: Output, kind: Source, files: Sequence[TableFile], only: pc.Expression | None
    ) -> Sequence[AddFile]: ...


class Checks:
    """The checks of one run. Call `check` when the frames are followed."""

    def __init__(
        self,
        log: LogReader,
        planner: Planner,
        tables: Mapping[Source, FrameTable],
        *,
        decode: Decode,
        runtime: Runtime,
        say: Callable[[str], None],
        stopped: asyncio.Event,
    ) -> None:
        self._log, self._planner, self._tables = log, planner, tables
        self._decode, self._runtime, self._say, self._stopped = decode, runtime, say, stopped

    async def check(self, output: Output, *, made_again: bool) -> None:
        """Make the rows again that others changed in a table of this run. `made_again`: all rows are, just now."""
        newest, checked = await self._log.read_version(output.layout.table), await output.read_checked()
        touched = Touched()
        try:
            touched = await output.read_changes_of_others(range(checked, newest + 1))
        except LostVersions as error:
            if not made_again or checked >= 0:
                self._say(f"{error}: decoding all frames again, for {output.layout.table}")
                touched = await self._find_all_days(output)
        else:
            if touched:
                self._say(f"other programs changed rows of {output.layout.table}: decoding their frames again")
        for day in touched.days:
            if self._stopped.is_set():
                return
            await self._replace_day(output, touched, day)
        # rule: rows are made again when the frames that they lack are there again
        if touched and await output.find_missing_sources():
            return
        captures = self._planner.captures[output.layout.table]
        if touched or checked < 0 or newest - checked >= EMPTY_VERSIONS or captures.is_due:
            await output.record_checked(newest + 1, captures.versions.stop)

    async def _replace_day(self, output: Output, touched: Touched, day: Day) -> None:
        """Of all sources in one transaction: a row that another program wrote may be of none."""
        adds, condition = list[AddFile](), touched.condition(day)
        for kind, position in output.positions.items():
            if position.followed > 0:
                files = await self._planner.find_touched(kind, position.followed, touched, day)
                adds += await self._decode(output, kind, files, condition)
        self._runtime.step(f"before {output.layout.table}.replace")
        await output.replace(condition, COLUMNS, adds)
        self._runtime.step(f"after {output.layout.table}.replace")

    async def _find_all_days(self, output: Output) -> Touched:
        """The days of the table, and those of the frames that are followed."""
        touched = Touched()
        days = [file.partition_values.get("date") for file in (await output.read_snapshot()).files.live.values()]
        for day in set(days):
            touched.add_day(None if day is None else date.fromisoformat(day))
        for kind, position in output.positions.items():
            if position.followed > 0:
                for one in await self._tables[kind].list_days(position.followed - 1):
                    touched.add_day(one)
        return touched
