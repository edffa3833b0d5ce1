"""Which captures lack rows in a table: from the table itself, `captures.rows`, the manifests and the ledger.

Reads one column of each file of the table, so it is for a table that has lost rows, and for what no log tells.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa

from pcaplake.common.errors import Retryable
from pcaplake.common.plain_text import counted, describe_library_error
from pcaplake.lake.commit.history import accept_removed_rows
from pcaplake.lake.commit.manifests import read_manifest
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.store.store import Store

from .ledger import COMMITTED, Ledger

_ASKED = 1_000  # captures in one question to the ledger
_MANIFESTS_AT_ONCE = 16
_ONE_ROW = ("captures", "quarantine")  # tables that `captures.rows` does not count


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingRows:
    """A capture that lacks rows. `expected`: None if only the manifests know that it had rows."""

    capture_id: str
    uri: str
    expected: int | None
    found: int


async def find_lost_captures(
    store: Store, log_store: LogStore, ledger: Ledger, generation: int, tables: Collection[str]
) -> dict[str, list[MissingRows]]:
    """table -> the captures that lack rows, for each table from which another program has removed rows.

    If no capture lacks rows, it is recorded that the table is complete, so that it can be written. Raises as
    `find_missing_rows`.
    """
    lost = {}
    for table in tables:
        version = await log_store.read_version(table)
        if version >= 0 and (loss := await log_store.known_loss(table)) is not None:
            missing = await find_missing_rows(store, ledger, generation, table, version, loss.batches)
            if missing:
                lost[table] = missing
            else:
                await accept_removed_rows(log_store, table, version, "ROWS COUNTED")
    return lost


async def find_missing_rows(
    store: Store, ledger: Ledger, generation: int, table: str, version: int, batches: range
) -> list[MissingRows]:
    """The captures that lack rows in a version of a table, sorted by URI; without those that are not in every table yet.

    `batches`: also look for the captures of these, which the table `captures` may have lost. Raises Retryable if a table
    cannot be read, Fatal for a manifest that cannot be read.
    """
    found = await asyncio.to_thread(_count_rows, store, table, version)
    lacking: dict[str, MissingRows] = {}
    for capture_id, uri in (await _read_captures_of_batches(store, table, batches)).items():
        if not found[capture_id]:
            lacking[capture_id] = MissingRows(capture_id=capture_id, uri=uri, expected=None, found=0)
    if table not in _ONE_ROW:
        announced = await asyncio.to_thread(_read_announced_rows, store, table)
        for capture_id, (uri, expected) in announced.items():
            lacking.pop(capture_id, None)
            if found[capture_id] < expected:
                lacking[capture_id] = MissingRows(
                    capture_id=capture_id, uri=uri, expected=expected, found=found[capture_id]
                )
    committed = await _select_committed(ledger, generation, lacking.keys())
    return sorted((lacking[capture_id] for capture_id in committed), key=lambda one: (one.uri, one.capture_id))


def _count_rows(store: Store, name: str, version: int) -> Counter[str]:
    """Rows of each capture."""
    import pyarrow.compute as pc
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    counts: Counter[str] = Counter()
    try:
        table = DeltaTable(
            store.external_location(name), version=version, storage_options=store.current_options() or None
        )
        for batch in table.to_pyarrow_dataset().to_batches(columns=["capture_id"]):
            for counted in pc.value_counts(batch.column(0)).to_pylist():
                counts[counted["values"]] += counted["counts"]
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise Retryable(f"the rows of {name} cannot be counted: {describe_library_error(error)}") from error
    return counts


def _read_announced_rows(store: Store, table: str) -> dict[str, tuple[str, int]]:
    """capture_id -> URI and the rows in a table, by the table `captures`."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    announced = {}
    try:
        captures = DeltaTable(store.external_location("captures"), storage_options=store.current_options() or None)
        for batch in captures.to_pyarrow_dataset().to_batches(columns=["capture_id", "uri", "rows"]):
            for row in batch.to_pylist():
                announced[row["capture_id"]] = (row["uri"], dict(row["rows"] or ()).get(table, 0))
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise Retryable(f"the rows of captures cannot be read: {describe_library_error(error)}") from error
    return announced


async def _read_captures_of_batches(store: Store, table: str, batches: range) -> dict[str, str]:
    """capture_id -> URI, of the captures in stages that have files for a table. They may have no rows there themselves.

    Only of the batches from the last one that replaced all rows.
    """
    captures: dict[str, str] = {}
    for start in range(0, len(batches), _MANIFESTS_AT_ONCE):
        some = batches[start : start + _MANIFESTS_AT_ONCE]
        for manifest in await asyncio.gather(*(read_manifest(store, batch) for batch in some)):
            if manifest is None:
                continue
            if manifest.opens:
                captures = {}
            for stage in manifest.stages:
                if table in stage.adds:
                    captures |= {capture.content_id: capture.uri for capture in stage.captures}
    return captures


async def _select_committed(ledger: Ledger, generation: int, capture_ids: Collection[str]) -> list[str]:
    """The captures whose batch is in every table, according to the ledger."""
    ids, committed = sorted(capture_ids), list[str]()
    for start in range(0, len(ids), _ASKED):
        items = await ledger.get_capture_items(generation, ids[start : start + _ASKED])
        committed += [capture_id for capture_id, item in items.items() if item.state == COMMITTED]
    return committed


def describe_missing(missing: Collection[MissingRows], listed: int = 5) -> str:
    """How many rows of how many captures are missing, with the first captures."""
    rows = sum(one.expected - one.found for one in missing if one.expected is not None)
    unknown = sum(one.expected is None for one in missing)
    named = ", ".join(
        f"{one.uri} ({'all rows' if one.expected is None else f'{one.expected - one.found:,} of {one.expected:,} rows'})"
        for one in list(missing)[:listed]
    )
    least = "at least " * bool(unknown)  # it is not known how many rows the others had
    what = least + counted(rows, "row") if unknown < len(missing) else "all rows"
    return f"{what} of {counted(len(missing), 'capture')}: {named}" + (", ..." if len(missing) > listed else "")
