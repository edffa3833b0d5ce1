"""Which content each object has now, from the tables `captures` and `sightings`: the view `current_captures` (docs/querying.md).

Of the contents of an object, that one is current which it got last, by the times of its store; of equal times, the one with
the higher sequencer. Captures without a time, of older versions, come before those with one, in the order in which they
were read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import pyarrow as pa

from pcaplake.common.errors import Retryable
from pcaplake.common.plain_text import describe_library_error

from .ledger import seen_at
from .records import SIGHTINGS
from .store.store import Store

_T = TypeVar("_T")
_EARLIEST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A content of an object, with the time at which the object got it last.

    `outcome`: None if the table `captures` lacks it. `modified_at`: None: not known.
    """

    capture_id: str
    outcome: str | None
    modified_at: datetime | None
    sequencer: str | None = None

    @property
    def seen(self) -> str:
        """This time as `ledger.seen_at` writes it."""
        at = self.modified_at
        return seen_at(None if at is None else round(at.timestamp() * 1000), self.sequencer)


async def find_contents(store: Store, uris: Collection[str]) -> dict[str, list[Content]]:
    """uri -> its contents, the current one first, of those of which the tables have any. Raises Retryable as `find_current`."""
    captures, sightings = await asyncio.gather(_read_rows(store, "captures", uris), _read_rows(store, SIGHTINGS, uris))
    outcomes = {row["capture_id"]: row["outcome"] for row in captures}
    newest = dict[tuple[str, str], dict[str, Any]]()
    for row in (*captures, *sightings):
        key = row["uri"], row["capture_id"]
        newest[key] = max(newest.get(key, row), row, key=_order)
    contents = dict[str, list[Content]]()
    for (uri, capture_id), row in sorted(newest.items(), key=lambda item: _order(item[1]), reverse=True):
        content = Content(
            capture_id=capture_id,
            outcome=outcomes.get(capture_id),
            modified_at=row.get("modified_at"),
            sequencer=row.get("sequencer"),
        )
        contents.setdefault(uri, []).append(content)
    return contents


async def find_current(store: Store, uris: Collection[str]) -> dict[str, Content]:
    """uri -> its current content, of those of which the tables have any. Raises Retryable if they cannot be read."""
    return {uri: contents[0] for uri, contents in (await find_contents(store, uris)).items()}


async def find_uris_with_several_contents(store: Store) -> set[str]:
    """All URIs with more than one row in `captures`. Needs memory for the URIs of the whole table. Raises Retryable."""

    def count() -> set[str]:
        import pyarrow.compute as pc

        from .table_rows import TableRows

        uris = [batch["uri"] for batch in TableRows(store, "captures").read(["uri"])]
        counted = pc.value_counts(pa.chunked_array(uris, pa.string()))
        several = counted.filter(pc.greater(counted.field("counts"), 1))
        return set(several.field("values").to_pylist())

    return await _read_in_thread("captures", count)


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    return (
        row.get("modified_at") or _EARLIEST,
        row.get("sequencer") or "",
        row.get("ingested_at") or _EARLIEST,
        row["capture_id"],
    )


async def _read_rows(store: Store, table: str, uris: Collection[str]) -> list[dict[str, Any]]:
    def read() -> list[dict[str, Any]]:
        import pyarrow.compute as pc
        from deltalake.exceptions import TableNotFoundError

        from .table_rows import TableRows

        wanted = pc.field("uri").isin(pa.array(sorted(uris), pa.string()))
        columns = ("uri", "capture_id", "outcome", "modified_at", "sequencer", "ingested_at")
        try:
            rows = TableRows(store, table)
        except TableNotFoundError:
            if table == SIGHTINGS:  # a lake of an older version
                return []
            raise Retryable(f"the table {table} does not exist") from None
        there = [name for name in columns if name in rows.schema.names]  # a table of an older version lacks some
        return [row for batch in rows.read(there, wanted) for row in batch.to_pylist()]

    return await _read_in_thread(table, read) if uris else []


async def _read_in_thread(table: str, read: Callable[[], _T]) -> _T:
    def translating() -> _T:
        from deltalake.exceptions import DeltaError

        try:
            return read()
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise Retryable(f"{table}: {describe_library_error(error)}") from error

    return await asyncio.to_thread(translating)
