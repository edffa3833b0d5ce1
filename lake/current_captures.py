"""Which content each object has now, from the tables `captures` and `sightings`: the view `current_captures` (docs/querying.md).

Of the contents of an object, that one is current which it got last, by the times of its store; of equal times, the one with
the higher sequencer. Captures without a time, of older versions, come before those with one, in the order in which they
were read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from pcaplake.common.errors import Retryable
from pcaplake.common.plain_text import describe_library_error

from .records import SIGHTINGS
from .store.store import Store

_EARLIEST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentContent:
    """The content that an object has now. `outcome`: None if the table `captures` lacks it. `modified_at`: None: not known."""

    capture_id: str
    outcome: str | None
    modified_at: datetime | None


async def find_current(store: Store, uris: Collection[str]) -> dict[str, CurrentContent]:
    """uri -> its current content, of those of which the tables have any. Raises Retryable if they cannot be read."""
    captures, sightings = await asyncio.gather(_read_rows(store, "captures", uris), _read_rows(store, SIGHTINGS, uris))
    outcomes = {row["capture_id"]: row["outcome"] for row in captures}
    newest = dict[str, dict[str, Any]]()
    for row in (*captures, *sightings):
        if row["uri"] not in newest or _order(row) > _order(newest[row["uri"]]):
            newest[row["uri"]] = row
    return {
        uri: CurrentContent(
            capture_id=row["capture_id"], outcome=outcomes.get(row["capture_id"]), modified_at=row.get("modified_at")
        )
        for uri, row in newest.items()
    }


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
        from deltalake.exceptions import DeltaError, TableNotFoundError

        from .table_rows import TableRows

        wanted = pc.field("uri").isin(pa.array(sorted(uris), pa.string()))
        columns = ("uri", "capture_id", "outcome", "modified_at", "sequencer", "ingested_at")
        try:
            rows = TableRows(store, table)
            there = [name for name in columns if name in rows.schema.names]  # a table of an older version lacks some
            return [row for batch in rows.read(there, wanted) for row in batch.to_pylist()]
        except TableNotFoundError:
            if table == SIGHTINGS:  # a lake of an older version
                return []
            raise Retryable(f"the table {table} does not exist") from None
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise Retryable(f"{table}: {describe_library_error(error)}") from error

    return await asyncio.to_thread(read) if uris else []
