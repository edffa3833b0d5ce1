"""The streams from frames to signals: one for CAN and one for LIN, each with a checkpoint, each row once.

A batch is one transaction in every table it writes, with txn(<stream>, <batch>): a batch that is tried again after a
crash finds it there and is passed over. The first batch of a checkpoint replaces all rows of its kind, so that deleting
a checkpoint means: decode everything anew.

The source passes over versions that change rows (`replace`, deletions); OPTIMIZE changes none. A column that a newer
decoder adds ends the stream once, by Delta's rule, and it is started again here.

Knows Structured Streaming. Must not know definitions, nor what history must be decoded again.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from worker.errors import Retryable

from ..places import table_exists, table_path
from ..upkeep import past_conflicts, settings
from .history import Memory
from .model import Kind
from .tables import INPUT, SIGNALS, SOURCES, wide_table
from .writing import WRITING, Rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)
_RAISED = re.compile(r"(?!org\.|java\.)[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)\b")
RESTARTS = 20
"""Of one stream without a batch between them: each was for a change of the source's schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How much a batch takes; `interval`: seconds between batches, None: what is there now, then the end."""

    interval: float | None = None
    files: int = 1000
    size: str = "2g"


class Stream:
    """Frames of one kind. `wide`: messages of that kind that have a table of their own."""

    def __init__(
        self,
        spark: SparkSession,
        lake: str,
        kind: Kind,
        *,
        memory: Memory,
        rows: Rows,
        pace: Pace,
        wide: Collection[str] = (),
        say: Callable[[str], None] = lambda text: None,
        step: Callable[[str], None] = lambda name: None,
    ) -> None:
        """`step` is called between the steps of a batch, for tests."""
        self.kind, self._spark, self._lake, self._memory, self._rows = kind, spark, lake, memory, rows
        self._pace, self._wide, self._say, self._step = pace, tuple(wide), say, step
        self._query: StreamingQuery | None = None
        self._restarts = 0
        self.batches = 0

    @property
    def running(self) -> bool:
        return self._query is not None

    def start(self) -> bool:
        """False: there is no table of such frames (yet)."""
        table = SOURCES[self.kind]
        if not table_exists(self._spark, self._lake, table):
            return False
        reader = self._spark.readStream.format("delta").option("skipChangeCommits", "true")
        reader = reader.option("maxFilesPerTrigger", self._pace.files).option("maxBytesPerTrigger", self._pace.size)
        frames = reader.load(table_path(self._lake, table)).select(*INPUT[self.kind])
        writer = frames.writeStream.foreachBatch(self._write).queryName(f"signals of {table} in {self._lake}")
        writer = writer.option("checkpointLocation", table_path(self._lake, self._memory.checkpoint(self.kind)))
        if self._pace.interval is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{self._pace.interval} seconds")
        with settings(self._spark, WRITING):  # a stream keeps those that it was started under
            self._query = writer.start()
        return True

    def poll(self) -> bool:
        """Look after it -> is it at its end? Only one that takes what is there has one. Retryable when it failed."""
        query = self._query
        if query is None:
            return True
        if query.isActive:
            return False
        error = query.exception()
        self._query = None
        if error is None:
            return True
        if not _schema_changed(error) or self._restarts >= RESTARTS:
            raise Retryable(f"decoding signals from {SOURCES[self.kind]} failed: {_said(error)}") from error
        log.info("%s has new columns: started again", SOURCES[self.kind])
        self._restarts += 1
        return not self.start()

    def stop(self) -> None:
        """Leave a batch as it is: the next start does it again."""
        if self._query is not None:
            self._query.stop()
            self._query = None

    def _write(self, batch: DataFrame, number: int) -> None:
        app = f"pcaplake-signals-{self.kind}-{self._memory.query_id(self.kind)}"
        every = f"{next(one for one in SOURCES if one != self.kind)}_id IS NULL"
        if self._wide:
            batch = batch.persist()
        try:
            self._step(f"before {SIGNALS}")
            writer = _written(self._rows.long(self.kind, batch), app, number)
            if number == 0:
                writer = writer.mode("overwrite").option("replaceWhere", every)
            with self._rows.turn:
                past_conflicts(SIGNALS, lambda: writer.save(table_path(self._lake, SIGNALS)))
            for name in self._wide:
                self._step(f"before {wide_table(name)}")
                writer = _written(self._rows.wide(self.kind, name, batch), app, number)
                if number == 0:
                    writer = writer.mode("overwrite").option("overwriteSchema", "true").partitionBy("date")
                path = table_path(self._lake, wide_table(name))
                past_conflicts(wide_table(name), partial(writer.save, path))
        finally:
            if self._wide:
                batch.unpersist()
        self._restarts = 0
        self.batches += 1
        self._say(f"{SOURCES[self.kind]}: {self.batches:,} batches are decoded")
        self._step("after batch")


def drain(streams: Collection[Stream], stopped: Callable[[], bool] = lambda: False, pause: float = 0.2) -> None:
    """Until all of them are at their end, or `stopped`. An interrupt stops them too."""
    try:
        open_ = [one for one in streams if one.start()]
        while open_ and not stopped():
            open_ = [one for one in open_ if not one.poll()]
            if open_:
                time.sleep(pause)
    finally:
        for one in streams:
            one.stop()


def _written(rows: DataFrame, app: str, number: int) -> Any:
    return rows.write.format("delta").mode("append").option("txnAppId", app).option("txnVersion", number)


def _schema_changed(error: Exception) -> bool:
    return "DELTA_SCHEMA_CHANGED" in str(error)


def _said(error: Exception) -> str:
    """Its first line, and where a traceback of Python's is in it, what that ends with."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [repr(error)]
    raised = [line for line in lines[1:] if _RAISED.match(line)]
    return " / ".join([lines[0][:500], *(line[:500] for line in raised[-1:])])
