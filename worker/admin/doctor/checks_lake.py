"""Do the parts belong together: lake.json, the ledger, the lock table and what is written in it.

Knows who is whose. Must not know batches or files. What is found wrong with the ledger is repaired in `rebuild`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from ..errors import Fatal
from ..lake.delta.arbiter import Arbiter, Entry, TablePath
from ..lake.delta.errors import TableBlocked
from ..lake.delta.publish import Arbitrated
from ..lake.delta.tail import json_versions, last_checkpoint, log_path, version_path
from ..lake.dynamo import Dynamo
from ..lake.identity import LAKE_JSON, LEDGER_FILE, Identity, read_identity
from .checks_common import Case, Finding, NotExamined, Repair, batches_from, error, ok, warning
from .rebuild import rebuild

_SETTLES = 1.0  # seconds that a commit which is under way gets
_PUT_BACK = "put back what was there: a copy, or the version before it where the bucket keeps versions"


async def lake_json(case: Case) -> list[Finding]:
    """Sets `case.identity`."""
    try:
        found = await read_identity(case.store)
    except Fatal as damaged:
        return [error(str(damaged), _PUT_BACK)]
    if found is None:
        if await batches_from(case.store, 0):
            return [error(f"{LAKE_JSON} is gone, and there are manifests of its batches", _PUT_BACK)]
        return [warning("there is no lake yet", "`pcaplake setup`, or the first worker or ingest, makes it")]
    lake = case.identity = found[0]
    wrong = list(_differences(case, lake))
    return wrong or [ok(f"lake {lake.lake_id}, generation {lake.generation}, {lake.log_store}")]


def _differences(case: Case, lake: Identity) -> Sequence[Finding]:
    found = []
    if lake.log_store != case.log_store:
        found.append(
            error(
                f"the lake's log store is {lake.log_store}, what was opened is {case.log_store}: two kinds on one table "
                "lose commits",
                "set `log_store` and `lock_table` as the lake has them",
            )
        )
    spelling = case.store.uri.rstrip("/") if case.store.local is None else None
    if lake.uri != spelling:
        found.append(
            error(
                f"the lake calls itself {lake.uri}, and was opened as {spelling}: captures and lock entries of two "
                "spellings do not know each other",
                "spell it as the lake does; if it was moved, stop everything and run this with --repair --adopt",
                repair=_repair(case, lake) if case.adopt else None,
            )
        )
    return found


async def ledger(case: Case) -> list[Finding]:
    """Sets `case.ledger`, if it is the lake's."""
    if case.identity is None:
        raise NotExamined("there is no lake.json")
    lake = case.identity
    try:
        book = await case.ledger_of(lake, False)
        mine = await book.identity()
    except Fatal as problem:
        return [error(str(problem), _rebuilt(case, lake), repair=_repair(case, lake))]
    if (book.kind, mine) != (lake.ledger_kind, lake.ledger_id):
        what = (
            f"the lake's ledger is {lake.ledger_kind} {lake.ledger_id} at {lake.ledger_name}, what was opened is "
            f"{book.kind} {mine} at {book.name}"
        )
        return [error(what, _rebuilt(case, lake), repair=_repair(case, lake))]
    bound = await book.bind(lake.lake_id)
    if bound != lake.lake_id:
        return [error(f"the ledger {book.name} belongs to the lake {bound}", "name the ledger of this lake")]
    case.ledger = book
    return [ok(f"{book.kind} at {book.name}"), *await _expires(case.ledger_table)]


def _own_place(case: Case, lake: Identity) -> bool:
    """What was named is where the lake's ledger was: so that one is lost, or was put back from a copy."""
    name = case.place.name(lake)
    if case.place.kind != lake.ledger_kind or name == lake.ledger_name:
        return case.place.kind == lake.ledger_kind
    inside = None if case.store.local is None else case.store.local / LEDGER_FILE
    moved = Path(lake.ledger_name).as_posix().endswith(f"/{LEDGER_FILE}")
    return inside is not None and Path(name) == inside and moved  # together with the lake


def _rebuilt(case: Case, lake: Identity) -> str:
    if _own_place(case, lake) or case.adopt:
        return "put the ledger back; if it is lost, stop everything on this lake and rebuild it with --repair"
    return (
        f"name the ledger of this lake, {lake.ledger_name}; if it was moved or is lost, stop everything on this lake and "
        "make this one the lake's with --repair --adopt"
    )


def _repair(case: Case, lake: Identity) -> Repair | None:
    if not (_own_place(case, lake) or case.adopt):
        return None
    return Repair(
        what=f"rebuild the ledger of {case.store.uri} at {case.place.name(lake)} from the manifests and make it the lake's",
        make=lambda: rebuild(case, adopt=True),
    )


async def _expires(table: Dynamo | None) -> list[Finding]:
    """What has expired must go: only DynamoDB deletes it."""
    if table is None:
        return []
    try:
        said = await table.call("DescribeTimeToLive")
    except Fatal as refusal:
        return [warning(f"whether what has expired is deleted cannot be told: {refusal}", "it does no harm")]
    described = said.get("TimeToLiveDescription", {})
    on = described.get("TimeToLiveStatus") in ("ENABLED", "ENABLING")
    if on and described.get("AttributeName") == "expireTime":
        return []
    return [
        warning(
            f"the DynamoDB table {table.table} does not delete what has expired, and grows for ever",
            "set its time-to-live attribute to expireTime; `pcaplake setup` does",
        )
    ]


async def lock_table(case: Case) -> list[Finding]:
    """Its shape, and entries of other spellings."""
    if case.arbiter is None:
        return []
    try:
        await case.arbiter.verify()
    except Fatal as problem:
        return [error(str(problem), "")]
    found = await _expires(case.lock_table)
    for table in sorted(case.schemas):
        mine = TablePath.of(case.store.uri, table)
        others = list(mine.misspelled())
        known = await asyncio.gather(*map(case.arbiter.knows, others))
        found += [
            error(
                f"there are entries of {other}, which is {mine} here: who writes by the other spelling does not see our "
                "locks, nor we theirs",
                f"let all writers use {mine}; when nobody commits by the other, delete its entries",
                table=table,
            )
            for other, there in zip(others, known, strict=True)
            if there
        ]
    return found or [ok("of the right shape, one spelling")]


async def entries(case: Case) -> list[Finding]:
    """Incomplete ones that nobody is working on, and versions that were made without one."""
    if case.arbiter is None:
        return []
    found: list[Finding] = []
    for table in sorted(case.schemas):
        try:
            found += await _incomplete(case, case.arbiter, table)
            found += await _unlocked(case, case.arbiter, table)
        except TableBlocked as problem:
            found.append(error(str(problem), "", table=table))
    return found or [ok("all are complete")]


async def _incomplete(case: Case, arbiter: Arbiter, table: str) -> list[Finding]:
    path = TablePath.of(case.store.uri, table)
    before = await arbiter.incomplete(path)
    if not before:
        return []
    await case.sleep(_SETTLES)
    still = [entry for entry in await arbiter.incomplete(path) if entry in before]
    if not still:
        return []
    repair = Repair(
        what=f"finish the incomplete entries of {path}: {', '.join(str(entry.version) for entry in still)}",
        make=lambda: _finish(case, arbiter, table),
    )
    return [await _left(case, table, entry, repair) for entry in still]


async def _left(case: Case, table: str, entry: Entry, repair: Repair) -> Finding:
    what = f"the entry of version {entry.version} is incomplete"
    do = "--repair finishes it; so do clean-up, and whoever reads the table with Spark's log store if it is the newest"
    last = await last_checkpoint(case.store, table)
    if await case.store.head(version_path(table, entry.version)) is not None:
        return warning(f"{what}, and {entry.file_name} is there", do, table=table, repair=repair)
    if last is not None and last.version >= entry.version:
        return warning(f"{what}, and a checkpoint holds the version", do, table=table, repair=repair)
    if await case.store.head(log_path(table, entry.temp_path)) is None:
        return error(
            f"{what}, and neither {entry.file_name} nor {entry.temp_path} is there: nobody can commit",
            f"restore one of them in {log_path(table)}; if both are lost, delete the item with tablePath {entry.table} "
            f"and fileName {entry.file_name}: that commit never was",
            table=table,
        )
    newest = await case.arbiter.newest(entry.table) if case.arbiter is not None else None
    if newest is not None and newest.version > entry.version:
        return error(
            f"{what}, {entry.file_name} is not there, and version {newest.version} was begun after it",
            f"restore {entry.file_name} in {log_path(table)}; its content is in {entry.temp_path} there",
            table=table,
        )
    return warning(f"{what}: its writer died before {entry.file_name} was made", do, table=table, repair=repair)


async def _finish(case: Case, arbiter: Arbiter, table: str) -> str:
    """As every writer does who meets such an entry."""
    publisher = Arbitrated(case.store, arbiter, sleep=case.sleep, now=case.now)
    newest = await publisher.newest(table)
    settled = await publisher.settle(table)
    left = [entry.version for entry in await arbiter.incomplete(TablePath.of(case.store.uri, table))]
    done = f"{table}: version {newest} and {settled} older entries are complete"
    return f"{done}; still incomplete: {left}" if left else done


async def _unlocked(case: Case, arbiter: Arbiter, table: str) -> list[Finding]:
    """A version above the newest entry, when that one has not expired: somebody does not ask the lock table."""
    versions = json_versions(await case.store.list(log_path(table)))
    newest = await arbiter.newest(TablePath.of(case.store.uri, table))
    if newest is None or not versions:
        return []
    if newest.complete and newest.version > versions[-1]:
        return [
            error(
                f"the lock table says that version {newest.version} was made, and the log ends at {versions[-1]}",
                "restore the N.json that were deleted; if the table was deleted or made anew, delete its items from the "
                "lock table",
                table=table,
            )
        ]
    expired = newest.expires is not None and newest.expires <= case.now()
    if expired or versions[-1] <= newest.version:
        return []
    return [
        warning(
            f"version {versions[-1]} was made without the lock table, whose newest entry is {newest.version}: somebody "
            "writes without it, and Spark loses commits beside such a writer",
            "let every writer of this table use the lock table",
            table=table,
        )
    ]
