"""`pcaplake signals`: decodes the frames of a lake to physical values, without Spark."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

import typer

from pcaplake.common.plain_text import counted
from pcaplake.common.runtime import Runtime
from pcaplake.derived.signals.command_options import DatabasesFile, WideMessages
from pcaplake.derived.signals.counts_report import describe_counts
from pcaplake.derived.signals.report import build_report
from pcaplake.derived.signals.run import Options, SignalsRun
from pcaplake.lake.store.store import Store
from pcaplake.signals.database import Databases
from pcaplake.signals.wide import require_wide_messages
from pcaplake.worker import console as screen
from pcaplake.worker.config.settings import parse_size

from .lake_options import LakeUri, Pair
from .tables import open_lake_store

INTERRUPTED = 130
MOST_UNREADABLE = 10  # lines; --json has all


def signals(
    databases: DatabasesFile,
    lake: LakeUri = None,
    storage_option: Pair = None,
    wide: WideMessages = None,
    every: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0.1,
            help="Run until stopped, and look for new frames this often. Default: decode existing frames, then end.",
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Decoder threads; default: all cores.", show_default=False)
    ] = None,
    batch_size: Annotated[
        int,
        typer.Option(
            metavar="SIZE",
            parser=parse_size,
            help="A batch reads about this many bytes of frames. Default: 64MB.",
            show_default=False,
        ),
    ] = 64 << 20,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Decode CAN, LIN and FlexRay frames, PDUs and SOME/IP messages of a lake to physical values, without Spark.

    Writes the tables `signals` and `signal_catalog`, and a table such as `signals_Speed` for each --wide, with the
    same rows as the Spark job `signals`. Reads only frames that are not decoded yet, and each row is written exactly
    once, even if the command is killed and run again. When a database changes, the changed messages are decoded again
    for all frames. For lakes without a lock table. An ingest and `maintain` may run at the same time.

    One run decodes the signals of a lake: a second run of this command, or of the Spark job, takes over and continues where
    the first one was, which ends.

    Formats: DBC, FIBEX (FlexRay, SOME/IP), folders with Wireshark's tables of SOME/IP, and with the extra `signals` also KCD,
    SYM, LDF (LIN) and ARXML (CAN, FlexRay, PDUs, SOME/IP).

    Exit codes: 0 done, 2 wrong usage or settings, 3 stopped by an error, 130 Ctrl-C (run the command again for the rest).

    Examples:

      pcaplake signals --lake lake/ --databases car.dbc

      pcaplake signals --lake lake/ --databases buses.yaml --wide Speed --every 30
    """
    known = Databases.from_file(databases)
    require_wide_messages(known, wide or ())
    store = open_lake_store(lake, storage_option)
    screen.logs()
    options = Options(
        databases=known, wide=tuple(wide or ()), threads=threads or os.cpu_count() or 1, batch_bytes=batch_size
    )
    raise typer.Exit(run_signals(store, options, every=every, json=json))


def run_signals(
    store: Store,
    options: Options,
    *,
    every: float | None = None,
    json: bool = False,
    step: Callable[[str], None] = lambda name: None,
) -> int:
    """Run the command -> exit code. Raises as `SignalsRun.run`. `step`: as in `Runtime`."""
    started = time.monotonic()

    async def decode() -> tuple[bool, dict[str, Any]]:
        run = SignalsRun(store, options, runtime=Runtime(step=step), say=screen.say)
        interrupted = _stop_on_signal(run)
        async with screen.running(lambda: _progress(run), "signals"):
            await run.run(every)
        report = await build_report(run, store.uri, options.databases, time.monotonic() - started)
        unmatched = report.unmatched and {**asdict(report.unmatched), "text": str(report.unmatched)}
        return interrupted.is_set(), {**asdict(report), "unmatched": unmatched}

    interrupted, report = asyncio.run(decode())
    with screen.result():
        if json:
            screen.as_json(report)
        else:
            _show(report)
    return INTERRUPTED if interrupted and every is None else 0


def _progress(run: SignalsRun) -> tuple[float, float, str]:
    tally = run.tally
    return (
        tally.read_bytes,
        tally.total_bytes,
        f"{counted(tally.rows, 'row')}, {counted(tally.batches, 'batch', 'batches')}",
    )


def _stop_on_signal(run: SignalsRun) -> asyncio.Event:
    """The first signal lets a batch finish; the second ends the process: the next run continues."""
    interrupted = asyncio.Event()

    def on_signal() -> None:
        if interrupted.is_set():
            os._exit(INTERRUPTED)
        interrupted.set()
        run.stop()
        screen.say("stopping after this batch; Ctrl-C again stops at once and loses no data either")

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    return interrupted


def _show(report: dict[str, Any]) -> None:
    again = f", {counted(report['decoded_again'], 'id')} decoded again" if report["decoded_again"] else ""
    screen.line(
        f"signals: {counted(report['rows'], 'row')} in {counted(report['batches'], 'batch', 'batches')}{again}, "
        f"{report['seconds']:,.1f} s; version {report['version']}"
    )
    for table, rows in report["wide"].items():
        screen.line(f"{table}: {counted(rows, 'row')}")
    for reason, count in report["skipped"].items():
        screen.line(f"not decoded: {counted(count, 'message')} ({reason})")
    unreadable = list(report["unreadable"].items())
    for name, reason in unreadable[:MOST_UNREADABLE]:
        screen.line(f"unreadable: {name}: {reason}")
    if len(unreadable) > MOST_UNREADABLE:
        screen.line(f"... and {len(unreadable) - MOST_UNREADABLE:,} more unreadable declarations; --json shows all")
    for text in describe_counts(report):
        screen.line(text)
    if report["unmatched"] is not None:
        screen.line(report["unmatched"]["text"])
        for hint in report["unmatched"]["hints"]:
            screen.line(f"hint: {hint}")
