"""`pcaplake ingest`: its options, its run and what it shows at the end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from deltalake.exceptions import DeltaError

from pcaplake.parser.schemas import TABLES
from pcaplake.worker import VERSION
from pcaplake.worker import console as screen
from pcaplake.worker.captures.discovery import find_captures
from pcaplake.worker.captures.source import Sources
from pcaplake.worker.config.settings import Settings, WrongSetting
from pcaplake.worker.errors import Fatal
from pcaplake.worker.ingest.local_run import Ingest, Tally
from pcaplake.worker.ingest.pipeline import Reader
from pcaplake.worker.lake.identity import read_identity
from pcaplake.worker.lake.lake import Lake
from pcaplake.worker.lake.store.store import Store
from pcaplake.worker.lake.tables import count_tables
from pcaplake.worker.runtime import Runtime
from pcaplake.worker.warm import compile_missing

QUARANTINED, FAILED, INTERRUPTED = 1, 3, 130
KNOBS = "Tuning"
NAMED = 20  # quarantined captures that are listed by name

Names = Annotated[
    list[str], typer.Argument(metavar="PATH|URI...", help="Files, folders, globs, s3:// gs:// az:// URIs.")
]
LakeUri = Annotated[
    str | None,
    typer.Option("--lake", metavar="URI", help="The lake: a folder, or s3:// gs:// az://.", show_default=False),
]
Pair = Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Option of the object store. Repeatable.")]


def _tuning_option(text: str, metavar: str | None = None) -> Any:
    return typer.Option(help=text, metavar=metavar, rich_help_panel=KNOBS, show_default=False)


@dataclass(frozen=True, kw_only=True)
class SettingOptions:
    """The options that are fields of Settings. None: as in the environment, or the default."""

    lake: LakeUri = None
    profile: Annotated[Path | None, typer.Option(metavar="FILE", help="YAML: ports, bus names, vehicle id.")] = None
    threads: Annotated[int | None, typer.Option(metavar="N", help="Decoder threads; default: all cores.")] = None
    ledger: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder for the ledger of a remote lake; keep it.")
    ] = None
    mode: Annotated[
        str | None,
        typer.Option(metavar="append|overwrite", help="overwrite: these captures replace all rows of the lake."),
    ] = None
    raw: Annotated[bool | None, typer.Option("--raw", help="Store the bytes of every packet (column packets.raw).")] = (
        None
    )
    storage_option: Pair = None
    table_property: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Delta property of new tables. Repeatable.")
    ] = None
    partition_by: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Partition column of a new lake; default: date. Repeatable."),
    ] = None
    create: Annotated[bool | None, typer.Option("--create/--no-create", help="Create missing tables.")] = None
    target_file_size: Annotated[str | None, _tuning_option("Target size of Parquet files (128MB).", "SIZE")] = None
    max_records: Annotated[int | None, _tuning_option("Most rows in a window (5000000).", "N")] = None
    flush_interval: Annotated[str | None, _tuning_option("Longest time that a window stays open (60s).", "TIME")] = None
    max_batch_adds: Annotated[int | None, _tuning_option("Most files in a batch (5000).", "N")] = None
    max_batch_age: Annotated[str | None, _tuning_option("Longest time that a batch waits for more (2s).", "TIME")] = (
        None
    )
    compression: Annotated[str | None, _tuning_option("zstd, snappy, gzip, lz4 or none (zstd).", "NAME")] = None
    compression_level: Annotated[int | None, _tuning_option("Level for zstd and gzip (1).", "N")] = None
    row_group_rows: Annotated[int | None, _tuning_option("Rows in a Parquet row group (131072).", "N")] = None
    checkpoint_interval: Annotated[int | None, _tuning_option("Versions between checkpoints (100).", "N")] = None
    commit_timeout: Annotated[str | None, _tuning_option("Longest time that a commit is retried (60s).", "TIME")] = None


def ingest(
    names: Names,
    options: SettingOptions,
    yes: Annotated[bool, typer.Option("--yes", help="With --mode overwrite: replace without asking.")] = False,
    replace_changed: Annotated[
        bool,
        typer.Option(
            "--replace-changed",
            help="If a capture changed since it was ingested, keep only the rows of its current content.",
        ),
    ] = False,
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt",
            help="Rebuild this ledger from the manifests and use it for the lake. Stop all other processes first.",
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line on stdout.")] = False,
) -> None:
    """Read captures into a lake, each row exactly once, even if the command is killed and run again.

    Every file that you name gets a row in the table captures; a file that is not a capture is quarantined. In a folder,
    files that are not captures by their first bytes are ignored. Captures that are already in the lake are not read
    again. A capture that changed since is a new capture: the lake then has both contents, and the report names it. With
    --replace-changed the old rows are removed after the new rows are in the lake.

    --mode overwrite first reads all captures. Then one transaction for each table adds the new rows and removes all
    others. If the command is interrupted, or a capture cannot be read, or no file is a capture, the lake stays as it is.

    Every option can be set in the environment: PCAPLAKE_LAKE, PCAPLAKE_THREADS, PCAPLAKE_TARGET_FILE_SIZE, ...

    Exit codes: 0 all captures are in the lake, 1 some captures are quarantined, 2 wrong usage or settings, 3 a fatal
    error, captures or folders that could not be read, or an overwrite that replaced nothing, 130 Ctrl-C (complete
    captures are in the lake; run the command again for the rest).

    Examples:

      pcaplake ingest drives/ --lake lake/ --profile vehicle.yaml

      pcaplake ingest 'drives/2026-09-*/*.pcapng' --lake lake/ --threads 4 --json

      pcaplake ingest s3://fleet/drives/ --lake s3://fleet/lake --ledger ~/.pcaplake
    """
    settings = Settings.load(**vars(options))
    screen.logs()
    raise typer.Exit(run_ingest(settings, names, adopt=adopt, yes=yes, replace_changed=replace_changed, json=json))


def run_ingest(
    settings: Settings,
    names: Sequence[str],
    *,
    adopt: bool = False,
    yes: bool = False,
    replace_changed: bool = False,
    json: bool = False,
    step: Callable[[str], None] = lambda name: None,
) -> int:
    """Run the ingest -> exit code. Raises WrongSetting, NotThere and Fatal. `step`: as in `Runtime`."""
    profile = settings.load_vehicle_profile()
    store = Store.open(settings.lake, settings.storage_options_for(settings.lake))
    if store.local is None and settings.ledger is None:
        raise WrongSetting(
            f"{store.uri} is not a local lake: name a folder on this machine for its ledger with --ledger"
        )
    sources = Sources(settings.storage_options_for)
    reader = Reader(profile=profile, decoder_version=VERSION, now=time.time, raw=settings.raw)
    work = Ingest(sources, reader, threads=settings.threads, replace_changed=replace_changed)
    start = time.monotonic()

    refs = asyncio.run(find_captures(names, sources, store, skipped=work.count_ignored))
    if settings.mode == "overwrite":
        if not refs:
            raise Fatal(f"nothing was replaced: there is no capture in {', '.join(names)}")
        # outside of an event loop, which would catch a Ctrl-C at the question
        _confirm_overwrite(store, asyncio.run(_count_rows_to_remove(store)), yes)

    async def open_lake_and_ingest() -> bool:
        compile_missing(screen.say)
        interrupted = _stop_on_interrupt(work, overwrites=settings.mode == "overwrite")
        lake = await Lake.open(
            settings.lake,
            lake_config=settings.lake_config,
            ledger=settings.ledger,
            storage_options=settings.storage_options_for(settings.lake),
            source=work.source,
            overwrite=settings.mode == "overwrite",
            adopt=adopt,
            runtime=Runtime(step=step),
        )
        async with lake, screen.running(lambda: _progress_values(work.tally, start)):
            await work.run(lake, refs)
        return interrupted.is_set()

    interrupted = asyncio.run(open_lake_and_ingest())
    result = tally_as_dict(work.tally, time.monotonic() - start, _total_cpu_seconds())
    if json:
        screen.as_json(result)
    else:
        _show_result(result)
    for uri in work.tally.bad[:NAMED]:
        screen.say(f"quarantined (the table quarantine has the reason): {uri}")
    if len(work.tally.bad) > NAMED:
        screen.say(f"quarantined: {len(work.tally.bad) - NAMED:,} more")
    if work.tally.replaced:
        screen.say(f"{len(work.tally.replaced):,} captures had older contents in the lake, which were removed")
    if work.tally.changed:
        screen.say(
            f"{len(work.tally.changed):,} captures changed since they were ingested: both contents are in the lake. To "
            "remove the old contents, run this command again with --replace-changed"
        )
    for uri in work.tally.changed[:NAMED]:
        screen.say(f"changed: {uri}")
    if len(work.tally.changed) > NAMED:
        screen.say(f"changed: {len(work.tally.changed) - NAMED:,} more")
    for uri, why in work.tally.failed.items():
        screen.say(f"not read: {uri}: {why}")
    if work.tally.kept:
        screen.say(f"nothing was replaced, and the lake stays as it is: {work.tally.kept}")
        return INTERRUPTED if interrupted else FAILED
    if interrupted:
        screen.say("interrupted: complete captures are in the lake; run the same command again for the rest")
        return INTERRUPTED
    return FAILED if work.tally.failed else QUARANTINED if work.tally.bad else 0


async def _count_rows_to_remove(store: Store) -> dict[str, int]:
    """Rows by table that an overwrite removes."""
    if await read_identity(store) is None:
        return {}
    try:
        return {name: counts.rows for name, counts in (await count_tables(store)).items() if counts.rows}
    except DeltaError as error:
        raise Fatal(f"the rows of {store.uri} cannot be counted, see `pcaplake doctor`: {error}") from error


def _confirm_overwrite(store: Store, rows: Mapping[str, int], yes: bool) -> None:
    """Print what an overwrite will remove, and ask. Raises WrongSetting without a terminal, Fatal if the answer is no."""
    if not rows:
        return
    named = ", ".join(f"{name} {count:,}" for name, count in rows.items())
    screen.say(f"overwrite: all rows of {store.uri} will be removed when the new rows are committed ({named})")
    if yes:
        return
    if not sys.stdin.isatty():
        raise WrongSetting("--mode overwrite: there is no terminal to confirm this; pass --yes to remove these rows")
    if not typer.confirm("Replace them?", err=True):
        raise Fatal("nothing was replaced, because you answered no")


def _stop_on_interrupt(work: Ingest, *, overwrites: bool) -> asyncio.Event:
    """The first Ctrl-C lets whole captures finish; the second ends the process: the next run completes the lake."""
    interrupted = asyncio.Event()

    def on_interrupt() -> None:
        if interrupted.is_set():
            os._exit(INTERRUPTED)
        interrupted.set()
        work.stop()
        screen.say(
            "stopping; the lake stays as it is"
            if overwrites
            else "stopping after complete captures are in the lake; Ctrl-C again stops at once and loses no data either"
        )

    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, on_interrupt)
    return interrupted


def _total_cpu_seconds() -> float:
    """CPU seconds of this process since its start, and of its child processes."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _progress_values(tally: Tally, start: float) -> tuple[float, float, str]:
    done = tally.captures + tally.already_ingested + tally.ignored + len(tally.failed)
    rate = tally.rows.total() / max(time.monotonic() - start, 0.001)
    return tally.read_bytes, tally.total_bytes, f"{done:,}/{tally.total:,} captures, {rate:,.0f} rows/s"


def tally_as_dict(tally: Tally, seconds: float, cpu_seconds: float) -> dict[str, Any]:
    """What `--json` prints. An overwrite that replaced nothing (`kept` says why) has put no row into the lake."""
    rows, captures = (Counter[str](), 0) if tally.kept else (tally.rows, tally.captures)
    return {
        "captures": captures,
        "already_ingested": tally.already_ingested,
        "quarantined": tally.quarantined,
        "ignored": tally.ignored,
        "not_read": len(tally.failed),
        "kept": tally.kept or None,
        "changed": len(tally.changed),
        "replaced": len(tally.replaced),
        "packets": tally.packets,
        "rows": {name: rows[name] for name in TABLES},
        "seconds": round(seconds, 3),
        "cpu_seconds": round(cpu_seconds, 3),
        "rows_per_second": round(rows.total() / seconds) if seconds > 0 else 0,
        "faults": dict(sorted(tally.faults.items())),
    }


def _show_result(result: dict[str, Any]) -> None:
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
