"""`pcaplake sample`: captures to try things with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..sample import make
from ..settings import WrongSetting
from . import screen


def sample(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A folder; made if it is not there.")],
    mix: Annotated[
        str,
        typer.Option(metavar="a|b|c|drive", help="A benchmark mix, or a believable drive with all that goes wrong."),
    ] = "drive",
    seconds: Annotated[float, typer.Option(metavar="N", help="Of traffic; fractions are allowed.")] = 10.0,
    vehicles: Annotated[int | None, typer.Option(metavar="N", help="How many; two in a drive, one in a mix.")] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed makes the same bytes.")] = 1,
) -> None:
    """Make captures to try things with, and the profile.yaml to read them with.

    Example:  pcaplake sample drive/ --mix drive --seconds 60 --vehicles 2 --seed 7
    """
    there = next(one for one in (out.absolute(), *out.absolute().parents) if one.exists())
    if not there.is_dir():
        raise WrongSetting(f"{there} is no folder: name another OUT")
    try:
        with screen.share("sample") as progress:
            paths = make(out, mix, seconds, vehicles, seed, progress=progress)
    except ValueError as error:
        raise WrongSetting(str(error)) from error
    except OSError as error:
        raise WrongSetting(f"{error.filename or out} cannot be written: {error.strerror}") from error
    for path in paths:
        screen.out.print(f"{path}  {path.stat().st_size:,} bytes", markup=False)
