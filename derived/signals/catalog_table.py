"""The table `signal_catalog`, which a run replaces when the databases say something else."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
from deltalake.exceptions import TableNotFoundError

from pcaplake.common.runtime import Runtime
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.records import Capture
from pcaplake.lake.staging.window import Window
from pcaplake.lake.store.store import Store
from pcaplake.lake.table_rows import TableRows
from pcaplake.signals.catalog import build_catalog, holds_catalog
from pcaplake.signals.database import Databases
from pcaplake.signals.tables import CATALOG, CATALOG_SCHEMA


async def update_catalog(store: Store, log: LogStore, databases: Databases, runtime: Runtime) -> int:
    """Replace all rows, if they differ -> the number of new rows, 0 if none is written. Raises as `LogStore.commit`."""
    if await asyncio.to_thread(_is_current, store, databases):
        return 0
    rows = build_catalog(databases)
    adds = await asyncio.to_thread(_write_rows, store, rows, runtime)
    await log.commit(CATALOG, adds, schema=CATALOG_SCHEMA, partition_columns=[], overwrite=True)
    return len(rows)


def _is_current(store: Store, databases: Databases) -> bool:
    try:
        table = TableRows(store, CATALOG)
    except TableNotFoundError:
        return False
    if not set(CATALOG_SCHEMA.names) <= set(table.schema.names):  # columns of a newer version are at its end
        return False
    rows = (row for batch in table.read(CATALOG_SCHEMA.names) for row in batch.to_pylist())
    return holds_catalog(({**row, "choices": dict(row["choices"] or ())} for row in rows), databases)


def _write_rows(store: Store, rows: list[dict[str, Any]], runtime: Runtime) -> list[Any]:
    if not rows:
        return []
    window = Window(
        store, {CATALOG: CATALOG_SCHEMA}, lake_config=LakeConfig(), generation=0, partition_columns=(), runtime=runtime
    )
    window.begin(Capture(capture_id=CATALOG, uri=CATALOG, etag="", size=0))
    window.write(CATALOG, pa.RecordBatch.from_pylist(rows, CATALOG_SCHEMA))
    window.end()
    stage = window.close()
    assert stage is not None
    return list(stage.adds[CATALOG])
