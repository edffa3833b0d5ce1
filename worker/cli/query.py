"""`pcaplake query`: SQL on the tables of a lake, by DuckDB."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from pcaplake.common.errors import Fatal, WrongUsage
from pcaplake.common.output_streams import write_line
from pcaplake.worker import console as screen

from .lake_options import LakeUri, Pair
from .tables import open_lake_store

if TYPE_CHECKING:
    import duckdb

    from pcaplake.worker.query.connection import LakeDatabase
    from pcaplake.worker.query.results import TextFormat

T = TypeVar("T")
PIPE_WIDTH = 1000  # letters, if nobody looks at a terminal


def query(
    sql: Annotated[
        str | None,
        typer.Argument(
            metavar="[SQL]",
            help="One query. Default: a prompt, or what stdin has if it is no terminal.",
            show_default=False,
        ),
    ] = None,
    lake: LakeUri = None,
    storage_option: Pair = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV with a header.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each row.")] = False,
    parquet: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a Parquet file, with all values as they are.", show_default=False),
    ] = None,
    rows: Annotated[int, typer.Option(metavar="N", min=1, help="Rows of a table that are shown.")] = 40,
) -> None:
    """Query the tables of a lake with SQL (DuckDB), on folders and s3://. Only reads, and copies nothing.

    Each table has its name: can_frames, someip_messages, captures, ... `pcaplake tables` lists them, `DESCRIBE can_frames`
    shows the columns, and `pcaplake docs tables` explains them. `current_captures` has the captures that files contain now.

    Filter by `date`, then by `vehicle_id` and identifiers: such conditions skip files. For a time of day, filter by `ts_ns`
    (`ts_ns >= epoch_ns(TIMESTAMP '2026-09-22 08:00:00')`), because conditions on `ts` skip no files, and use BETWEEN beside IN.
    CSV and JSON show bytes as hexadecimal digits, and times in UTC.

    Without SQL on a terminal: a prompt with history and completion. Needs the extra: pip install 'pcaplake[query]'

    Exit codes: 0 done, 2 wrong usage or SQL, 3 the lake cannot be read, 130 Ctrl-C.

    Examples:

      pcaplake query --lake lake/ "FROM captures"

      pcaplake query --lake lake/ "FROM faults LIMIT 9" --csv > faults.csv

      pcaplake query --lake s3://bucket/drives "FROM pdus" --parquet pdus.parquet
    """
    if sum((csv, json, parquet is not None)) > 1:
        raise WrongUsage("--csv, --json and --parquet: choose one of them")
    if parquet is not None and not parquet.absolute().parent.is_dir():
        raise WrongUsage(f"--parquet {parquet}: its folder does not exist")
    store = open_lake_store(lake, storage_option)
    from pcaplake.worker.query.connection import LakeDatabase

    database = LakeDatabase(store)  # says what to install, before other modules need it
    if sql is None and sys.stdin.isatty():
        from .query_prompt import run_prompt

        run_prompt(database, lambda statement: _show_table(database, statement, rows))
        return
    from pcaplake.worker.query.statements import read_statements

    statements = read_statements(database, sys.stdin.read() if sql is None else sql)
    if not statements:
        raise WrongUsage('there is no query: name one, such as "FROM captures"')
    if len(statements) > 1 and (csv or json or parquet):
        raise WrongUsage("--csv, --json and --parquet write the result of one query")
    for statement in statements:
        if csv or json:
            _print_text(database, statement, "csv" if csv else "json")
        elif parquet is not None:
            _write_file(database, statement, parquet)
        else:
            _show_table(database, statement, rows)


def _show_table(database: LakeDatabase, statement: str, rows: int) -> None:
    from pcaplake.worker.query.results import draw

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_WIDTH
    drawn = _run(database, statement, lambda result: draw(result, max_rows=rows, max_width=width))
    with screen.result():
        for text in (drawn or "").splitlines():
            write_line(sys.stdout, text)


def _print_text(database: LakeDatabase, statement: str, text_format: TextFormat) -> None:
    from pcaplake.worker.query.results import write_text

    with screen.result():
        _run(database, statement, lambda result: write_text(result, text_format, sys.stdout.buffer))


def _write_file(database: LakeDatabase, statement: str, target: Path) -> None:
    from pcaplake.worker.query.results import write_parquet

    try:
        _run(database, statement, lambda result: write_parquet(result, target))
    except OSError as error:
        raise Fatal(f"--parquet {target}: it cannot be written: {error.strerror or error}") from error


def _run(database: LakeDatabase, statement: str, use: Callable[[duckdb.DuckDBPyRelation], T]) -> T | None:
    """What `use` makes of the result of a statement, with progress; None for a statement without a result."""
    from pcaplake.worker.query.statements import run_query

    def work() -> T | None:
        result = database.evaluate(statement)
        return None if result is None else use(result)

    with screen.share("query") as report:
        return run_query(database.connection, work, report)
