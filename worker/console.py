"""What people and machines see: results on stdout, progress and logs on stderr.

Knows rich. A progress bar is drawn on a terminal only; piped output is plain text.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any
from unicodedata import category

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from .. import warm

out = Console(highlight=False, soft_wrap=True)
_CONTROL = frozenset({"Cc", "Cs", "Zl", "Zp"})  # with what is no text, and what ends a line
err = Console(stderr=True, highlight=False, soft_wrap=True)


def logs() -> None:
    """Warnings and worse to stderr, above the progress bar where there is one."""
    handler: logging.Handler = logging.StreamHandler()
    if err.is_terminal:
        handler = RichHandler(console=err, show_time=False, show_path=False)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])


def say(text: str) -> None:
    """One line for people, on stderr; what is no valid text in it (a file's name) is escaped."""
    err.print(text.encode(errors="backslashreplace").decode(), markup=False)


def line(text: str) -> None:
    """One line on stdout, as it is: rich would make spaces of a tab. Control characters are escaped."""
    text = "".join(_escaped(one) if category(one) in _CONTROL else one for one in text)
    encoding = getattr(out.file, "encoding", None) or "utf-8"
    out.file.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    out.file.flush()


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape", "backslashreplace").decode("ascii")


def compile_kernels() -> None:
    """Compile what is not compiled yet, and say so: it takes a while, and nobody should wonder why."""
    if not warm.is_warm():
        say(warm.NOTICE)
        warm.warm()


def as_json(value: Any) -> None:
    """One object on one line."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def table(title: str | None, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Text left, numbers right."""
    rows = list(rows)
    shown = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        numeric = all(isinstance(row[number], (int, float)) for row in rows)
        shown.add_column(column, justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        shown.add_row(*(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row))
    out.print(shown)


def _bar(total: float | None, *columns: TextColumn) -> Progress:
    amount = [DownloadColumn(binary_units=True)] if total is not None else []
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        *amount,
        *columns,
        TimeRemainingColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    )


@contextlib.asynccontextmanager
async def running(look: Callable[[], tuple[float, float, str]], every: float = 0.2) -> AsyncIterator[None]:
    """A bar of bytes while the body runs; `look` gives (bytes done, bytes in all, text beside the bar)."""
    _, total, text = look()
    with _bar(total, TextColumn("{task.fields[text]}")) as progress:
        task = progress.add_task("ingest", total=total, text=text)

        async def follow() -> None:
            while True:
                done, total, text = look()
                progress.update(task, completed=min(done, total), total=total, text=text)
                await asyncio.sleep(every)

        following = asyncio.create_task(follow()) if err.is_terminal else None
        try:
            yield
        finally:
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)


@contextlib.contextmanager
def share(what: str) -> Iterator[Callable[[float], None]]:
    """A bar from 0 to 1; the body calls what it is given."""
    with _bar(None) as progress:
        task = progress.add_task(what, total=1.0)
        yield lambda done: progress.update(task, completed=done)
