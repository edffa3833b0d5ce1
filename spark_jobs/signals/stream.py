"""The streams from frames to signals: one for each source, each with a checkpoint, each row written once.

A batch is one transaction in every table it writes, with txn(<stream>, <batch>): when a batch is repeated after a crash, Delta
finds that txn and skips the write. The first batch of a checkpoint replaces all rows of its source, so deleting a checkpoint
means that all frames are decoded again.

The source skips versions that change rows (`replace`, deletions); OPTIMIZE changes no rows. When a newer decoder adds a column,
Delta ends the stream once, and it is started again here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pcaplake.signals.sources import ROWS_SQL, TABLES, Source
from pcaplake.signals.tables import SIGNALS, wide_table_name
from pcaplake.spark_jobs.common.delta_writes import retry_on_conflict, session_settings
from pcaplake.spark_jobs.common.lake_tables import table_exists, table_path
from pcaplake.spark_jobs.common.spark_errors import summarize_error
from pcaplake.worker.errors import Retryable

from .history import StateFolder
from .writing import WRITING, SignalRows, select_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)
_PAUSE_SECONDS = 0.2  # between two looks at the streams
RESTARTS = 20
"""Restarts of one stream without a batch in between; each follows a change of the source's schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """The limits of a batch. `interval`: seconds between batches; None: read existing frames, then end."""

    interval: float | None = None
    files: int = 1000
    size: str = "2g"


class SignalStream:
    """Frames of one source. `wide`: messages of that source that have a table of their own."""

    def __init__(
        self,
        lake: str,
        source: Source,
        *,
        memory: StateFolder,
        rows: SignalRows,
        pace: BatchLimits,
        wide: Collection[str] = (),
        say: Callable[[str], None] = lambda text: None,
        step: Callable[[str], None] = lambda name: None,
    ) -> None:
        """`step` is called between the steps of a batch, for tests."""
        self.source, self._spark, self._lake, self._memory, self._rows = source, rows.spark, lake, memory, rows
        self._pace, self._wide, self._say, self._step = pace, tuple(wide), say, step
        self._query: StreamingQuery | None = None
        self._restarts = 0
        self.batches = 0

    @property
    def is_running(self) -> bool:
        return self._query is not None

    def start(self) -> bool:
        """Start the query. False: the table of frames does not exist (yet)."""
        table = TABLES[self.source]
        if not table_exists(self._spark, self._lake, table):
            return False
        reader = self._spark.readStream.format("delta").option("skipChangeCommits", "true")
        reader = reader.option("maxFilesPerTrigger", self._pace.files).option("maxBytesPerTrigger", self._pace.size)
        frames = select_columns(self.source, reader.load(table_path(self._lake, table)))
        writer = frames.writeStream.foreachBatch(self._write_batch).queryName(f"signals of {table} in {self._lake}")
        writer = writer.option(
            "checkpointLocation", table_path(self._lake, self._memory.checkpoint_folder(self.source))
        )
        if self._pace.interval is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{self._pace.interval} seconds")
        self._say(f"reading new frames of {table}")
        with session_settings(self._spark, WRITING):  # a stream keeps the settings that it was started with
            self._query = writer.start()
        return True

    def poll_query(self) -> bool:
        """Whether the query has ended, as a query without an interval does. Raises `Retryable` if it has failed."""
        query = self._query
        if query is None:
            return True
        if query.isActive:
            return False
        error = query.exception()
        self._query = None
        if error is None:
            return True
        if "DELTA_SCHEMA_CHANGED" not in str(error) or self._restarts >= RESTARTS:
            raise Retryable(f"decoding signals from {TABLES[self.source]} failed: {summarize_error(error)}") from error
        log.info("%s has new columns: started again", TABLES[self.source])
        self._restarts += 1
        return not self.start()

    def stop(self) -> None:
        """Stop the query; the next start repeats an unfinished batch."""
        if self._query is not None:
            self._query.stop()
            self._query = None

    def _write_batch(self, batch: DataFrame, number: int) -> None:
        app = f"pcaplake-signals-{self.source}-{self._memory.read_query_id(self.source)}"
        if self._wide:
            batch = batch.persist()
        try:
            self._step(f"before {SIGNALS}")
            writer = _transaction_writer(self._rows.decode_signals(self.source, batch), app, number)
            if number == 0:
                writer = writer.mode("overwrite").option("replaceWhere", ROWS_SQL[self.source])
            with self._rows.write_lock:
                retry_on_conflict(SIGNALS, lambda: writer.save(table_path(self._lake, SIGNALS)))
            for name in self._wide:
                self._step(f"before {wide_table_name(name)}")
                writer = _transaction_writer(self._rows.decode_wide_rows(self.source, name, batch), app, number)
                if number == 0:
                    writer = writer.mode("overwrite").option("overwriteSchema", "true").partitionBy("date")
                path = table_path(self._lake, wide_table_name(name))
                retry_on_conflict(wide_table_name(name), partial(writer.save, path))
        finally:
            if self._wide:
                batch.unpersist()
        self._restarts = 0
        self.batches += 1
        self._say(f"{TABLES[self.source]}: batch {self.batches:,} decoded")
        self._step("after batch")


def drain_streams(streams: Collection[SignalStream], stopped: Callable[[], bool]) -> None:
    """Run the streams until all have ended or `stopped` returns True. An interrupt stops them too."""
    try:
        open_ = [stream for stream in streams if stream.start()]
        while open_ and not stopped():
            open_ = [stream for stream in open_ if not stream.poll_query()]
            if open_:
                time.sleep(_PAUSE_SECONDS)
    finally:
        for stream in streams:
            stream.stop()


def _transaction_writer(rows: DataFrame, app: str, number: int) -> Any:
    return rows.write.format("delta").mode("append").option("txnAppId", app).option("txnVersion", number)
