"""`pcaplake docs`: the pages of documentation that are installed with pcaplake."""

from __future__ import annotations

from importlib import resources
from typing import Annotated

import typer

from pcaplake.common.errors import WrongChoice
from pcaplake.worker import console as screen


def docs(
    page: Annotated[str | None, typer.Argument(metavar="PAGE", help="Name of a page; default: list the pages.")] = None,
) -> None:
    """Show a page of the documentation, or list the pages.

    The pages are installed with pcaplake, and describe this version. Messages refer to them by name.

    Examples:

      pcaplake docs
      pcaplake docs settings
      pcaplake docs setup | less
    """
    pages = _read_pages()
    if page is None:
        width = max(map(len, pages))
        for name, text in pages.items():
            screen.line(f"{name:{width}}  {text.partition(chr(10))[0].lstrip('# ')}")
        return
    name = page.removeprefix("docs/").removesuffix(".md")
    if name not in pages:
        raise WrongChoice(f"page {page!r} does not exist; `pcaplake docs` lists the pages")
    for line in pages[name].splitlines():
        screen.line(line)


def _read_pages() -> dict[str, str]:
    """Name -> text of each page."""
    folder = resources.files("pcaplake") / "docs"
    files = {entry.name: entry for entry in folder.iterdir() if entry.name.endswith(".md")}
    return {name.removesuffix(".md"): files[name].read_text(encoding="utf-8") for name in sorted(files)}
