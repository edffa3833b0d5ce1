"""Checks of pending stages (held, old, or with missing files), and of ledger items that manifests name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pcaplake.common.plain_text import counted
from pcaplake.lake.commit.losses import is_loss_accepted
from pcaplake.lake.commit.swap_records import read_removed_captures
from pcaplake.lake.ledger import StageItem
from pcaplake.lake.records import Stage
from pcaplake.lake.staging.stage_files import CHECK_AFTER_MS, StageFiles
from pcaplake.worker.admin.case import Case, NotExamined, iterate_manifests

from .accept_loss import build_file_loss_repair, count_lost_rows
from .findings import Finding, Repair, error, ok, warning
from .rebuild_ledger import find_forgotten_stages, rebuild_lake_ledger

OLD_MS = 10 * 60_000  # report a stage that is pending for longer
_LOOKED_AT = 1_000  # the oldest pending stages are examined
_BATCHES = 10  # above head, whose files are checked


async def check_held_stages(case: Case) -> list[Finding]:
    """Find held stages, with the reason."""
    lake, ledger = case.require_identity_and_ledger()
    reasons = await ledger.list_held_stages(lake.generation)
    if not reasons:
        return [ok("no stage is held")]

    async def release_stages() -> str:
        await ledger.release_held_stages(lake.generation)
        return f"{counted(len(reasons), 'stage is', 'stages are')} pending again"

    repair = Repair(
        what=f"make {counted(len(reasons), 'held stage')} of {case.store.uri} pending again", make=release_stages
    )
    return [
        error(
            f"stage {stage_id} is held: {why}",
            "correct the table; then --repair, or the next committer that takes over, tries the stage again",
            repair=repair,
        )
        for stage_id, why in sorted(reasons.items())
    ]


async def check_pending_stages(case: Case) -> list[Finding]:
    """Find stages that have been pending for long, and pending stages with missing files."""
    lake, ledger = case.require_identity_and_ledger()
    waiting = await ledger.list_pending_stages(lake.generation, _LOOKED_AT)
    aside = await ledger.list_held_stages(lake.generation)
    items = await ledger.get_stage_items(lake.generation, [*waiting, *aside])
    stages = [item.stage for item in items.values() if item.batch is None and item.stage is not None]
    findings = [
        *_check_stage_items(waiting, items),
        *_check_stage_ages(case, [stage_waiting for stage_waiting in stages if stage_waiting.stage_id not in aside]),
    ]
    files = StageFiles(case.store)
    for stage in stages:
        if gone := await files.find_missing(stage.file_paths):
            findings += await _check_missing_files(case, stage, gone)
    findings += await _check_uncommitted_files(case, files)
    most = " or more" if len(waiting) == _LOOKED_AT else ""
    return findings or [ok(f"all files of {counted(len(waiting), 'pending stage')}{most} exist")]


def _check_stage_items(waiting: Iterable[str], items: Mapping[str, StageItem]) -> Iterator[Finding]:
    if gone := [stage_id for stage_id in waiting if stage_id not in items]:
        yield error(
            f"{counted(len(gone), 'stage is', 'stages are')} on the work list but not in the ledger: {', '.join(gone[:5])}",
            "the ledger has lost items: restore it from a backup, or rebuild it with --repair if that is offered; "
            "read captures again that were only staged with `pcaplake replay`",
        )
    if gone := [stage_id for stage_id, item in items.items() if item.batch is None and item.stage is None]:
        yield error(
            f"the objects in _pcaplake/stages of {counted(len(gone), 'pending stage')} are missing: {', '.join(gone[:5])}",
            "someone deletes objects of this lake: restore them from object versions or a backup; until then the stages are held",
        )


def _check_stage_ages(case: Case, stages: Iterable[Stage]) -> Iterator[Finding]:
    if case.store_now is None:
        raise NotExamined("the time of the object store is not known, see above")
    ages = [case.store_now - stage.written_at for stage in stages]
    if old := [age for age in ages if age > OLD_MS]:
        oldest = _format_duration(max(old))
        yield (error if max(old) > CHECK_AFTER_MS else warning)(
            f"{counted(len(old), 'stage has', 'stages have')} waited for more than "
            f"{OLD_MS // 60_000} minutes, the oldest for {oldest}",
            "run `pcaplake status`: it shows whether a committer runs and whether tables are blocked",
        )


def _format_duration(ms: int) -> str:
    return f"{ms / 3_600_000:.1f} h" if ms >= 3_600_000 else f"{ms // 60_000} minutes"


async def _check_missing_files(case: Case, stage: Stage, gone: list[str], batch: int | None = None) -> list[Finding]:
    """A finding for each table. `batch`: the batch of the stage, if it is in one."""
    tables: dict[str, list[str]] = {}
    for path in gone:
        tables.setdefault(path.partition("/")[0], []).append(path)
    return [
        _report_missing_files(case, stage, table, paths, batch)
        for table, paths in tables.items()
        if not await is_loss_accepted(case.store, stage.stage_id, table)
    ]


def _report_missing_files(case: Case, stage: Stage, table: str, gone: list[str], batch: int | None) -> Finding:
    uris = ", ".join(capture.uri for capture in stage.captures[:3])
    where = f"stage {stage.stage_id}" if batch is None else f"batch {batch}, stage {stage.stage_id},"
    then = "when the stage is older than a day, the committer "
    then += (
        "reads its captures again, or holds it"
        if batch is None
        else "rebuilds them from its captures, and blocks the table"
    )
    return error(
        f"{where} is not committed yet, but {counted(len(gone), 'file is', 'files are')} missing, with "
        f"{counted(count_lost_rows(stage, table, gone), 'row')}: {', '.join(gone[:3])}",
        f"restore them; {then} if the captures are gone too: {uris}. To give up these rows: --repair --accept-loss {table}",
        table=table,
        repair=build_file_loss_repair(case, stage, table, gone) if case.accept_loss == table else None,
    )


async def _check_uncommitted_files(case: Case, files: StageFiles) -> list[Finding]:
    """Find missing files of the next batches, in tables that lack the batch."""
    batch_state = await case.read_batch_state()
    findings = []
    async for batch, manifest in iterate_manifests(
        case.store, [number for number in batch_state.batches if number > batch_state.head][:_BATCHES]
    ):
        done = {table: batch_state.last_batch_in_table(table) for table in batch_state.logs}
        for stage in () if manifest is None else manifest.stages:
            paths = [
                f"{table}/{add.path}"
                for table, adds in stage.adds.items()
                for add in adds
                if (last := done.get(table)) is None or last < batch
            ]
            if gone := await files.find_missing(paths):
                findings += await _check_missing_files(case, stage, gone, batch)
    return findings


async def check_ledger_contents(case: Case) -> list[Finding]:
    """Does the ledger have the stages of the manifests above head, and the captures of the last ones up to head?"""
    batch_state = await case.read_batch_state()
    _, ledger = case.require_identity_and_ledger()
    forgotten: dict[int, int] = {}
    removed = await read_removed_captures(case.store)
    async for batch, manifest in iterate_manifests(case.store, batch_state.batches):
        if manifest is None:
            continue
        if lost := await find_forgotten_stages(ledger, manifest, above_head=batch > batch_state.head, removed=removed):
            forgotten[batch] = len(lost)
    if not batch_state.batches:
        return [ok("no batch yet")]
    if not forgotten:
        return [ok(f"the ledger has all of batches {batch_state.batches[0]} to {batch_state.last_batch_number}")]
    return [
        error(
            f"manifests name {counted(sum(forgotten.values()), 'stage')} that the ledger has lost, in "
            f"{counted(len(forgotten), 'batch', 'batches')} from {min(forgotten)} to {max(forgotten)}: "
            "their captures would be read and written again",
            "stop all processes that use this lake; restore the ledger from a backup, or rebuild it with --repair",
            repair=Repair(
                what=f"restore the lost items of the ledger of {case.store.uri} from the manifests",
                make=lambda: rebuild_lake_ledger(case, adopt=False),
            ),
        )
    ]
