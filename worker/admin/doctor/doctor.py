"""`pcaplake doctor`: every check of a fleet or of one lake, and the repairs that they offer.

Knows which checks there are, in which order, and how what is to be examined is opened. Each check is a function that
changes nothing and returns findings; a check that fails is a finding too. See docs/doctor.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..errors import Fatal, PcaplakeError
from ..fleet_settings import FleetSettings
from ..lake.delta.arbiter import TablePath
from ..lake.delta.dynamodb import DynamoArbiter
from ..lake.dynamo import Dynamo
from ..lake.fleet import Services
from ..lake.identity import LEDGER_FILE, Identity
from ..lake.ledger import Ledger
from ..lake.ledger.dynamodb import DynamoLedger
from ..lake.ledger.sqlite import SqliteLedger
from ..lake.store import Store
from ..source import Sources
from .checks_common import Case, Finding, Level, NotExamined, Repair, error, ok, warning
from .checks_files import files
from .checks_lake import entries, lake_json, ledger, lock_table
from .checks_queue import queue
from .checks_services import captures, clocks, storage, tables_of_dynamodb, unserved
from .checks_stages import held, memory, pending
from .checks_tables import blocked, transactions, versions
from .places import fixed_places

Check = Callable[[Case], Awaitable[Sequence[Finding]]]
CHECKS: Mapping[str, Check] = {  # the first ones open what the others need
    "storage": storage,
    "lake.json": lake_json,
    "ledger": ledger,
    "dynamodb": tables_of_dynamodb,
    "clocks": clocks,
    "lock table": lock_table,
    "entries": entries,
    "versions": versions,
    "transactions": transactions,
    "memory": memory,
    "blocked": blocked,
    "held": held,
    "pending": pending,
    "files": files,
}
_CONSISTENCY = frozenset({"lake.json", "ledger", "versions", "transactions", "memory"})
LOCAL_PATIENCE, FLEET_PATIENCE = 2.0, 6.0  # seconds; several beats of who leads


async def examine(case: Case, begin: Callable[[str], None] = lambda check: None) -> list[Finding]:
    """Every check of one lake; `begin` is told of each."""
    found: list[Finding] = []
    for name, check in CHECKS.items():
        begin(name)
        for finding in await _checked(check, case):
            found.append(replace(finding, check=name, lake=case.store.uri))
            case.doubtful = case.doubtful or (finding.level == "error" and name in _CONSISTENCY)
    return found


async def _checked(check: Check, case: Case) -> Sequence[Finding]:
    try:
        return await check(case)
    except NotExamined as why:
        return [warning(f"not examined: {why}", "mend that first")]
    except Fatal as problem:
        return [error(str(problem), "")]
    except PcaplakeError as problem:
        return [error(f"could not be examined: {problem}", "run it again")]


def repairs(findings: Iterable[Finding]) -> list[Repair]:
    """Each once, in the order of the findings."""
    return list({one.repair.what: one.repair for one in findings if one.repair is not None}.values())


async def repair(wanted: Iterable[Repair], begin: Callable[[str], None] = lambda what: None) -> list[str]:
    """Make them one after the other -> what came of each; one that fails does not stop the others."""
    done = []
    for one in wanted:
        begin(one.what)
        try:
            done.append(await one.make())
        except PcaplakeError as problem:
            done.append(f"failed: {one.what}: {problem}")
    return done


# -- what is opened ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlitePlace:
    """The ledger of a lake of one machine: within a local lake, or in the folder or file `given` (as --ledger).

    Where nothing was given, lake.json says where it is.
    """

    store: Store
    given: Path | None = None
    kind: str = "sqlite"

    def path(self, lake: Identity) -> Path:
        recorded = Path(lake.ledger_name)
        if self.given is not None:
            return self.given if self.given.suffix == ".sqlite" else self.given / recorded.name
        if self.store.local is not None and recorded.name == Path(LEDGER_FILE).name:
            return self.store.local / LEDGER_FILE  # it moves with the lake
        return recorded

    def name(self, lake: Identity) -> str:
        return str(self.path(lake))

    async def open(self, lake: Identity, *, create: bool) -> Ledger:
        if lake.ledger_kind != self.kind and not create:
            raise Fatal(f"the lake's ledger is {lake.ledger_kind} at {lake.ledger_name}, not a SQLite file")
        return await SqliteLedger.open(self.path(lake), create=create)


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamoPlace:
    """The ledger in a table of DynamoDB, whose client is somebody else's."""

    store: Store
    table: Dynamo
    kind: str = "dynamodb"

    def name(self, lake: Identity) -> str:
        return f"{self.table.region}/{self.table.table}"

    async def open(self, lake: Identity, *, create: bool) -> Ledger:
        return DynamoLedger(self.table, self.store, lake_id=lake.lake_id, shards=lake.shards)


def local_case(store: Store, given: Path | None = None, *, adopt: bool = False) -> Case:
    """A lake whose ledger is a SQLite file; closed by the caller."""
    return Case(store=store, place=SqlitePlace(store=store, given=given), adopt=adopt, patience=LOCAL_PATIENCE)


def fleet_case(store: Store, services: Services, *, adopt: bool = False, lease_timeout: float = 10.0) -> Case:
    """A lake of the fleet; closed by the caller, and so are `services`. Fatal for a URI that has two spellings."""
    arbiter = None
    if services.locks is not None:
        TablePath.of(store.uri, "table")
        arbiter = DynamoArbiter(services.locks)
    return Case(
        store=store,
        place=DynamoPlace(store=store, table=services.ledger),
        log_store=services.log_store,
        arbiter=arbiter,
        ledger_table=services.ledger,
        lock_table=services.locks,
        adopt=adopt,
        patience=max(FLEET_PATIENCE, 0.6 * lease_timeout),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is to be examined. `lake`: only this one; `ledger`: where it is, of a lake of one machine (SQLite)."""

    settings: FleetSettings
    lake: str | None = None
    ledger: Path | None = None
    adopt: bool = False

    def lakes(self) -> tuple[str, ...]:
        """WrongSetting when none is named, or the routes cannot be used."""
        return (self.lake,) if self.lake is not None else self.settings.load_routes().lakes

    def store(self, uri: str) -> Store:
        return Store.open(uri, self.settings.storage(uri))


@dataclass(slots=True, kw_only=True)
class Report:
    """`findings`: what is the case now; `offered`: what --repair would change; `done`: what came of it."""

    findings: list[Finding] = field(default_factory=list)
    offered: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)

    def count(self, level: Level) -> int:
        return sum(one.level == level for one in self.findings)

    @property
    def well(self) -> bool:
        return self.count("ok") == len(self.findings)


async def treat(subject: Subject, *, make: bool = False, begin: Callable[[str], None] = lambda what: None) -> Report:
    """Examine everything, lake by lake; `make`: carry out what is offered, and examine again. WrongSetting."""
    report = Report()
    uris = subject.lakes()
    if subject.lake is None:
        begin("settings and queue")
        report.findings += await _around(subject, uris)
    for uri in uris:
        try:
            await _treat(report, subject, uri, make, begin)
        except PcaplakeError as problem:
            report.findings.append(replace(error(str(problem), ""), check="settings", lake=uri))
    return report


async def _treat(report: Report, subject: Subject, uri: str, make: bool, begin: Callable[[str], None]) -> None:
    def say(check: str) -> None:
        begin(f"{uri}: {check}")

    async with opened(subject, uri) as case:
        found = await examine(case, say)
        wanted = repairs(found)
        report.offered += [one.what for one in wanted]
        if make and wanted:
            report.done += await repair(wanted, say)
    if make and wanted:
        async with opened(subject, uri) as case:
            found = await examine(case, say)
    report.findings += found


async def _around(subject: Subject, uris: Sequence[str]) -> list[Finding]:
    """What is not of one lake."""
    settings = subject.settings
    found = [replace(ok(f"{len(uris)} lakes"), check="settings")]
    if all(subject.store(uri).local is not None for uri in uris):
        return found
    if settings.queue is None:
        unset = warning("no queue is set, so it was not examined", "set `queue`, as for `pcaplake run`")
        found.append(replace(unset, check="queue"))
    else:
        found += [replace(one, check="queue") for one in await queue(settings.queue, settings.region)]
    readable = await captures(Sources(settings.storage), fixed_places(settings.load_routes()))
    found += [replace(one, check="captures") for one in readable]
    try:
        async with await Services.open(settings.ledger_table, None, region=settings.region) as services:
            others = await unserved(services.ledger, [subject.store(uri).uri for uri in uris])
    except PcaplakeError as problem:
        others = [error(str(problem), "")]
    return [*found, *(replace(one, check="lakes") for one in others)]


@asynccontextmanager
async def opened(subject: Subject, uri: str) -> AsyncIterator[Case]:
    """One lake of the subject, as its settings say."""
    settings, store = subject.settings, subject.store(uri)
    async with AsyncExitStack() as stack:
        if store.local is not None or subject.ledger is not None:
            case = local_case(store, subject.ledger, adopt=subject.adopt)
        else:
            locks = settings.lock_table if settings.log_store == "dynamodb" else None
            services = await stack.enter_async_context(
                await Services.open(settings.ledger_table, locks, region=settings.region)
            )
            case = fleet_case(store, services, adopt=subject.adopt, lease_timeout=settings.lease_timeout)
        stack.push_async_callback(case.close)
        yield case
