"""The last batch of each table, according to the manifests, and how a table that lost batches becomes writable again.

A table that is dropped or restored to an older version loses its `txn`; manifests stay. Each has the last batch of every table
(`Manifest.last_batches`), so the manifest of head says which `txn` a table must have at least.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from pcaplake.common.plain_text import counted
from pcaplake.lake.delta.actions import Txn
from pcaplake.lake.delta.errors import RolledBack, RowsLost, TableBlocked, TransactionConflict
from pcaplake.lake.delta.log_state import LAKE
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.ledger import Ledger
from pcaplake.lake.records import Capture, Manifest, list_uris
from pcaplake.lake.store.store import Store

from .manifests import read_manifest

APP_ID = LAKE  # the application whose transactions in a table are batch numbers
SWAPPED = f"{LAKE}-swapped"
"""The application whose transaction in a table is `opening_version` of the generation that it has, plus the number of the last
swap of rows in it."""
_SWAPS = 1 << 40  # at most, of one generation
_MOST_READ = 512  # manifests without `last_batches`, from older versions
_AT_ONCE = 16

Load = Callable[[int], Awaitable[Manifest | None]]


def extend_last_batches(before: Mapping[str, int], manifest: Manifest) -> dict[str, int]:
    """The last batch of each table up to this manifest; `before`: up to the previous one.

    A batch that opens a generation empties every table that had a batch, so it is the last batch of all of them.
    """
    if manifest.last_batches is not None:
        return dict(manifest.last_batches)
    touched = manifest.written_tables | (before.keys() if manifest.opens else frozenset())
    return {**before, **dict.fromkeys(touched, manifest.batch)}


async def find_last_batches(load: Load, batch: int) -> dict[str, int]:
    """The last batch of each table up to `batch`, without tables that never had one; `load` reads a manifest.

    Manifests of older versions lack it: then earlier ones are read, up to one that has it, the first, or 512.
    """
    later: list[_ManifestSummary] = []
    known: dict[str, int] = {}
    while batch >= 0 and len(later) < _MOST_READ:
        width = _AT_ONCE if later else 1
        numbers = range(batch, max(batch - width, -1), -1)
        for manifest in await asyncio.gather(*map(load, numbers)):
            if manifest is None or manifest.last_batches is not None:
                batch, known = -1, dict((manifest and manifest.last_batches) or {})
                break
            later.append(_ManifestSummary(batch=manifest.batch, opens=manifest.opens, written=manifest.written_tables))
        else:
            batch = numbers[-1] - 1
    for summary in reversed(later):
        known = {
            **known,
            **dict.fromkeys(summary.written | (known.keys() if summary.opens else frozenset()), summary.batch),
        }
    return known


@dataclass(frozen=True, slots=True, kw_only=True)
class _ManifestSummary:
    """The part of a manifest that is kept; the whole may be large."""

    batch: int
    opens: bool
    written: frozenset[str]


async def read_last_batches(store: Store, ledger: Ledger) -> dict[str, int]:
    """The last batch of each table up to the ledger's head. Raises Fatal for a manifest that cannot be read."""
    return await find_last_batches(partial(read_manifest, store), await ledger.read_head())


async def find_lost_tables(store: Store, log_store: LogStore, ledger: Ledger) -> dict[str, str]:
    """Tables that lack a batch up to the ledger's head or rows that another program removed, and tables whose log cannot be
    read, with the reason.

    Raises Fatal for a manifest that cannot be read.
    """
    reasons: dict[str, str] = {}
    for table, batch in (await read_last_batches(store, ledger)).items():
        try:
            # read after head: a later batch in the table does no harm
            done = await log_store.read_transaction(table, APP_ID)
            if done < batch:
                reasons[table] = str(RolledBack(table, batch, done, await log_store.read_version(table)))
            elif (loss := await log_store.known_loss(table)) is not None:
                reasons[table] = await describe_loss(partial(read_manifest, store), table, loss)
        except TableBlocked as blocked:
            reasons[table] = str(blocked)
    return {table: why.removeprefix(f"{table}: ") for table, why in reasons.items()}


async def describe_loss(load: Load, table: str, loss: RowsLost) -> str:
    """Why a table is blocked from which another program removed rows, with the captures that may be concerned."""
    captures: dict[str, Capture] = {}
    for batch in reversed(loss.batches[-_MOST_READ:]):
        manifest = await load(batch)
        for stage in () if manifest is None else manifest.stages:
            captures |= {capture.capture_id: capture for capture in stage.captures if table in stage.adds}
        if manifest is not None and manifest.opens:  # the rows of earlier batches were replaced
            break
    named = f"{counted(len(captures), 'capture')} may lack rows there: {list_uris(list(captures.values()))}"
    return f"{loss}. {named}" if captures else str(loss)


async def find_tables_written_above_head(store: Store, ledger: Ledger) -> set[str]:
    """Tables for which batches above the ledger's head have rows. Raises Fatal for a manifest that cannot be read."""
    tables, batch = set[str](), await ledger.read_head() + 1
    while (manifest := await read_manifest(store, batch)) is not None:
        tables |= manifest.written_tables
        batch += 1
    return tables


async def accept_table_loss(
    log_store: LogStore, table: str, schema: pa.Schema, partition_columns: Sequence[str], batch: int
) -> None:
    """Make a table that lost batches or rows writable again, without the rows that it lost. Idempotent.

    Creates the table if it is absent, partitioned by `partition_columns` (those of its `schema`, see
    `table_partition_columns`), and commits `txn` (pcaplake, `batch`) without files. `batch`: `read_last_batches(...)[table]`;
    batches above head are committed again. The committer unblocks the table within seconds. The caller reports and
    records the loss.

    Raises TableBlocked when the table cannot be written for another reason, for example old entries in the lock table.
    """
    if await log_store.read_version(table) < 0:
        await log_store.create(table, schema, partition_columns=partition_columns)
    version = await log_store.read_version(table)
    if await log_store.known_loss(table) is not None:
        await accept_removed_rows(log_store, table, version)
    await log_store.commit_transaction(table, Txn(app_id=APP_ID, version=batch), "ACCEPT LOSS")


def opening_version(generation: int) -> int:
    """The transaction SWAPPED of the batch that opens a generation: later than every swap of the generations before."""
    return generation * _SWAPS


async def accept_removed_rows(log_store: LogStore, table: str, version: int, operation: str = "ACCEPT LOSS") -> None:
    """Record that the rows of a table are as they should be at this version, whatever other programs did before. Idempotent.

    A RESTORE may have brought back rows that a swap had replaced: the swaps since then are done again, or all swaps of the
    generation, if it is not known when.
    """
    while True:
        loss = await log_store.known_loss(table)
        last = await log_store.read_transaction(table, SWAPPED)
        restored = -1 if loss is None or loss.restored is None else loss.restored.get(SWAPPED, -1)
        back = max(last // _SWAPS * _SWAPS, min(restored, last))
        other_txns = [Txn(app_id=SWAPPED, version=back)] if 0 <= back < last else []
        try:
            await log_store.record_judged(
                table,
                version,
                operation,
                other_txns=other_txns,
                # rule: a table whose swaps are done again has the same generation still
                expected={SWAPPED: last},
            )
        except TransactionConflict:  # a swap or an overwrite came in between
            continue
        return
