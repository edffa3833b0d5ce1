"""A quality report of a lake, as the job makes it."""

from __future__ import annotations

import datetime

from pcaplake.spark_jobs.quality.report import QualityFinding, QualityReport, has_no_alarms

NOW = datetime.datetime(2026, 9, 30, tzinfo=datetime.UTC)


def made(rows: list[QualityFinding], lake: str = "lake") -> QualityReport:
    return QualityReport(
        lake=lake,
        made_at=NOW,
        since=None,
        until=None,
        late_hours=24,
        most=5,
        seconds=1.0,
        healthy=has_no_alarms(rows),
        rows=tuple(rows),
    )
