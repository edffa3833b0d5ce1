"""Lakes under test: ingest in processes of their own that can be killed, and four readers that must agree."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import files
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow.parquet as pq
from deltalake import DeltaTable

from parser.tables import TABLES
from worker import cli
from worker.commands import ingest as command
from worker.errors import Fatal
from worker.settings import Settings
from worker.testing import crash_at

# every process starts as a copy of one that has imported everything and run nothing
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["worker.cli", "worker.testing", "tests.worker.lakes"])
NO_STEP = ""


def interrupt_at(where: str) -> Callable[[str], None]:
    """A `step` that presses Ctrl-C at each of these steps, separated by commas, once."""
    left = where.split(",")

    def step(here: str) -> None:
        if left and here == left[0]:
            left.pop(0)
            os.kill(os.getpid(), signal.SIGINT)

    return step


def _ingest(names: list[str], given: dict[str, Any], log: str, kind: str, where: str, largest: int) -> None:
    """In a process of its own: stderr goes to `log`, stdout beside it; it ends with the exit code of the command."""
    with Path(log).open("w") as err, Path(f"{log}.out").open("w") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        if largest:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
        steps = {"kill": crash_at, "interrupt": interrupt_at}
        step = steps[kind](where) if kind else lambda name: None
        try:
            code = command.run(Settings.load(**given), names, json=True, step=step)
        except Fatal as error:
            sys.stderr.write(f"{error}\n")
            code = cli.FATAL
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def start(
    names: list[Path], lake: Path, log: Path, *, kill: str = "", interrupt: str = "", largest: int = 0, **given: Any
) -> Any:
    """An ingest that has begun; `kill` and `interrupt` name steps, no file grows beyond `largest` bytes."""
    kind = "kill" if kill else "interrupt" if interrupt else ""
    arguments = (
        [str(name) for name in names],
        {"lake": str(lake), **given},
        str(log),
        kind,
        kill or interrupt,
        largest,
    )
    process = PROCESSES.Process(target=_ingest, args=arguments)
    process.start()
    return process


def ingest(names: list[Path], lake: Path, log: Path, **given: Any) -> tuple[int, dict[str, Any]]:
    """An ingest to its end -> exit code and the JSON of its last line ({} where it printed none)."""
    process = start(names, lake, log, **given)
    process.join(120)
    code = process.exitcode
    assert code is not None, "it hangs"
    lines = Path(f"{log}.out").read_text().splitlines()
    return code, json.loads(lines[-1]) if lines else {}


def run(capsys: Any, *arguments: object) -> tuple[int, str, str]:
    """A command in this process -> exit code, stdout, stderr."""
    code = cli.run([str(argument) for argument in arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def connect() -> duckdb.DuckDBPyConnection:
    """DuckDB with its delta extension, from the installed package."""
    connection = duckdb.connect()
    extension = next(path for path in files("duckdb-extension-delta") or () if path.suffix == ".duckdb_extension")
    connection.load_extension(str(extension.locate()))
    return connection


def by_duckdb(lake: Path) -> dict[str, int]:
    """Rows by table, after each row was seen to be there once by its key."""
    counts = {}
    with contextlib.closing(connect()) as connection:
        for name, spec in TABLES.items():
            keys = ", ".join(f'"{key}"' for key in spec.key)
            query = f"SELECT count(*), count(DISTINCT ({keys})) FROM delta_scan('{lake}/{name}')"
            row = connection.sql(query).fetchone()
            assert row is not None
            assert row[0] == row[1], f"{name} has a row twice"
            counts[name] = row[0]
    return counts


def by_polars(lake: Path) -> dict[str, int]:
    return {name: pl.scan_delta(f"{lake}/{name}").select(pl.len()).collect().item() for name in TABLES}


def by_deltalake(lake: Path) -> dict[str, int]:
    """Counted in the files that the log names, not by its statistics."""
    return {
        name: sum(pq.read_metadata(uri).num_rows for uri in DeltaTable(f"{lake}/{name}").file_uris()) for name in TABLES
    }


def check(lake: Path, expected: Mapping[str, int], capsys: Any) -> None:
    """Every row once, no gap in the versions, and all readers see what is expected."""
    for name in TABLES:
        versions = sorted(int(path.stem) for path in (lake / name / "_delta_log").glob("*.json"))
        assert versions == list(range(len(versions))), name
    capsys.readouterr()
    code, out, _ = run(capsys, "tables", "--lake", lake, "--json")
    assert code == 0
    shown = {name: one["rows"] for name, one in json.loads(out).items()}
    assert shown == dict(expected)
    assert by_duckdb(lake) == shown
    assert by_polars(lake) == shown
    assert by_deltalake(lake) == shown
