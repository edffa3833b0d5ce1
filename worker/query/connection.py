"""A lake in DuckDB: each table under its name, and the view `current_captures`.

Needs the extra `query`, which installs DuckDB and its extensions: nothing is downloaded when a query runs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pcaplake.common.errors import Fatal, WrongChoice
from pcaplake.common.event_loop import run_request
from pcaplake.common.plain_text import describe_library_error
from pcaplake.lake.identity import require_lake
from pcaplake.lake.records import SIGHTINGS
from pcaplake.lake.signal_tables import list_signal_tables
from pcaplake.lake.store.store import Store
from pcaplake.lake.tables import SCHEMAS
from pcaplake.worker.config.settings import Settings

from .secrets import secret_statement

if TYPE_CHECKING:
    import duckdb

NOT_INSTALLED: Final = "queries need DuckDB and its extensions: pip install 'pcaplake[query]'"
CURRENT_CAPTURES: Final = "current_captures"
CURRENT_CAPTURES_SQL: Final = """
    SELECT * FROM captures WHERE capture_id IN (
        SELECT capture_id FROM (
            SELECT capture_id, row_number() OVER (PARTITION BY uri ORDER BY modified_at DESC NULLS LAST,
                sequencer DESC NULLS LAST, ingested_at DESC NULLS LAST, capture_id DESC) AS place
            FROM (
                SELECT uri, capture_id, modified_at, sequencer, ingested_at FROM captures
                UNION ALL SELECT uri, capture_id, modified_at, sequencer, NULL FROM sightings
            ) AS seen
        ) AS placed WHERE place = 1
    )
"""
"""The same as in docs/querying.md."""
_SETTINGS: Final = {
    # DuckDB downloads and loads what a query mentions, unless it is told not to
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
}


def connect(lake: str | Path, *, storage_options: Mapping[str, str] | None = None) -> duckdb.DuckDBPyConnection:
    """A connection of DuckDB to a lake. Each table has its name; each query reads the newest version, and none can write.

    `lake`: a folder or an s3:// URI. `storage_options`: options of the object store, as everywhere in pcaplake.

    Raises WrongChoice if there is no such lake, and Fatal if it cannot be read or DuckDB is not installed.
    """
    pairs = [f"{name}={value}" for name, value in (storage_options or {}).items()]
    settings = Settings.load(lake=str(lake), storage_option=pairs)
    database = LakeDatabase(Store.open(settings.lake, settings.storage_options_for(settings.lake)))
    database.attach_tables()
    database.create_current_captures()
    return database.connection


class LakeDatabase:
    """The tables of a lake in a connection of DuckDB, which has a database in memory beside them.

    Raises as `connect`.
    """

    def __init__(self, store: Store) -> None:
        if not store.local and not store.uri.startswith("s3://"):
            raise WrongChoice(
                f"{store.uri}: queries read lakes in folders and on s3://; `pcaplake docs querying` shows other readers"
            )
        run_request(lambda: require_lake(store))
        self.store = store
        self.tables: tuple[str, ...] = run_request(self._list_tables)
        self.connection = _open_duckdb(needs_s3=store.local is None)

    async def _list_tables(self) -> tuple[str, ...]:
        there = await self.store.list_folders()
        signals = await list_signal_tables(self.store)
        return tuple(name for name in (*SCHEMAS, *signals) if name in there)

    def attach_tables(self, *, pinned: bool = False) -> None:
        """Attach each table. No table is read before a query names it.

        `pinned`: a query reads the log of a table once, however often it names it, and so do later ones until the tables
        are attached again.
        """
        if self.store.local is None:
            self.connection.execute(secret_statement(self.store.uri, self.store.current_options()))
        options = "TYPE delta, READ_ONLY" + (", PIN_SNAPSHOT" if pinned else "")
        for name in self.tables:
            location = self.store.external_location(name).replace("'", "''")
            self.connection.execute(f"ATTACH OR REPLACE '{location}' AS {quoted(name)} ({options})")

    def evaluate(self, statement: str) -> duckdb.DuckDBPyRelation | None:
        """The result of a query on the tables as they are now, not computed yet; None for a statement without one.

        It reads the log of each table once. Raises duckdb.Error.
        """
        self.attach_tables(pinned=True)
        if CURRENT_CAPTURES in statement.lower():  # in a text or a comment too, which costs two logs
            self.create_current_captures()
        return self.connection.sql(statement)

    def create_current_captures(self) -> None:
        """Create the view, for which DuckDB reads the logs of both its tables."""
        if {"captures", SIGHTINGS} <= set(self.tables):
            self.connection.execute(f"CREATE OR REPLACE VIEW {CURRENT_CAPTURES} AS {CURRENT_CAPTURES_SQL}")


def quoted(name: str) -> str:
    """A name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def _open_duckdb(*, needs_s3: bool) -> duckdb.DuckDBPyConnection:
    try:
        import duckdb

        extensions = [_extension(name) for name in (("httpfs", "aws") if needs_s3 else ()) + ("delta",)]
    except (ImportError, PackageNotFoundError, StopIteration) as error:
        raise Fatal(NOT_INSTALLED) from error
    connection = duckdb.connect(":memory:", config=_SETTINGS)
    try:
        for extension in extensions:
            connection.load_extension(extension)
    except duckdb.Error as error:
        raise Fatal(f"{NOT_INSTALLED} ({describe_library_error(error)})") from error
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET enable_progress_bar = true")  # it is computed, and `_run` of the command shows it
    connection.execute("SET enable_progress_bar_print = false")
    # beside the user's files it could be read-only, and would be seen
    connection.execute(
        "SET temp_directory = ?", [str(Path(tempfile.gettempdir(), f"pcaplake-query-{id(connection):x}"))]
    )
    return connection


def _extension(name: str) -> str:
    """The file of a packaged extension. Raises PackageNotFoundError or StopIteration."""
    packaged = files(f"duckdb-extension-{name}") or ()
    return str(next(path for path in packaged if path.suffix == ".duckdb_extension").locate())
