"""`pcaplake tables`: shows what is in a lake."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer

from pcaplake.common.errors import Fatal
from pcaplake.lake.identity import require_lake
from pcaplake.lake.signal_tables import list_signal_tables
from pcaplake.lake.store.store import Store
from pcaplake.lake.tables import SCHEMAS, TableCounts, count_table
from pcaplake.worker import console as screen
from pcaplake.worker.config.settings import Settings

from .lake_options import LakeUri, Pair


def tables(
    lake: LakeUri = None,
    storage_option: Pair = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show rows, files, bytes and version of every table of a lake, also those of signals, from its Delta logs.

    Exit codes: 0 done, 2 wrong usage or settings, 3 a table cannot be read; the others are shown.

    Example:  pcaplake tables --lake lake/ --json
    """
    store = open_lake_store(lake, storage_option)
    counts, problems = asyncio.run(_count_all_tables(store))
    if json:
        screen.as_json({name: asdict(count) for name, count in counts.items()})
    else:
        rows = [(name, count.rows, count.files, count.bytes, count.version) for name, count in counts.items()]
        screen.table(None, ["table", "rows", "files", "bytes", "version"], rows)
    if problems:
        raise Fatal("; ".join(problems))


async def _count_all_tables(store: Store) -> tuple[dict[str, TableCounts], list[str]]:
    """The counts of the tables that can be read, and why others cannot."""
    counts, problems = dict[str, TableCounts](), list[str]()

    async def count(name: str) -> None:
        try:
            if (counted := await count_table(store, name)) is not None:
                counts[name] = counted
        except Fatal as problem:
            problems.append(str(problem))

    names = [*SCHEMAS, *await list_signal_tables(store)]
    await asyncio.gather(*map(count, names))
    return {name: counts[name] for name in names if name in counts}, problems


def open_lake_store(lake: str | None, storage_option: list[str] | None) -> Store:
    """The store of an existing lake. Raises as `require_lake`."""
    settings = Settings.load(lake=lake, storage_option=storage_option)
    store = Store.open(settings.lake, settings.storage_options_for(settings.lake))
    asyncio.run(require_lake(store))
    return store
