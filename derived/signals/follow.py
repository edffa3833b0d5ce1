"""Brings one table up to date with one table of frames: the new frames, and those that may have changed.

    plan       what happened in the versions after the position: appended files, and touched rows (`lake/follow`)
    touched    of each day, the rows of touched frames are replaced by those that these frames give now
    appended   the frames of appended files are decoded, in batches
    wait       frames of a batch that `captures` lacks, and what came after them

Frames whose captures have another URI or vehicle than before are touched, too.

The end of the range is pinned before, so that touched frames are read as they are there. A batch of appended files moves the
position inside of the range, and a killed run goes on there: its range is done before another one begins. What is replaced may
be replaced again. If it is not known what happened, the rows of all frames are replaced, one day after the other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import reduce
from operator import and_
from typing import Final

import pyarrow.compute as pc

from pcaplake.common.errors import Fatal
from pcaplake.lake.delta.log_reader import LogReader
from pcaplake.lake.follow.captures import CAPTURES, ChangedCaptures, find_first_ahead, read_changed_captures
from pcaplake.lake.follow.changes import Changes, read_changes
from pcaplake.lake.follow.position import UNKNOWN, OpenRange, Position
from pcaplake.lake.follow.table_files import LostVersions, TableFile
from pcaplake.lake.follow.touched import COLUMNS, Day, Touched, of_any_day, of_day
from pcaplake.lake.store.store import Store
from pcaplake.signals.sources import Source

from .conditions import ROW_COLUMNS, of_source
from .frames import FrameTable
from .layout import LONG
from .output import Output

EMPTY_VERSIONS: Final = 20  # of a source without rows, after which the position is committed on its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What one transaction does. `files`: frames to decode. `only`: those of them that count. `replaced`: the rows that go;
    None: none. `then`: the position after it; None: as before."""

    files: Sequence[TableFile]
    only: pc.Expression | None = None
    replaced: pc.Expression | None = None
    then: Position | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`units` in their order, after which the versions of the frames below `until` are followed. `table_id`: of the frames.
    `why`: why all frames are decoded. `resumes`: the range of an earlier run, after which more follows. `waits`: newer versions
    wait for `captures`."""

    output: Output
    kind: Source
    table_id: str
    until: int
    units: Sequence[Unit]
    why: str = ""
    resumes: bool = False
    waits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Captures:
    """What happened to `captures` in versions that a table has not followed; `lost`: why nobody knows."""

    versions: range
    changed: ChangedCaptures = field(default_factory=ChangedCaptures)
    lost: str = ""

    @property
    def is_due(self) -> bool:
        """Whether the position in `captures` is committed on its own."""
        begins = self.versions.start == UNKNOWN and self.versions.stop > 0
        return begins or self.is_changed or len(self.versions) >= EMPTY_VERSIONS

    @property
    def is_changed(self) -> bool:
        """Whether frames are touched."""
        return bool(self.changed or self.lost)

    def touch(self, touched: Touched, days: Collection[Day]) -> None:
        """Add the rows on these days, which are all that there are."""
        self.changed.touch(touched, days)
        for day in days if self.lost else ():
            touched.add_day(day)


class Planner:
    """Finds out what is to do. Reads logs, and of the frames only files that changed. `captures`: of each table, as
    `pin_captures` found them."""

    def __init__(self, store: Store, log: LogReader, tables: Mapping[Source, FrameTable], batch_bytes: int) -> None:
        self._store, self._log, self._tables, self._batch_bytes = store, log, tables, batch_bytes
        self.captures: dict[str, Captures] = {}

    async def pin_captures(self, output: Output) -> int:
        """Read what happened to `captures`, for the plans that follow -> the version up to which they follow it."""
        newest, followed, changed, lost = await self._log.read_version(CAPTURES), UNKNOWN, ChangedCaptures(), ""
        try:
            followed = UNKNOWN if newest < 0 else await output.read_followed_captures(newest)
            if followed != UNKNOWN:  # rows that were decoded before do not depend on `captures`
                changed = await read_changed_captures(self._store, range(followed, newest + 1))
        except LostVersions as error:
            lost = str(error)
        self.captures[output.layout.table] = Captures(versions=range(followed, newest + 1), changed=changed, lost=lost)
        return newest + 1

    async def plan(self, output: Output, kind: Source) -> Plan | None:
        """What happened to the frames since the last run; None: there is no table.

        Raises `Fatal` if the table of frames is an older copy of the one that was followed, or has features of Delta that
        hide rows of its files.
        """
        table = self._tables[kind]
        newest = await self._log.read_version(table.table)
        table_id = await self._log.read_table_id(table.table)
        position = await self.read_position(output, kind)
        if position is None or table_id is None:
            return None
        if await self._log.read_reader_version(table.table) > 1:
            raise Fatal(
                f"{table.table} has features that change which rows its files have, such as deletion vectors: `pcaplake doctor` "
                "says how to remove them"
            )
        if max(position.followed, 0 if position.range is None else position.range.until) > newest + 1:
            raise Fatal(
                f"{table.table} has version {newest}, and its signals were decoded up to version {position.followed - 1}: the "
                f"table was restored from an older copy. Delete the table {output.layout.table} of the lake; then the next run "
                "of `pcaplake signals` decodes all of its frames again"
            )
        if position.followed == UNKNOWN and position.range is None and await _is_empty(output):
            position = Position(followed=0)
        last = await self.find_last(kind, position, newest)
        try:
            plan = await self._plan_changes(output, kind, table_id, position, last)
            why = f"files of {table.table} were deleted"
        except LostVersions as error:
            plan, why = None, str(error)
        plan = plan or await self._plan_whole(output, kind, table_id, position, last, why)
        return replace(plan, waits=plan.until <= newest and not plan.resumes)

    async def find_last(self, kind: Source, position: Position, newest: int) -> int:
        """The last version of the frames that need not wait for `captures`; at least what is followed or begun."""
        table, begin = self._tables[kind], max(position.followed, 1 if position.range is None else position.range.until)
        ahead = await find_first_ahead(self._store, self._log, table.table, range(max(begin, 1), newest + 1))
        # files that were live before it may have been compacted and deleted since: then nothing waits
        return ahead - 1 if ahead > newest or await self._can_go_on(table, ahead, newest) else newest

    async def read_position(self, output: Output, kind: Source) -> Position | None:
        """How far the frames are followed; None: there is no table."""
        table_id = await self._log.read_table_id(self._tables[kind].table)
        return None if table_id is None else await output.read_position(kind, table_id)

    # -- what changed ---------------------------------------------------------------------------------------------------
    async def _plan_changes(
        self, output: Output, kind: Source, table_id: str, position: Position, newest: int
    ) -> Plan | None:
        """None: a range that is begun cannot go on. Raises `LostVersions`."""
        if position.followed == UNKNOWN or (position.range is not None and position.range.whole):
            raise LostVersions(f"it is not known which frames of {self._tables[kind].table} are decoded")
        until, done = newest + 1, 0
        # rule: a range that is begun is done before another one begins
        if position.range is not None:
            until, done = position.range.until, position.range.done
        begun, captures = position.range is not None, self.captures[output.layout.table]
        changes = await self._read_changes(kind, position, until, newest)
        if captures.is_changed:  # of a range that is begun, their rows are left out, and replaced after it
            captures.touch(changes.touched, await self._tables[kind].list_days(until - 1))
        # rule: a range goes on only if all of its files are there
        if begun and (not changes.exact or await self._tables[kind].find_missing(changes.appended[done:])):
            return None
        units = list[Unit]()
        if not done:
            days = changes.touched.days
            units += [await self._replace_rows(output, kind, until, changes.touched, day) for day in days]
        for files in _split_into_batches(changes.appended[done:], self._batch_bytes):
            done += len(files)
            then = Position(followed=position.followed, range=OpenRange(until=until, done=done))
            units.append(Unit(files=files, only=_not_touched(files, changes.touched), then=then))
        moved = until - position.followed
        if moved and (units or position.followed == 0 or moved >= EMPTY_VERSIONS):
            units = _end_with(units, Position(followed=until))
        return Plan(
            output=output,
            kind=kind,
            table_id=table_id,
            until=until,
            units=units,
            why="" if begun else captures.lost,
            # rule: rows whose captures changed are made again after a range that was begun before
            resumes=until <= newest or (begun and captures.is_changed),
        )

    async def _read_changes(self, kind: Source, position: Position, until: int, newest: int) -> Changes:
        table = self._tables[kind]
        if position.followed:
            return await read_changes(self._store, table, range(position.followed, until))
        if until <= newest and not await self._can_go_on(table, until, newest):
            return Changes(exact=False)
        return Changes(appended=await table.list_live(until - 1))

    async def _replace_rows(self, output: Output, kind: Source, until: int, touched: Touched, day: Day) -> Unit:
        files, condition = await self.find_touched(kind, until, touched, day), touched.condition(day)
        return Unit(files=files, only=condition, replaced=condition & of_rows(output, kind))

    async def find_touched(self, kind: Source, until: int, touched: Touched, day: Day) -> list[TableFile]:
        """The files that may have touched rows of a day, in the version before `until`. Raises `LostVersions`."""
        return [
            file
            for file in await self._tables[kind].list_live(until - 1)
            if (not file.has_one_day or file.day == day) and touched.may_be_in(day, file.first, file.last)
        ]

    # -- everything -----------------------------------------------------------------------------------------------------
    async def _plan_whole(
        self, output: Output, kind: Source, table_id: str, position: Position, newest: int, why: str
    ) -> Plan:
        table, until, done = self._tables[kind], newest + 1, 0
        if position.range is not None and position.range.whole:
            try:
                if await self._can_go_on(table, position.range.until, newest):
                    until, done = position.range.until, position.range.done
            except LostVersions:
                pass  # from the beginning
        live, snapshot = await table.list_live(until - 1), await output.read_snapshot()
        by_day: dict[Day, list[TableFile]] = {}
        if all(file.has_one_day for file in live):
            for file in live:
                by_day.setdefault(file.day, []).append(file)
            for values in [one.partition_values for one in snapshot.files.live.values()]:
                text = values.get("date")
                by_day.setdefault(None if text is None else date.fromisoformat(text), [])
            parts = [(_ordinal(day), of_day(day), files) for day, files in by_day.items() if _ordinal(day) > done]
        else:
            parts = [(1, of_any_day(), live)]
        units = [
            Unit(
                files=files,
                only=condition,
                replaced=condition & of_rows(output, kind),
                then=Position(followed=position.followed, range=OpenRange(until=until, whole=True, done=ordinal)),
            )
            for ordinal, condition, files in sorted(parts, key=lambda part: part[0])
        ]
        units = _end_with(units, Position(followed=until))
        return Plan(
            output=output,
            kind=kind,
            table_id=table_id,
            until=until,
            units=units,
            why=why,
            resumes=until <= newest,
        )

    @staticmethod
    async def _can_go_on(table: FrameTable, until: int, newest: int) -> bool:
        """Whether all files are there that were live before `until`. Raises `LostVersions`."""
        now = {file.path for file in await table.list_live(newest)}
        then = [file for file in await table.list_live(until - 1) if file.path not in now]
        return not await table.find_missing(then)


def of_rows(output: Output, kind: Source) -> pc.Expression:
    """The rows of a table that come from a source. A wide table has rows of one source only."""
    return of_source(kind) if output.layout is LONG else of_any_day()


def columns_of_rows(output: Output) -> Sequence[str]:
    """The columns that conditions on its rows may have."""
    return (*COLUMNS, *ROW_COLUMNS) if output.layout is LONG else COLUMNS


def _not_touched(files: Sequence[TableFile], touched: Touched) -> pc.Expression | None:
    """The rows of appended files that are not replaced; None: all."""
    days = {file.day for file in files} if all(file.has_one_day for file in files) else None
    # rule: what is replaced is not appended too
    only = [~touched.condition(day) for day in touched.days if days is None or day in days]
    return reduce(and_, only) if only else None


def _end_with(units: Sequence[Unit], position: Position) -> list[Unit]:
    last = replace(units[-1], then=position) if units else Unit(files=[], then=position)
    return [*units[:-1], last]


def _ordinal(day: Day) -> int:
    return 1 if day is None else day.toordinal() + 1


async def _is_empty(output: Output) -> bool:
    return not (await output.read_snapshot()).files.live


def _split_into_batches(files: Sequence[TableFile], most_bytes: int) -> list[list[TableFile]]:
    """Files in their order, in batches of about this many bytes."""
    batches: list[list[TableFile]] = []
    size = 0
    for file in files:
        if not batches or size + file.size > most_bytes:
            batches.append([])
            size = 0
        batches[-1].append(file)
        size += file.size
    return batches
