"""Checkpoints of tables after commits, in the background."""

from __future__ import annotations

import asyncio
import logging

from pcaplake.common.meter import Meter
from pcaplake.lake.delta.log_store import LogStore

log = logging.getLogger(__name__)


class CheckpointScheduler:
    """Creates a checkpoint and cleans up the log each time a table passes a multiple of `interval` versions.

    A failure is logged and counted only: commits do not need checkpoints, and the next one tries again.
    """

    def __init__(self, log_store: LogStore, interval: int, meter: Meter) -> None:
        self._log, self._interval, self._meter = log_store, interval, meter
        self._versions: dict[str, int] = {}  # table -> version of the last commit
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def note_commit(self, table: str, version: int) -> None:
        """A commit made this version; start a checkpoint when one is due and none is running for the table."""
        before = self._versions.get(table, version - 1)
        self._versions[table] = version
        # A commit of this process may pass several versions at once, because Spark and others commit between its own.
        if version // self._interval > before // self._interval and (
            table not in self.tasks or self.tasks[table].done()
        ):
            self.tasks[table] = asyncio.create_task(self._create_checkpoint(table))

    async def finish_or_cancel(self, until: float | None) -> None:
        """Wait for running checkpoints, at most until a time of the event loop, then cancel them."""
        running = [task for task in self.tasks.values() if not task.done()]
        if running:
            left = None if until is None else max(0.0, until - asyncio.get_running_loop().time())
            await asyncio.wait(running, timeout=left)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _create_checkpoint(self, table: str) -> None:
        try:
            await self._log.checkpoint(table)
            await self._log.clean(table)
            self._meter.count("checkpoints", table=table, outcome="created")
        except Exception as error:  # noqa: BLE001 -- commits must continue after any error
            self._meter.count("checkpoints", table=table, outcome="failed")
            log.warning("checkpoint of %s: %s", table, error)
