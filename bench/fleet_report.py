"""The figures of the fleet's benchmarks as Markdown tables, as docs/benchmarks-fleet.md has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

Row = Mapping[str, Any]


def format_median_range(values: Sequence[float], digits: int = 1) -> str:
    """Median (least–most)."""
    return f"{median(values):,.{digits}f} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


def format_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are figures."""
    lines = [
        f"| {' | '.join(head)} |",
        "|---|" + "---:|" * (len(head) - 1),
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    return "\n".join([f"### {title}", "", *lines, ""])


def format_requests(rows: Sequence[Row]) -> str:
    head = [
        "one uncontended commit",
        "requests",
        "in sequence",
        f"seconds, each delayed by {rows[0]['late_ms']:.0f} ms",
    ]
    body = [
        [row["system"], f"{row['requests']:g}", f"{row['in_sequence']}", f"{row['seconds_when_late']:.2f}"]
        for row in rows
    ]
    return format_table("Requests of one commit", head, body)


def format_commits(rows: Sequence[Row]) -> str:
    n = len(rows[0]["per_second"])
    head = [
        f"median (least–most) of {n}",
        "writers",
        "live files",
        "commits/s",
        "CPU ms per commit",
        "failed",
        "stuck",
        "lost",
    ]
    body = [
        [
            row["system"],
            str(row["writers"]),
            f"{row['live_files']:,}",
            format_median_range(row["per_second"]),
            format_median_range(row["cpu_ms"]),
            str(row["failed"]),
            str(row["stuck"]),
            str(row["lost"]),
        ]
        for row in rows
    ]
    return format_table("Commits to one table", head, body)


def format_committer(rows: Sequence[Row]) -> str:
    head = ["workers", "adds", "adds committed/s", "adds staged/s", "batches", "CPU ms of the committer per add"]
    body = [
        [
            str(row["workers"]),
            f"{row['adds']:,}",
            format_median_range(row["adds_per_second"], 0),
            format_median_range(row["staged_per_second"], 0),
            format_median_range(row["batches"], 0),
            format_median_range(row["cpu_ms_per_add"], 2),
        ]
        for row in rows
    ]
    return format_table("Adds through the committer", head, body)


def format_messages(row: Row) -> str:
    body = [
        ["messages/s, until staged and deleted", format_median_range(row["per_second"])],
        ["messages/s, until in the tables", format_median_range(row["per_second_to_tables"])],
        ["CPU ms per message, with the committer", format_median_range(row["cpu_ms"])],
        ["captures per stage", format_median_range(row["captures_per_stage"])],
    ]
    head = [f"{row['captures']:,} captures of {row['rows_each']:.0f} rows", "median (least–most)"]
    return format_table("Messages", head, body)


def format_volume(row: Row) -> str:
    body = [
        ["MB/s, fetched alone", format_median_range(row["fetched_mb_per_second"], 0)],
        ["MB/s, fetched, decoded, written and staged", format_median_range(row["mb_per_second"])],
        ["million rows/s", format_median_range(row["million_rows_per_second"], 2)],
        ["CPU seconds per GB", format_median_range(row["cpu_seconds_per_gb"])],
        ["CPU seconds per million rows", format_median_range(row["cpu_seconds_per_million_rows"], 2)],
        ["the same by `pcaplake ingest`", format_median_range(row["cpu_seconds_per_million_rows_ingest"], 2)],
    ]
    head = [f"{row['captures']} captures of {row['megabytes_each']:.0f} MB, mix c", "median (least–most)"]
    return format_table("Bytes", head, body)


def format_lag(rows: Sequence[Row]) -> str:
    head = ["preset", "full load, captures/s", "offered", "captures", "p50 s", "p99 s", "max s"]
    body = [
        [
            row["preset"],
            f"{row['full_load_per_second']:.1f}",
            f"{row['offered_per_second']:.1f}",
            f"{row['captures']:,}",
            f"{row['p50_seconds']:.2f}",
            f"{row['p99_seconds']:.2f}",
            f"{row['most_seconds']:.2f}",
        ]
        for row in rows
    ]
    return format_table("Lag from upload to queryable row, at half load", head, body)


def format_cost(rows: Sequence[Row]) -> str:
    head = ["captures of mix c"]
    for row in rows:
        head += [f"{_describe_size(row)}: per million rows", "per TB"]
    body = [["core-seconds; core-hours"]]
    for row in rows:
        body[0] += [f"{row['core_seconds_per_million_rows']:.2f} s", f"{row['core_hours_per_terabyte']:.1f} h"]
    for name in sorted({name for row in rows for name in row["requests_per_terabyte"]}):
        line = [name]
        for row in rows:
            line.append(f"{row['requests_per_million_rows'].get(name, 0):,.1f}")
            line.append(f"{row['requests_per_terabyte'].get(name, 0):,.0f}")
        body.append(line)
    return "\n".join([format_table("What it costs", head, body), _format_dollars(rows)])


def _describe_size(row: Row) -> str:
    megabytes = row["megabytes_each"]
    return f"{row['captures']:,} of " + (f"{megabytes:.0f} MB" if megabytes >= 1 else f"{megabytes * 1e3:.1f} KB")


def _format_dollars(rows: Sequence[Row]) -> str:
    head, parts = ["US dollars"], [row["dollars"] for row in rows]
    for row in rows:
        head += [f"{_describe_size(row)}: per million captures", "per TB"]
    scales = [(1e6 / row["captures"], 1e12 / row["bytes"]) for row in rows]
    body = []
    for name in [*parts[0], "sum"]:
        body.append([name])
        for part, factors in zip(parts, scales, strict=True):
            spent = sum(part.values()) if name == "sum" else part[name]
            body[-1] += [f"{spent * factor:,.2f}" for factor in factors]
    return format_table("At list prices", head, body)


def format_idle_costs(rows: Sequence[Row]) -> str:
    body = [["core-seconds", *(f"{row['core_seconds_per_hour']:,.0f}" for row in rows)]]
    names = sorted({name for row in rows for name in row["requests_per_hour"]})
    body += [[name, *(f"{row['requests_per_hour'].get(name, 0):,.0f}" for row in rows)] for name in names]
    return format_table("One hour of an idle worker", ["", *(row["role"] for row in rows)], body)


def format_suspects(rows: Sequence[Row]) -> str:
    head = ["thousand rows/s, until staged", "suspects", "workers", *rows[0]["rows_per_second"]]
    body = [
        [
            f"{row['captures']} captures of {row['kilobytes_each']:,.0f} KB",
            str(row["suspects"]),
            str(row["workers"]),
            *(format_median_range([value / 1e3 for value in values]) for values in row["rows_per_second"].values()),
        ]
        for row in rows
    ]
    return format_table("After a worker was killed", head, body)


SECTIONS: Mapping[str, Callable[[Any], str]] = {
    "requests": format_requests,
    "commits": format_commits,
    "committer": format_committer,
    "messages": format_messages,
    "volume": format_volume,
    "lag": format_lag,
    "cost": format_cost,
    "idle": format_idle_costs,
    "suspects": format_suspects,
}
