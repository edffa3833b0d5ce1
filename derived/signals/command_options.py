"""The options that `pcaplake signals` and the Spark job `signals` have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DatabasesFile = Annotated[
    Path,
    typer.Option(
        metavar="FILE",
        help="YAML file with databases and buses (`pcaplake docs signals`), or one database for all buses.",
    ),
]
WideMessages = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MESSAGE",
        help="Give this message its own table with a column for each signal; of SOME/IP, name Service.method. Repeatable.",
    ),
]
