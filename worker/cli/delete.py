"""`pcaplake delete`: removes rows of captures from a lake, so that the same contents can be ingested again."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pcaplake.common.errors import Fatal
from pcaplake.common.plain_text import counted
from pcaplake.common.runtime import Runtime
from pcaplake.ingest.captures.reference import is_remote_uri
from pcaplake.lake.commit.removals import (
    OlderContents,
    find_last_batch,
    find_older_contents,
    finish_removals,
    remove_captures,
)
from pcaplake.lake.config import Creation
from pcaplake.lake.current_captures import find_contents, find_current, find_uris_with_several_contents
from pcaplake.lake.identity import local_file_uri, read_identity
from pcaplake.lake.lake import Lake
from pcaplake.lake.ledger.sqlite import SqliteLedger
from pcaplake.lake.shared_tables import SharedTables
from pcaplake.lake.store.store import Store
from pcaplake.worker import console as screen
from pcaplake.worker.config.settings import Settings, WrongSetting

from .lake_options import LakeUri, Pair, choose_lake
from .tables import open_lake_store

if TYPE_CHECKING:
    from pcaplake.worker.config.service_settings import FleetSettings

_NAMED = 10
_OK = "ok"
_POLL = 0.5  # seconds


def delete(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CAPTURES...]", help="Files, folders or URIs; default: all of the lake.", show_default=False
        ),
    ] = None,
    older_contents: Annotated[
        bool,
        typer.Option(
            "--older-contents", help="Of each capture that changed, keep only the content of current_captures."
        ),
    ] = False,
    lake: LakeUri = None,
    ledger: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder with the ledger of a remote lake.", show_default=False)
    ] = None,
    storage_option: Pair = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Settings of a fleet: of its lake, beside its workers.", show_default=False),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Remove rows of captures from the tables and from the ledger. For the lake of one machine.

    --older-contents removes the contents that an object or a file had before, by the view current_captures
    (`pcaplake docs querying`). It reads no capture, and also works for captures that are gone. If the current content is
    not a readable capture, or is not in the lake, the older ones stay.

    The rows are removed table by table, and at last the captures are removed from the ledger: a content that comes back is
    ingested again. If the command is killed, the next `ingest` or `delete` goes on. Older table versions keep the rows until
    `pcaplake maintain` deletes their files. The next `pcaplake signals` removes their signals.

    With --config it does the same in the lake of a fleet, beside its workers. A worker that receives one of these contents
    meanwhile reads it when its old rows are gone. With the setting `changed_captures: replace`, the committer removes
    older contents by itself.

    Exit codes: 0 done or nothing to do, 2 wrong usage or settings, 3 stopped by an error.

    Examples:

      pcaplake delete --older-contents --lake lake/

      pcaplake delete --older-contents drives/v1/ --lake lake/ --yes

      pcaplake delete --older-contents --config fleet.yaml
    """
    if not older_contents:
        raise WrongSetting("say what to delete: --older-contents")
    delete = _prepare(lake, ledger, storage_option, config)
    plan = asyncio.run(delete(names or ()))
    _show(plan, done=False)
    if plan.older and not yes:
        if not sys.stdin.isatty():
            raise WrongSetting("there is no terminal to confirm this; pass --yes to remove these rows")
        if not typer.confirm("Remove them?", err=True):
            raise Fatal("nothing was removed, because you answered no")
    if plan.older:
        plan = asyncio.run(delete(names or (), agreed=plan))
    if json:
        screen.as_json(
            {
                "captures": sum(map(len, plan.older.values())),
                "rows": plan.rows,
                "uris": sorted(plan.older),
                "kept": sorted(plan.kept),
            }
        )
    elif plan.older:
        _show(plan, done=True)


def _prepare(
    lake: str | None, ledger: Path | None, storage_option: list[str] | None, config: Path | None
) -> Callable[..., Coroutine[object, object, OlderContents]]:
    """`delete_older_contents`, or for a fleet `delete_older_contents_of_fleet`, with the settings."""
    if config is None:
        store = open_lake_store(lake, storage_option)
        asyncio.run(_refuse_fleet(store))
        settings = Settings.load(lake=lake, ledger=ledger, storage_option=storage_option)
        return partial(delete_older_contents, settings)
    from pcaplake.worker.config.service_settings import FleetSettings  # pydantic-settings takes long to import

    if ledger is not None:
        raise WrongSetting("--config names the ledger: use it without --ledger")
    fleet = FleetSettings.load(config, storage_option=storage_option)
    return partial(delete_older_contents_of_fleet, fleet, choose_lake(fleet.load_routes(), lake, config))


async def _refuse_fleet(store: Store) -> None:
    known = await read_identity(store)
    if known is not None and known[0].ledger_kind != SqliteLedger.kind:
        raise Fatal(f"{store.uri} is the lake of a fleet: name the settings of its workers with --config")


async def delete_older_contents(
    settings: Settings,
    names: Sequence[str],
    *,
    agreed: OlderContents | None = None,
    step: Callable[[str], None] = lambda name: None,
) -> OlderContents:
    """What is to be removed, or with `agreed` what was removed of it. `step`: as in `Runtime`. Raises Fatal and Retryable.

    What changed since it was agreed is not removed.
    """
    lake = await Lake.open(
        settings.lake,
        lake_config=settings.lake_config,
        ledger=settings.ledger,
        storage_options=settings.storage_options_for(settings.lake),
        runtime=Runtime(step=step),
    )
    async with lake:
        await lake.drain()
        plan = await _find_older_contents(lake, names)
        if agreed is not None:
            plan.older = {uri: older for uri, older in plan.older.items() if _is_same(uri, plan, agreed)}
            await lake.remove_other_contents({uri: plan.current[uri] for uri in plan.older})
    return plan


async def delete_older_contents_of_fleet(
    fleet: FleetSettings,
    uri: str,
    names: Sequence[str],
    *,
    agreed: OlderContents | None = None,
    step: Callable[[str], None] = lambda name: None,
) -> OlderContents:
    """As `delete_older_contents`, in the lake of a fleet with this URI. Other processes must commit its batches."""
    locks = fleet.lock_table if fleet.log_store == "dynamodb" else None
    async with await SharedTables.open(fleet.ledger_table, locks, region=fleet.region) as shared_tables:
        lake = await Lake.open(
            uri,
            lake_config=replace(fleet.lake_config, commits=False, creation=Creation(allowed=False)),
            ledger=shared_tables,
            storage_options=fleet.storage_options_for(uri),
            runtime=Runtime(step=step),
        )
        async with lake:
            swaps = lake.swaps()
            if agreed is not None:
                await finish_removals(swaps)
            await _wait_for_batches(lake)
            uris = await find_uris_with_several_contents(lake.store)
            wanted = {one for one in uris if not names or _is_named(one, list(map(_uri_of, names)))}
            contents = await find_contents(lake.store, wanted)
            plan = await find_older_contents(lake.ledger, lake.generation, contents)
            if agreed is not None:
                plan.older = {one: older for one, older in plan.older.items() if _is_same(one, plan, agreed)}
                removed = await remove_captures(swaps, [item for older in plan.older.values() for item in older])
                plan.older = {
                    one: there
                    for one, older in plan.older.items()
                    if (there := [item for item in older if item.capture.capture_id in removed])
                }
    return plan


async def _wait_for_batches(lake: Lake) -> None:
    """Until every table has the batches that there are now. Raises Fatal after `commit_timeout`."""
    needed, until = await find_last_batch(lake.store, await lake.ledger.read_head()), time.monotonic()
    until += lake.lake_config.commit_timeout
    while await lake.ledger.read_head() < needed:
        if time.monotonic() > until:
            raise Fatal(
                f"batch {needed} waits to be committed: start a committer of {lake.store.uri}, then run this again"
            )
        await asyncio.sleep(_POLL)


def _is_same(uri: str, now: OlderContents, agreed: OlderContents) -> bool:
    ids = {item.capture.capture_id for item in now.older[uri]}
    before = {item.capture.capture_id for item in agreed.older.get(uri, ())}
    return now.current[uri] == agreed.current.get(uri) and ids == before


async def _find_older_contents(lake: Lake, names: Sequence[str]) -> OlderContents:
    uris = list(map(_uri_of, names))
    contents = await lake.find_several_contents()
    if uris:
        contents = {uri: ids for uri, ids in contents.items() if _is_named(uri, uris)}
    current = await find_current(lake.store, contents)
    plan = OlderContents()
    for uri, items in contents.items():
        now = current.get(uri)
        if now is None or now.outcome != _OK:
            plan.kept.append(uri)
            continue
        plan.current[uri] = now.capture_id
        plan.older[uri] = [item for item in items if item.capture.capture_id != now.capture_id]
    return plan


def _uri_of(name: str) -> str:
    return name if is_remote_uri(name) else local_file_uri(Path(name.removeprefix("file://")))


def _is_named(uri: str, names: Collection[str]) -> bool:
    return any(uri == name or uri.startswith(f"{name.rstrip('/')}/") for name in names)


def _show(plan: OlderContents, *, done: bool) -> None:
    captures = counted(sum(map(len, plan.older.values())), "older content")
    rows = counted(plan.rows, "row")
    if done:
        screen.say(f"removed {captures} of {counted(len(plan.older), 'capture')} with {rows}")
        return
    for uri in sorted(plan.kept)[:_NAMED]:
        screen.say(f"kept: {uri}: its current content is not a readable capture, or is not in the lake")
    if not plan.older:
        screen.say("no capture has an older content to remove")
        return
    screen.say(f"{captures} of {counted(len(plan.older), 'capture')} with {rows} will be removed:")
    for uri in sorted(plan.older)[:_NAMED]:
        screen.say(f"  {uri}")
    if len(plan.older) > _NAMED:
        screen.say(f"  and {len(plan.older) - _NAMED:,} more")
