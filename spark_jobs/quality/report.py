"""What a look at a lake finds: one kind of row for every finding, so that a table, JSON and a page can hold them all.

Knows the sections and what counts as well. Must not know Spark, HTML or how anything is found.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

SECTIONS = {
    "tables": "Rows by table",
    "days": "Rows by day and vehicle",
    "quarantined": "Quarantined captures",
    "without_rows": "Captures without rows",
    "announced": "Rows that were announced and are not there, or the other way round",
    "gaps": "Gaps in packet numbers",
    "duplicates": "Rows that are there twice",
    "faults": "Faults by kind",
    "late": "Late data",
}
ALARMING = ("duplicates", "announced", "gaps")  # this should never be; the others are what drives are like
TOTAL = "total"
SCHEMA = pa.schema(
    [
        pa.field("made_at", pa.timestamp("us", tz="UTC")),
        pa.field("section", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("count", pa.int64()),
        pa.field("table", pa.string()),
        pa.field("date", pa.date32()),
        pa.field("vehicle_id", pa.string()),
        pa.field("capture_id", pa.string()),
        pa.field("detail", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One finding. `kind` "total" counts a whole section; what does not apply is None."""

    section: str
    kind: str
    count: int
    table: str | None = None
    date: datetime.date | None = None
    vehicle_id: str | None = None
    capture_id: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A look at the captures of some days (None: no end). `most`: of what is listed by capture, so many are named."""

    lake: str
    made_at: datetime.datetime
    since: datetime.date | None
    until: datetime.date | None
    late_hours: float
    most: int
    seconds: float
    well: bool
    rows: tuple[Row, ...]

    def of(self, section: str) -> list[Row]:
        """The findings of a section but for its total."""
        return [row for row in self.rows if row.section == section and row.kind != TOTAL]

    def total(self, section: str) -> int:
        return sum(row.count for row in self.rows if row.section == section and row.kind == TOTAL)

    def table(self) -> pa.Table:
        """All rows, with SCHEMA."""
        columns = {name: [getattr(row, name) for row in self.rows] for name in SCHEMA.names if name != "made_at"}
        return pa.table({"made_at": [self.made_at] * len(self.rows), **columns}, schema=SCHEMA)


def well(rows: Iterable[Row]) -> bool:
    """Is nothing there that should never be?"""
    return not any(row.count for row in rows if row.section in ALARMING and row.kind == TOTAL)
