"""What the maintenance jobs share: a table as its log has it, who cleans that log, settings of a session for a while.

Knows the property by which a Delta table says that its writers leave the log alone. Must not know what a job decides.

Who cleans the log: the committer, and nobody else (worker/lake/delta/checkpoint.py says in which order and why). Spark
would do so too, whenever a version of its own is a multiple of `delta.checkpointInterval`, and no setting of a session
keeps it from that: it asks the table alone. So tables are made with `delta.enableExpiredLogCleanup` = false, which every
Delta writer obeys, and `leave_log` sets it on those that somebody else made.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from parser.tables import TABLES
from worker.errors import Fatal, Retryable
from worker.lake.delta.log import PROPERTIES
from worker.lake.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

CLEAN_UP = "delta.enableExpiredLogCleanup"
TABLE_NAMES: tuple[str, ...] = (
    *TABLES,
    "signals",
    "signal_catalog",
    "quality",
)  # those of a lake, beside `signals_<message>`; what is not there is passed over
_WIDE = "signals_"

_CANCEL_TRIES, _CANCEL_SECONDS = 60, 0.5
_CONFLICT_TRIES = 8
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """A table now. `adds`: one row per live file, as `DeltaTable.get_add_actions(flatten=True)` gives them."""

    name: str
    version: int
    columns: tuple[str, ...]
    partition_columns: tuple[str, ...]
    properties: Mapping[str, str]
    adds: pa.Table

    @property
    def files(self) -> int:
        return int(self.adds.num_rows)

    @property
    def bytes(self) -> int:
        return sum(self.adds["size_bytes"].to_pylist())


def live(store: Store, table: str) -> Live | None:
    """None: there is no such table. Fatal when its log cannot be read."""
    try:
        read = DeltaTable(store.location(table), storage_options=store.options_now() or None)
        metadata = read.metadata()
        return Live(
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
        raise Fatal(f"{table}: its log cannot be read: {error}; `pcaplake doctor` says more") from error


def table_names(store: Store) -> tuple[str, ...]:
    """Tables that a lake may have: TABLE_NAMES, and `signals_<message>` as its folders say. Costs one listing."""
    with ThreadPoolExecutor(max_workers=1) as beside:  # a notebook has a running event loop already
        folders = beside.submit(asyncio.run, store.folders()).result()
    return (*TABLE_NAMES, *(name for name in folders if name.startswith(_WIDE)))


def no_lake(uri: str) -> Fatal:
    """What to raise where nothing is; a mistyped name would pass for an empty lake."""
    return Fatal(f"{uri} is no lake: no table in it; name one that workers have written")


def leave_log(spark: SparkSession, path: str, table: Live) -> bool:
    """Make every writer of a table of the committer's, at `path` as Spark spells it, leave its log to the committer.

    False: so it was, or it is a table that only Spark writes; nobody else would clean that one's log.
    """
    if table.name not in TABLES or table.properties.get(CLEAN_UP, "true").lower() == PROPERTIES[CLEAN_UP]:
        return False
    spark.sql(f"ALTER TABLE {quoted(path)} SET TBLPROPERTIES ('{CLEAN_UP}' = '{PROPERTIES[CLEAN_UP]}')")
    return True


def conflicts() -> tuple[type[Exception], ...]:
    """What Delta raises when somebody else changed the same files meanwhile: the exceptions have no common base."""
    from delta import exceptions

    names = (
        "DeltaConcurrentModificationException",
        "ConcurrentAppendException",
        "ConcurrentDeleteDeleteException",
        "ConcurrentDeleteReadException",
        "ConcurrentTransactionException",
        "ConcurrentWriteException",
        "MetadataChangedException",
        "ProtocolChangedException",
    )
    return tuple(getattr(exceptions, name) for name in names)


def past_conflicts(table: str, write: Callable[[], None]) -> None:
    """Write, again where somebody else changed what the write had read. Retryable when others are faster every time.

    `write` reads the table anew each time, and nothing of a failed one is in it.
    """
    for number in range(_CONFLICT_TRIES):
        try:
            return write()
        except conflicts() as error:
            conflict: Exception = error
            log.info("%s: written again after a conflict: %s", table, str(conflict).partition("\n")[0])
            time.sleep(random.uniform(0, min(0.5 * 2**number, 10.0)))
    raise Retryable(f"{table} is changed by others all the time; let them end, then run this again") from conflict


def quoted(path: str) -> str:
    """A Delta table as Spark SQL names it by its path."""
    return "delta.`" + path.replace("`", "``") + "`"


def interruptible(spark: SparkSession, work: Callable[[], T]) -> T:
    """What `work` gives, done in a thread of its own, so that Ctrl-C and SIGTERM end Spark's jobs at once.

    A call into the JVM that is interrupted in the main thread leaves its answer on that thread's connection, where the
    next call, such as the one that cancels the jobs, waits for it and takes it for its own.
    """
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # noqa: BLE001 -- raised again below
            failed.append(error)

    thread = threading.Thread(target=run, name="spark", daemon=True)
    thread.start()
    try:
        thread.join()
    except KeyboardInterrupt:
        for _ in range(_CANCEL_TRIES):  # between two of its jobs there is none to cancel
            spark.sparkContext.cancelAllJobs()
            thread.join(_CANCEL_SECONDS)
            if not thread.is_alive():
                break
        raise
    if failed:
        raise failed[0]
    return done[0]


@contextmanager
def settings(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """These settings of the session while the body runs; then those that were there before."""
    before = {name: spark.conf.get(name, None) for name in values}
    try:
        for name, value in values.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)
