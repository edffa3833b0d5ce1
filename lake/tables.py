"""The tables of a lake: their schemas, how they are created, how large they are, and with what captures were decoded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pcaplake.common.errors import Fatal, Retryable, WrongChoice
from pcaplake.common.plain_text import describe_library_error
from pcaplake.lake.commit.history import find_tables_written_above_head, read_last_batches
from pcaplake.lake.config import table_partition_columns
from pcaplake.lake.delta.errors import TableBlocked
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.store.store import Store
from pcaplake.parser.schemas import TABLES

from .ledger import Ledger

SCHEMAS: Mapping[str, pa.Schema] = {name: spec.schema for name, spec in TABLES.items()}
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCounts:
    """Rows, files, bytes of Parquet and version of one table, from its log."""

    rows: int
    files: int
    bytes: int
    version: int


async def count_table(store: Store, name: str) -> TableCounts | None:
    """The counts of a table; None: there is none. Raises Fatal if it cannot be read."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    def count() -> TableCounts:
        table = DeltaTable(store.external_location(name), storage_options=store.current_options() or None)
        adds = pa.table(table.get_add_actions(flatten=True))
        rows = adds["num_records"]  # other writers may leave it out
        return TableCounts(
            rows=table.to_pyarrow_dataset().count_rows() if rows.null_count else sum(rows.to_pylist()),
            files=adds.num_rows,
            bytes=sum(adds["size_bytes"].to_pylist()),
            version=table.version(),
        )

    try:
        return await asyncio.to_thread(count)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError, pa.ArrowException) as error:
        what = describe_library_error(error)
        raise Fatal(f"table {name} cannot be read, see `pcaplake doctor`: {what}") from error


async def count_tables(store: Store) -> dict[str, TableCounts]:
    """The counts of each table that exists. Raises Fatal if one cannot be read."""
    counts = await asyncio.gather(*(count_table(store, name) for name in TABLES))
    return {name: counted for name, counted in zip(TABLES, counts, strict=True) if counted is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """With what a capture was decoded, and the outcome: from its row in the table `captures`."""

    decoder_version: str
    profile: str | None
    outcome: str


async def read_decodings(store: Store, capture_ids: Collection[str]) -> dict[str, Decoding]:
    """capture_id -> its decoding, of those that the table `captures` has. Raises Retryable if it cannot be read."""

    def read_rows() -> dict[str, Decoding]:
        import pyarrow.compute as pc
        from deltalake.exceptions import DeltaError

        from .table_rows import TableRows

        columns = ["capture_id", "decoder_version", "profile", "outcome"]
        wanted = pc.field("capture_id").isin(pa.array(list(capture_ids), pa.string()))
        try:
            rows = [row for batch in TableRows(store, "captures").read(columns, wanted) for row in batch.to_pylist()]
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise Retryable(f"captures: {describe_library_error(error)}") from error
        return {row.pop("capture_id"): Decoding(**row) for row in rows}

    return await asyncio.to_thread(read_rows) if capture_ids else {}


async def create_tables(
    store: Store, ledger: Ledger, log_store: LogStore, partition_columns: Sequence[str], auto_create: bool
) -> None:
    """Create the missing tables. A table that cannot be read or written is logged and skipped.

    A missing table that had a batch was dropped. It is not created, because an empty table would hide the loss. If a batch
    above head has rows for a missing table, the committer creates it with these rows.
    """
    exists = await asyncio.gather(*(_table_exists(log_store, name) for name in SCHEMAS))
    absent = [name for name, is_there in zip(SCHEMAS, exists, strict=True) if not is_there]
    had = await read_last_batches(store, ledger) if absent else {}
    for name in [name for name in absent if name in had]:
        log.error("table %s was dropped and is not created again; `pcaplake doctor` says what to do", name)
        absent.remove(name)
    if absent:
        waiting = await find_tables_written_above_head(store, ledger)
        absent = [name for name in absent if name not in waiting]
    if absent and not auto_create:
        raise WrongChoice(f"tables are missing: {', '.join(absent)}; create them with --create")
    await asyncio.gather(
        *(
            log_store.create(
                name, SCHEMAS[name], partition_columns=table_partition_columns(SCHEMAS[name], partition_columns)
            )
            for name in absent
        )
    )


async def _table_exists(log_store: LogStore, table: str) -> bool:
    """Whether the table exists. True if its log cannot be read."""
    try:
        exists, why = await log_store.read_version(table) >= 0, log_store.known_block_reason(table)
    except TableBlocked as blocked:
        exists, why = True, str(blocked)
    if why is not None:
        log.error("table %s is blocked; the others are not affected: %s", table, why)
    return exists
