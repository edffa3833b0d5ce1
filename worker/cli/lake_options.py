"""Options that several commands have. Imports nothing that decodes or commits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pcaplake.lake.store.store import SCHEMES
from pcaplake.worker.config.settings import WrongSetting

if TYPE_CHECKING:
    from pcaplake.worker.config.routes import Routes

LakeUri = Annotated[
    str | None,
    typer.Option("--lake", metavar="URI", help=f"The lake: a folder, or {SCHEMES}.", show_default=False),
]
FollowLinks = Annotated[
    bool, typer.Option("--follow-links", help="Also follow links that lead out of the folder that you name.")
]
Pair = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE", help="Option of the object store; examples: `pcaplake docs object-stores`. Repeatable."
    ),
]
LedgerPath = Annotated[
    Path | None,
    typer.Option(
        "--ledger",
        metavar="PATH",
        help="Folder or file of the SQLite ledger; default: as in lake.json.",
        show_default=False,
    ),
]


def choose_lake(routes: Routes, named: str | None, config: Path) -> str:
    """The lake of a fleet that is meant. Raises WrongSetting if that is not clear."""
    if named is None and len(routes.lake_uris) > 1:
        raise WrongSetting(
            f"the routes lead to {len(routes.lake_uris)} lakes: name one of {', '.join(routes.lake_uris)} with --lake"
        )
    lake = named or routes.lake_uris[0]
    if lake not in routes.lake_uris:
        raise WrongSetting(f"--lake: no route of {config} leads to {lake}")
    return lake
