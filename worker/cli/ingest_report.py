"""What `pcaplake ingest` shows while it runs and at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from pcaplake.common import VERSION
from pcaplake.common.plain_text import counted
from pcaplake.ingest.local_run import Tally
from pcaplake.parser.schemas import TABLES
from pcaplake.worker import console as screen

NAMED = 20  # files of each kind that are listed by name, unless all are wanted


def progress_values(tally: Tally, seconds: float) -> tuple[float, float, str]:
    """What `console.running` shows: bytes read and in all, and a text. Rows count as soon as they are decoded."""
    done = tally.captures + tally.already_ingested + len(tally.failed)
    rate = (tally.rows.total() + tally.unstaged_rows) / max(seconds, 0.001)
    return tally.read_bytes, tally.total_bytes, f"{done:,}/{counted(tally.total, 'capture')}, {rate:,.0f} rows/s"


def tally_as_dict(tally: Tally, seconds: float, cpu_seconds: float) -> dict[str, Any]:
    """What `--json` prints. An overwrite that replaced nothing (`kept` says why) has put no row into the lake."""
    rows, captures = (Counter[str](), 0) if tally.kept else (tally.rows, tally.captures)
    return {
        "captures": captures,
        "already_ingested": tally.already_ingested,
        "quarantined": tally.quarantined,
        "ignored": len(tally.ignored),
        "not_read": len(tally.failed),
        "kept": tally.kept or None,
        "changed": len(tally.changed),
        "replaced": len(tally.replaced),
        "other_profile": tally.other_profile,
        "other_version": tally.other_version,
        "two_decodings": len(tally.two_decodings),
        "reread": tally.reread,
        "packets": tally.packets,
        "rows": {name: rows[name] for name in TABLES},
        "seconds": round(seconds, 3),
        "cpu_seconds": round(cpu_seconds, 3),
        "rows_per_second": round(rows.total() / seconds) if seconds > 0 else 0,
        "faults": dict(sorted(tally.faults.items())),
        "quarantined_files": dict(sorted(tally.bad.items())),
        "ignored_files": sorted(tally.ignored),
        "not_read_files": dict(sorted(tally.failed.items())),
    }


def show_result(result: Mapping[str, Any], *, verbose: bool) -> None:
    """Print the counts for people, on stdout."""
    others = [name for name in ("quarantined", "already_ingested", "ignored") if result[name]]
    counts = [
        f"{counted(result['captures'], 'capture')} read",
        *(f"{result[name]:,} {name.replace('_', ' ')}" for name in others),
    ]
    hint = " (--verbose names the ignored files)" if result["ignored"] and not verbose else ""
    screen.line(f"{', '.join(counts)}{hint}; {counted(result['packets'], 'packet')}")
    rows = [(name, count) for name, count in result["rows"].items() if count]
    if rows:
        screen.line("")
        screen.table(None, ["table", "rows"], rows)
        screen.line("")
        total = sum(count for _, count in rows)
        screen.line(
            f"{counted(total, 'row')} in {result['seconds']:.1f} s ({result['cpu_seconds']:.1f} s of CPU): "
            f"{result['rows_per_second']:,} rows/s"
        )
    if result["faults"]:
        screen.line("faults: " + ", ".join(f"{kind} {count:,}" for kind, count in result["faults"].items()))


def name_files(tally: Tally, *, verbose: bool) -> None:
    """Print which files were quarantined, ignored, changed or not read, and why, on stderr. `verbose`: all of them."""
    _name_some("quarantined", _with_reasons(tally.bad), verbose)
    if verbose:
        _name_some("ignored", sorted(tally.ignored), verbose)
    if tally.replaced:
        screen.say(f"removed the older contents of {counted(len(tally.replaced), 'capture')} from the lake")
    if tally.changed:
        screen.say(
            f"{counted(len(tally.changed), 'capture')} changed since the last ingest: both contents are in the lake, so "
            "rows that both contain are in the lake twice. To remove the old contents, run this command again with "
            "--replace-changed"
        )
    _name_some("changed", tally.changed, verbose)
    _name_some("not read", _with_reasons(tally.failed), verbose=True)


def say_which_decodings_differ(tally: Tally) -> None:
    """Captures that were in the lake keep the rows of the profile and version that read them, without --reread."""
    if tally.reread:
        screen.say(f"{counted(tally.reread, 'capture')} of the lake read again, and the rows swapped")
    for count, what in (
        (tally.other_profile, "were read with another profile"),
        (tally.other_version, f"were read by another version of pcaplake than {VERSION}"),
    ):
        if count:
            screen.say(f"{count:,} of the captures that are already ingested {what}")
    for uri in tally.two_decodings:
        screen.say(f"rows of two decodings, because replacing them was given up: {uri}")
    if tally.not_reread:
        screen.say(f"nothing was read again: {tally.not_reread}")
    elif tally.other_profile or tally.other_version or tally.two_decodings:
        screen.say("their rows stay as they are; to read them again, run this command again with --reread")


def _with_reasons(reasons: Mapping[str, str]) -> list[str]:
    return [f"{uri}: {why}" for uri, why in sorted(reasons.items())]


def _name_some(what: str, names: Iterable[str], verbose: bool) -> None:
    names = list(names)
    shown = names if verbose else names[:NAMED]
    for name in shown:
        screen.say(f"{what}: {name}")
    if len(names) > len(shown):
        screen.say(f"{what}: {len(names) - len(shown):,} more (--verbose names all)")
