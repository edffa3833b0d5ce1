"""Completes the statistics of files that a job of Spark wrote.

Spark writes no bounds of booleans, and a text for a NaN. Readers that take a missing bound for null find no row of such a
file with a filter on that column (lake/corrections.py), so the job that wrote it corrects it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pcaplake.common.errors import PcaplakeError
from pcaplake.common.event_loop import run_request
from pcaplake.lake.corrections import FileCorrector
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.store.store import Store
from pcaplake.worker.config.service_settings import FleetSettings

from .lock_table import open_lock_table


def correct_written_files(
    settings: FleetSettings, lake: str, tables: Iterable[str], say: Callable[[str], None] = lambda text: None
) -> None:
    """Correct the files of these tables, as far as they exist. A table that cannot be corrected is left to `pcaplake doctor`."""
    run_request(lambda: _correct_tables(settings, lake, tables, say))


async def _correct_tables(
    settings: FleetSettings, lake: str, tables: Iterable[str], say: Callable[[str], None]
) -> None:
    store = Store.open(lake, settings.storage_options_for(lake))
    async with open_lock_table(settings, store) as lock_table:
        corrector = FileCorrector(store=store, log_store=LogStore(store, lock_table=lock_table))
        for table in tables:
            try:
                await corrector.correct_table(table)
            except PcaplakeError as error:
                say(f"the statistics of {table} are not complete ({error}); `pcaplake doctor --repair` completes them")
