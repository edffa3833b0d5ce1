"""Checks of the lock table and of its entries, which must agree with the tables' logs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from pcaplake.common.errors import Fatal
from pcaplake.lake.delta.errors import TableBlocked
from pcaplake.lake.delta.lock_table import Entry, LockTable, TablePath
from pcaplake.lake.delta.lock_table_upkeep import delete_entries_of_gone_tables
from pcaplake.lake.delta.log_state import (
    delta_log_path,
    is_covered_by_checkpoint,
    json_versions,
    version_file_path,
)
from pcaplake.lake.delta.publish import LockTablePublisher
from pcaplake.worker.admin.case import Case, list_batches_from

from .checks_lake import check_time_to_live
from .findings import Finding, Repair, error, ok, warning

_SETTLES = 1.0  # seconds for a running commit to finish


async def check_lock_table(case: Case) -> list[Finding]:
    """Check the lock table's key schema, and look for entries with other spellings of the tables' paths."""
    if case.lock_table is None:
        return []
    try:
        await case.lock_table.verify_and_read_clock()
    except Fatal as problem:
        return [error(str(problem), "")]
    findings = [finding async for finding in check_time_to_live(case.lock_dynamo)]
    for table in sorted(case.schemas):
        path = TablePath.for_table(case.store.uri, table)
        others = list(path.other_spellings())
        known = await asyncio.gather(*map(case.lock_table.has_entries_for, others))
        findings += [
            error(
                f"the lock table has entries for {other}, which is {path} in this lake: writers that use different "
                "spellings do not see each other's locks",
                f"make all writers use {path}; when no writer uses the other spelling, delete its entries",
                table=table,
            )
            for other, there in zip(others, known, strict=True)
            if there
        ]
    return findings or [ok("the key schema is right, and every table has one spelling")]


async def check_lock_entries(case: Case) -> list[Finding]:
    """Find incomplete entries that no writer is working on, and versions that were written without an entry."""
    if case.lock_table is None:
        return []
    findings = await _check_gone_tables(case, case.lock_table)
    for table in sorted(case.schemas):
        try:
            findings += await _check_incomplete_entries(case, case.lock_table, table)
            findings += [finding async for finding in _check_unlocked_versions(case, case.lock_table, table)]
        except TableBlocked as problem:
            findings.append(error(str(problem), "", table=table))
    return findings or [ok("all entries are complete")]


async def has_lock_entries(case: Case, table: str) -> bool:
    """Whether the lock table has entries of a table."""
    if case.lock_table is None:
        return False
    return await case.lock_table.has_entries_for(TablePath.for_table(case.store.uri, table).uri)


async def _check_gone_tables(case: Case, lock_table: LockTable) -> list[Finding]:
    """Find tables whose log was deleted while their entries were kept: no process can create them.

    The entries of a table that had rows of this lake are deleted when its loss is accepted, not before.
    """
    gone = [
        table
        for table in sorted(case.schemas)
        if await has_lock_entries(case, table) and not await case.store.list(delta_log_path(table))
    ]
    had = (await case.read_batch_state()).last_batches if gone and case.ledger is not None else {}
    left = [table for table in gone if table not in had]  # the check `transactions` reports the others
    if not left or (await list_batches_from(case.store, 0) and case.ledger is None):
        return []
    names = ", ".join(left)

    async def delete_entries() -> str:
        deleted = await delete_entries_of_gone_tables(case.store, lock_table, kept=had)
        return f"deleted {sum(deleted.values())} lock table entries of {', '.join(sorted(deleted))}"

    return [
        error(
            f"the lock table has entries of tables whose logs are gone, so no process can create these tables: {names}",
            "stop all processes that use this lake; then restore the tables if they were deleted by mistake, or delete the "
            "entries with --repair. The next start of a process creates the tables",
            repair=Repair(what=f"delete the lock table entries of tables that are gone: {names}", make=delete_entries),
        )
    ]


async def _check_incomplete_entries(case: Case, lock_table: LockTable, table: str) -> list[Finding]:
    path = TablePath.for_table(case.store.uri, table)
    before = await lock_table.list_incomplete_entries(path)
    if not before:
        return []
    await case.sleep(_SETTLES)
    incomplete = [entry for entry in await lock_table.list_incomplete_entries(path) if entry in before]
    if not incomplete:
        return []
    repair = Repair(
        what=f"complete the incomplete entries of {path}: {', '.join(str(entry.version) for entry in incomplete)}",
        make=lambda: _complete_entries(case, lock_table, table),
    )
    return [await _report_incomplete_entry(case, table, entry, repair) for entry in incomplete]


async def _report_incomplete_entry(case: Case, table: str, entry: Entry, repair: Repair) -> Finding:
    what = f"the entry of version {entry.version} is incomplete"
    do = "--repair completes it; so does log clean-up and, if it is the newest entry, any reader with Spark's log store"
    if await case.store.head(version_file_path(table, entry.version)) is not None:
        return warning(f"{what}, but {entry.file_name} exists", do, table=table, repair=repair)
    if await is_covered_by_checkpoint(case.store, table, entry.version):
        return warning(f"{what}, but a checkpoint contains the version", do, table=table, repair=repair)
    if await case.store.head(delta_log_path(table, entry.temp_path)) is None:
        return error(
            f"{what}, and neither {entry.file_name} nor {entry.temp_path} exists: no writer can commit",
            f"restore one of them in {delta_log_path(table)}; if both are lost, delete the item with tablePath {entry.table} "
            f"and fileName {entry.file_name}: that commit never happened",
            table=table,
        )
    newest = await case.lock_table.get_newest_entry(entry.table) if case.lock_table is not None else None
    if newest is not None and newest.version > entry.version:
        return error(
            f"{what}, {entry.file_name} does not exist, and version {newest.version} was started after it",
            f"restore {entry.file_name} in {delta_log_path(table)}; its content is in {entry.temp_path} there",
            table=table,
        )
    return warning(f"{what}: its writer died before it created {entry.file_name}", do, table=table, repair=repair)


async def _complete_entries(case: Case, lock_table: LockTable, table: str) -> str:
    """Complete the entries, as every writer does that finds one."""
    publisher = LockTablePublisher(case.store, lock_table, sleep=case.sleep, now=case.now)
    newest = await publisher.find_newest_version(table)
    settled = await publisher.settle_versions(table)
    left = [
        entry.version for entry in await lock_table.list_incomplete_entries(TablePath.for_table(case.store.uri, table))
    ]
    done = f"{table}: version {newest} and {settled} older entries are complete"
    return f"{done}; still incomplete: {left}" if left else done


async def _check_unlocked_versions(case: Case, lock_table: LockTable, table: str) -> AsyncIterator[Finding]:
    """Find a version above the newest entry, if that has not expired: a writer does not use the lock table."""
    versions = json_versions(await case.store.list(delta_log_path(table)))
    newest = await lock_table.get_newest_entry(TablePath.for_table(case.store.uri, table))
    if newest is None or not versions:  # `_check_gone_tables` reports the latter
        return
    if newest.complete and newest.version > versions[-1]:
        yield error(
            f"the lock table says that version {newest.version} exists, but the log ends at {versions[-1]}",
            "restore the deleted N.json files; if the table was deleted or created again, delete its items from the "
            "lock table",
            table=table,
        )
    expired = newest.expires is not None and newest.expires <= case.now()
    if versions[-1] > newest.version and not expired:
        yield warning(
            f"version {versions[-1]} was written without the lock table, whose newest entry is {newest.version}: Spark "
            "loses commits if another writer does not use the lock table",
            "make every writer of this table use the lock table",
            table=table,
        )
