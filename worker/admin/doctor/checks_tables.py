"""Checks of the tables' logs: gaps, missing batches, and properties with which pcaplake cannot write a table."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pcaplake.common.plain_text import counted
from pcaplake.lake.config import table_partition_columns
from pcaplake.lake.delta.actions import Metadata, Protocol
from pcaplake.lake.delta.errors import SchemaConflict, TableBlocked
from pcaplake.lake.delta.lock_table import TablePath
from pcaplake.lake.delta.log_state import (
    LogState,
    delta_log_path,
    json_versions,
)
from pcaplake.lake.delta.schema import evolve_schema, to_delta_struct
from pcaplake.lake.delta.write_support import READER, WRITER, unsupported_reason
from pcaplake.lake.records import Manifest, manifest_path
from pcaplake.worker.admin.case import BatchState, Case, is_lease_renewed, iterate_manifests

from .accept_loss import build_table_loss_repair
from .checks_checkpoints import check_checkpoints
from .checks_lock_table import has_lock_entries
from .findings import Finding, error, ok, warning
from .unblock_sql import build_unblock_ways, find_last_writable_version, format_ways


async def check_log_versions(case: Case) -> list[Finding]:
    """Does every table have a log without gaps?"""
    logs = await case.get_table_logs()
    had = (await case.read_batch_state()).last_batches if case.ledger is not None else {}
    findings: list[Finding] = []
    for table, tail in logs.items():
        if table in had and isinstance(tail, LogState) and tail.version < 0:
            continue  # dropped: the check `transactions` reports it
        checkpoints = await check_checkpoints(case.store, table)
        findings += checkpoints
        if not isinstance(tail, TableBlocked):
            findings += [finding async for finding in _check_version_gaps(case, table, tail)]
        elif not checkpoints:  # otherwise they say why it cannot be read
            findings.append(error(str(tail), "", table=table))
    return findings or [ok(f"no gap in {counted(len(logs), 'log')}")]


async def _check_version_gaps(case: Case, table: str, tail: LogState) -> AsyncIterator[Finding]:
    store = case.store
    if tail.version < 0:
        if not await has_lock_entries(case, table):  # else the check `lock entries` reports it
            yield warning("the table does not exist", "the next start of a process creates it", table=table)
        return
    numbers = json_versions(await store.list(delta_log_path(table)))
    if missing := sorted(set(range(numbers[0], numbers[-1])) - set(numbers)) if numbers else []:
        what = f"versions {_format_numbers(missing)} are missing in its log"
        if missing[-1] > tail.checkpoint_version:
            yield error(what, f"restore them in {delta_log_path(table)}: readers stop at the gap", table=table)
        else:
            below = f"{what}, below its checkpoint {tail.checkpoint_version}"
            yield warning(below, "only older versions are unreadable", table=table)


def _format_numbers(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:5]))
    return f"{shown}, ... ({len(numbers)})" if len(numbers) > 5 else shown


async def check_transactions(case: Case) -> list[Finding]:
    """Compare `txn` of every table with the ledger's head and the manifests."""
    batch_state = await case.read_batch_state()
    findings = [
        *_check_manifests(batch_state),
        *_check_tables_ahead(batch_state),
        *await _check_tables_behind(case, batch_state),
    ]
    if findings:
        return findings
    _, ledger = case.require_identity_and_ledger()
    above = batch_state.last_batch_number - batch_state.head
    if above > 0:
        lease = await ledger.read_lease()
        if not (lease.owner and await is_lease_renewed(ledger, lease, case.lease_wait, case.sleep)):
            return [
                warning(
                    f"not every table has {counted(above, 'batch', 'batches')} above head {batch_state.head}"
                    ", and no process commits",
                    "start a worker or a committer, or run `pcaplake ingest`, which commits them first",
                )
            ]
    return [ok(f"head {batch_state.head}, last batch {batch_state.last_batch_number}")]


def _check_manifests(batch_state: BatchState) -> Iterator[Finding]:
    lost = "restore the manifests from a backup or from the bucket's object versions; nothing is committed until then"
    if batch_state.head >= 0 and batch_state.head not in batch_state.batches:
        yield error(f"head is {batch_state.head}, but {manifest_path(batch_state.head)} is missing", lost)
    numbers = [batch for batch in batch_state.batches if batch >= batch_state.head]
    missing = sorted(set(range(batch_state.head + 1, batch_state.last_batch_number)) - set(numbers))
    if missing:
        yield error(
            f"the manifests {_format_numbers(missing)} are missing, but {batch_state.last_batch_number} exists", lost
        )
    if batch_state.marked > batch_state.last_batch_number:
        yield error(
            f"the ledger names batch {batch_state.marked}, but the last manifest is {batch_state.last_batch_number}",
            lost,
        )


def _check_tables_ahead(batch_state: BatchState) -> Iterator[Finding]:
    for table in sorted(batch_state.logs):
        done = batch_state.last_batch_in_table(table)
        if done is not None and done > batch_state.last_batch_number:
            yield error(
                f"the table has batch {done}, but the last manifest is {batch_state.last_batch_number}: manifests, "
                "and perhaps the ledger, were lost or restored from an older copy",
                "stop all processes that use this lake and restore the manifests; a ledger can be rebuilt, manifests cannot",
                table=table,
            )


@dataclass(slots=True, kw_only=True)
class _LostBatches:
    """The batches up to head that a table lacks, with the number of their rows and the ids of their captures."""

    batches: list[int] = field(default_factory=list)
    rows: int = 0
    captures: set[str] = field(default_factory=set)

    def add_manifest(self, manifest: Manifest, table: str) -> None:
        if manifest.opens:  # it removed all rows of the batches before
            self.batches, self.rows, self.captures = [], 0, set()
        for stage in manifest.stages:
            if adds := stage.adds.get(table):
                self.rows += sum(add.num_records or 0 for add in adds)
                self.captures |= {capture.capture_id for capture in stage.captures}
        self.batches.append(manifest.batch)


async def _check_tables_behind(case: Case, batch_state: BatchState) -> list[Finding]:
    """Find tables that lack batches up to head. Reads the manifests of all these batches."""
    last, lost = batch_state.last_batches, dict[str, _LostBatches]()
    for table in batch_state.logs:
        if table in last and (done := batch_state.last_batch_in_table(table)) is not None and done < last[table]:
            lost[table] = _LostBatches()
    lowest = min(((batch_state.last_batch_in_table(table) or 0) + 1 for table in lost), default=batch_state.head + 1)
    async for batch, manifest in iterate_manifests(case.store, range(lowest, batch_state.head + 1)):
        if manifest is None:  # its tables are unknown
            continue
        for table in lost:
            touched = manifest.opens or table in manifest.written_tables
            if batch > (batch_state.last_batch_in_table(table) or 0) and batch <= last[table] and touched:
                lost[table].add_manifest(manifest, table)
    return [
        _report_lost_batches(case, table, lost_batches, batch_state) for table, lost_batches in sorted(lost.items())
    ]


def _report_lost_batches(case: Case, table: str, lost: _LostBatches, batch_state: BatchState) -> Finding:
    last, tail = batch_state.last_batches[table], batch_state.logs[table]
    rows = f"{counted(lost.rows, 'row')} of {counted(len(lost.captures), 'capture')}"
    repair = build_table_loss_repair(case, table, last, rows) if case.accept_loss == table else None
    numbers = _format_numbers(lost.batches or [last])
    accept = (
        f"give up the lost rows with --repair --accept-loss {table}; afterwards you can read captures that still exist "
        "again: with `pcaplake-spark replace`, or all captures with `pcaplake ingest --mode overwrite`"
    )
    if isinstance(tail, LogState) and tail.version < 0:
        return error(
            f"the table was dropped, with the batches {numbers} ({rows} when they were committed)",
            "stop all processes that use this lake and restore the table (_delta_log and files) from a backup or from the "
            f"bucket's object versions; or {accept}",
            table=table,
            repair=repair,
        )
    return error(
        f"the table lacks the batches {numbers} ({rows} when they were committed), although head is {batch_state.head}: its log "
        "was restored from an older copy, or the table was dropped and created again, or a checkpoint dropped its txn of "
        "pcaplake",
        "stop all processes that use this lake and restore the table's log; or, if all rows are there, record the last batch "
        f"that the table has with an empty write with txnAppId=pcaplake and txnVersion=BATCH; or {accept}",
        table=table,
        repair=repair,
    )


async def check_blocked_tables(case: Case) -> list[Finding]:
    """Find tables that pcaplake cannot write, with the statements that unblock each."""
    findings: list[Finding] = []
    for table, tail in (await case.get_table_logs()).items():
        if not isinstance(tail, TableBlocked) and tail.metadata is not None:
            findings += await _check_blocked_table(case, table, tail, tail.metadata)
    return findings or [ok("no schema, property or feature of a table keeps pcaplake from writing it")]


async def _check_blocked_table(case: Case, table: str, tail: LogState, metadata: Metadata) -> list[Finding]:
    def find_reason(state: LogState) -> str | None:
        if state.metadata is None:
            return unsupported_reason(table, state, None)
        return find_block_reason(case, table, state, state.metadata)

    if (reason := find_reason(tail)) is None:
        return []
    struct = to_delta_struct(case.schemas[table], table)
    location = case.store.external_location(table)
    if case.lock_table is not None:
        location = TablePath.for_table(case.store.uri, table).uri
    protocol = tail.protocol or Protocol(reader=READER, writer=WRITER)
    last_writable = await find_last_writable_version(case.store, table, find_reason)
    ways = build_unblock_ways(location, metadata, protocol, struct, last_writable)
    return [error(reason.removeprefix(f"{table}: "), format_ways(ways), table=table)]


def find_block_reason(case: Case, table: str, tail: LogState, metadata: Metadata) -> str | None:
    """Why pcaplake cannot write a table; None if it can."""
    if (reason := unsupported_reason(table, tail, None)) is not None or table not in case.schemas:
        return reason
    struct = to_delta_struct(case.schemas[table], table)
    return _find_schema_conflict(table, metadata, struct) or _find_partition_conflict(case, table, metadata)


def _find_schema_conflict(table: str, metadata: Metadata, wanted: Mapping[str, Any]) -> str | None:
    try:
        evolve_schema(table, metadata.schema, wanted)
    except SchemaConflict as conflict:
        return str(conflict)
    return None


def _find_partition_conflict(case: Case, table: str, metadata: Metadata) -> str | None:
    if case.identity is None:
        return None
    have = list(metadata.partition_columns)
    expected = list(table_partition_columns(case.schemas[table], case.identity.partition_columns))
    if have == expected:
        return None
    return f"the table is partitioned by {have}, but the lake by {expected}: restore the partitioning"
