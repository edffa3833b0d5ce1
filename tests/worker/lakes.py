"""Lakes under test: ingest in processes of their own that can be killed, and four readers that must agree."""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import polars as pl
import pyarrow.parquet as pq
from deltalake import DeltaTable

from pcaplake.common import VERSION
from pcaplake.common.errors import Fatal
from pcaplake.lake.delta.actions import parse_json_lines
from pcaplake.lake.identity import LEDGER_FILE
from pcaplake.lake.records import Capture, Stage
from pcaplake.lake.store import durable
from pcaplake.parser.schemas import TABLES
from pcaplake.worker.cli import app as cli
from pcaplake.worker.cli import ingest as command
from pcaplake.worker.config.settings import Settings
from tests.worker.adapters.faults import crash_at_step

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.worker.warmed", "tests.worker.lakes"])
NO_STEP = ""
FILLER = "filler"
SMALL_DISK = 16 << 20


def interrupt_at(where: str) -> Callable[[str], None]:
    """A `step` that presses Ctrl-C at each of these steps, separated by commas, once."""
    left = where.split(",")

    def step(here: str) -> None:
        if left and here == left[0]:
            left.pop(0)
            os.kill(os.getpid(), signal.SIGINT)

    return step


def fill_at(where: str, lake: Path) -> Callable[[str], None]:
    """A `step` that leaves no room on the disk of `lake`, once; a disk that is not small only says that it is full."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def step(here: str) -> None:
        if here != where or (lake / FILLER).exists():
            return
        with (lake / FILLER).open("wb", buffering=0) as filler:
            if shutil.disk_usage(lake).free > SMALL_DISK:
                durable.os = SimpleNamespace(**{**vars(os), "write": full})  # type: ignore[attr-defined]
            with contextlib.suppress(OSError):
                while shutil.disk_usage(lake).free <= SMALL_DISK:
                    filler.write(bytes(4096))

    return step


HOLD = """
import os, signal, sqlite3, sys
held = sqlite3.connect(sys.argv[1], isolation_level=None)
held.execute("BEGIN IMMEDIATE")
os.kill(os.getpid(), signal.SIGSTOP)
held.execute("COMMIT")
"""


def frozen(ledger: Path) -> int:
    """A process that is stopped while it has the lock of a ledger -> its pid."""
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", HOLD, str(ledger)], os.environ)
    os.waitpid(pid, os.WUNTRACED)
    return pid


def freeze_at(where: str, lake: Path) -> Callable[[str], None]:
    """A `step` that has `frozen` hold the ledger of `lake`, once; its pid is the only line of `frozen` beside the lake."""
    pid = lake.parent / "frozen"

    def step(here: str) -> None:
        if here == where and not pid.exists():
            pid.write_text(str(frozen(lake / LEDGER_FILE)))

    return step


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A disk of 16 MB at `folder`; False where none may be mounted."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def _ingest(names: list[str], given: dict[str, Any], log: str, kind: str, where: str, largest: int) -> None:
    """In a process of its own: stderr goes to `log`, stdout beside it; it ends with the exit code of the command."""
    with Path(log).open("w") as err, Path(f"{log}.out").open("w") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        if largest:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
        lake = Path(given["lake"])
        steps = {
            "kill": crash_at_step,
            "interrupt": interrupt_at,
            "fill": lambda at: fill_at(at, lake),
            "freeze": lambda at: freeze_at(at, lake),
        }
        step = steps[kind](where) if kind else lambda name: None
        _shorten_lease()
        changes = command.ChangeOptions(
            yes=True, replace_changed=given.pop("replace_changed", False), reread=given.pop("reread", False)
        )
        try:
            code = command.run_ingest(Settings.load(**given), names, changes, json=True, step=step)
        except Fatal as error:
            sys.stderr.write(f"{error}\n")
            code = cli.FATAL
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _shorten_lease() -> None:
    """Who comes after a killed process waits for its lease, on which no row depends."""
    lake_config = Settings.lake_config.fget
    assert lake_config is not None
    Settings.lake_config = property(lambda self: replace(lake_config(self), lease_timeout=0.2))  # type: ignore[method-assign]


def start(
    names: list[Path],
    lake: Path | str,
    log: Path,
    *,
    kill: str = "",
    interrupt: str = "",
    fill: str = "",
    freeze: str = "",
    largest: int = 0,
    **given: Any,
) -> Any:
    """An ingest that has begun; `kill`, `interrupt`, `fill` (the disk) and `freeze` (who has the ledger) name steps.

    No file grows beyond `largest` bytes.
    """
    steps = {"kill": kill, "interrupt": interrupt, "fill": fill, "freeze": freeze}
    kind, where = next(((kind, where) for kind, where in steps.items() if where), ("", ""))
    arguments = (
        [str(name) for name in names],
        {"lake": str(lake), **given},
        str(log),
        kind,
        where,
        largest,
    )
    process = PROCESSES.Process(target=_ingest, args=arguments)
    process.start()
    return process


def ingest(names: list[Path], lake: Path | str, log: Path, **given: Any) -> tuple[int, dict[str, Any]]:
    """An ingest to its end -> exit code and the JSON of its last line ({} where it printed none)."""
    process = start(names, lake, log, **given)
    process.join(120)
    code = process.exitcode
    assert code is not None, "it hangs"
    lines = Path(f"{log}.out").read_text().splitlines()
    return code, json.loads(lines[-1]) if lines else {}


def run(capsys: Any, *arguments: object) -> tuple[int, str, str]:
    """A command in this process -> exit code, stdout, stderr."""
    code = cli.run_command_line([str(argument) for argument in arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


_CATALOGS = itertools.count()


@functools.cache
def _duckdb() -> duckdb.DuckDBPyConnection:
    """Of this process: to load the extension takes a second of CPU time, because DuckDB checks its signature."""
    connection = duckdb.connect()
    extension = next(path for path in files("duckdb-extension-delta") or () if path.suffix == ".duckdb_extension")
    connection.load_extension(str(extension.locate()))
    connection.execute("SET enable_external_file_cache = false")  # each query reads the files as they are now
    return connection


def connect() -> duckdb.DuckDBPyConnection:
    """DuckDB with its delta extension, from the installed package, and a catalog of its own for views.

    To close it leaves the extension loaded."""
    cursor = _duckdb().cursor()
    catalog = f"catalog_{next(_CATALOGS)}"
    return cursor.execute(f"ATTACH ':memory:' AS {catalog}").execute(f"USE {catalog}")


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


def current_captures_view() -> str:
    """The SQL of the view `current_captures` in docs/querying.md."""
    page = Path(__file__).parents[2] / "docs/querying.md"
    found = re.search(r'CURRENT_CAPTURES = """(.+?)"""', page.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


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


def stage_of(captures: Sequence[Capture]) -> Stage:
    """A stage with these captures whose files nobody has written."""
    return Stage(
        stage_id="s", generation=0, decoder_version=VERSION, captures=tuple(captures), schemas={}, adds={}, written_at=0
    )


def configure(table: Path, **changed: str) -> None:
    """Somebody else sets these properties, and unsets all others."""
    log = sorted((table / "_delta_log").glob("*.json"))
    found = [line["metaData"] for path in log for line in parse_json_lines(path.read_bytes()) if "metaData" in line]
    action = {"metaData": {**found[-1], "configuration": {**found[0]["configuration"], **changed}}}
    (table / "_delta_log" / f"{int(log[-1].stem) + 1:020d}.json").write_text(json.dumps(action) + "\n")


def forget_bounds(table: Path) -> int:
    """Make the log of a table as older versions wrote it: no bounds of booleans and doubles. Returns how many files had some."""
    schema = DeltaTable(table).schema().fields
    kinds = {field.name for field in schema if str(getattr(field.type, "type", "")) in ("boolean", "double")}
    changed = 0
    for path in sorted((table / "_delta_log").glob("*.json")):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for line in lines:
            if "add" not in line:
                continue
            stats = json.loads(line["add"]["stats"])
            bounds = (stats["minValues"], stats["maxValues"])
            changed += bool(kinds & bounds[0].keys())
            for name in kinds:
                for of in bounds:
                    of.pop(name, None)
            line["add"]["stats"] = json.dumps(stats)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return changed


def parquet(table: Path) -> set[Path]:
    return {path for path in table.rglob("*.parquet") if "_delta_log" not in path.parts}
