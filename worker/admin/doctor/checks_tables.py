"""What the logs of the tables say: whole or not, written by all batches they should have, and whether we may write them.

Knows versions, transactions and manifests. Must not know stages' files.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow.parquet as pq

from ..lake.delta.actions import Metadata, raw_lines
from ..lake.delta.arbiter import TablePath
from ..lake.delta.errors import SchemaConflict, TableBlocked
from ..lake.delta.guard import refusal
from ..lake.delta.schema import evolve, to_delta
from ..lake.delta.tail import Checkpoint, Tail, json_versions, log_path, newest_checkpoint, version_path
from ..lake.manifest import manifest_path
from ..lake.stage import partitions_of
from ..lake.store import Store
from .alter import statements, undroppable
from .checks_common import Books, Case, Finding, beats, error, manifests, ok, warning

_RESTORE = "spark.databricks.delta.restore.protocolDowngradeAllowed"


async def versions(case: Case) -> list[Finding]:
    """Is every log there and without gaps?"""
    logs = await case.logs()
    found: list[Finding] = []
    for table, tail in logs.items():
        found += [error(str(tail), "", table=table)] if isinstance(tail, TableBlocked) else []
        found += [] if isinstance(tail, TableBlocked) else await _gaps(case.store, table, tail)
    return found or [ok(f"no gap in {len(logs)} logs")]


async def _gaps(store: Store, table: str, tail: Tail) -> list[Finding]:
    if tail.version < 0:
        return [warning("the table is not there", "it is made at the next start", table=table)]
    numbers = json_versions(await store.list(log_path(table)))
    missing = sorted(set(range(numbers[0], numbers[-1])) - set(numbers)) if numbers else []
    if not missing:
        return []
    what = f"versions {_numbers(missing)} are missing in its log"
    if missing[-1] > tail.base:
        return [error(what, f"restore them in {log_path(table)}: readers stop there", table=table)]
    return [warning(f"{what}, below its checkpoint {tail.base}", "only older versions cannot be read", table=table)]


def _numbers(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:5]))
    return f"{shown}, ... ({len(numbers)})" if len(numbers) > 5 else shown


async def transactions(case: Case) -> list[Finding]:
    """`txn` of every table against the head of the ledger and the manifests."""
    books = await case.books()
    found = [*_of_manifests(books), *_ahead(books), *await _behind(case, books)]
    if found:
        return found
    _, ledger = case.known()
    above = books.last - books.head
    if above > 0:
        lease = await ledger.lease()
        if not (lease.owner and await beats(ledger, lease, case.patience, case.sleep)):
            return [
                warning(
                    f"{above} batches above head {books.head} are not in every table, and nobody commits",
                    "start a worker or a committer, or run `pcaplake ingest`: it begins with them",
                )
            ]
    return [ok(f"head {books.head}, last batch {books.last}")]


def _of_manifests(books: Books) -> Iterator[Finding]:
    lost = "put the manifests back, from a copy or where the bucket keeps versions; nothing is committed until then"
    if books.head >= 0 and books.head not in books.batches:
        yield error(f"head is {books.head}, and {manifest_path(books.head)} is gone", lost)
    numbers = [batch for batch in books.batches if batch >= books.head]
    missing = sorted(set(range(books.head + 1, books.last)) - set(numbers))
    if missing:
        yield error(f"the manifests {_numbers(missing)} are missing, and {books.last} is there", lost)
    if books.marked > books.last:
        yield error(f"batch {books.marked} was marked in the ledger, and the last manifest is {books.last}", lost)


def _ahead(books: Books) -> Iterator[Finding]:
    for table in sorted(books.logs):
        done = books.txn(table)
        if done is not None and done > books.last:
            yield error(
                f"batch {done} is in it, and the last manifest is {books.last}: manifests and perhaps the ledger were "
                "lost, or are an old copy",
                "stop everything on this lake and put the manifests back; a ledger can be rebuilt, they cannot",
                table=table,
            )


async def _behind(case: Case, books: Books) -> list[Finding]:
    """A batch up to head touches the table, and is not in it."""
    done = {table: txn for table in books.logs if (txn := books.txn(table)) is not None}
    lowest = max(books.first, min(done.values(), default=books.head) + 1)
    lacking: dict[str, list[int]] = {}
    async for batch, manifest in manifests(case.store, range(lowest, books.head + 1)):
        for table in () if manifest is None else manifest.written & done.keys():
            if done[table] < batch:
                lacking.setdefault(table, []).append(batch)
    return [
        error(
            f"batches {_numbers(batches)} are not in it, and head is {books.head}: its log was set back, or it was made "
            "anew",
            "stop everything on this lake and restore its log; else ingest the captures of these batches anew, in "
            "another lake or with --mode overwrite",
            table=table,
        )
        for table, batches in sorted(lacking.items())
    ]


async def blocked(case: Case) -> list[Finding]:
    """Tables that we may not write, and what frees each."""
    found: list[Finding] = []
    for table, tail in (await case.logs()).items():
        if not isinstance(tail, TableBlocked) and tail.metadata is not None:
            found += await _blocked(case, table, tail, tail.metadata)
    return found or [ok("every table may be written")]


async def _blocked(case: Case, table: str, tail: Tail, metadata: Metadata) -> list[Finding]:
    wanted = to_delta(case.schemas[table], table)
    reason = refusal(table, tail, None) or _conflict(table, metadata, wanted) or _partitions(case, table, metadata)
    if reason is None:
        return []
    protocol, version = await _protocol(case.store, table, tail)
    location = _location(case, table)
    freeing = statements(location, metadata, protocol, wanted)
    for name in undroppable(protocol):
        freeing.append(f"-- no ALTER TABLE drops {name}")
    if undroppable(protocol) and version:
        freeing.append(
            f"-- what others wrote since is lost by:  SET {_RESTORE} = true;  "
            f"RESTORE TABLE delta.`{location}` TO VERSION AS OF {version - 1};"
        )
    return [error(reason.removeprefix(f"{table}: "), "\n".join(freeing), table=table)]


def _conflict(table: str, metadata: Metadata, wanted: Mapping[str, Any]) -> str | None:
    try:
        evolve(table, metadata.schema, wanted)
    except SchemaConflict as conflict:
        return str(conflict)
    return None


def _partitions(case: Case, table: str, metadata: Metadata) -> str | None:
    if case.identity is None:
        return None
    have, expected = (
        list(metadata.partition_columns),
        list(partitions_of(case.schemas[table], case.identity.partition_columns)),
    )
    return None if have == expected else f"it is partitioned by {have}, the lake by {expected}: partition it as before"


def _location(case: Case, table: str) -> str:
    """As Spark names it."""
    return TablePath.of(case.store.uri, table).uri if case.arbiter is not None else case.store.location(table)


async def _protocol(store: Store, table: str, tail: Tail) -> tuple[Mapping[str, Any], int | None]:
    """The protocol action with its features, and the version it came with; None: it is in the checkpoint."""
    for version in range(tail.version, tail.base, -1):
        found = await store.get(version_path(table, version))
        for line in raw_lines(found[0]) if found is not None else ():
            if "protocol" in line:
                return line["protocol"], version
    checkpoint = newest_checkpoint(table, await store.list(log_path(table)), at_most=tail.base)
    return await _of_checkpoint(store, table, checkpoint) if checkpoint else {}, None


async def _of_checkpoint(store: Store, table: str, checkpoint: Checkpoint) -> Mapping[str, Any]:
    for path in checkpoint.paths(table):
        found = await store.get(path)
        if found is not None:
            file = pq.ParquetFile(io.BytesIO(found[0]))
            column = (await asyncio.to_thread(file.read, ["protocol"], use_threads=False)).column("protocol")
            for value in column.filter(column.is_valid()).to_pylist():
                if value.get("minReaderVersion") is not None:
                    return dict(value)
    return {}
