"""Spark jobs that Ctrl-C and SIGTERM end at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
_CANCEL_ATTEMPTS, _CANCEL_SECONDS = 60, 0.5


def run_interruptible(spark: SparkSession, work: Callable[[], T], stop: Callable[[], None] = lambda: None) -> T:
    """Run `work` in a thread and return its result, so that Ctrl-C and SIGTERM cancel Spark's jobs at once. `stop` tells work
    that waits for something else.

    An interrupted call into the JVM leaves its answer on the connection of the calling thread, and the next call, such as
    the one that cancels the jobs, would read that answer as its own.
    """
    done: list[T] = []
    failed: list[BaseException] = []

    def run_work() -> None:
        try:
            done.append(work())
        except BaseException as error:  # noqa: BLE001 -- raised again below
            failed.append(error)

    thread = threading.Thread(target=run_work, name="spark", daemon=True)
    thread.start()
    try:
        thread.join()
    except KeyboardInterrupt:
        stop()
        for _ in range(_CANCEL_ATTEMPTS):  # `work` may be between two Spark jobs, so one call may cancel nothing
            spark.sparkContext.cancelAllJobs()
            thread.join(_CANCEL_SECONDS)
            if not thread.is_alive():
                break
        raise
    if failed:
        raise failed[0]
    return done[0]
