"""Options of a command that are grouped in a dataclass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer

from pcaplake.worker.command_options import expand_options


@dataclass(frozen=True, kw_only=True)
class Size:
    width: Annotated[int, typer.Option(help="in pixels")] = 3
    height: Annotated[int, typer.Option()]


def command(*, name: str = "x", size: Size) -> tuple[str, Size]:
    return name, size


def test_fields_become_parameters() -> None:
    app = typer.Typer()
    app.command()(expand_options(command))
    assert app(["--height", "2", "--width", "7"], standalone_mode=False) == ("x", Size(width=7, height=2))


def test_two_options_of_one_name_are_refused() -> None:
    def clash(*, width: int, size: Size) -> None: ...

    with pytest.raises(ValueError, match="width"):
        expand_options(clash)
