"""Checks what other programs did to the rows of the tables: RESTORE, overwrite, TRUNCATE, DELETE, UPDATE, MERGE."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pcaplake.common.errors import Retryable
from pcaplake.common.plain_text import counted
from pcaplake.lake.commit.history import APP_ID
from pcaplake.lake.delta.foreign_versions import ForeignVersion, Judgement, judge, list_foreign_versions
from pcaplake.lake.delta.log_state import LogState, delta_log_path, json_versions
from pcaplake.lake.missing_rows import describe_missing, find_missing_rows
from pcaplake.worker.admin.case import Case

from .accept_loss import build_complete_table_repair, build_removed_rows_repair
from .findings import Finding, error, ok, warning

_LISTED = 20  # versions of a table


async def check_removed_rows(case: Case) -> list[Finding]:
    """Find tables from which other programs removed rows, and list what they changed."""
    case.require_identity_and_ledger()
    findings: list[Finding] = []
    for table, log in (await case.get_table_logs()).items():
        if isinstance(log, LogState) and APP_ID in log.txns:
            judgement = await judge(case.store, table, log)
            versions = json_versions(await case.store.list(delta_log_path(table)))
            foreign = await list_foreign_versions(case.store, table, versions)
            if judgement.losses or judgement.unjudged:
                findings.append(await _count_rows(case, table, judgement, log))
            lost = {loss.cause.version for loss in judgement.losses}
            findings += _list_foreign_versions(table, [one for one in foreign if one.version not in lost])
    if any(finding.level != "ok" for finding in findings):
        return findings
    return [ok("no rows are missing because others restored, truncated or overwrote a table"), *findings]


def _list_foreign_versions(table: str, foreign: list[ForeignVersion]) -> Iterable[Finding]:
    for one in foreign[-_LISTED:]:
        yield replace(ok(f"another program changed rows: {one.describe()}"), table=table)
    if len(foreign) > _LISTED:
        yield replace(ok(f"and {counted(len(foreign) - _LISTED, 'earlier change')} by other programs"), table=table)


async def _count_rows(case: Case, table: str, judgement: Judgement, log: LogState) -> Finding:
    """Compare the rows of each capture with what the lake knows of them."""
    _, ledger = case.require_identity_and_ledger()
    if judgement.losses:
        first = min(loss.batches.start for loss in judgement.losses)
        batches = range(first, max(loss.batches.stop for loss in judgement.losses))
        what = "; ".join(loss.describe() for loss in judgement.losses)
    else:
        batches = range(0)
        what = f"the versions up to {judgement.unjudged} were cleaned away before they were judged"
    generation = await case.generation_in_use()
    try:
        missing = await find_missing_rows(case.store, ledger, generation, table, log.version, batches)
    except Retryable as why:
        unread = error(f"{what}. Which captures lack rows is not known: {why}", "correct that first", table=table)
        return replace(unread, not_examined=True)
    if missing:
        accepted = build_removed_rows_repair(case, table, log.version, missing)
        return error(
            f"{what}. Missing are {describe_missing(missing)}",
            f"undo it with RESTORE to the version before; or read these captures again (`pcaplake ingest --reread FILES`, or "
            f"`pcaplake-spark replace`, then --repair); or give up the rows with --repair --accept-loss {table}",
            table=table,
            repair=accepted if case.accept_loss == table else None,
        )
    complete = build_complete_table_repair(case, table, log.version)
    if judgement.losses:
        return warning(
            f"{what}. No capture lacks rows now, but the table is blocked",
            "--repair records that the rows are complete, and unblocks the table",
            table=table,
            repair=complete,
        )
    return replace(ok(f"{what}; no capture lacks rows"), table=table, repair=complete)
