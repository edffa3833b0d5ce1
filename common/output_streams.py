"""Writes text to stdout and stderr without rich, which takes longer to import than a short command runs."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Sequence
from typing import IO

from .plain_text import visible


def drop_output(stream: IO[str] | None = None) -> None:
    """Discard what is printed from now on, by default on stdout: its reader, for example `head`, has closed the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), (stream or sys.stdout).fileno())


def write_line(stream: IO[str], text: str) -> None:
    """Write one line. Raises BrokenPipeError, and discards what is printed later, if nobody reads the stream."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()
    except BrokenPipeError:
        drop_output(stream)
        raise


def format_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """The lines of a table: text left, numbers right, each column as wide as its longest cell."""
    cells = [[format_cell(cell) for cell in row] for row in rows]
    numeric = [is_numeric(rows, number) for number in range(len(columns))]
    widths = [max(map(_count_columns, column)) for column in zip(columns, *cells, strict=True)]
    return [
        "  ".join(
            (" " * (width - _count_columns(cell)) + cell) if right else cell + " " * (width - _count_columns(cell))
            for cell, width, right in zip(line, widths, numeric, strict=True)
        )
        for line in (columns, *cells)
    ]


def is_numeric(rows: Sequence[Sequence[object]], number: int) -> bool:
    """Whether all cells of a column are numbers."""
    return all(isinstance(row[number], (int, float)) for row in rows)


def format_cell(cell: object) -> str:
    """The text of a cell of a table, on one line."""
    return f"{cell:,}" if isinstance(cell, int) else visible(str(cell))


def _count_columns(text: str) -> int:
    """How many columns of a terminal the text takes."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.combining(letter) > 0 for letter in text)
