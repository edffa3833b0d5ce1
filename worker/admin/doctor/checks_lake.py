"""Checks whether lake.json, the ledger and the lock table belong together. `rebuild_ledger.py` repairs the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from pcaplake.worker.admin.case import Case, ForeignLedger, NotExamined, list_batches_from
from pcaplake.worker.errors import Fatal, NotAllowed
from pcaplake.worker.lake.delta.errors import TableBlocked
from pcaplake.worker.lake.delta.lock_table import Entry, LockTable, TablePath
from pcaplake.worker.lake.delta.log_state import (
    delta_log_path,
    is_covered_by_checkpoint,
    json_versions,
    version_file_path,
)
from pcaplake.worker.lake.delta.publish import LockTablePublisher
from pcaplake.worker.lake.dynamodb_table import DynamoClient
from pcaplake.worker.lake.identity import LAKE_JSON, LEDGER_FILE, Identity, recorded_uri, restore_generation

from .findings import Finding, Repair, error, ok, warning
from .rebuild_ledger import rebuild_lake_ledger

_SETTLES = 1.0  # seconds for a running commit to finish
_PUT_BACK = "restore the file from a backup, or from the bucket's object versions"


async def check_lake_json(case: Case) -> list[Finding]:
    """Check lake.json. Sets `case.identity` and `case.copy_of`."""
    try:
        lake = await case.read_identity()
    except Fatal as damaged:
        return [error(str(damaged), _PUT_BACK)]
    if lake is None:
        if await list_batches_from(case.store, 0):
            return [error(f"{LAKE_JSON} is missing, but manifests of its batches exist", _PUT_BACK)]
        return [
            warning("the lake does not exist yet", "`pcaplake setup`, the first worker or the first ingest creates it")
        ]
    wrong = list(_find_differences(case, lake))
    return wrong or [ok(f"lake {lake.lake_id}, generation {lake.generation}, {lake.log_store}")]


def _find_differences(case: Case, lake: Identity) -> Iterator[Finding]:
    if lake.log_store != case.log_store:
        yield error(
            f"the lake uses the log store {lake.log_store}, but the settings say {case.log_store}: two kinds of log "
            "stores on one table lose commits",
            "set `log_store` and `lock_table` as they are in the lake",
        )
    here = recorded_uri(case.store)
    if case.copy_of is not None:
        yield error(
            f"this lake is a copy of {case.copy_of}, and the original still exists: both would use the same ledger, and "
            "lose and duplicate each other's rows",
            "use the original, or give the copy its own identity and ledger with --repair --adopt",
            repair=_build_ledger_repair(case, lake) if case.adopt else None,
        )
    elif lake.uri != here:
        yield error(
            f"lake.json says that the lake is at {lake.uri}, but it was opened as {here}: captures and lock table entries "
            "depend on the spelling of the URI",
            "use the URI in lake.json; if the lake was moved, stop all processes that use it and run --repair --adopt",
            repair=_build_ledger_repair(case, lake) if case.adopt else None,
        )


async def check_ledger(case: Case) -> list[Finding]:
    """Check that the ledger is the lake's. Sets `case.ledger` if it is."""
    if case.identity is None:
        raise NotExamined("there is no lake.json")
    lake = case.identity
    if case.copy_of is not None:
        raise NotExamined(f"the ledger belongs to {case.copy_of}")
    try:
        book = await case.open_ledger()
    except ForeignLedger as problem:
        return [error(str(problem), "name the ledger of this lake")]
    except Fatal as problem:
        return [error(str(problem), _advise_ledger_rebuild(case, lake), repair=_build_ledger_repair(case, lake))]
    try:
        rolled_back = [finding async for finding in _check_generation(case, lake)]
    except NotAllowed as why:  # the policy of a worker does not allow reading head
        rolled_back = [
            warning(
                f"not examined: whether {LAKE_JSON} is an older copy: {why}", "run the doctor with the policy doctor"
            )
        ]
    expiry = [finding async for finding in _check_time_to_live(case.ledger_table)]
    return [*(rolled_back or [ok(f"{book.kind} at {book.name}")]), *expiry]


async def _check_generation(case: Case, lake: Identity) -> AsyncIterator[Finding]:
    """Is a later generation in use than lake.json says?"""
    generation = await case.generation_in_use()
    if generation <= lake.generation:
        return

    async def raise_generation() -> str:
        return f"{LAKE_JSON} says generation {(await restore_generation(case.store, generation)).generation}"

    what = f"raise the generation in {LAKE_JSON} of {case.store.uri} from {lake.generation} to {generation}"
    yield error(
        f"{LAKE_JSON} says generation {lake.generation}, but generation {generation} is in use: the file was restored "
        "from an older copy, and every process refuses this lake until that is fixed",
        "stop all processes that use this lake; then restore the newest lake.json or run --repair",
        repair=Repair(what=what, make=raise_generation),
    )


def _is_recorded_place(case: Case, lake: Identity) -> bool:
    """Is the named place that of the lake's ledger? Then that ledger was lost, or restored from a copy."""
    name = case.place.ledger_name(lake)
    if case.place.kind != lake.ledger_kind or name == lake.ledger_name:
        return case.place.kind == lake.ledger_kind
    inside = None if case.store.local is None else case.store.local / LEDGER_FILE
    moved = Path(lake.ledger_name).as_posix().endswith(f"/{LEDGER_FILE}")
    return inside is not None and Path(name) == inside and moved  # together with the lake


def _advise_ledger_rebuild(case: Case, lake: Identity) -> str:
    if _is_recorded_place(case, lake) or case.adopt:
        return "restore the ledger; if it is lost, stop all processes that use this lake and rebuild it with --repair"
    return (
        f"name the ledger of this lake, {lake.ledger_name}; if it was moved or lost, stop all processes that use this lake "
        "and make this ledger the lake's with --repair --adopt"
    )


def _build_ledger_repair(case: Case, lake: Identity) -> Repair | None:
    if not (_is_recorded_place(case, lake) or case.adopt):
        return None
    place = case.place.ledger_name(lake)
    what = f"rebuild the ledger of {case.store.uri} at {place} from the manifests and make it the lake's"
    if case.copy_of is not None:
        what = (
            f"give {case.store.uri}, a copy of {case.copy_of}, its own identity and a ledger rebuilt from its manifests"
        )
    return Repair(what=what, make=lambda: rebuild_lake_ledger(case, adopt=True))


async def _check_time_to_live(table: DynamoClient | None) -> AsyncIterator[Finding]:
    """Check that DynamoDB deletes expired items."""
    if table is None:
        return
    try:
        answer = await table.call_operation("DescribeTimeToLive")
    except Fatal as refusal:
        yield warning(f"cannot tell whether expired items are deleted: {refusal}", "this does no harm")
        return
    described = answer.get("TimeToLiveDescription", {})
    on = described.get("TimeToLiveStatus") in ("ENABLED", "ENABLING")
    if not on or described.get("AttributeName") != "expireTime":
        yield warning(
            f"the DynamoDB table {table.table} does not delete expired items, so it keeps growing",
            "set its time-to-live attribute to expireTime, as `pcaplake setup` does",
        )


async def check_lock_table(case: Case) -> list[Finding]:
    """Check the lock table's key schema, and look for entries with other spellings of the tables' paths."""
    if case.lock_table is None:
        return []
    try:
        await case.lock_table.verify_and_read_clock()
    except Fatal as problem:
        return [error(str(problem), "")]
    findings = [finding async for finding in _check_time_to_live(case.lock_dynamo)]
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
    findings: list[Finding] = []
    for table in sorted(case.schemas):
        try:
            findings += await _check_incomplete_entries(case, case.lock_table, table)
            findings += [finding async for finding in _check_unlocked_versions(case, case.lock_table, table)]
        except TableBlocked as problem:
            findings.append(error(str(problem), "", table=table))
    return findings or [ok("all entries are complete")]


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
    if newest is None or not versions:
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
