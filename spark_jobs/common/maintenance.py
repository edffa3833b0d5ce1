"""What maintenance jobs share: the live files of a table, the tables of a lake, and the property that protects a log.

Only the committer cleans a table's log (lake/delta/checkpoint.py says in which order and why). Spark would clean it
too, whenever it writes a version that is a multiple of `delta.checkpointInterval`, and no session setting prevents that; the
table's property decides. So the worker creates tables with `delta.enableExpiredLogCleanup` = false, which every Delta writer
obeys, and `disable_log_cleanup` sets it on tables that were created by others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from pcaplake.common.errors import Fatal, WrongChoice
from pcaplake.common.event_loop import run_request
from pcaplake.lake.delta.properties import PROPERTIES
from pcaplake.lake.identity import read_identity
from pcaplake.lake.store.store import Store
from pcaplake.parser.schemas import TABLES
from pcaplake.suggestions import suggest_name

from .sql import delta_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

CLEAN_UP = "delta.enableExpiredLogCleanup"
# and the tables `signals_<message>`; jobs skip tables that do not exist
TABLE_NAMES: tuple[str, ...] = (*TABLES, "signals", "signal_catalog", "quality")
_WIDE = "signals_"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSnapshot:
    """The newest version of a table. `adds`: one row per live file, as `DeltaTable.get_add_actions(flatten=True)` returns."""

    name: str
    version: int
    columns: tuple[str, ...]
    partition_columns: tuple[str, ...]
    properties: Mapping[str, str]
    adds: pa.Table

    @property
    def file_count(self) -> int:
        return int(self.adds.num_rows)

    @property
    def total_bytes(self) -> int:
        return sum(self.adds["size_bytes"].to_pylist())


def read_snapshot(store: Store, table: str) -> TableSnapshot | None:
    """Read a table; None if it does not exist. Raises Fatal when its log cannot be read."""
    try:
        read = DeltaTable(store.external_location(table), storage_options=store.current_options() or None)
        metadata = read.metadata()
        return TableSnapshot(
            name=table,
            version=read.version(),
            columns=tuple(field.name for field in read.schema().fields),
            partition_columns=tuple(metadata.partition_columns),
            properties=dict(metadata.configuration),
            adds=pa.table(read.get_add_actions(flatten=True)),
        )
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise Fatal(f"{table}: its log cannot be read: {error}; run `pcaplake doctor`") from error


def read_snapshots(store: Store, tables: Collection[str], skipped: Collection[str] = ()) -> Iterator[TableSnapshot]:
    """Read these tables, or all that the lake has if none is named. Raises Fatal for one that is named and does not exist."""
    for name in tables or list_table_names(store):
        if name in skipped:
            continue
        table = read_snapshot(store, name)
        if table is not None:
            yield table
        elif tables:
            raise WrongChoice(f"{store.uri} has no table {name}")


def list_table_names(store: Store) -> tuple[str, ...]:
    """The tables that a lake may have: TABLE_NAMES, and a `signals_<message>` for each such folder. One listing."""
    folders = run_request(store.list_folders)
    return (*TABLE_NAMES, *(name for name in folders if name.startswith(_WIDE)))


def require_lake(store: Store, tables: Collection[str] = ()) -> None:
    """Raises WrongChoice if the lake or a named table does not exist. Reads no log, so it is quick."""
    names = set(run_request(store.list_folders)) & set(list_table_names(store))
    if not names and run_request(lambda: read_identity(store)) is None:
        raise no_lake_error(store.uri)
    for table in tables:
        if table not in names:
            raise WrongChoice(
                f"{store.uri} has no table {table}" + (f"; {suggest_name(table, names)}" if names else "")
            )


def no_lake_error(uri: str) -> WrongChoice:
    """The error for a URI without a lake, because a mistyped name would look like an empty lake."""
    return WrongChoice(f"{uri} is not a lake: it has no tables; name a lake that workers have written")


def disable_log_cleanup(spark: SparkSession, path: str, table: TableSnapshot) -> bool:
    """Set the property by which every writer leaves the log to the committer. `path`: the table as Spark spells it.

    False: the property was set, or only Spark writes the table and so must clean its log.
    """
    if table.name not in TABLES or table.properties.get(CLEAN_UP, "true").lower() == PROPERTIES[CLEAN_UP]:
        return False
    spark.sql(f"ALTER TABLE {delta_table(path)} SET TBLPROPERTIES ('{CLEAN_UP}' = '{PROPERTIES[CLEAN_UP]}')")
    return True
