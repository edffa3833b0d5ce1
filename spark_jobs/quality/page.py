"""A quality report as one HTML page: complete in itself, no script, nothing fetched, everything escaped.

Knows which plot and which columns a section has. Must not know Spark.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from .quality_plots import SERIES, bars, stacked
from .quality_report import ALARMING, SECTIONS, Report, Row

TEXTS = {
    "tables": "What is in the tables of these captures.",
    "days": "Rows of all tables but quarantine, by the UTC day of the row and the vehicle of its capture.",
    "quarantined": "Files that are no capture, or break off before their first packet. They are kept as a row each and never "
    "read again on their own; replace reads them with a newer decoder.",
    "without_rows": "Captures that were read to the end and gave no row: empty files, or link types that nobody decodes.",
    "announced": "Each capture says how many rows it has in which table. Another number of rows in the table means that "
    "somebody else wrote or deleted there.",
    "gaps": "Packets are numbered from 1. A capture with 100 packets has the numbers 1 to 100 in the table packets.",
    "duplicates": "A row is known by its capture, the number of its packet and its number in the packet.",
    "faults": "What was wrong in packets: short_header, bad_length, overrun and so on. The good layers of a packet are kept.",
    "late": "How long after its last packet a capture was in the lake.",
}
NO_VEHICLE, NO_DAY, OTHERS = "(no vehicle)", "(no day)", "all others"
DAYS_SHOWN = 60
LINES_SHOWN = 200
FAULTS_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What the template shows of one section. `state`: ok, alarm or plain; `lines`: cells as text, under `head`."""

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


def page(report: Report) -> str:
    """The page."""
    environment = Environment(
        loader=PackageLoader("spark_jobs"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    sections = [_section(report, name) for name in SECTIONS]
    captures = next((row.count for row in report.of("tables") if row.table == "captures"), 0)
    return environment.get_template("quality.html.j2").render(report=report, sections=sections, captures=captures)


def _section(report: Report, name: str) -> Section:
    plot, caption = _plot(report, name)
    head, numbers, lines = _lines(report, name)
    count = report.total(name)
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


def _plot(report: Report, name: str) -> tuple[Markup | None, str]:
    rows = report.of(name)
    if not any(row.count for row in rows):
        return None, ""
    if name == "tables":
        caption = "Rows in each table"
        return bars({row.table or "": row.count for row in rows}, caption, name=name), caption
    if name == "days":
        return _days(rows)
    if name == "faults":
        caption = "Faults by layer and reason" + (
            f", the {FAULTS_SHOWN} most frequent" if len(rows) > FAULTS_SHOWN else ""
        )
        return bars({row.kind: row.count for row in rows[:FAULTS_SHOWN]}, caption, name=name), caption
    if name == "late":
        caption = "Captures by the time from their last packet to the lake"
        counts = {row.kind: row.count for row in rows if row.capture_id is None}
        return bars(counts, caption, name=name), caption
    return None, ""


def _days(rows: Sequence[Row]) -> tuple[Markup, str]:
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
        series[OTHERS] = [sum(by_day[day].values()) - sum(by_day[day][one] for one in named) for day in days]
    caption = "Rows a day, by vehicle" + (f"; the last {DAYS_SHOWN} days" if len(by_day) > DAYS_SHOWN else "")
    return stacked(days, series, caption, name="days"), caption


def _lines(report: Report, name: str) -> tuple[tuple[str, ...], frozenset[int], list[tuple[str, ...]]]:
    """Heads, which columns are numbers, cells."""
    rows = report.of(name)
    lines: list[tuple[str, ...]]
    if name == "tables":
        return ("table", "rows"), frozenset({1}), [(row.table or "", _number(row.count)) for row in rows]
    if name == "days":
        newest = sorted(rows, key=lambda row: (str(row.date or ""), row.count), reverse=True)
        lines = [
            (NO_DAY if row.date is None else str(row.date), row.vehicle_id or NO_VEHICLE, _number(row.count))
            for row in newest
        ]
        return ("day", "vehicle", "rows"), frozenset({2}), lines
    if name in ("faults", "late"):
        lines = [(row.kind, _number(row.count), row.detail or "") for row in rows if row.capture_id is None]
        lines += [(row.detail or "", "", row.vehicle_id or "") for row in rows if row.capture_id is not None]
        return (("fault", "times", "") if name == "faults" else ("came", "captures", "")), frozenset({1}), lines
    if name in ("announced", "duplicates"):
        lines = [(row.table or "", row.kind, _number(row.count), row.detail or "") for row in rows]
        return ("table", "what", "rows", "which"), frozenset({2}), lines
    if name == "gaps":
        lines = [
            (row.vehicle_id or "", _number(row.count), row.detail or "") for row in rows if row.capture_id is not None
        ]
        return ("vehicle", "packets missing", "capture, numbers"), frozenset({1}), lines
    lines = [(row.vehicle_id or "", row.kind, row.detail or "") for row in rows if row.capture_id is not None]
    return ("vehicle", "what", "capture"), frozenset(), lines


def _number(value: int) -> str:
    return f"{value:,}"
