"""`pcaplake delete`: removes rows of captures from the lake of one machine, so that the same contents can be ingested again."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from pcaplake.common.errors import Fatal
from pcaplake.common.plain_text import counted
from pcaplake.common.runtime import Runtime
from pcaplake.ingest.captures.reference import is_remote_uri
from pcaplake.lake.current_captures import find_current
from pcaplake.lake.identity import local_file_uri, refuse_lake_with_lock_table
from pcaplake.lake.lake import Lake
from pcaplake.lake.records import Capture
from pcaplake.worker import console as screen
from pcaplake.worker.config.settings import Settings, WrongSetting

from .lake_options import LakeUri, Pair
from .tables import open_lake_store

_NAMED = 10
_OK = "ok"


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
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Remove rows of captures from the tables and from the ledger. For the lake of one machine.

    --older-contents removes the contents that an object or a file had before, by the view current_captures
    (`pcaplake docs querying`). It reads no capture, and also works for captures that are gone. If the current content is
    not a readable capture, or is not in the lake, the older ones stay.

    The rows are removed table by table, and at last the captures are removed from the ledger: a content that comes back is
    ingested again. If the command is killed, the next `ingest` or `delete` goes on. Older table versions keep the rows until
    `pcaplake maintain` deletes their files. The next
    `pcaplake signals` removes their signals.

    Exit codes: 0 done or nothing to do, 2 wrong usage or settings, 3 stopped by an error.

    Examples:

      pcaplake delete --older-contents --lake lake/

      pcaplake delete --older-contents drives/v1/ --lake lake/ --yes
    """
    if not older_contents:
        raise WrongSetting("say what to delete: --older-contents")
    store = open_lake_store(lake, storage_option)
    asyncio.run(refuse_lake_with_lock_table(store))
    settings = Settings.load(lake=lake, ledger=ledger, storage_option=storage_option)
    plan = asyncio.run(delete_older_contents(settings, names or ()))
    _show(plan, done=False)
    if plan.older and not yes:
        if not sys.stdin.isatty():
            raise WrongSetting("there is no terminal to confirm this; pass --yes to remove these rows")
        if not typer.confirm("Remove them?", err=True):
            raise Fatal("nothing was removed, because you answered no")
    if plan.older:
        plan = asyncio.run(delete_older_contents(settings, names or (), agreed=plan))
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


@dataclass(slots=True, kw_only=True)
class OlderContents:
    """By URI: `current`: the capture to keep; `older`: those to remove. `kept`: URIs whose current content is no capture."""

    current: dict[str, str] = field(default_factory=dict)
    older: dict[str, list[Capture]] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(capture.rows for captures in self.older.values() for capture in captures)


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


def _is_same(uri: str, now: OlderContents, agreed: OlderContents) -> bool:
    ids = {capture.capture_id for capture in now.older[uri]}
    return now.current[uri] == agreed.current.get(uri) and ids == {one.capture_id for one in agreed.older.get(uri, ())}


async def _find_older_contents(lake: Lake, names: Sequence[str]) -> OlderContents:
    uris = [name if is_remote_uri(name) else local_file_uri(Path(name.removeprefix("file://"))) for name in names]
    contents = await lake.find_several_contents()
    if uris:
        contents = {uri: ids for uri, ids in contents.items() if _is_named(uri, uris)}
    current = await find_current(lake.store, contents)
    plan = OlderContents()
    for uri, captures in contents.items():
        now = current.get(uri)
        if now is None or now.outcome != _OK:
            plan.kept.append(uri)
            continue
        plan.current[uri] = now.capture_id
        plan.older[uri] = [capture for capture in captures if capture.capture_id != now.capture_id]
    return plan


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
