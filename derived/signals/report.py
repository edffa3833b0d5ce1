"""The report of a run, of each program that decodes the signals of a lake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pcaplake.signals.database import Databases

from .counts_report import report_counts
from .run import SignalsRun
from .unmatched import UnmatchedFrames


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalReport:
    """`rows`: decoded and written to `signals`, also those that replace others. `wide`: wide table -> its new rows. `version`:
    the last one of `signals` that the run has written. `decoded_again`: ids whose definition changed. `skipped`: reason ->
    number of messages that are not decoded. `unreadable`: `Message.Signal`, or a line of a file -> why it cannot be decoded.
    `missing`: tables of frames that the databases describe and that do not exist. `someip`, `containers`: what its messages,
    and the PDUs in containers were. `unmatched`: why the table `signals` is empty although there are frames."""

    lake: str
    seconds: float
    batches: int
    rows: int
    wide: Mapping[str, int]
    version: int
    catalog_rows: int
    decoded_again: int
    skipped: Mapping[str, int]
    unreadable: Mapping[str, str]
    missing: Sequence[str]
    someip: Mapping[str, Any]
    containers: Mapping[str, Any]
    unmatched: UnmatchedFrames | None


async def build_report(run: SignalsRun, lake: str, databases: Databases, seconds: float) -> SignalReport:
    """The report of a run that has ended."""
    tally = run.tally
    return SignalReport(
        lake=lake,
        seconds=round(seconds, 3),
        batches=tally.batches,
        rows=tally.rows,
        wide=dict(tally.wide),
        version=run.version,
        catalog_rows=tally.catalog_rows,
        decoded_again=tally.decoded_again,
        skipped=dict(databases.skipped),
        unreadable=databases.unreadable_declarations,
        missing=tuple(tally.missing),
        **report_counts(tally.counts),
        unmatched=None if run.stopped.is_set() else await run.explain_no_rows(),
    )
