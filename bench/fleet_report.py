"""The figures of the fleet's benchmarks as Markdown tables, as docs/benchmarks-fleet.md has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

Row = Mapping[str, Any]


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Median (least–most)."""
    return f"{median(values):,.{digits}f} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column is text, the others are figures."""
    lines = [
        f"| {' | '.join(head)} |",
        "|---|" + "---:|" * (len(head) - 1),
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    return "\n".join([f"### {title}", "", *lines, ""])


def requests(rows: Sequence[Row]) -> str:
    head = ["one uncontended commit", "requests", "in sequence", f"seconds, each {rows[0]['late_ms']:.0f} ms late"]
    body = [
        [row["system"], f"{row['requests']:g}", f"{row['in_sequence']}", f"{row['seconds_when_late']:.2f}"]
        for row in rows
    ]
    return table("Requests of a commit", head, body)


def commits(rows: Sequence[Row]) -> str:
    n = len(rows[0]["per_second"])
    head = [
        f"median (least–most) of {n}",
        "writers",
        "live files",
        "commits/s",
        "CPU ms a commit",
        "failed",
        "stuck",
        "lost",
    ]
    body = [
        [
            row["system"],
            str(row["writers"]),
            f"{row['live_files']:,}",
            spread(row["per_second"]),
            spread(row["cpu_ms"]),
            str(row["failed"]),
            str(row["stuck"]),
            str(row["lost"]),
        ]
        for row in rows
    ]
    return table("Commits to one table", head, body)


def committer(rows: Sequence[Row]) -> str:
    head = ["workers", "adds", "adds committed/s", "adds staged/s", "batches", "CPU ms of the committer an add"]
    body = [
        [
            str(row["workers"]),
            f"{row['adds']:,}",
            spread(row["adds_per_second"], 0),
            spread(row["staged_per_second"], 0),
            spread(row["batches"], 0),
            spread(row["cpu_ms_per_add"], 2),
        ]
        for row in rows
    ]
    return table("Adds through the committer", head, body)


def messages(row: Row) -> str:
    body = [
        ["messages/s, until staged and deleted", spread(row["per_second"])],
        ["messages/s, until in the tables", spread(row["per_second_to_tables"])],
        ["CPU ms a message, committer and all", spread(row["cpu_ms"])],
        ["captures in a stage", spread(row["captures_per_stage"])],
    ]
    head = [f"{row['captures']:,} captures of {row['rows_each']:.0f} rows", "median (least–most)"]
    return table("Messages", head, body)


def volume(row: Row) -> str:
    body = [
        ["MB/s, fetched alone", spread(row["fetched_mb_per_second"], 0)],
        ["MB/s, fetched, decoded, written and staged", spread(row["mb_per_second"])],
        ["million rows/s", spread(row["million_rows_per_second"], 2)],
        ["CPU seconds a GB", spread(row["cpu_seconds_per_gb"])],
        ["CPU seconds a million rows", spread(row["cpu_seconds_per_million_rows"], 2)],
        ["the same by `pcaplake ingest`", spread(row["cpu_seconds_per_million_rows_ingest"], 2)],
    ]
    head = [f"{row['captures']} captures of {row['megabytes_each']:.0f} MB, mix c", "median (least–most)"]
    return table("Bytes", head, body)


def lag(rows: Sequence[Row]) -> str:
    head = ["preset", "full load, captures/s", "offered", "captures", "p50 s", "p99 s", "most s"]
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
    return table("Lag from upload to queryable row, at half load", head, body)


def cost(rows: Sequence[Row]) -> str:
    head = ["captures of mix c"]
    for row in rows:
        size = f"{row['captures']} of {row['megabytes_each']:.0f} MB"
        head += [f"{size}: a million rows", "a TB"]
    body = [["core-seconds; core-hours"]]
    for row in rows:
        body[0] += [f"{row['core_seconds_per_million_rows']:.2f} s", f"{row['core_hours_per_terabyte']:.1f} h"]
    for name in sorted({name for row in rows for name in row["requests_per_terabyte"]}):
        line = [name]
        for row in rows:
            line.append(f"{row['requests_per_million_rows'].get(name, 0):,.1f}")
            line.append(f"{row['requests_per_terabyte'].get(name, 0):,.0f}")
        body.append(line)
    return table("What it costs", head, body)


def idle(row: Row) -> str:
    body = [["core-seconds", f"{row['core_seconds_per_hour']:,.0f}"]]
    body += [[name, f"{count:,.0f}"] for name, count in sorted(row["requests_per_hour"].items())]
    return table("An hour of a leader that has nothing to do", ["", "an hour"], body)


SECTIONS: Mapping[str, Callable[[Any], str]] = {
    "requests": requests,
    "commits": commits,
    "committer": committer,
    "messages": messages,
    "volume": volume,
    "lag": lag,
    "cost": cost,
    "idle": idle,
}
