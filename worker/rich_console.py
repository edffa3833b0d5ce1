"""What rich draws: tables, progress bars, and all output to a terminal. `console` imports this module when it is needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NoReturn

from rich.console import Console, ConsoleOptions, RenderableType
from rich.logging import RichHandler
from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from pcaplake.common.output_streams import drop_output, format_cell, is_numeric
from pcaplake.common.plain_text import visible


class RichConsole(Console):
    """A console on which only rich itself moves the cursor and sets colors."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text, keep="\n"))

    def on_broken_pipe(self) -> NoReturn:
        """Raises BrokenPipeError; rich would end the process with code 1."""
        drop_output(self.file)
        raise BrokenPipeError


out = RichConsole(highlight=False, soft_wrap=True, emoji=False)
_WIDEST = 100_000  # columns of a table
err = RichConsole(stderr=True, highlight=False, soft_wrap=True, emoji=False)


def make_log_handler() -> RichHandler | None:
    """A handler that logs above the progress bar, or None if stderr is not a terminal."""
    return RichHandler(console=err, show_time=False, show_path=False) if err.is_terminal else None


def print_table(title: str | None, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table on stdout: text left, numbers right. `title` and `columns`: with rich's markup escaped."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        made.add_column(column, justify="right" if is_numeric(rows, number) else "left", no_wrap=True)
    for row in rows:
        made.add_row(*(Text(format_cell(cell)) for cell in row))
    made.width = out.measure(made, options=out.options.update(max_width=_WIDEST)).maximum
    out.print(made, crop=False)


def make_bar(total: float | None, field: str | None = None) -> Progress:
    """A progress bar on stderr: of `total` bytes, or of a share from 0 to 1. `field`: a field of its task to show as text."""
    amount = [DownloadColumn(binary_units=True)] if total is not None else []
    text = [TextColumn(f"{{task.fields[{field}]}}", markup=False)] if field is not None else []
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        *amount,
        *text,
        TimeRemainingColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    )
