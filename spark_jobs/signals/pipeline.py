"""The signals job: decodes older frames again where definitions changed, then follows new frames.

    compare    state.json with the databases
    mark       the changed ids in state.json
    drain      the streams decode all new frames with the new definitions, up to a version V of each source
    again      frames of changed ids up to V are decoded again, and replace their rows in one transaction
    record     state.json and `signal_catalog` get the new definitions
    follow     the streams run once or until stopped

If a run is killed, the next one finds the marks and repeats the whole step. Rows are never duplicated, because the new rows
replace every row of the changed ids.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pcaplake.signals.database import Databases
from pcaplake.signals.definitions import DefinitionChanges, DefinitionState
from pcaplake.signals.sources import TABLES, Source, described_sources
from pcaplake.signals.tables import SIGNALS, SIGNALS_SCHEMA, wide_table_name
from pcaplake.signals.wide import require_wide_messages, source_of_message
from pcaplake.spark_jobs.common.delta_writes import replace_rows, session_settings
from pcaplake.spark_jobs.common.lake_tables import read_table, table_exists, table_path, union_frames
from pcaplake.worker.errors import Fatal, Retryable
from pcaplake.worker.plain_text import counted
from pcaplake.worker.signals.counts_report import describe_counts, report_counts
from pcaplake.worker.signals.unmatched import UnmatchedFrames, explain_unmatched

from .frame_counts import count_frames
from .history import StateFolder, of_changed_frames, of_changed_rows
from .stream import BatchLimits, SignalStream, drain_streams
from .writing import WRITING, SignalRows, create_signal_tables, is_catalog_current, write_catalog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GENERATION_SECONDS = 60.0
_POLL = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalOptions:
    """`wide`: messages with a table of their own. `interval`: seconds between batches of a run that continues until it is
    stopped; None: decode existing frames, then end. `files`, `size`: limits of a batch."""

    databases: Databases
    wide: tuple[str, ...] = ()
    interval: float | None = None
    files: int = 1000
    size: str = "2g"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalReport:
    """`rows`: decoded and written to `signals`, also those that replace others; rows that Delta only copies do not count.
    `decoded_again`: ids whose definition changed. `skipped`: reason -> number of messages that are not decoded.
    `unreadable`: `Message.Signal`, or a line of a file -> why it cannot be decoded. `missing`: source tables that the
    databases describe and that do not exist. `someip`, `containers`: what its messages, and the PDUs in containers were
    (a task that Spark repeats counts again). `unmatched`: why the table `signals` is empty although there are frames."""

    lake: str
    seconds: float
    batches: int
    rows: int
    version: int
    catalog_rows: int
    decoded_again: int
    wide: tuple[str, ...]
    skipped: Mapping[str, int]
    unreadable: Mapping[str, str]
    missing: tuple[str, ...]
    someip: Mapping[str, Any]
    containers: Mapping[str, Any]
    unmatched: UnmatchedFrames | None = None


def run(
    spark: SparkSession,
    lake: str,
    options: SignalOptions,
    *,
    storage: Mapping[str, str] | None = None,
    say: Callable[[str], None] = lambda text: None,
    stopped: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
    step: Callable[[str], None] = lambda name: None,
) -> SignalReport:
    """Decode new frames. `storage`: options of the object store. `stopped` ends a continuous run.

    Raises `DatabaseError` for definitions that contradict each other, and `Retryable` if Spark fails: run it again, no rows
    are lost.
    """
    job = _SignalsJob(spark, lake, options, storage, say, clock, step)
    return job.run(stopped)


class _SignalsJob:
    def __init__(
        self,
        spark: SparkSession,
        lake: str,
        options: SignalOptions,
        storage: Mapping[str, str] | None,
        say: Callable[[str], None],
        clock: Callable[[], float],
        step: Callable[[str], None],
    ) -> None:
        self._spark, self._lake, self._options, self._storage = spark, lake, options, storage
        self._say, self._clock, self._step = say, clock, step
        require_wide_messages(options.databases, options.wide)
        self._rows = SignalRows(spark, options.databases)
        self._batches = self._catalog_rows = self._ids_decoded_again = 0

    def run(self, stopped: Callable[[], bool]) -> SignalReport:
        started = self._clock()
        if unreadable := self._options.databases.unreadable_declarations:
            name, reason = next(iter(unreadable.items()))
            self._say(
                f"{counted(len(unreadable), 'declaration')} of the databases cannot be read, such as {name}: {reason}; "
                "the report lists all of them, and signal_catalog lists the signals"
            )
        self._say("preparing the tables")
        create_signal_tables(self._spark, self._lake, self._options.databases, self._options.wide)
        first = _signals_version(self._spark, self._lake)
        while True:
            memory = StateFolder.open(self._lake, self._storage)
            self._update_history(memory)
            if self._options.interval is None:
                self._drain_streams(
                    memory, BatchLimits(files=self._options.files, size=self._options.size), self._options.wide, stopped
                )
                break
            if self._follow_streams(memory, stopped):
                break
            self._say("the lake was overwritten: decoding all frames again")
        last = _signals_version(self._spark, self._lake)
        rows = _count_rows_written(self._spark, self._lake, first, last)
        described = described_sources(self._options.databases)
        counts = report_counts(self._rows.counts)
        for text in describe_counts(counts):
            self._say(text)
        return SignalReport(
            lake=self._lake,
            seconds=round(self._clock() - started, 3),
            batches=self._batches,
            rows=rows,
            version=last,
            catalog_rows=self._catalog_rows,
            decoded_again=self._ids_decoded_again,
            wide=tuple(wide_table_name(name) for name in self._options.wide),
            skipped=dict(self._options.databases.skipped),
            unreadable=self._options.databases.unreadable_declarations,
            missing=tuple(
                table
                for source, table in TABLES.items()
                if source in described and not table_exists(self._spark, self._lake, table)
            ),
            **counts,
            unmatched=None if rows else self._explain_no_rows(),
        )

    def _explain_no_rows(self) -> UnmatchedFrames | None:
        """Why no frame matches; None if an earlier run decoded frames, or there are none."""
        if not read_table(self._spark, self._lake, SIGNALS, schema=SIGNALS_SCHEMA).isEmpty():
            return None
        self._say("no signals: counting the frames by bus and id")
        unmatched = explain_unmatched(count_frames(self._spark, self._lake), self._options.databases)
        if unmatched is not None:
            self._say(str(unmatched))
            for hint in unmatched.hints:
                self._say(f"hint: {hint}")
        return unmatched

    # -- history --------------------------------------------------------------------------------------------------
    def _update_history(self, memory: StateFolder) -> None:
        new_state = DefinitionState.from_databases(self._options.databases, self._options.wide)
        begun = [source for source in TABLES if memory.read_query_id(source) is not None]
        state = memory.load_state()
        if state is None:
            if begun:
                raise Fatal(
                    f"state.json is missing in {memory.folder}, which has checkpoints, so the definitions of older rows are "
                    "unknown: delete that folder, and the next run decodes all frames again"
                )
            state = DefinitionState()
        changes = state.find_changes(new_state)
        if changes and begun:
            self._say(
                f"{counted(changes.message_count, 'id')} and {counted(len(changes.wide), 'wide table')} changed: "
                f"decoding their older frames again"
            )
            memory.save_state(state.with_pending_changes(changes))
            self._step("marked")
            kept = [name for name in self._options.wide if name not in changes.wide]
            # afterwards every frame so far is decoded once, with the new definitions or the old ones
            self._drain_streams(
                memory, BatchLimits(files=self._options.files, size=self._options.size), kept, lambda: False
            )
            self._step("drained")
            # a stream that has begun just now has not written its changed wide tables
            begun = [source for source in TABLES if memory.read_query_id(source) is not None]
            self._decode_history_again(memory, changes, begun)
            self._step("decoded again")
        if not is_catalog_current(self._spark, self._lake, self._options.databases):
            self._say("writing signal_catalog")
            self._catalog_rows = write_catalog(self._spark, self._lake, self._options.databases)
        if state != new_state:
            memory.save_state(new_state)

    def _decode_history_again(self, memory: StateFolder, changes: DefinitionChanges, begun: Collection[Source]) -> None:
        history = {source: frames for source in begun if (frames := self._read_history(memory, source)) is not None}
        with session_settings(self._spark, WRITING):
            where = of_changed_rows(changes, begun)
            if where is not None:
                parts = [
                    self._rows.decode_signals(source, frames.where(only))
                    for source, frames in history.items()
                    if (only := of_changed_frames(changes, source)) is not None
                ]
                no_rows = read_table(self._spark, self._lake, SIGNALS, schema=SIGNALS_SCHEMA).limit(0)
                replace_rows(union_frames(parts or [no_rows]), self._lake, SIGNALS, where)
                self._ids_decoded_again += changes.message_count
            for name in changes.wide:
                source = source_of_message(self._options.databases, name)
                if source in history:
                    rows = self._rows.decode_wide_rows(source, name, history[source])
                    writer = rows.write.format("delta").mode("overwrite")
                    # otherwise the new table would have no partitions
                    writer = writer.option("overwriteSchema", "true").partitionBy("date")
                    writer.save(table_path(self._lake, wide_table_name(name)))

    def _read_history(self, memory: StateFolder, source: Source) -> DataFrame | None:
        """The frames that the drained stream has read."""
        at = memory.read_position(source)
        if at is None or not table_exists(self._spark, self._lake, TABLES[source]):
            return None
        if at.partly:
            raise Retryable(f"the stream of {TABLES[source]} stopped within version {at.version}: run the job again")
        return read_table(self._spark, self._lake, TABLES[source], version=at.version - 1)

    # -- streams --------------------------------------------------------------------------------------------------
    def _create_streams(self, memory: StateFolder, pace: BatchLimits, wide: Collection[str]) -> list[SignalStream]:
        return [
            SignalStream(
                self._lake,
                source,
                memory=memory,
                rows=self._rows,
                pace=pace,
                wide=[name for name in wide if source_of_message(self._options.databases, name) == source],
                say=self._say,
                step=self._step,
            )
            for source in TABLES
        ]

    def _drain_streams(
        self, memory: StateFolder, pace: BatchLimits, wide: Collection[str], stopped: Callable[[], bool]
    ) -> None:
        streams = self._create_streams(memory, pace, wide)
        try:
            drain_streams(streams, stopped)
        finally:
            self._batches += sum(stream.batches for stream in streams)

    def _follow_streams(self, memory: StateFolder, stopped: Callable[[], bool]) -> bool:
        """Run the streams until stopped (returns True), or until the lake has another generation (returns False)."""
        pace = BatchLimits(interval=self._options.interval, files=self._options.files, size=self._options.size)
        streams = self._create_streams(memory, pace, self._options.wide)
        looked = self._clock()
        self._say("following new frames; press Ctrl-C to stop")
        try:
            while not stopped():
                for stream in streams:
                    if not stream.is_running:
                        stream.start()  # a missing table may exist by now
                    else:
                        stream.poll_query()
                if self._clock() - looked >= GENERATION_SECONDS:
                    looked = self._clock()
                    if StateFolder.open(self._lake, self._storage).generation != memory.generation:
                        return False
                time.sleep(_POLL)
            return True
        finally:
            for stream in streams:
                stream.stop()
            self._batches += sum(stream.batches for stream in streams)


def _signals_version(spark: SparkSession, lake: str) -> int:
    from delta.tables import DeltaTable

    return int(DeltaTable.forPath(spark, table_path(lake, SIGNALS)).history(1).select("version").first()[0])


def _count_rows_written(spark: SparkSession, lake: str, after: int, last: int) -> int:
    """Rows that were decoded into `signals` after version `after`, from the operationMetrics of its history."""
    from delta.tables import DeltaTable

    if last <= after:
        return 0
    history = DeltaTable.forPath(spark, table_path(lake, SIGNALS)).history(last - after)
    counted = history.where(f"version > {after} AND operation = 'WRITE'")
    # a version that replaces rows also writes the other rows of their files again, and counts them as output
    decoded = "operationMetrics['numOutputRows'] - coalesce(operationMetrics['numCopiedRows'], 0)"
    return int(counted.selectExpr(f"cast(sum({decoded}) as bigint)").first()[0] or 0)
