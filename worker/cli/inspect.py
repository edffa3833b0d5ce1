"""`pcaplake inspect`: describes a capture, without a lake."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer

from pcaplake.parser import CaptureError, Summary, open_capture
from pcaplake.worker import console as screen
from pcaplake.worker.config.settings import WrongSetting
from pcaplake.worker.warm import compile_missing

NOT_A_CAPTURE = 1
_NS = 1_000_000_000


def inspect(
    capture: Annotated[
        Path, typer.Argument(metavar="CAPTURE", help="A pcap or pcapng file, also compressed with gzip, zstd or lz4.")
    ],
    profile: Annotated[Path | None, typer.Option(metavar="FILE", help="YAML: ports, bus names, vehicle id.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show format, interfaces, link types, time span, packets and bytes by protocol, rows by table, and faults.

    Needs no lake. Exit code 1: the file is not a capture; with --json, the object then has `error` and `detail`.

    Example:  pcaplake inspect drive.pcapng --profile vehicle.yaml
    """
    if ":/" in str(capture):
        raise WrongSetting(f"{capture}: inspect reads only local files; download it first")
    if capture.exists() and not capture.is_file():
        raise WrongSetting(f"{capture} is not a regular file, and inspect reads only regular files")
    packets: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    try:
        capture.open("rb").close()  # report a wrong name at once, not after a minute of compiling
        compile_missing(screen.say)
        with open_capture(capture, profile=profile) as opened:
            for table, batch in opened.batches():
                if table == "packets":
                    _add_protocol_counts(packets, sizes, batch)
            summary = opened.summary
    except CaptureError as error:
        screen.say(f"pcaplake: {capture} is {error}")
        if json:
            screen.as_json({"error": error.reason, "detail": error.detail})
        raise typer.Exit(NOT_A_CAPTURE) from error
    except OSError as error:
        raise WrongSetting(f"{capture} cannot be read: {error.strerror}") from error
    assert summary is not None
    facts = _summary_as_dict(summary, packets, sizes)
    if json:
        screen.as_json(facts)
    else:
        _show_summary(facts)


def _add_protocol_counts(packets: Counter[str], sizes: Counter[str], batch: pa.RecordBatch) -> None:
    rows = pa.table({name: batch.column(name) for name in ("protocol", "captured_len")})
    for row in rows.group_by("protocol").aggregate([("captured_len", "sum"), ("captured_len", "count")]).to_pylist():
        packets[row["protocol"]] += row["captured_len_count"]
        sizes[row["protocol"]] += row["captured_len_sum"]


def _summary_as_dict(summary: Summary, packets: Counter[str], sizes: Counter[str]) -> dict[str, Any]:
    first, last = summary.first_ts_ns, summary.last_ts_ns
    return {
        "format": summary.format,
        "compression": summary.compression,
        "sections": summary.sections,
        "truncated": summary.truncated,
        "interfaces": [
            {
                "id": interface.id,
                "name": interface.name,
                "link_type": interface.link_type,
                "ts_resolution_ns": interface.resolution_ns,
                "snaplen": interface.snaplen,
            }
            for interface in summary.interfaces
        ],
        "link_types": list(summary.link_types),
        "first_ts_ns": first,
        "last_ts_ns": last,
        "first_ts": _format_timestamp(first),
        "last_ts": _format_timestamp(last),
        "seconds": None if first is None or last is None else (last - first) / _NS,
        "packets": summary.packets,
        "bytes": summary.bytes,
        "protocols": {name: {"packets": count, "bytes": sizes[name]} for name, count in packets.most_common()},
        "rows": dict(summary.rows),
        "faults": dict(sorted(summary.faults.items())),
    }


def _format_timestamp(ns: int | None) -> str | None:
    """An RFC 3339 timestamp with nanoseconds."""
    if ns is None:
        return None
    return f"{datetime.fromtimestamp(ns // _NS, UTC):%Y-%m-%dT%H:%M:%S}.{ns % _NS:09d}Z"


def _show_summary(facts: dict[str, Any]) -> None:
    packed = f", {facts['compression']}" if facts["compression"] else ""
    cut = ", truncated" if facts["truncated"] else ""
    screen.out.print(f"{facts['format']}{packed}{cut}; {facts['packets']:,} packets, {facts['bytes']:,} bytes")
    if facts["seconds"] is not None:
        screen.out.print(f"{facts['first_ts']} to {facts['last_ts']} ({facts['seconds']:,.3f} s)")
    interfaces = [
        (
            interface["id"],
            interface["name"] or "-",
            interface["link_type"],
            interface["ts_resolution_ns"],
            interface["snaplen"],
        )
        for interface in facts["interfaces"]
    ]
    protocols = [(name, counts["packets"], counts["bytes"]) for name, counts in facts["protocols"].items()]
    for title, columns, rows in (
        ("interfaces", ["id", "name", "link type", "ns a tick", "snaplen"], interfaces),
        ("protocols", ["innermost", "packets", "bytes"], protocols),
        ("rows", ["table", "rows"], [item for item in facts["rows"].items() if item[1]]),
        ("faults", ["kind", "times"], list(facts["faults"].items())),
    ):
        if rows:
            screen.out.print()
            screen.table(title, columns, rows)
