"""Rebuilds a ledger from the manifests: batches, captures and head. All other processes must be stopped."""

from __future__ import annotations

import asyncio

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.lake.delta.errors import TableBlocked
from pcaplake.lake.delta.live_files import read_live_files
from pcaplake.lake.delta.log_state import LogState, read_log_state
from pcaplake.lake.identity import read_identity
from pcaplake.lake.ledger import Ledger
from pcaplake.lake.records import Manifest
from pcaplake.lake.store.store import Store

from .history import APP_ID
from .manifests import read_manifest
from .overwrite import restore_recorded_stages


async def rebuild_from_manifests(store: Store, ledger: Ledger) -> None:
    """Add all batches above the ledger's head, and move head as far as it certainly was.

    Stages of an overwrite that has begun and that no batch has opened yet are staged again from its record.

    A table that lacks a batch up to head was dropped or restored; it stays blocked. Batches above head are committed to
    the tables whose `txn` lacks them.

    Raises Fatal when a table without a `txn` may have a batch that another table still needs.
    """
    head = await ledger.read_head()
    batch = head + 1
    while (manifest := await read_manifest(store, batch)) is not None:
        await ledger.mark_batch_stages(manifest, rebuild=True)
        # A manifest records which batches every table had when it was composed, so the tables need not be asked.
        while manifest.head is not None and head < manifest.head:
            done = await read_manifest(store, head + 1)
            assert done is not None, "it was marked above"
            await _move_head(ledger, done)
            head += 1
        batch += 1
    await _move_head_over_unrecorded_batches(store, ledger)
    await _restore_begun_overwrite(store, ledger, batch - 1)


async def _restore_begun_overwrite(store: Store, ledger: Ledger, last: int) -> None:
    manifest, lake = await read_manifest(store, last) if last >= 0 else None, await read_identity(store)
    shown = 0 if manifest is None else manifest.shown_generation
    if lake is not None and lake[0].generation > shown and (manifest is not None or last < 0):
        await restore_recorded_stages(store, ledger, lake[0].generation, after=last)


async def _move_head_over_unrecorded_batches(store: Store, ledger: Ledger) -> None:
    """Move head over batches that must not be repeated although the last manifest does not say that every table has them.

    A table that was created again with its rows lacks our transaction. It may have the batch, so head passes the batch
    only when all other tables have it.
    """
    batch = await ledger.read_head() + 1
    while (
        (manifest := await read_manifest(store, batch)) is not None and manifest.written_tables and not manifest.opens
    ):
        names = sorted(manifest.written_tables)
        tails = dict(zip(names, await asyncio.gather(*(_read_log_state(store, name) for name in names)), strict=True))
        lacking = {name: tail for name, tail in tails.items() if tail is None or tail.txns.get(APP_ID, -1) < batch}
        without_txn = [
            name
            for name, tail in lacking.items()
            if tail is not None and APP_ID not in tail.txns and (await read_live_files(store, name, tail)).live
        ]
        # Committing the batch to such a table could double its rows, passing over the batch could lose those of other tables.
        if without_txn and (len(without_txn) < len(lacking) or len(lacking) == len(names)):
            raise Fatal(
                f"{', '.join(without_txn)}: it has rows and no transaction of {APP_ID}, so it may have batch {batch}, which "
                "other tables lack. Restore the table's _delta_log, or move the table away: then it is created again from the "
                "manifests"
            )
        if len(without_txn) < len(lacking):
            return
        await _move_head(ledger, manifest)
        batch += 1


async def _move_head(ledger: Ledger, manifest: Manifest) -> None:
    """Flag a batch and move head to it. Its returned captures were read again: they wait or are in a later batch."""
    await ledger.unstage_returned_captures(manifest)
    await ledger.flag_batch_committed(manifest)
    if not await ledger.advance_head(manifest.batch):
        raise Retryable("another process moved the ledger's head: stop all processes on this lake")


async def _read_log_state(store: Store, table: str) -> LogState | None:
    """The state of a table's log; None: it cannot be read, so the table is blocked."""
    try:
        return await read_log_state(store, table)
    except TableBlocked:
        return None
