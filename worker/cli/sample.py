"""`pcaplake sample`: generates sample captures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pcaplake.worker import console as screen
from pcaplake.worker.config.settings import WrongSetting
from pcaplake.worker.sample import write_sample_captures


def sample(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder; created if it does not exist.")],
    mix: Annotated[
        str,
        typer.Option(
            metavar="drive|charging",
            help="drive: a realistic drive with damage; charging: a car at charging stations.",
        ),
    ] = "drive",
    seconds: Annotated[float, typer.Option(metavar="N", help="Seconds of traffic; fractions are allowed.")] = 10.0,
    vehicles: Annotated[
        int | None, typer.Option(metavar="N", help="Number of vehicles; default: two for a drive, one that charges.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed gives the same bytes.")] = 1,
) -> None:
    """Generate sample captures and a profile.yaml for them; a drive also has databases of its signals, databases.yaml.

    Examples:

      pcaplake sample drive/
      pcaplake sample drive/ --mix drive --seconds 60 --vehicles 2 --seed 7
    """
    parent = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    if not parent.is_dir():
        raise WrongSetting(f"{parent} is not a folder: name another OUT")
    try:
        with screen.share("sample") as progress:
            paths = write_sample_captures(out, mix, seconds, vehicles, seed, progress=progress)
    except ValueError as error:
        raise WrongSetting(str(error)) from error
    except OSError as error:
        raise WrongSetting(f"{error.filename or out} cannot be written: {error.strerror}") from error
    for path in paths:
        screen.line(f"{path}  {path.stat().st_size:,} bytes")
