"""Rows of a table that may have changed: by day and capture, and within a day by time.

The same condition chooses rows of the table that is followed and of the tables that are made from it, because these have the
columns `date`, `capture_id` and `ts_ns` of the rows that they are made from. So what is removed there is made again from here,
whatever else a file holds. Statistics leave out files of other days and times; those of `capture_id` say nothing, because it is
a hash.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import date
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

Day: TypeAlias = date | None
COLUMNS = ("date", "capture_id", "ts_ns")


@dataclass(slots=True)
class Rows:
    """The rows of one capture on one day: how many, and the first and last `ts_ns`."""

    count: int
    first: int | None
    last: int | None


Summary: TypeAlias = dict[tuple[Day, str | None], Rows]


def summarize(batches: Iterator[pa.RecordBatch]) -> Summary:
    """The rows of batches with COLUMNS, by day and capture. A null `ts_ns` leaves the times open."""
    found: Summary = {}
    for batch in batches:
        groups = pa.Table.from_batches([batch]).group_by(["date", "capture_id"], use_threads=False)
        counted = groups.aggregate([([], "count_all"), ("ts_ns", "count"), ("ts_ns", "min"), ("ts_ns", "max")])
        for row in counted.to_pylist():
            whole = row["ts_ns_count"] == row["count_all"]
            new = Rows(row["count_all"], *((row["ts_ns_min"], row["ts_ns_max"]) if whole else (None, None)))
            _merge(found, (row["date"], row["capture_id"]), new)
    return found


def _merge(found: Summary, key: tuple[Day, str | None], new: Rows) -> None:
    old = found.setdefault(key, new)
    if old is not new:
        closed = None not in (old.first, new.first)
        old.count += new.count
        old.first = min(old.first or 0, new.first or 0) if closed else None
        old.last = max(old.last or 0, new.last or 0) if closed else None


@dataclass(slots=True)
class _Part:
    """`captures` None: all rows of the day. `first` None: at any time."""

    captures: set[str] | None = field(default_factory=set)
    first: int | None = None
    last: int | None = None


class Touched:
    """Conditions on rows, one for each day."""

    def __init__(self) -> None:
        self._parts: dict[Day, _Part] = {}

    def __bool__(self) -> bool:
        return bool(self._parts)

    @property
    def days(self) -> list[Day]:
        return sorted(self._parts, key=lambda day: day or date.min)

    def add_day(self, day: Day) -> None:
        """All rows of a day."""
        self._parts[day] = _Part(captures=None)

    def add_rows(self, summary: Summary, only: Collection[str] | None = None) -> None:
        """The rows of these captures, or of those among them that `only` names."""
        for (day, capture), rows in summary.items():
            if capture is None:
                self.add_day(day)
            elif only is None or capture in only:
                self._add(day, capture, rows)

    def add_deleted_rows(self, removed: Summary, added: Summary) -> None:
        """The rows of those captures that have another number of rows in the added files, after a DELETE."""
        for key, rows in removed.items():
            if key not in added or added[key].count != rows.count:
                self.add_rows({key: rows})

    def _add(self, day: Day, capture: str, rows: Rows) -> None:
        new = day not in self._parts
        part = self._parts.setdefault(day, _Part())
        if part.captures is None:
            return
        part.captures.add(capture)
        if new:
            part.first, part.last = rows.first, rows.last
        elif part.first is not None and part.last is not None:
            closed = rows.first is not None and rows.last is not None
            part.first = min(part.first, rows.first or 0) if closed else None
            part.last = max(part.last, rows.last or 0) if closed else None

    def condition(self, day: Day) -> pc.Expression:
        """True for the rows of this day that may have changed, else false, never null."""
        part, condition = self._parts[day], of_day(day)
        if part.captures is None:
            return condition
        condition &= pc.field("capture_id").isin(pa.array(sorted(part.captures), pa.string()))
        if part.first is not None:
            time = pc.field("ts_ns")
            condition &= time.is_valid() & (time >= part.first) & (time <= part.last)
        return condition

    def may_be_in(self, day: Day, first: int | None, last: int | None) -> bool:
        """Whether a file with the rows of a day may have some that changed. `first`, `last`: its bounds, None if unknown."""
        part = self._parts.get(day)
        if part is None:
            return False
        if part.first is None or part.last is None or first is None or last is None:
            return True
        return first <= part.last and last >= part.first


def of_day(day: Day) -> pc.Expression:
    """True for the rows of a day, else false."""
    if day is None:
        return pc.field("date").is_null()
    return pc.field("date").isin(pa.array([day], pa.date32()))


def of_any_day() -> pc.Expression:
    """True for each row."""
    return pc.field("date").is_valid() | pc.field("date").is_null()
