"""Output of commands: results on stdout, progress and logs on stderr.

Rich draws on a terminal. Piped output is plain text, without a progress bar, and does not need rich. Names come from captures,
keys and users, so they are escaped: `say`, `line` and `table` turn a text into one line, `out` and `err` remove all control
characters except line ends, and text with rich's markup includes names with `shown`.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

from pcaplake.common.background import run_in_background
from pcaplake.common.output_streams import drop_output as drop_output
from pcaplake.common.output_streams import format_table, write_line
from pcaplake.common.plain_text import to_json, visible
from pcaplake.common.stderr import log_warnings

from .config.environment import is_terminal_forced

if TYPE_CHECKING:
    from .rich_console import err as err
    from .rich_console import out as out


def __getattr__(name: str) -> Any:
    """`out` and `err`, which need rich."""
    if name not in ("out", "err"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import rich_console

    return getattr(rich_console, name)


def _may_be_terminal(stream: IO[str]) -> bool:
    """Whether rich is needed, which then decides how it writes to this stream."""
    return stream.isatty() or is_terminal_forced()


def logs() -> None:
    """Log warnings and errors to stderr, above the progress bar if there is one."""
    if not _may_be_terminal(sys.stderr):
        log_warnings()
        return
    from .rich_console import make_log_handler

    log_warnings(make_log_handler())


def say(text: str) -> None:
    """Print one line for people, on stderr."""
    if not _may_be_terminal(sys.stderr):
        write_line(sys.stderr, visible(text))
        return
    from .rich_console import err

    err.print(visible(text), markup=False)


def line(text: str) -> None:
    """Print one line on stdout, for people and for pipes."""
    write_line(sys.stdout, visible(text))


def shown(text: str) -> str:
    """Escape a name or a message for text with rich's markup, as one line."""
    from rich.markup import escape

    return escape(visible(text))


@contextlib.contextmanager
def result() -> Iterator[None]:
    """Print the result of finished work. A closed pipe does not change the exit code, which reports the work."""
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
    if title is None and not _may_be_terminal(sys.stdout):
        for text in format_table([visible(column) for column in columns], rows):
            write_line(sys.stdout, text)
        return
    from .rich_console import print_table

    print_table(None if title is None else shown(title), [shown(column) for column in columns], rows)


Pause = Callable[[], contextlib.AbstractContextManager[None]]


@contextlib.asynccontextmanager
async def running(
    look: Callable[[], tuple[float, float, str]], what: str = "ingest", every: float = 0.2
) -> AsyncIterator[Pause]:
    """Show a bar of bytes during the block; `look` returns (bytes done, total bytes, text next to the bar).

    Yields a function; the bar is not shown in the block of `with` that function's result, so that results can be printed.
    """
    if not _may_be_terminal(sys.stderr):
        yield contextlib.nullcontext
        return
    from .rich_console import err, make_bar

    _, total, text = look()
    with make_bar(total, "text") as progress:
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
    if not _may_be_terminal(sys.stderr):
        yield lambda done: None
        return
    from .rich_console import make_bar

    with make_bar(None) as progress:
        task = progress.add_task(what, total=1.0)
        yield lambda done: progress.update(task, completed=done)
