"""Output of commands: results on stdout, progress and logs on stderr.

Uses rich. A progress bar is drawn only on a terminal; piped output is plain text. Names come from captures, keys and users, so
they are escaped: `say`, `line` and `table` turn a text into one line, `out` and `err` remove all control characters except
line ends, and text with rich's markup includes names with `shown`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import IO, Any, NoReturn

from rich.console import Console, ConsoleOptions, RenderableType
from rich.logging import RichHandler
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from .background import run_in_background
from .plain_text import to_json, visible
from .stderr import log_warnings


class _Console(Console):
    """A console on which only rich itself moves the cursor and sets colors."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text, keep="\n"))

    def on_broken_pipe(self) -> NoReturn:
        """Raises BrokenPipeError; rich would end the process with code 1."""
        drop_output(self.file)
        raise BrokenPipeError


out = _Console(highlight=False, soft_wrap=True, emoji=False)
_WIDEST = 100_000  # columns of a table
err = _Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


def logs() -> None:
    """Log warnings and errors to stderr, above the progress bar if there is one."""
    log_warnings(RichHandler(console=err, show_time=False, show_path=False) if err.is_terminal else None)


def say(text: str) -> None:
    """Print one line for people, on stderr."""
    err.print(visible(text), markup=False)


def line(text: str) -> None:
    """Print one line on stdout, for people and for pipes."""
    encoding = getattr(out.file, "encoding", None) or "utf-8"
    out.file.write(visible(text).encode(encoding, "backslashreplace").decode(encoding) + "\n")
    out.file.flush()


def shown(text: str) -> str:
    """Escape a name or a message for text with rich's markup, as one line."""
    return escape(visible(text))


def drop_output(stream: IO[str] | None = None) -> None:
    """Discard what is printed from now on, by default on stdout: its reader, for example `head`, has closed the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), (stream or sys.stdout).fileno())


@contextlib.contextmanager
def result() -> Iterator[None]:
    """Print the result of finished work. A closed pipe does not change the exit code, which tells of the work."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        drop_output()


def as_json(value: Any) -> None:
    """Print one JSON object on one line."""
    sys.stdout.write(to_json(value) + "\n")
    sys.stdout.flush()


def table(title: str | None, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table: text left, numbers right. Columns are as wide as their longest cell, so no name is cut."""
    rows = list(rows)
    heading = None if title is None else shown(title)
    made = Table(title=heading, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        numeric = all(isinstance(row[number], (int, float)) for row in rows)
        made.add_column(shown(column), justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        made.add_row(*(Text(f"{cell:,}" if isinstance(cell, int) else visible(str(cell))) for cell in row))
    made.width = out.measure(made, options=out.options.update(max_width=_WIDEST)).maximum
    out.print(made, crop=False)


def _bar(total: float | None, *columns: TextColumn) -> Progress:
    amount = [DownloadColumn(binary_units=True)] if total is not None else []
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        *amount,
        *columns,
        TimeRemainingColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    )


Pause = Callable[[], contextlib.AbstractContextManager[None]]


@contextlib.asynccontextmanager
async def running(
    look: Callable[[], tuple[float, float, str]], what: str = "ingest", every: float = 0.2
) -> AsyncIterator[Pause]:
    """Show a bar of bytes during the block; `look` returns (bytes done, total bytes, text next to the bar).

    Yields a function; the bar is not shown in the block of `with` that function's result, so that results can be printed.
    """
    _, total, text = look()
    with _bar(total, TextColumn("{task.fields[text]}", markup=False)) as progress:
        task = progress.add_task(what, total=total, text=text)

        @contextlib.contextmanager
        def pause() -> Iterator[None]:
            if err.is_terminal:
                progress.stop()
            yield
            if err.is_terminal:
                progress.start()

        async def follow() -> None:
            while True:
                done, total, text = look()
                progress.update(task, completed=min(done, total), total=total, text=text)
                await asyncio.sleep(every)

        async with run_in_background(follow()) if err.is_terminal else contextlib.nullcontext():
            yield pause


@contextlib.contextmanager
def share(what: str) -> Iterator[Callable[[float], None]]:
    """Show a bar from 0 to 1. The block calls the yielded function with its progress."""
    with _bar(None) as progress:
        task = progress.add_task(what, total=1.0)
        yield lambda done: progress.update(task, completed=done)
