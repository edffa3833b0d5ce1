"""A quality report: every finding has the same columns, in a Delta table, in JSON and on a page. Needs no Spark."""

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
    "announced": "Recorded and actual row counts that differ",
    "gaps": "Gaps in packet numbers",
    "duplicates": "Duplicate rows",
    "faults": "Faults by kind",
    "late": "Late data",
}
ALARMING = ("duplicates", "announced", "gaps")  # these must be empty; the others depend on the drives
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
class QualityFinding:
    """One finding. Kind "total" counts the whole section; fields that do not apply are None."""

    section: str
    kind: str
    count: int
    table: str | None = None
    date: datetime.date | None = None
    vehicle_id: str | None = None
    capture_id: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityReport:
    """The findings for the captures of some days (None: open end). `most`: captures named in each section."""

    lake: str
    made_at: datetime.datetime
    since: datetime.date | None
    until: datetime.date | None
    late_hours: float
    most: int
    seconds: float
    healthy: bool
    rows: tuple[QualityFinding, ...]

    def of(self, section: str) -> list[QualityFinding]:
        """The findings of a section without its total."""
        return [row for row in self.rows if row.section == section and row.kind != TOTAL]

    def total_count(self, section: str) -> int:
        return sum(row.count for row in self.rows if row.section == section and row.kind == TOTAL)

    def to_arrow_table(self) -> pa.Table:
        """All rows, with SCHEMA."""
        columns = {name: [getattr(row, name) for row in self.rows] for name in SCHEMA.names if name != "made_at"}
        return pa.table({"made_at": [self.made_at] * len(self.rows), **columns}, schema=SCHEMA)


def has_no_alarms(rows: Iterable[QualityFinding]) -> bool:
    """Whether all sections that must be empty are empty."""
    return not any(row.count for row in rows if row.section in ALARMING and row.kind == TOTAL)
