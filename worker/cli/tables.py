"""`pcaplake tables`: what is in a lake."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer

from ..lake.identity import read_identity
from ..lake.lake import TableCounts, count_tables
from ..lake.store import Store
from ..settings import Settings, WrongSetting
from . import screen
from .ingest import LakeUri, Pair


def tables(
    lake: LakeUri = None,
    storage_option: Pair = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Rows, files, bytes and version of every table of a lake, as its Delta logs have them.

    Example:  pcaplake tables --lake lake/ --json
    """
    counts = asyncio.run(_count(open_lake(lake, storage_option)))
    if json:
        screen.as_json({name: asdict(one) for name, one in counts.items()})
        return
    rows = [(name, one.rows, one.files, one.bytes, one.version) for name, one in counts.items()]
    screen.table(None, ["table", "rows", "files", "bytes", "version"], rows)


def open_lake(lake: str | None, storage_option: list[str] | None) -> Store:
    """The store of a lake that is there. WrongSetting where there is none."""
    settings = Settings.load(lake=lake, storage_option=storage_option)
    store = Store.open(settings.lake, settings.storage(settings.lake))
    if asyncio.run(read_identity(store)) is None:
        raise WrongSetting(f"--lake: there is no lake at {settings.lake}; pcaplake ingest makes one")
    return store


async def _count(store: Store) -> dict[str, TableCounts]:
    return await count_tables(store)
