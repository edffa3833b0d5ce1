"""`pcaplake ingest`: its options, its run and what it shows at the end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pcaplake.common import VERSION
from pcaplake.common.errors import Fatal
from pcaplake.common.runtime import Runtime
from pcaplake.ingest.captures.discovery import find_captures, require_captures
from pcaplake.ingest.captures.reference import ObjectRef
from pcaplake.ingest.captures.source import Sources
from pcaplake.ingest.local_run import Ingest
from pcaplake.ingest.pipeline import Reader
from pcaplake.lake.config import MIB
from pcaplake.lake.identity import read_identity
from pcaplake.lake.lake import Lake
from pcaplake.lake.ledger.sqlite import SqliteLedger
from pcaplake.lake.shared_tables import SharedTables
from pcaplake.lake.store.store import SCHEMES, Store
from pcaplake.lake.tables import count_tables
from pcaplake.worker import console as screen
from pcaplake.worker.config.settings import LakeSettings, Settings, WrongSetting

from .ingest_report import name_files, progress_values, say_which_decodings_differ, show_result, tally_as_dict
from .lake_options import FollowLinks, LakeUri, Pair, choose_lake

if TYPE_CHECKING:
    from pcaplake.worker.config.routes import Routes
    from pcaplake.worker.config.service_settings import FleetSettings

QUARANTINED, FAILED, INTERRUPTED = 1, 3, 130

Names = Annotated[list[str], typer.Argument(metavar="CAPTURES...", help=f"Files, folders, globs, {SCHEMES} URIs.")]


def _tuning_option(name: str, metavar: str) -> Any:
    """An option for one of `LakeSettings`, with its description there and its default."""
    default = Settings.model_fields[name].default
    shown = f"{default // MIB}MB" if metavar == "SIZE" else f"{default:g}s" if metavar == "TIME" else default
    text = f"{LakeSettings.model_fields[name].description} Default: {shown}."
    return typer.Option(help=text, metavar=metavar, show_default=False)


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
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="Delta property of new tables, such as delta.checkpointInterval=50. Repeatable."
        ),
    ] = None
    partition_by: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Partition column of a new lake; default: date. Repeatable."),
    ] = None
    create: Annotated[bool | None, typer.Option("--create/--no-create", help="Create missing tables.")] = None
    target_file_size: Annotated[str | None, _tuning_option("target_file_size", "SIZE")] = None
    max_records: Annotated[int | None, _tuning_option("max_records", "N")] = None
    flush_interval: Annotated[str | None, _tuning_option("flush_interval", "TIME")] = None
    max_batch_adds: Annotated[int | None, _tuning_option("max_batch_adds", "N")] = None
    max_batch_age: Annotated[str | None, _tuning_option("max_batch_age", "TIME")] = None
    compression: Annotated[str | None, _tuning_option("compression", "zstd|snappy|gzip|lz4|none")] = None
    compression_level: Annotated[int | None, _tuning_option("compression_level", "N")] = None
    row_group_rows: Annotated[int | None, _tuning_option("row_group_rows", "N")] = None
    checkpoint_interval: Annotated[int | None, _tuning_option("checkpoint_interval", "N")] = None
    commit_timeout: Annotated[str | None, _tuning_option("commit_timeout", "TIME")] = None


@dataclass(frozen=True, kw_only=True)
class ChangeOptions:
    """What may happen to rows and to the ledger that the lake has."""

    yes: Annotated[
        bool,
        typer.Option(
            "--yes", help="Do not ask: overwrite, and allow --reread to lose bus names, vehicle ids or raw bytes."
        ),
    ] = False
    replace_changed: Annotated[
        bool,
        typer.Option(
            "--replace-changed",
            help="If a capture changed since it was ingested, keep only the rows of its current content.",
        ),
    ] = False
    reread: Annotated[
        bool,
        typer.Option(
            "--reread",
            help="Read captures of the lake again that another profile or version has read, and swap their rows. "
            "A different --raw alone does not count.",
        ),
    ] = False
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="For the lake of a fleet: YAML file with the settings of its workers.",
            show_default=False,
        ),
    ] = None
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt",
            help="Rebuild this ledger from the manifests and use it for the lake. Stop all other processes first.",
        ),
    ] = False


def ingest(
    names: Names,
    options: SettingOptions,
    changes: ChangeOptions,
    follow_links: FollowLinks = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Name all quarantined, changed and ignored files.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line on stdout.")] = False,
) -> None:
    """Read captures into a lake, each row exactly once, even if the command is killed and run again.

    Every file that you name gets a row in the table captures; a file that is not a capture is quarantined. In a folder,
    a file is ignored unless its first bytes or its name (.pcap, .pcapng.gz, .cap.xz) are those of a capture. Links are
    followed, each folder once, but not out of the folder that you name: that needs --follow-links. Captures that are
    already in the lake are not read again.

    A file whose content changed since it was ingested is a new capture: the lake then has both contents, and the report
    names the file. With --replace-changed the old rows are removed after the new rows are in the lake. If another profile
    or another version of pcaplake has read captures that are in the lake, the report counts them. With --reread they are
    read again, and one transaction for each table swaps their rows; the rows of all other captures stay.

    --mode overwrite first reads all captures. Then one transaction for each table adds the new rows and removes all
    others. If the command is interrupted, or a capture cannot be read, or no file is a capture, the lake stays as it is.

    With --config, captures go into the lake of a fleet, beside its workers, with the profiles of the routes that lead there;
    --reread works as well. --replace-changed and --mode overwrite are for lakes of one machine.

    Every option can be set in the environment: PCAPLAKE_LAKE, PCAPLAKE_THREADS, PCAPLAKE_TARGET_FILE_SIZE, ...

    Exit codes: 0 all captures are in the lake, 1 some captures are quarantined, 2 wrong usage or settings, or no capture,
    3 a fatal error, captures or folders that could not be read, or an overwrite that replaced nothing, 130 Ctrl-C (complete
    captures are in the lake; run the command again for the rest).

    Examples:

      pcaplake ingest drives/ --lake lake/ --profile vehicle.yaml

      pcaplake ingest 'drives/2026-09-*/*.pcapng' --lake lake/ --threads 4 --json

      pcaplake ingest s3://fleet/drives/ --lake s3://fleet/lake --ledger state/
    """
    fleet = None if changes.config is None else _load_fleet(changes.config, options)
    settings = Settings.load(**vars(options) | ({} if fleet is None else {"lake": fleet.lake, "create": False}))
    screen.logs()
    raise typer.Exit(
        run_ingest(settings, names, changes, fleet=fleet, follow_links=follow_links, verbose=verbose, json=json)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The lake of a fleet to which captures go, by the settings of its workers."""

    settings: FleetSettings
    routes: Routes
    lake: str
    readers: Mapping[str, Reader]  # by the name of the route

    def reader_of(self, uri: str) -> Reader | None:
        """The reader of the route that leads from a URI to the lake; None: none does."""
        routes = self.routes.find_routes(uri)
        return next((self.readers[route.name] for route in routes if route.lake == self.lake), None)


def _load_fleet(config: Path, options: SettingOptions) -> Fleet:
    """Raises WrongSetting if it is not clear which lake of the fleet is meant, or for settings that the routes have."""
    from pcaplake.worker.config.service_settings import FleetSettings  # pydantic-settings takes long to import

    if options.profile is not None or options.ledger is not None or options.mode == "overwrite":
        raise WrongSetting(
            "--config names profiles and the ledger: use it without --profile, --ledger and --mode overwrite"
        )
    settings = FleetSettings.load(config)
    routes = settings.load_routes()
    lake = choose_lake(routes, options.lake, config)
    raw = settings.raw or bool(options.raw)
    readers = {
        route.name: Reader(profile=route.profile, decoder_version=VERSION, now=time.time, raw=raw)
        for route in routes.routes
    }
    return Fleet(settings=settings, routes=routes, lake=lake, readers=readers)


def run_ingest(
    settings: Settings,
    names: Sequence[str],
    changes: ChangeOptions = ChangeOptions(),
    *,
    fleet: Fleet | None = None,
    follow_links: bool = False,
    verbose: bool = False,
    json: bool = False,
    step: Callable[[str], None] = lambda name: None,
) -> int:
    """Run the ingest -> exit code. Raises WrongSetting, NotThere and Fatal. `step`: as in `Runtime`."""
    profile = settings.load_vehicle_profile()
    storage_options_for = settings.storage_options_for if fleet is None else fleet.settings.storage_options_for
    store = Store.open(settings.lake, storage_options_for(settings.lake))
    if store.local is None and settings.ledger is None and fleet is None:
        raise WrongSetting(
            f"{store.uri} is not a local lake: name a folder on this machine for its ledger with --ledger, or the settings of "
            "its fleet with --config"
        )
    if changes.reread and settings.mode == "overwrite":
        raise WrongSetting("--mode overwrite reads all captures anyway: use it without --reread")
    if changes.replace_changed and fleet is not None:
        raise WrongSetting(
            "--replace-changed is for lakes of one machine: for a fleet, set `changed_captures: replace`, or run "
            "`pcaplake delete --older-contents`, with the same --config"
        )
    if fleet is None:
        asyncio.run(_require_local_ledger(store))
    sources = Sources(storage_options_for)
    reader = Reader(profile=profile, decoder_version=VERSION, now=time.time, raw=settings.raw)
    work = Ingest(
        sources,
        reader,
        threads=settings.threads,
        replace_changed=changes.replace_changed,
        reread=changes.reread,
        accept_loss=changes.yes,
        reader_of=None if fleet is None else fleet.reader_of,
    )
    start = time.monotonic()

    async def find_refs() -> list[ObjectRef]:
        refs = await find_captures(names, sources, store, skipped=work.tally.ignored.append, follow_links=follow_links)
        await require_captures(refs, sources, names)
        if fleet is not None and (elsewhere := [ref.uri for ref in refs if fleet.reader_of(ref.uri) is None]):
            raise WrongSetting(f"no route leads from {elsewhere[0]} to {fleet.lake}")
        return refs

    refs = asyncio.run(find_refs())
    if settings.mode == "overwrite":
        # outside of an event loop, which would catch a Ctrl-C at the question
        _confirm_overwrite(store, asyncio.run(_count_rows_to_remove(store)), changes.yes)

    async def open_lake_and_ingest() -> bool:
        interrupted = _stop_on_interrupt(work, overwrites=settings.mode == "overwrite")
        async with AsyncExitStack() as stack:
            ledger: Path | SharedTables | None = settings.ledger
            if fleet is not None:
                ledger = await stack.enter_async_context(await _open_shared_tables(fleet.settings))
            lake = await Lake.open(
                settings.lake,
                lake_config=settings.lake_config,
                ledger=ledger,
                storage_options=storage_options_for(settings.lake),
                source=work.source,
                overwrite=settings.mode == "overwrite",
                adopt=changes.adopt,
                runtime=Runtime(step=step),
            )
            opened = time.monotonic()
            async with lake, screen.running(lambda: progress_values(work.tally, time.monotonic() - opened)):
                await work.run(lake, refs)
        return interrupted.is_set()

    interrupted = asyncio.run(open_lake_and_ingest())
    result = tally_as_dict(work.tally, time.monotonic() - start, _total_cpu_seconds())
    with screen.result():
        if json:
            screen.as_json(result)
        else:
            show_result(result, verbose=verbose)
    with screen.result():
        name_files(work.tally, verbose=verbose)
        say_which_decodings_differ(work.tally)
        if work.tally.kept:
            screen.say(f"nothing was replaced, and the lake stays as it is: {work.tally.kept}")
        elif interrupted:
            screen.say("interrupted: complete captures are in the lake; run the same command again for the rest")
    if interrupted:
        return INTERRUPTED
    if work.tally.kept:
        return FAILED
    return FAILED if work.tally.failed or work.tally.not_reread else QUARANTINED if work.tally.bad else 0


async def _open_shared_tables(settings: FleetSettings) -> SharedTables:
    locks = settings.lock_table if settings.log_store == "dynamodb" else None
    return await SharedTables.open(settings.ledger_table, locks, region=settings.region)


async def _require_local_ledger(store: Store) -> None:
    """Raise Fatal for the lake of a fleet, whose ledger and lock table its settings name."""
    known = await read_identity(store)
    if known is not None and known[0].ledger_kind != SqliteLedger.kind:
        raise Fatal(f"{store.uri} is the lake of a fleet: name the settings of its workers with --config")


async def _count_rows_to_remove(store: Store) -> dict[str, int]:
    """Rows by table that an overwrite removes."""
    if await read_identity(store) is None:
        return {}
    return {name: counts.rows for name, counts in (await count_tables(store)).items() if counts.rows}


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
