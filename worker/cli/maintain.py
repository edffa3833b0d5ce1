"""`pcaplake maintain`: fewer, larger files; checkpoints; what nobody needs is deleted."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer

from ..lake.identity import refuse_locked
from ..lake.knobs import Knobs
from ..lake.maintenance import LEAST_RETENTION_DAYS
from ..lake.maintenance import maintain as maintain_tables
from ..settings import WrongSetting, size
from . import screen
from .ingest import LakeUri, Pair
from .tables import open_lake


def maintain(
    lake: LakeUri = None,
    storage_option: Pair = None,
    target_file_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Compacted files aim at this size (128MB).", show_default=False)
    ] = None,
    retention_days: Annotated[
        int, typer.Option(metavar="DAYS", help=f"Keep replaced files so long; {LEAST_RETENTION_DAYS} at the least.")
    ] = LEAST_RETENTION_DAYS,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compact small files, write checkpoints, delete what no version needs any more.

    For a lake that nobody else locks; an ingest may run at the same time. Every capture stays known: nothing that was
    ingested is ever read again because of this.

    Example:  pcaplake maintain --lake lake/ --target-file-size 256MB
    """
    store = open_lake(lake, storage_option)
    try:
        target = Knobs().target_file_size if target_file_size is None else size(target_file_size)
        if target < 1 << 20:
            raise WrongSetting("--target-file-size: 1MB is the least")
        if retention_days < LEAST_RETENTION_DAYS:
            raise WrongSetting(
                f"--retention-days: {LEAST_RETENTION_DAYS} is the least: readers, and stages that wait, need the files"
            )
    except ValueError as error:
        raise WrongSetting(str(error)) from error
    asyncio.run(refuse_locked(store))
    report = dict(
        maintain_tables(
            store, target_file_size=target, retention_days=retention_days, begin=lambda name: screen.say(f"{name} ...")
        )
    )
    if json:
        screen.as_json({name: asdict(one) for name, one in report.items()})
        return
    rows = [(name, one.compacted, one.made, one.deleted, one.version) for name, one in report.items()]
    screen.table(None, ["table", "files compacted", "into", "deleted", "version"], rows)
