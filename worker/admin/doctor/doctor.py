"""`pcaplake doctor`: runs every check of a fleet or of one lake, and the repairs that the checks offer.

A check is a function that changes nothing and returns findings; a check that fails is a finding too. See docs/doctor.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from pcaplake.common.errors import BucketMissing, Fatal, PcaplakeError
from pcaplake.common.plain_text import counted
from pcaplake.ingest.captures.source import Sources
from pcaplake.lake.identity import LAKE_JSON
from pcaplake.lake.shared_tables import SharedTables
from pcaplake.lake.store.store import Store
from pcaplake.worker.admin.case import Case, NotExamined, list_batches_from
from pcaplake.worker.admin.open_case import Subject, open_case
from pcaplake.worker.config.s3_prefixes import places_in_named_buckets

from .checks_files import check_files
from .checks_kernels import check_kernels
from .checks_lake import check_lake_json, check_ledger
from .checks_lock_table import check_lock_entries, check_lock_table
from .checks_queue import QueueClients, check_queue
from .checks_replaced import check_current_contents, check_signals, check_swapped_rows
from .checks_returned import check_returned_captures
from .checks_rows import check_removed_rows
from .checks_services import (
    check_capture_access,
    check_clocks,
    check_dynamodb_tables,
    check_object_store,
    check_unserved_lakes,
)
from .checks_stages import check_held_stages, check_ledger_contents, check_pending_stages
from .checks_tables import check_blocked_tables, check_log_versions, check_transactions
from .findings import Finding, Level, Repair, error, ok, warning

Check = Callable[[Case], Awaitable[Sequence[Finding]]]
CHECKS: Mapping[str, Check] = {  # the first ones open what the others need
    "storage": check_object_store,
    "lake.json": check_lake_json,
    "ledger": check_ledger,
    "dynamodb": check_dynamodb_tables,
    "clocks": check_clocks,
    "lock table": check_lock_table,
    "lock entries": check_lock_entries,
    "versions": check_log_versions,
    "transactions": check_transactions,
    "ledger contents": check_ledger_contents,
    "rows": check_removed_rows,
    "blocked": check_blocked_tables,
    "held": check_held_stages,
    "returned": check_returned_captures,
    "current": check_current_contents,
    "swapped": check_swapped_rows,
    "signals": check_signals,
    "pending": check_pending_stages,
    "files": check_files,
    "kernels": check_kernels,
}
_CONSISTENCY = frozenset({"lake.json", "ledger", "versions", "transactions", "ledger contents"})
_FINDS_LOSSES = frozenset({"transactions", "rows", "held", "pending"})


async def examine_lake(case: Case, begin: Callable[[str], None] = lambda check: None) -> list[Finding]:
    """Run every check of one lake. Calls `begin` with the name of each."""
    findings: list[Finding] = []
    for name, check in CHECKS.items():
        begin(name)
        for finding in await _run_check(check, case):
            findings.append(replace(finding, check=name, lake=case.store.uri))
            case.doubtful = case.doubtful or (finding.level == "error" and name in _CONSISTENCY)
    return findings


async def _run_check(check: Check, case: Case) -> Sequence[Finding]:
    try:
        return await check(case)
    except NotExamined as why:
        return [replace(warning(f"not examined: {why}", "fix that first"), not_examined=True)]
    except Fatal as problem:
        return [replace(error(str(problem), ""), not_examined=True)]
    except PcaplakeError as problem:
        return [replace(error(f"could not be examined: {problem}", "run the doctor again"), not_examined=True)]


def collect_repairs(findings: Iterable[Finding]) -> list[Repair]:
    """The repairs that the findings offer, without duplicates, in the order of the findings."""
    return list({finding.repair.what: finding.repair for finding in findings if finding.repair is not None}.values())


async def apply_repairs(
    offered_repairs: Iterable[Repair], begin: Callable[[str], None] = lambda what: None
) -> list[str]:
    """Run the repairs one after the other; return the result of each. A failed repair does not stop the others."""
    done = []
    for offered_repair in offered_repairs:
        begin(offered_repair.what)
        try:
            done.append(await offered_repair.make())
        except PcaplakeError as problem:
            done.append(f"failed: {offered_repair.what}: {problem}")
    return done


@dataclass(slots=True, kw_only=True)
class DoctorReport:
    """The result of an examination. `offered`: what --repair would change; `done`: the results of repairs."""

    findings: list[Finding] = field(default_factory=list)
    offered: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)

    def count_findings(self, level: Level) -> int:
        return sum(finding.level == level for finding in self.findings)

    @property
    def healthy(self) -> bool:
        return self.count_findings("ok") == len(self.findings)


async def examine_and_repair(
    subject: Subject, *, make: bool = False, begin: Callable[[str], None] = lambda what: None
) -> DoctorReport:
    """Examine a fleet or a lake. `make`: also carry out the offered repairs, and examine again. Raises WrongSetting."""
    report = DoctorReport()
    uris = subject.find_lake_uris()
    if subject.lake is None:
        begin("settings and queue")
        if missing := await _find_what_setup_creates(subject, uris):
            what = f"the fleet is not set up: {missing} do not exist"
            without = [uri for uri in uris if await _lacks_bucket(subject.open_store(uri))]
            create = f"create the bucket of {' and of '.join(without)}, then " if without else ""
            to_do = f"{create}run `pcaplake setup`, or correct the names, the region or the account"
            return DoctorReport(findings=[replace(error(what, to_do), check="setup")])
        report.findings += await _check_surroundings(subject, uris)
    for uri in uris:
        try:
            if await _lacks_bucket(subject.open_store(uri)):
                what = f"the bucket of {uri} does not exist"
                to_do = "create it, or correct the URI, the region or the endpoint"
                report.findings.append(replace(error(what, to_do), check="storage", lake=uri))
                continue
            await _examine_and_repair_lake(report, subject, uri, make, begin)
        except PcaplakeError as problem:
            report.findings.append(replace(error(str(problem), ""), check="settings", lake=uri))
    return report


async def _examine_and_repair_lake(
    report: DoctorReport, subject: Subject, uri: str, make: bool, begin: Callable[[str], None]
) -> None:
    def report_progress(check: str) -> None:
        begin(f"{uri}: {check}")

    async with open_case(subject, uri) as case:
        findings = await examine_lake(case, report_progress)
        offered_repairs = collect_repairs(findings)
        acceptance = _report_nothing_to_accept(case, findings, offered_repairs)
        report.offered += [offered_repair.what for offered_repair in offered_repairs]
        if make and offered_repairs:
            report.done += await apply_repairs(offered_repairs, report_progress)
    if make and offered_repairs:
        async with open_case(subject, uri) as case:
            findings = await examine_lake(case, report_progress)
    report.findings += findings + acceptance


def _report_nothing_to_accept(case: Case, found: Iterable[Finding], wanted: Iterable[Repair]) -> list[Finding]:
    """A finding if --accept-loss was passed and no repair accepts a loss."""
    if case.accept_loss is None or any(repair.accepts_loss for repair in wanted):
        return []
    finding = ok(f"{case.accept_loss} has lost no rows, so there is nothing to accept")
    if any(other.not_examined and other.check in _FINDS_LOSSES for other in found):
        finding = warning(f"not examined: whether {case.accept_loss} has lost rows", "fix the problems above first")
    return [replace(finding, check="accept loss", table=case.accept_loss, lake=case.store.uri)]


async def _find_what_setup_creates(subject: Subject, uris: Sequence[str]) -> str:
    """Names everything that `pcaplake setup` creates, if none of it exists. Each check would report that in its own words."""
    settings, stores = subject.settings, [subject.open_store(uri) for uri in uris]
    if settings.queue is None or any(store.local is not None for store in stores):
        return ""
    try:
        with closing(QueueClients(region=settings.region)) as clients:
            missing = await clients.find_missing_resources(settings.queue, settings.ledger_table)
        # rows of a lake may remain when queue and ledger are deleted: then the other checks say what to do
        lakes = [await _has_lake(store) for store in stores if not await _lacks_bucket(store)]
        if len(missing) < 2 or any(lakes):
            return ""
    except PcaplakeError:
        return ""
    return ", ".join([*missing, *(f"the lake {store.uri}" for store in stores)])


async def _lacks_bucket(store: Store) -> bool:
    try:
        await store.list_folders()
    except BucketMissing:
        return True
    except PcaplakeError:  # the check of the storage says what is wrong
        return False
    return False


async def _has_lake(store: Store) -> bool:
    return await store.head(LAKE_JSON) is not None or bool(await list_batches_from(store, 0))


async def _check_surroundings(subject: Subject, uris: Sequence[str]) -> list[Finding]:
    """The checks that do not belong to one lake: settings, queue, captures, and lakes without a route."""
    settings = subject.settings
    findings = [replace(ok(counted(len(uris), "lake")), check="settings")]
    if all(subject.open_store(uri).local is not None for uri in uris):
        return findings
    if settings.queue is None:
        unset = warning("no queue is set, so no queue was examined", "set `queue`, as for `pcaplake run`")
        findings.append(replace(unset, check="queue"))
    else:
        findings += [replace(finding, check="queue") for finding in await check_queue(settings.queue, settings.region)]
    readable = await check_capture_access(
        Sources(settings.storage_options_for), places_in_named_buckets(settings.load_routes())
    )
    findings += [replace(finding, check="captures") for finding in readable]
    try:
        async with await SharedTables.open(settings.ledger_table, None, region=settings.region) as shared_tables:
            others = await check_unserved_lakes(shared_tables.ledger, [subject.open_store(uri).uri for uri in uris])
    except PcaplakeError as problem:
        others = [error(str(problem), "")]
    return [*findings, *(replace(finding, check="lakes") for finding in others)]
