"""`pcaplake ingest`: its options, its run and what it shows at the end."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from parser.tables import TABLES

from .. import VERSION
from ..ingest import Ingest, Tally
from ..lake.lake import Lake
from ..lake.store import Store
from ..pipeline import Reader
from ..queue.directory import find
from ..settings import Settings, WrongSetting
from ..source import Sources
from . import screen

QUARANTINED, FAILED, INTERRUPTED = 1, 3, 130
KNOBS = "Knobs"
NAMED = 20  # quarantined captures on the screen

Names = Annotated[
    list[str], typer.Argument(metavar="PATH|URI...", help="Files, folders, globs, s3:// gs:// az:// URIs.")
]
LakeUri = Annotated[
    str | None,
    typer.Option("--lake", metavar="URI", help="The lake: a folder, or s3:// gs:// az://.", show_default=False),
]
Pair = Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Of the object store. May be repeated.")]


def _knob(text: str, metavar: str | None = None) -> Any:
    return typer.Option(help=text, metavar=metavar, rich_help_panel=KNOBS, show_default=False)


def ingest(
    names: Names,
    lake: LakeUri = None,
    profile: Annotated[Path | None, typer.Option(metavar="FILE", help="YAML: ports, bus names, vehicle id.")] = None,
    threads: Annotated[int | None, typer.Option(metavar="N", help="Worker threads; all cores by default.")] = None,
    ledger: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="State of a remote lake, on this machine and never lost.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The last line on stdout is one JSON object.")] = False,
    mode: Annotated[
        str | None,
        typer.Option(metavar="append|overwrite", help="overwrite: these captures replace all that is there."),
    ] = None,
    raw: Annotated[bool | None, typer.Option("--raw", help="Keep the bytes of every packet (packets.raw).")] = None,
    storage_option: Pair = None,
    table_property: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Of tables that are made now. May be repeated.")
    ] = None,
    partition_by: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Of a lake that is made now; date by default. Repeatable."),
    ] = None,
    create: Annotated[bool | None, typer.Option("--create/--no-create", help="Make tables that are missing.")] = None,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Make this ledger the lake's, rebuilt from the manifests; all else stopped.")
    ] = False,
    target_file_size: Annotated[str | None, _knob("Parquet files aim at this size (128MB).", "SIZE")] = None,
    max_records: Annotated[int | None, _knob("Rows in one merge window (5000000).", "N")] = None,
    flush_interval: Annotated[str | None, _knob("A merge window is open no longer (60s).", "TIME")] = None,
    max_batch_adds: Annotated[int | None, _knob("Files in one batch of commits (5000).", "N")] = None,
    max_batch_age: Annotated[str | None, _knob("A batch waits no longer (2s).", "TIME")] = None,
    compression: Annotated[str | None, _knob("zstd, snappy, gzip, lz4 or none (zstd).", "NAME")] = None,
    compression_level: Annotated[int | None, _knob("Of zstd and gzip (1).", "N")] = None,
    row_group_rows: Annotated[int | None, _knob("Rows in a Parquet row group (131072).", "N")] = None,
    checkpoint_interval: Annotated[int | None, _knob("Versions between checkpoints (100).", "N")] = None,
    commit_timeout: Annotated[str | None, _knob("A commit is tried no longer (60s).", "TIME")] = None,
) -> None:
    """Read captures into a lake, each row exactly once, however often this is killed and run again.

    A file that you name always leaves a row in the table captures, quarantined if it is no capture. In a folder, what
    is no capture by its first bytes is ignored. Captures that are in the lake already are not read again.

    Every option may be set in the environment: PCAPLAKE_LAKE, PCAPLAKE_THREADS, PCAPLAKE_TARGET_FILE_SIZE, ...

    Exit codes: 0 all in, 1 some captures quarantined (now or before), 2 usage or settings, 3 stopped by a fatal error,
    or captures or folders that could not be read, 130 Ctrl-C (what was whole is in; run it again for the rest).

    Examples:

      pcaplake ingest drives/ --lake lake/ --profile vehicle.yaml

      pcaplake ingest 'drives/2026-09-*/*.pcapng' --lake lake/ --threads 4 --json

      pcaplake ingest s3://fleet/drives/ --lake s3://fleet/lake --ledger ~/.pcaplake
    """
    given = {name: value for name, value in locals().items() if name not in ("names", "json", "adopt")}
    settings = Settings.load(**given)
    screen.logs()
    raise typer.Exit(run(settings, names, adopt=adopt, json=json))


def run(
    settings: Settings,
    names: Sequence[str],
    *,
    adopt: bool = False,
    json: bool = False,
    step: Callable[[str], None] = lambda name: None,
) -> int:
    """The whole run -> exit code. WrongSetting, NotThere and Fatal as they come; `step` is told of numbered steps."""
    profile = settings.vehicle_profile()
    store = Store.open(settings.lake, settings.storage(settings.lake))
    if store.local is None and settings.ledger is None:
        raise WrongSetting(f"{store.uri} is no local lake: name a folder on this machine for its ledger with --ledger")
    sources = Sources(settings.storage)
    reader = Reader(profile=profile, decoder_version=VERSION, now=time.time, raw=settings.raw)
    work = Ingest(sources, reader, threads=settings.threads)
    start = time.monotonic()

    async def main() -> bool:
        refs = await find(names, sources, store, skipped=work.skip)
        screen.compile_kernels()
        interrupted = _stop_on_interrupt(work)
        lake = await Lake.open(
            settings.lake,
            knobs=settings.knobs(),
            options=settings.storage(settings.lake),
            ledger=settings.ledger,
            auto_create=settings.create,
            partition_columns=settings.partition_by,
            properties=settings.table_property or None,
            overwrite=settings.mode == "overwrite",
            adopt=adopt,
            source=work,
            decoder_version=VERSION,
            step=step,
        )
        async with lake, screen.running(lambda: _look(work.tally, start)):
            await work.run(lake, refs)
        return interrupted.is_set()

    interrupted = asyncio.run(main())
    result = report(work.tally, time.monotonic() - start, _cpu_seconds())
    if json:
        screen.as_json(result)
    else:
        _show(result)
    for uri in work.tally.bad[:NAMED]:
        screen.say(f"quarantined, for the reason in the table quarantine: {uri}")
    if len(work.tally.bad) > NAMED:
        screen.say(f"quarantined: {len(work.tally.bad) - NAMED:,} more")
    for uri, why in work.tally.failed.items():
        screen.say(f"not read: {uri}: {why}")
    if interrupted:
        screen.say("interrupted: what was whole is in the lake; run the same command again for the rest")
        return INTERRUPTED
    return FAILED if work.tally.failed else QUARANTINED if work.tally.bad else 0


def _stop_on_interrupt(work: Ingest) -> asyncio.Event:
    """The first Ctrl-C lets whole captures finish; the second ends the process: the next run completes the lake."""
    interrupted = asyncio.Event()

    def interrupt() -> None:
        if interrupted.is_set():
            os._exit(INTERRUPTED)
        interrupted.set()
        work.stop()
        screen.say("stopping when what is whole is in the lake; Ctrl-C again stops at once, and loses nothing either")

    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupt)
    return interrupted


def _cpu_seconds() -> float:
    """Of this process, its start included, and of those it made."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _look(tally: Tally, start: float) -> tuple[float, float, str]:
    done = tally.captures + tally.already_ingested + tally.ignored + len(tally.failed)
    rate = tally.rows.total() / max(time.monotonic() - start, 0.001)
    return tally.read_bytes, tally.total_bytes, f"{done:,}/{tally.total:,} captures, {rate:,.0f} rows/s"


def report(tally: Tally, seconds: float, cpu_seconds: float) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "captures": tally.captures,
        "already_ingested": tally.already_ingested,
        "quarantined": tally.quarantined,
        "ignored": tally.ignored,
        "packets": tally.packets,
        "rows": {name: tally.rows[name] for name in TABLES},
        "seconds": round(seconds, 3),
        "cpu_seconds": round(cpu_seconds, 3),
        "rows_per_second": round(tally.rows.total() / seconds) if seconds > 0 else 0,
        "faults": dict(sorted(tally.faults.items())),
    }


def _show(result: dict[str, Any]) -> None:
    others = [name for name in ("quarantined", "already_ingested", "ignored") if result[name]]
    counts = [
        f"{result['captures']:,} captures read",
        *(f"{result[name]:,} {name.replace('_', ' ')}" for name in others),
    ]
    screen.out.print(f"{', '.join(counts)}; {result['packets']:,} packets")
    rows = [(name, count) for name, count in result["rows"].items() if count]
    if rows:
        screen.out.print()
        screen.table(None, ["table", "rows"], rows)
        screen.out.print()
        total = sum(count for _, count in rows)
        screen.out.print(
            f"{total:,} rows in {result['seconds']:.1f} s ({result['cpu_seconds']:.1f} s of CPU): "
            f"{result['rows_per_second']:,} rows/s"
        )
    if result["faults"]:
        screen.out.print("faults: " + ", ".join(f"{kind} {count:,}" for kind, count in result["faults"].items()))
