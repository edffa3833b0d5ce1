"""Options of a command that are grouped in a dataclass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer

from pcaplake.worker.command_options import expand_options, explain_usage_error, mark_examples


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


def test_examples_keep_their_lines() -> None:
    def documented() -> None:
        """First.

        Two lines of
        one paragraph.

          an example

          another
        """

    assert expand_options(documented).__doc__ == "First.\n\nTwo lines of\none paragraph.\n\n\b\n  an example\n  another"
    assert mark_examples(None) is None


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("Value error, 'x' is not a size", "'x' is not a size."),
        ("No such command 'x'.", "No such command 'x'."),
        ("No such command 'runn'. Did you mean 'run'?.", "No such command 'runn'. Did you mean 'run'?"),
    ],
)
def test_a_usage_error_is_a_sentence(message: str, sentence: str) -> None:
    assert explain_usage_error(message) == sentence
