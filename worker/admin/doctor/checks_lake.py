"""Checks whether lake.json and the ledger belong together. `rebuild_ledger.py` repairs the ledger."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from pcaplake.common.errors import Fatal, NotAllowed
from pcaplake.lake.delta.lock_table_upkeep import delete_entries_of_gone_tables
from pcaplake.lake.delta.log_state import delta_log_path
from pcaplake.lake.dynamodb_table import DynamoClient
from pcaplake.lake.identity import LAKE_JSON, LEDGER_FILE, Identity, recorded_uri, restore_generation
from pcaplake.lake.ledger.dynamodb_lakes import find_lakes_at, forget_lake
from pcaplake.worker.admin.case import Case, ForeignLedger, NotExamined, list_batches_from

from .findings import Finding, Repair, error, ok, warning
from .rebuild_ledger import rebuild_lake_ledger

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
        if case.ledger_table is not None and (ids := await find_lakes_at(case.ledger_table, case.store.uri)):
            return [await _report_deleted_lake(case, case.ledger_table, ids)]
        return [
            warning("the lake does not exist yet", "`pcaplake setup`, the first worker or the first ingest creates it")
        ]
    wrong = list(_find_differences(case, lake))
    return wrong or [ok(f"lake {lake.lake_id}, generation {lake.generation}, {lake.log_store}")]


async def _report_deleted_lake(case: Case, table: DynamoClient, lake_ids: Sequence[str]) -> Finding:
    """The lake was here, and its objects were deleted."""
    what = f"the ledger knows the lake {', '.join(lake_ids)} here, and its {LAKE_JSON} is gone"
    restore = "stop all processes that use this lake; then restore its objects from a backup or from the bucket's object versions"
    if left := [table for table in sorted(case.schemas) if await case.store.list(delta_log_path(table))]:
        return error(f"{what}, but {left[0]} and perhaps other tables are there", restore)

    async def forget() -> str:
        deleted = 0
        if case.lock_table is not None:  # first, so that what is cut off here is found again
            deleted = sum((await delete_entries_of_gone_tables(case.store, case.lock_table)).values())
        for lake_id in lake_ids:
            await forget_lake(table, lake_id)
        return (
            f"the next start of a process creates a new lake at {case.store.uri}; deleted {deleted} lock table entries"
        )

    return error(
        f"{what}: its objects were deleted, with all rows",
        f"{restore}; or begin anew without its rows: run --repair --yes, start the fleet, and announce the captures again "
        "with `pcaplake replay`",
        repair=Repair(
            what=f"forget the deleted lake at {case.store.uri}, so that a new one can be created, and delete the lock table "
            "entries of its tables",
            make=forget,
        ),
    )


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
    expiry = [finding async for finding in check_time_to_live(case.ledger_table)]
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
    if lake.log_store != case.log_store:
        return (
            f"examine the lake with the settings of its processes: its ledger is {lake.ledger_kind} {lake.ledger_name}"
        )
    if _is_recorded_place(case, lake) or case.adopt:
        return "restore the ledger; if it is lost, stop all processes that use this lake and rebuild it with --repair"
    return (
        f"name the ledger of this lake, {lake.ledger_name}; if it was moved or lost, stop all processes that use this lake "
        "and make this ledger the lake's with --repair --adopt"
    )


def _build_ledger_repair(case: Case, lake: Identity) -> Repair | None:
    other_store = lake.log_store != case.log_store  # whoever commits with this ledger would lose commits
    if other_store or not (_is_recorded_place(case, lake) or case.adopt):
        return None
    place = case.place.ledger_name(lake)
    what = f"rebuild the ledger of {case.store.uri} at {place} from the manifests and make it the lake's"
    if case.copy_of is not None:
        what = (
            f"give {case.store.uri}, a copy of {case.copy_of}, its own identity and a ledger rebuilt from its manifests"
        )
    return Repair(what=what, make=lambda: rebuild_lake_ledger(case, adopt=True))


async def check_time_to_live(table: DynamoClient | None) -> AsyncIterator[Finding]:
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
