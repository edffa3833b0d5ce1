"""A quality report as one self-contained HTML page: it has no script, fetches nothing, and escapes every text."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pcaplake.common.plain_text import visible

from .plots import SERIES, plot_horizontal_bars, plot_stacked_columns
from .report import ALARMING, SECTIONS, QualityFinding, QualityReport

TEXTS = {
    "tables": "Rows of these captures in each table.",
    "days": "Rows of all tables except quarantine, by UTC day of the row and vehicle of the capture.",
    "quarantined": "Files that are not captures, or end before their first packet. Each leaves a row and is not read again "
    "automatically; the job replace reads them again with a newer decoder.",
    "without_rows": "Captures that were read to the end without a row: empty files, or link types that are not decoded.",
    "announced": "The table captures records how many rows each capture has in each table. A different number means that rows "
    "were lost, deleted, or written by another program.",
    "gaps": "Packets are numbered from 1: a capture with 100 packets has the numbers 1 to 100 in the table packets.",
    "duplicates": "The key of a row is its capture, its packet number and its number within the packet.",
    "faults": "Errors in packets, such as short_header, bad_length and overrun. The valid layers of a packet are kept.",
    "late": "Time from the last packet of a capture to its arrival in the lake.",
}
NO_VEHICLE, NO_DAY, OTHERS = "(no vehicle)", "(no day)", "others"
DAYS_SHOWN = 60
LINES_SHOWN = 200
FAULTS_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One section of the page. `state`: ok, alarm or plain; `lines`: rows of text cells under the header `head`."""

    id: str
    title: str
    text: str
    count: int
    state: str
    plot: Markup | None
    caption: str
    head: tuple[str, ...]
    numbers: frozenset[int]
    lines: tuple[tuple[str, ...], ...]
    more: int


def render_page(report: QualityReport) -> str:
    """The report as one self-contained HTML page."""
    environment = Environment(
        loader=PackageLoader("pcaplake.spark_jobs.quality"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_make_visible,
    )
    sections = [_build_section(report, name) for name in SECTIONS]
    captures = next((row.count for row in report.of("tables") if row.table == "captures"), 0)
    return environment.get_template("quality.html.j2").render(report=report, sections=sections, captures=captures)


def _make_visible(value: Any) -> Any:
    """Make text from captures visible and harmless before the template shows it."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _build_section(report: QualityReport, name: str) -> Section:
    plot, caption = _plot_section(report, name)
    head, numbers, lines = _table_lines(report, name)
    count = report.total_count(name)
    return Section(
        id=name,
        title=SECTIONS[name],
        text=TEXTS[name],
        count=count,
        state=("alarm" if count else "ok") if name in ALARMING else "plain",
        plot=plot,
        caption=caption,
        head=head,
        numbers=numbers,
        lines=tuple(lines[:LINES_SHOWN]),
        more=max(0, len(lines) - LINES_SHOWN),
    )


def _plot_section(report: QualityReport, name: str) -> tuple[Markup | None, str]:
    rows = report.of(name)
    if not any(row.count for row in rows):
        return None, ""
    if name == "tables":
        caption = "Rows in each table"
        return plot_horizontal_bars({row.table or "": row.count for row in rows}, caption, name=name), caption
    if name == "days":
        return _plot_days(rows)
    if name == "faults":
        caption = "Faults by layer and reason" + (
            f", the {FAULTS_SHOWN} most frequent" if len(rows) > FAULTS_SHOWN else ""
        )
        return plot_horizontal_bars({row.kind: row.count for row in rows[:FAULTS_SHOWN]}, caption, name=name), caption
    if name == "late":
        caption = "Captures by time from last packet to arrival"
        counts = {row.kind: row.count for row in rows if row.capture_id is None}
        return plot_horizontal_bars(counts, caption, name=name), caption
    return None, ""


def _plot_days(rows: Sequence[QualityFinding]) -> tuple[Markup, str]:
    by_vehicle: Counter[str] = Counter()
    by_day: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        vehicle, day = row.vehicle_id or NO_VEHICLE, NO_DAY if row.date is None else row.date.isoformat()
        by_vehicle[vehicle] += row.count
        by_day[day][vehicle] += row.count
    days = sorted(by_day)[-DAYS_SHOWN:]
    most = len(by_vehicle) if len(by_vehicle) <= SERIES else SERIES - 1
    named = [vehicle for vehicle, _ in by_vehicle.most_common(most)]
    series = {vehicle: [by_day[day][vehicle] for day in days] for vehicle in named}
    if len(by_vehicle) > len(named):
        series[OTHERS] = [
            sum(by_day[day].values()) - sum(by_day[day][vehicle_id] for vehicle_id in named) for day in days
        ]
    caption = "Rows a day, by vehicle" + (f"; the last {DAYS_SHOWN} days" if len(by_day) > DAYS_SHOWN else "")
    return plot_stacked_columns(days, series, caption, name="days"), caption


def _table_lines(report: QualityReport, name: str) -> tuple[tuple[str, ...], frozenset[int], list[tuple[str, ...]]]:
    """The header, the indices of numeric columns, and the cells."""
    rows = report.of(name)
    lines: list[tuple[str, ...]]
    if name == "tables":
        return ("table", "rows"), frozenset({1}), [(row.table or "", _format_number(row.count)) for row in rows]
    if name == "days":
        newest = sorted(rows, key=lambda row: (str(row.date or ""), row.count), reverse=True)
        lines = [
            (NO_DAY if row.date is None else str(row.date), row.vehicle_id or NO_VEHICLE, _format_number(row.count))
            for row in newest
        ]
        return ("day", "vehicle", "rows"), frozenset({2}), lines
    if name in ("faults", "late"):
        lines = [(row.kind, _format_number(row.count), row.detail or "") for row in rows if row.capture_id is None]
        lines += [(row.detail or "", "", row.vehicle_id or "") for row in rows if row.capture_id is not None]
        return (("fault", "count", "") if name == "faults" else ("arrived", "captures", "")), frozenset({1}), lines
    if name in ("announced", "duplicates"):
        lines = [(row.table or "", row.kind, _format_number(row.count), row.detail or "") for row in rows]
        return ("table", "problem", "rows", "captures"), frozenset({2}), lines
    if name == "gaps":
        lines = [
            (row.vehicle_id or "", _format_number(row.count), row.detail or "")
            for row in rows
            if row.capture_id is not None
        ]
        return ("vehicle", "missing packets", "capture and packet numbers"), frozenset({1}), lines
    lines = [(row.vehicle_id or "", row.kind, row.detail or "") for row in rows if row.capture_id is not None]
    return ("vehicle", "problem", "capture"), frozenset(), lines


def _format_number(value: int) -> str:
    return f"{value:,}"
