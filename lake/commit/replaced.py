"""Removes captures that are not current any more (`ingest --replace-changed`, `delete`) from the tables and the ledger.

    record    put `_pcaplake/replaced/<capture_id>-<batch>.json` if absent; it is never deleted
    rows      remove the rows from each table, `captures` last: one version swaps their files for files with the other rows, and
              writes `txn(pcaplake-replaced, number of records)`
    forget    delete the captures from the ledger, so that a content that comes back is read again

Each step may happen twice. The next process that opens the lake finishes what was cut off: captures with a record that
the ledger still has in that batch or an earlier one. A content that came back is in a later batch and stays; manifests
above the ledger's head count, too, because the ledger may be an older copy. A table whose `txn` is lower than the number of
records was restored to an older version, and loses the rows of all replaced captures again. Only for lakes of one
machine, without lock table.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Collection, Iterable

import pyarrow as pa

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.common.plain_text import counted
from pcaplake.common.runtime import Runtime
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.delta.actions import Txn
from pcaplake.lake.delta.commit_content import Swap
from pcaplake.lake.delta.errors import SchemaConflict, SwapConflict, TableBlocked
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.ledger import CaptureItem
from pcaplake.lake.ledger.sqlite import SqliteLedger
from pcaplake.lake.records import SIGHTINGS, Manifest, manifest_path
from pcaplake.lake.store.store import Store
from pcaplake.parser.schemas import TABLES

from .history import REPLACED_APP_ID, find_lost_tables

FOLDER = "_pcaplake/replaced"
_FORMAT = 1
_NAME = re.compile(rf"{FOLDER}/([0-9a-f]{{32}})-(\d{{20}})\.json")
_AT_ONCE = 500  # captures in one transaction of the ledger
_ATTEMPTS = 5
_ALL_TABLES = tuple(sorted(TABLES, key="captures".__eq__))  # `captures` last
CAPTURES_LAST = tuple(table for table in _ALL_TABLES if table != SIGHTINGS)
"""The tables with rows that a capture gives when it is read, `captures` last."""
APP_ID = REPLACED_APP_ID  # its transaction in a table is the number of records whose rows were removed


async def read_replaced_batches(store: Store) -> dict[str, int]:
    """capture_id -> the batch up to which its rows were removed, for all replaced captures."""
    return _latest_batches(await _list_records(store))


async def _list_records(store: Store) -> list[tuple[str, int]]:
    """capture_id and batch of each record."""
    names = [_NAME.fullmatch(meta.path) for meta in await store.list(FOLDER)]
    return [(name[1], int(name[2])) for name in names if name]


def _latest_batches(recorded: Iterable[tuple[str, int]]) -> dict[str, int]:
    latest: dict[str, int] = {}
    for capture_id, batch in recorded:
        latest[capture_id] = max(batch, latest.get(capture_id, -1))
    return latest


async def tables_behind(store: Store, log_store: LogStore) -> list[str]:
    """Tables that still have rows of replaced captures, `captures` last."""
    number = len(await _list_records(store))
    return [
        table for table in _ALL_TABLES if number and await _count_removed_records(log_store, table, number) < number
    ]


async def _count_removed_records(log_store: LogStore, table: str, number: int) -> int:
    """The number of records whose rows were removed from a table; all without a table, -1 when it cannot be read."""
    try:
        return number if await log_store.read_version(table) < 0 else await log_store.read_transaction(table, APP_ID)
    except TableBlocked:
        return -1


async def record_replaced_captures(store: Store, items: Collection[CaptureItem], head: int) -> None:
    """Record that these committed captures are replaced; `remove_replaced_rows` removes them.

    The record has the last batch, `head`, rather than that of the capture, because its sightings may be in later ones.
    """
    for item in items:
        batch = max(item.batch or 0, head)
        body = {"format": _FORMAT, "capture_id": item.capture.capture_id, "uri": item.capture.uri, "batch": batch}
        path = f"{FOLDER}/{item.capture.capture_id}-{batch:020d}.json"
        await store.put_if_absent(path, json.dumps(body).encode())


async def remove_replaced_rows(
    store: Store,
    log_store: LogStore,
    ledger: SqliteLedger,
    generation: int,
    lake_config: LakeConfig,
    runtime: Runtime,
) -> int:
    """Remove the rows of all recorded captures that the tables still have, and return how many of them the ledger had.

    Tables that lack a batch, because they were dropped or restored, are skipped until they are repaired. Raises Retryable
    when another program changed the same files meanwhile, Fatal when a table cannot be written.
    """
    recorded = await _list_records(store)
    if not recorded:
        return 0
    latest, number = _latest_batches(recorded), len(recorded)
    known = await _find_batches(ledger, generation, latest)
    batches = {**known, **await _find_batches_above_head(store, ledger, generation, latest)}
    over = {
        capture_id
        for capture_id, batch in latest.items()
        if (now := batches.get(capture_id, -1)) is not None and now <= batch
    }
    begun = sorted(over & known.keys())
    done = {table: await _count_removed_records(log_store, table, number) for table in _ALL_TABLES}
    behind = [table for table in _ALL_TABLES if done[table] < number]
    lost = await find_lost_tables(store, log_store, ledger) if behind else {}
    for table in behind:
        if table not in lost:
            ids = begun if done[table] >= number - len(begun) else sorted(over)
            txn = Txn(app_id=APP_ID, version=number)
            await _remove_rows(store, log_store, table, ids, txn, lake_config, runtime)
        runtime.step(f"after replaced {table}")
    if not lost.keys() & set(behind):
        for start in range(0, len(begun), _AT_ONCE):
            await ledger.forget_captures(generation, begun[start : start + _AT_ONCE])
    return len(begun)


async def _find_batches(ledger: SqliteLedger, generation: int, capture_ids: Collection[str]) -> dict[str, int | None]:
    """capture_id -> its batch, of captures that the ledger has; None: it waits for one.

    Batches above head count, too: a rebuilt ledger has many.
    """
    items = await ledger.get_capture_items(generation, capture_ids)
    stages = await ledger.get_stage_items(generation, {item.stage_id for item in items.values()})
    return {
        capture_id: item.batch if item.batch is not None or item.stage_id not in stages else stages[item.stage_id].batch
        for capture_id, item in items.items()
    }


async def _find_batches_above_head(
    store: Store, ledger: SqliteLedger, generation: int, capture_ids: Collection[str]
) -> dict[str, int]:
    """capture_id -> its batch, from the manifests above the ledger's head; the ledger may be an older copy."""
    batches, batch = dict[str, int](), await ledger.read_head() + 1
    while (body := await store.get(manifest_path(batch))) is not None:
        manifest = Manifest.from_json(body[0])
        for stage in manifest.stages if manifest.generation == generation else ():
            batches |= dict.fromkeys(
                (capture.capture_id for capture in stage.captures if capture.capture_id in capture_ids), batch
            )
        batch += 1
    return batches


async def _remove_rows(
    store: Store,
    log_store: LogStore,
    table: str,
    capture_ids: Collection[str],
    txn: Txn,
    config: LakeConfig,
    runtime: Runtime,
) -> None:
    """Remove the rows of these captures and write the transaction, in one version. Raises as `remove_replaced_rows`."""
    import pyarrow.compute as pc  # this and deltalake: only for lakes with replaced contents

    from .copy_rows import copy_other_rows, require_files

    wanted = pc.field("capture_id").isin(pa.array(sorted(capture_ids), pa.string()))
    try:
        for attempt in range(1, _ATTEMPTS + 1):
            snapshot = await log_store.read_snapshot(table)
            if snapshot is None:
                return
            removed, kept = await asyncio.to_thread(
                copy_other_rows, store, table, snapshot, wanted, ["capture_id"], config, runtime
            )
            if not removed:
                await log_store.commit_transaction(table, txn, "REPLACED")
                return
            await require_files(store, table, kept)
            swap = Swap(snapshot=snapshot, removed=removed, fences=(APP_ID,), captures=capture_ids)
            try:
                await log_store.swap_files(table, kept, swap, txns=[txn])
            except SwapConflict as conflict:
                if attempt == _ATTEMPTS:
                    raise Retryable(
                        f"{table}: another program changed the same files in each attempt: {conflict}"
                    ) from conflict
            else:
                return
    except (Fatal, TableBlocked, SchemaConflict) as error:
        raise Fatal(
            f"{table}: the rows of {counted(len(capture_ids), 'replaced capture')} cannot be removed: {error}. "
            "Nothing is ingested until they are removed: see `pcaplake doctor`"
        ) from error
