"""The job: bring history to the definitions at hand, then follow the frames.

    what changed?   state.json beside the databases
    mark, drain     the streams read what is there with the new definitions, up to a version V of each source
    again           frames of changed ids up to V, decoded and swapped in one transaction
    note            state.json and `signal_catalog` say so
    follow          the streams, once or for ever

Killed anywhere, the next run finds the marks and does the whole step again; rows are never twice in between, because
what is swapped in takes the place of every row of those ids.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worker.errors import Fatal, Retryable

from ..places import read_table, table_exists, table_path
from ..upkeep import past_conflicts, settings
from .database import Databases
from .frames import messages_of
from .history import Changes, Memory, State
from .model import Kind
from .stream import Pace, Stream, drain
from .tables import CATALOG, SIGNALS, SIGNALS_SCHEMA, SOURCES, wide_table
from .writing import WRITING, Rows, create_tables, write_catalog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KINDS: tuple[Kind, ...] = ("can", "lin")
GENERATION_SECONDS = 60.0
_POLL = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`wide`: messages with a table of their own. `interval`: seconds between batches of a run that goes on until it
    is stopped; None: what is there now. `files`, `size`: what a batch reads at most."""

    databases: Databases
    wide: tuple[str, ...] = ()
    interval: float | None = None
    files: int = 1000
    size: str = "2g"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """`rows`: written to `signals`, those that replaced others among them. `decoded_again`: ids whose definition
    changed. `skipped`: why messages of the databases are not decoded -> how many. `missing`: tables that are not there."""

    lake: str
    seconds: float
    batches: int
    rows: int
    version: int
    catalog_rows: int
    decoded_again: int
    wide: tuple[str, ...]
    skipped: Mapping[str, int]
    missing: tuple[str, ...]


def run(
    spark: SparkSession,
    lake: str,
    options: Options,
    *,
    storage: Mapping[str, str] | None = None,
    say: Callable[[str], None] = lambda text: None,
    stopped: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
    step: Callable[[str], None] = lambda name: None,
) -> Report:
    """Decode what is new. `storage`: options of the object store. `stopped` ends a run that goes on.

    Fatal for definitions that contradict each other, Retryable when Spark failed: run it again, nothing is lost.
    """
    job = _Job(spark, lake, options, storage, say, clock, step)
    return job.run(stopped)


class _Job:
    def __init__(
        self,
        spark: SparkSession,
        lake: str,
        options: Options,
        storage: Mapping[str, str] | None,
        say: Callable[[str], None],
        clock: Callable[[], float],
        step: Callable[[str], None],
    ) -> None:
        self._spark, self._lake, self._options, self._storage = spark, lake, options, storage
        self._say, self._clock, self._step = say, clock, step
        self._rows = Rows(spark, checked(options))
        self._batches = self._catalog_rows = self._again = 0

    def run(self, stopped: Callable[[], bool]) -> Report:
        started = self._clock()
        create_tables(self._spark, self._lake, self._options.databases, self._options.wide)
        first = _version(self._spark, self._lake)
        while True:
            memory = Memory.open(self._lake, self._storage)
            self._bring_history(memory)
            if self._options.interval is None:
                self._drain(
                    memory, Pace(files=self._options.files, size=self._options.size), self._options.wide, stopped
                )
                break
            if self._follow(memory, stopped):
                break
            self._say("the lake was overwritten: decoding it anew")
        last = _version(self._spark, self._lake)
        return Report(
            lake=self._lake,
            seconds=round(self._clock() - started, 3),
            batches=self._batches,
            rows=_rows_written(self._spark, self._lake, first, last),
            version=last,
            catalog_rows=self._catalog_rows,
            decoded_again=self._again,
            wide=tuple(wide_table(name) for name in self._options.wide),
            skipped=dict(self._options.databases.skipped),
            missing=tuple(one for one in SOURCES.values() if not table_exists(self._spark, self._lake, one)),
        )

    # -- history --------------------------------------------------------------------------------------------------
    def _bring_history(self, memory: Memory) -> None:
        wanted = State.of(self._options.databases, self._options.wide)
        begun = [kind for kind in KINDS if memory.query_id(kind) is not None]
        state = memory.load()
        if state is None:
            if begun:
                raise Fatal(
                    f"the state beside the checkpoints in {memory.folder} is gone, so nobody knows what history is "
                    "decoded with: delete that folder, then everything is decoded anew"
                )
            state = State()
        changes = state.changed(wanted)
        if changes and begun:
            self._say(f"{changes.messages:,} ids and {len(changes.wide):,} wide tables changed: decoding history again")
            memory.save(state.marked(changes))
            self._step("marked")
            kept = [name for name in self._options.wide if name not in changes.wide]
            # below what is there now every frame has then been read once, by the new definitions or by the old
            self._drain(memory, Pace(files=self._options.files, size=self._options.size), kept, lambda: False)
            self._step("drained")
            self._decode_again(memory, changes, begun)
            self._step("decoded again")
        if state != wanted or not _has_rows(self._spark, self._lake):
            self._catalog_rows = write_catalog(self._spark, self._lake, self._options.databases)
        if state != wanted:
            memory.save(wanted)

    def _decode_again(self, memory: Memory, changes: Changes, begun: Collection[Kind]) -> None:
        history = {kind: frames for kind in begun if (frames := self._history(memory, kind)) is not None}
        with settings(self._spark, WRITING):
            where = changes.predicate(begun)
            if where is not None:
                parts = [
                    self._rows.long(kind, frames.where(only))
                    for kind, frames in history.items()
                    if (only := changes.predicate([kind])) is not None
                ]
                rows = _union(parts)
                if rows is None:
                    rows = read_table(self._spark, self._lake, SIGNALS, schema=SIGNALS_SCHEMA).limit(0)
                swap(rows, self._lake, SIGNALS, where)
                self._again += changes.messages
            for name in changes.wide:
                kind = self._rows.kind_of(name)
                if kind in history:
                    writer = self._rows.wide(kind, name, history[kind]).write.format("delta").mode("overwrite")
                    writer = writer.option("overwriteSchema", "true").partitionBy("date")  # else it would have none
                    writer.save(table_path(self._lake, wide_table(name)))

    def _history(self, memory: Memory, kind: Kind) -> DataFrame | None:
        """The frames that the stream has read, after it was drained."""
        at = memory.position(kind)
        if at is None or not table_exists(self._spark, self._lake, SOURCES[kind]):
            return None
        if at.partly:
            raise Retryable(f"the stream of {SOURCES[kind]} stands within version {at.version}: run it again")
        return read_table(self._spark, self._lake, SOURCES[kind], version=at.version - 1)

    # -- streams --------------------------------------------------------------------------------------------------
    def _streams(self, memory: Memory, pace: Pace, wide: Collection[str]) -> list[Stream]:
        return [
            Stream(
                self._spark,
                self._lake,
                kind,
                memory=memory,
                rows=self._rows,
                pace=pace,
                wide=[name for name in wide if self._rows.kind_of(name) == kind],
                say=self._say,
                step=self._step,
            )
            for kind in KINDS
        ]

    def _drain(self, memory: Memory, pace: Pace, wide: Collection[str], stopped: Callable[[], bool]) -> None:
        streams = self._streams(memory, pace, wide)
        try:
            drain(streams, stopped)
        finally:
            self._batches += sum(one.batches for one in streams)

    def _follow(self, memory: Memory, stopped: Callable[[], bool]) -> bool:
        """Until it is stopped -> True, or the lake has another generation."""
        pace = Pace(interval=self._options.interval, files=self._options.files, size=self._options.size)
        streams = self._streams(memory, pace, self._options.wide)
        looked = self._clock()
        self._say("following the frames; Ctrl-C ends it")
        try:
            while not stopped():
                for one in streams:
                    if not one.running:
                        one.start()  # a table that was missing may be there now
                    else:
                        one.poll()
                if self._clock() - looked >= GENERATION_SECONDS:
                    looked = self._clock()
                    if Memory.open(self._lake, self._storage).generation != memory.generation:
                        return False
                time.sleep(_POLL)
            return True
        finally:
            for one in streams:
                one.stop()
            self._batches += sum(one.batches for one in streams)


def swap(rows: DataFrame, lake: str, table: str, where: str, *, merge: bool = False) -> None:
    """In one transaction: out with all rows for which `where` holds, in with these, for which it holds too.

    `merge`: columns that the table has not are added. Retryable as past_conflicts raises it.
    """
    writer = rows.write.format("delta").mode("overwrite").option("replaceWhere", where)
    writer = writer.option("mergeSchema", str(merge).lower())
    past_conflicts(table, lambda: writer.save(table_path(lake, table)))


def checked(options: Options) -> Databases:
    """Its databases. Fatal where they and the wide messages do not fit together."""
    for name in options.wide:
        found = messages_of(options.databases, name)
        if not found:
            raise Fatal(f"no database has a message {name!r}, so it can have no table of its own; leave it away")
        if len({one.kind for one in found}) > 1:
            raise Fatal(f"{name!r} is a message of CAN and one of LIN: it can have no table of its own; leave it away")
    tables = {wide_table(name) for name in options.wide}
    if len(tables) < len(options.wide) or SIGNALS in tables:
        raise Fatal("two of the wide messages would have one table; leave one of them away")
    return options.databases


def _union(parts: list[DataFrame]) -> DataFrame | None:
    if not parts:
        return None
    whole = parts[0]
    for one in parts[1:]:
        whole = whole.unionByName(one)
    return whole


def _has_rows(spark: SparkSession, lake: str) -> bool:
    return not read_table(spark, lake, CATALOG).isEmpty()


def _version(spark: SparkSession, lake: str) -> int:
    from delta.tables import DeltaTable

    return int(DeltaTable.forPath(spark, table_path(lake, SIGNALS)).history(1).select("version").first()[0])


def _rows_written(spark: SparkSession, lake: str, after: int, last: int) -> int:
    """By the versions of `signals` from `after` on, as their operationMetrics say."""
    from delta.tables import DeltaTable

    if last <= after:
        return 0
    history = DeltaTable.forPath(spark, table_path(lake, SIGNALS)).history(last - after)
    counted = history.where(f"version > {after} AND operation = 'WRITE'")
    found = counted.selectExpr("sum(cast(operationMetrics['numOutputRows'] as bigint))").first()
    return int(found[0] or 0)
