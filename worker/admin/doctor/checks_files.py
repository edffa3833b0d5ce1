"""Checks for orphaned, missing and damaged Parquet files of tables, and for those that readers misread.

An orphan is a file that no log, no manifest and no stage in the ledger names, and that is older than seven days. If a
stage with such a file is staged after this check, the committer finds before a commit that the file is missing. The order
is files, stages, manifests, logs: a file that moves on during the check is found at its next place.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import timedelta

from pcaplake.common.errors import Retryable
from pcaplake.common.plain_text import counted
from pcaplake.common.runtime import Runtime
from pcaplake.lake.commit.swaps import read_unfinished_stages
from pcaplake.lake.corrections import FileCorrector, FileExpectations
from pcaplake.lake.delta.errors import TableBlocked
from pcaplake.lake.delta.live_files import LiveFiles, read_live_files
from pcaplake.lake.delta.log_state import read_log_state
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.signal_tables import list_signal_tables
from pcaplake.lake.staging.stage_files import StageFiles
from pcaplake.lake.store.store import Listing
from pcaplake.worker.admin.case import EVERYTHING, Case, NotExamined, iterate_manifests, list_batches_from

from .checks_tables import find_block_reason
from .findings import Finding, Repair, error, ok, warning

ORPHAN_AFTER_MS = 7 * 86_400_000
_STAGE = re.compile(r"([0-9a-f]{32})-\d+\..*parquet")
_SHOWN = 5
_PRECISION = timedelta(seconds=1)  # a listing may be more precise than a HEAD


async def check_files(case: Case) -> list[Finding]:
    """Find orphans, which `--repair` deletes, and live files that are missing or damaged, for which there is no repair."""
    if case.store_now is None:
        raise NotExamined("the time of the object store is not known, see above")
    case.require_identity_and_ledger()
    old: dict[str, Listing] = {}
    sizes: dict[str, dict[str, int]] = {}
    for table in sorted(case.schemas):
        parquet = [meta for meta in await case.store.list(table) if _is_data_file(meta.path)]
        sizes[table] = {meta.path: meta.size for meta in parquet}
        before = case.store_now - ORPHAN_AFTER_MS
        old[table] = [meta for meta in parquet if meta.last_modified.timestamp() * 1000 < before]
    if case.doubtful:
        old = {table: [] for table in old}
    staged = await _find_staged_files(case, [meta.path for metas in old.values() for meta in metas])
    findings: list[Finding] = []
    for table, metas in old.items():
        try:
            log, misread = await _read_table(case, table, all_names=True)
        except (TableBlocked, Retryable, ValueError) as problem:
            findings.append(warning(f"not examined: {problem}", "repair its log, see above", table=table))
            continue
        findings += misread
        findings += [finding async for finding in _check_live_files(case, log, sizes[table])]
        orphans = [
            meta for meta in metas if meta.path.removeprefix(f"{table}/") not in (log.named or set()) | staged[table]
        ]
        findings += [_report_orphans(case, table, orphans)] if orphans else []
    for table in await list_signal_tables(case.store):
        try:
            findings += (await _read_table(case, table, all_names=False))[1]
        except (TableBlocked, Retryable, ValueError) as problem:
            findings.append(warning(f"not examined: {problem}", "repair its log", table=table))
    if case.doubtful:
        findings.append(
            warning(
                "did not look for orphaned files, because log, manifests and ledger contradict each other", "see above"
            )
        )
    return findings or [ok(f"no orphaned files, and all files of {counted(len(old), 'table')} exist")]


async def _read_table(case: Case, table: str, *, all_names: bool) -> tuple[LiveFiles, list[Finding]]:
    """The live files of a table, and findings about those that readers misread. Raises TableBlocked, Retryable."""
    state = await read_log_state(case.store, table)
    expectations = None
    # the check `blocked` reports what must be done first
    if state.metadata is not None and find_block_reason(case, table, state, state.metadata) is None:
        expectations = FileExpectations.of_table(state.metadata)

    def remember(path: str, values: Mapping[str, str | None], stats: str) -> str | None:
        return None if expectations is None else expectations.describe_misreading(path, values, stats)

    log = await read_live_files(case.store, table, state, all_names=all_names, choose=remember)
    return log, list(_report_misread_files(case, table, log))


def _report_misread_files(case: Case, table: str, log: LiveFiles) -> Iterator[Finding]:
    log_store = LogStore(case.store, lock_table=case.lock_table, runtime=Runtime(now=case.now))

    async def correct_files() -> str:
        done = await FileCorrector(store=case.store, log_store=log_store).correct_table(table)
        return f"{table}: {counted(done, 'file')} corrected"

    repair = Repair(
        what=f"correct what the log of {table} in {case.store.uri} says of {counted(len(log.chosen), 'file')}",
        make=correct_files,
    )
    for misreading, files in Counter(log.chosen.values()).items():
        shown = next(path for path, what in log.chosen.items() if what == misreading)
        yield warning(
            f"{counted(files, 'file')} such as {shown}: {misreading}",
            "--repair corrects the log; no row changes",
            table=table,
            repair=repair,
        )


def _is_data_file(path: str) -> bool:
    """Is it a Parquet file outside of hidden folders, where writers keep the log, change data and indexes?"""
    _, *folders, name = path.split("/")
    return name.endswith(".parquet") and not any(part.startswith(("_", ".")) for part in (*folders, name))


async def _check_live_files(case: Case, log: LiveFiles, sizes: Mapping[str, int]) -> AsyncIterator[Finding]:
    """A finding each if files of a table are missing or have another size. `sizes`: of the listed files; newer ones may exist."""
    live = {f"{log.table}/{path}": file.size for path, file in log.live.items()}
    gone = await StageFiles(case.store).find_missing(sorted(live.keys() - sizes.keys()))
    cut = [
        f"{path} ({sizes[path]:,} of {size:,} bytes)" for path, size in live.items() if sizes.get(path, size) != size
    ]
    advice = "restore them from a backup or from the bucket's object versions; readers fail until then"
    if case.lock_table is None:  # deltalake does not use it
        advice += (
            ". Without a backup, delete what is left of them, take them out of the table with deltalake "
            f"(`DeltaTable('{case.store.uri}/{log.table}').repair()`), and read the captures that the doctor then names again "
            "(`pcaplake ingest --reread FILES`)"
        )
    for files, what in ((gone, "missing"), (cut, "damaged")):
        if files:
            number = counted(len(files), "live file is", "live files are")
            yield error(f"{number} {what}: {', '.join(files[:_SHOWN])}", advice, table=log.table)


async def _find_staged_files(case: Case, candidates: Sequence[str]) -> dict[str, set[str]]:
    """table -> files, relative to it, that the ledger or a manifest names; all empty without candidates.

    Other generations than those of lake.json and the manifests belong to interrupted overwrites, or to one that runs: it
    may not begin with files as old as the candidates (`overwrite.LONGEST_MS`).
    """
    lake, ledger = case.require_identity_and_ledger()
    files_by_table: dict[str, set[str]] = {table: set() for table in case.schemas}
    if not candidates:
        return files_by_table
    ids = {match[1] for path in candidates if (match := _STAGE.fullmatch(path.rpartition("/")[2]))}
    batches = await list_batches_from(case.store, 0)
    named = {
        manifest_read.generation
        async for _, manifest_read in iterate_manifests(case.store, batches)
        if manifest_read is not None
    }
    for generation in sorted({lake.generation, *named}):
        waiting = await ledger.list_pending_stages(generation, EVERYTHING)
        aside = await ledger.list_held_stages(generation)
        items = await ledger.get_stage_items(generation, ids.union(waiting, aside))
        for stage_id, item in items.items():
            if item.stage is None and item.batch is None:
                raise NotExamined(f"the object of stage {stage_id} is gone, so its files are not known")
            for table, adds in (item.stage.adds if item.stage is not None else {}).items():
                files_by_table.setdefault(table, set()).update(add.path for add in adds)
    async for _, manifest in iterate_manifests(case.store, await list_batches_from(case.store, 0)):
        for stage in () if manifest is None else manifest.stages:
            for table, adds in stage.adds.items():
                files_by_table.setdefault(table, set()).update(add.path for add in adds)
    for stage in await read_unfinished_stages(case.store, LogStore(case.store), await case.generation_in_use()):
        for table, adds in stage.adds.items():
            files_by_table.setdefault(table, set()).update(add.path for add in adds)
    return files_by_table


def _report_orphans(case: Case, table: str, orphans: Listing) -> Finding:
    size = sum(meta.size for meta in orphans)
    paths = [meta.path for meta in orphans]

    async def delete_orphans() -> str:
        kept = 0
        for meta in orphans:
            now = await case.store.head(meta.path)
            if now is not None and now.last_modified - meta.last_modified > _PRECISION:
                kept += 1  # it was created again since
            elif now is not None:
                await case.store.delete(meta.path)
        return f"{table}: {counted(len(orphans) - kept, 'orphaned file')} deleted" + (f", {kept} kept" if kept else "")

    return warning(
        f"{counted(len(orphans), 'orphaned file')} older than 7 days with {counted(size, 'byte')}: {', '.join(paths[:_SHOWN])}",
        "--repair deletes them; so does VACUUM",
        table=table,
        repair=Repair(
            what=f"delete {counted(len(orphans), 'orphaned file')} of {case.store.uri}: {', '.join(paths)}",
            make=delete_orphans,
        ),
    )
