"""Results of queries as a table for people, and as CSV, JSON and Parquet for programs.

DuckDB writes all of them. What readers of CSV and JSON could not use is converted first, also inside lists and structs:
bytes to hexadecimal digits, times with a zone to ISO 8601 in UTC, and in JSON, NaN and infinity to texts.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import shutil
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final, Literal

import duckdb

from pcaplake.common.plain_text import visible

from .connection import quoted

TextFormat = Literal["csv", "json"]
_OPTIONS: Final = {"csv": "FORMAT csv, HEADER", "json": "FORMAT json"}
_RESULT: Final = "query_result"
_PLAN: Final = ["explain_key", "explain_value"]  # what EXPLAIN returns
_LINE_END: Final = "\n"
_COLUMN_WIDTH: Final = 40  # letters of one column that a drawn table shows


def draw(relation: duckdb.DuckDBPyRelation, *, max_rows: int, max_width: int) -> str:
    """A table with at most `max_rows` rows, as wide as `max_width` letters. Raises duckdb.Error."""
    if relation.columns == _PLAN:
        return "\n".join(visible(plan, keep=_LINE_END) for _, plan in relation.fetchall())
    with contextlib.redirect_stdout(io.StringIO()) as text:
        shown = relation.query(_RESULT, f"SELECT {_projection(relation, None)}")
        shown.show(max_rows=max_rows, max_width=max_width, max_col_width=_COLUMN_WIDTH)
    return visible(text.getvalue(), keep=_LINE_END).rstrip(_LINE_END)  # names and texts come from captures


def write_text(relation: duckdb.DuckDBPyRelation, text_format: TextFormat, stream: IO[bytes]) -> None:
    """Write CSV with a header, or JSON with an object on each line. Raises duckdb.Error, and OSError of the stream.

    DuckDB writes into a pipe, because it would begin a file anew that stdout appends to.
    """
    select, failed = f"SELECT {_projection(relation, text_format)}", list[OSError]()

    def forward(reading: int) -> None:
        with open(reading, "rb") as pipe:
            try:
                shutil.copyfileobj(pipe, stream)
                stream.flush()
            except OSError as error:
                failed.append(error)

    reading, writing = os.pipe()
    thread = threading.Thread(target=forward, args=(reading,), name="output")
    thread.start()
    try:
        _copy(relation, select, f"{_OPTIONS[text_format]}, USE_TMP_FILE false", f"/dev/fd/{writing}")
    except duckdb.Error:
        if not failed:
            raise
    finally:
        os.close(writing)
        thread.join()
    if failed:
        raise failed[0]


def write_parquet(relation: duckdb.DuckDBPyRelation, target: Path) -> None:
    """Write a Parquet file, which has every value as it is. Raises duckdb.Error, and OSError if there is no such folder.

    The file is there when it is complete.
    """
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.absolute().parent) as folder:
        unfinished = Path(folder, target.name)
        _copy(relation, f"FROM {_RESULT}", "FORMAT parquet, COMPRESSION zstd", str(unfinished))
        unfinished.replace(target)


def _copy(relation: duckdb.DuckDBPyRelation, select: str, options: str, target: str) -> None:
    escaped = target.replace("'", "''")
    relation.query(_RESULT, f"COPY ({select}) TO '{escaped}' ({options})")


def _projection(relation: duckdb.DuckDBPyRelation, text_format: TextFormat | None) -> str:
    """The columns by their position, because two may have one name."""
    names = _unique(relation.columns) if text_format else relation.columns
    converted = [
        f"{_converted(f'column_{index}', kind, text_format, 0)} AS {quoted(name)}"
        for index, (name, kind) in enumerate(zip(names, relation.types, strict=True))
    ]
    positions = ", ".join(f"column_{index}" for index in range(len(converted)))
    return f"{', '.join(converted)} FROM {_RESULT} AS {_RESULT}({positions})"


def _unique(names: Sequence[str]) -> list[str]:
    """a, a -> a, a_1: an object of JSON has a name once."""
    unique = list[str]()
    for name in names:
        number = itertools.count(1)
        wanted = name
        while wanted.lower() in {taken.lower() for taken in unique}:
            wanted = f"{name}_{next(number)}"
        unique.append(wanted)
    return unique


def _converted(value: str, kind: Any, text_format: TextFormat | None, depth: int) -> str:
    """The SQL of a value as the format shows it; `value` itself if it is shown as it is. `kind`: its type in DuckDB."""
    name = kind.id
    if name == "blob":
        return f"lower(hex({value}))"
    if name == "timestamp with time zone" and text_format:
        return f"strftime({value} AT TIME ZONE 'UTC', '%Y-%m-%dT%H:%M:%S.%fZ')"
    if name in ("double", "float") and text_format == "json":
        return f"CASE WHEN isfinite({value}) THEN to_json({value}) ELSE to_json({value}::VARCHAR) END"
    if name in ("list", "array"):
        item = f"item_{depth}"
        converted = _converted(item, dict(kind.children)["child"], text_format, depth + 1)
        return value if converted == item else f"list_transform({value}, lambda {item}: {converted})"
    if name == "struct":
        fields = [(field, f"{value}.{quoted(field)}", inner) for field, inner in kind.children]
        converted_fields = [_converted(path, inner, text_format, depth) for _, path, inner in fields]
        if all(converted == path for converted, (_, path, _) in zip(converted_fields, fields, strict=True)):
            return value
        packed = ", ".join(
            f"{quoted(field)} := {converted}" for (field, _, _), converted in zip(fields, converted_fields, strict=True)
        )
        return f"CASE WHEN {value} IS NULL THEN NULL ELSE struct_pack({packed}) END"
    return value
