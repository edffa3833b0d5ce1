"""Options that several commands have. Imports nothing that decodes or commits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pcaplake.lake.store.store import SCHEMES

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
