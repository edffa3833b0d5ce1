"""Parquet files that nobody needs, and files that a table needs and that are gone.

An orphan is a file that no log, no manifest and no stage of the ledger names, and that is older than seven days: no
stage that is still to come may hold it, because one that old is given back and never committed. Everything is read in
the order files, stages, manifests, logs: what moves on meanwhile is seen at its next place.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import timedelta

from ..errors import Retryable
from ..lake.delta.errors import TableBlocked
from ..lake.files import Files
from ..lake.store import Listing
from .checks_common import EVERYTHING, Case, Finding, NotExamined, Repair, batches_from, error, manifests, ok, warning
from .table_files import read

ORPHAN_AFTER_MS = 7 * 86_400_000
_STAGE = re.compile(r"([0-9a-f]{32})-\d+\..*parquet")
_SHOWN = 5
_PRECISION = timedelta(seconds=1)  # a listing may tell more than a HEAD


async def files(case: Case) -> list[Finding]:
    """Orphans, which `--repair` deletes, and live files that are missing, which nobody can."""
    if case.store_now is None:
        raise NotExamined("the store did not say its time, see above")
    case.known()
    old: dict[str, Listing] = {}
    listed: dict[str, set[str]] = {}
    for table in sorted(case.schemas):
        parquet = [meta for meta in await case.store.list(table) if _is_data(meta.path)]
        listed[table] = {meta.path for meta in parquet}
        before = case.store_now - ORPHAN_AFTER_MS
        old[table] = [meta for meta in parquet if meta.last_modified.timestamp() * 1000 < before]
    if case.doubtful:
        old = {table: [] for table in old}
    staged = await _staged(case, [meta.path for metas in old.values() for meta in metas])
    found: list[Finding] = []
    for table, metas in old.items():
        try:
            log = await read(case.store, table, all_names=True)
        except (TableBlocked, Retryable) as problem:
            found.append(warning(f"not examined: {problem}", "mend its log, see above", table=table))
            continue
        found += await _gone(case, table, {f"{table}/{path}" for path in log.live} - listed[table])
        orphans = [meta for meta in metas if meta.path.removeprefix(f"{table}/") not in log.named | staged[table]]
        found += [_orphans(case, table, orphans)] if orphans else []
    if case.doubtful:
        found.append(warning("orphans were not looked for: log, manifests and ledger do not agree", "see above"))
    return found or [ok(f"no orphans, and all files of {len(old)} tables are there")]


def _is_data(path: str) -> bool:
    """Not the log, and nothing in a hidden folder: others keep change data and indexes there."""
    _, *folders, name = path.split("/")
    return name.endswith(".parquet") and not any(part.startswith(("_", ".")) for part in (*folders, name))


async def _gone(case: Case, table: str, unseen: Collection[str]) -> list[Finding]:
    """Files that came after the listing are there."""
    gone = await Files(case.store).missing(sorted(unseen))
    if not gone:
        return []
    return [
        error(
            f"{len(gone)} of its files are gone: {', '.join(gone[:_SHOWN])}",
            "put them back from a copy, or where the bucket keeps versions; readers fail until then",
            table=table,
        )
    ]


async def _staged(case: Case, candidates: Sequence[str]) -> dict[str, set[str]]:
    """table -> files, relative to it, that the ledger or a manifest names; asked only where there are candidates."""
    lake, ledger = case.known()
    found: dict[str, set[str]] = {table: set() for table in case.schemas}
    if not candidates:
        return found
    ids = {match[1] for path in candidates if (match := _STAGE.fullmatch(path.rpartition("/")[2]))}
    for generation in range(lake.generation + 1):
        waiting = await ledger.pending(generation, EVERYTHING)
        aside = await ledger.held(generation)
        items = await ledger.stages(generation, ids.union(waiting, aside))
        for stage_id, item in items.items():
            if item.stage is None and item.batch is None:
                raise NotExamined(f"the object of stage {stage_id} is gone, and nobody knows which files are its")
            for table, adds in (item.stage.adds if item.stage is not None else {}).items():
                found.setdefault(table, set()).update(add.path for add in adds)
    async for _, manifest in manifests(case.store, await batches_from(case.store, 0)):
        for stage in () if manifest is None else manifest.stages:
            for table, adds in stage.adds.items():
                found.setdefault(table, set()).update(add.path for add in adds)
    return found


def _orphans(case: Case, table: str, orphans: Listing) -> Finding:
    size = sum(meta.size for meta in orphans)
    paths = [meta.path for meta in orphans]

    async def delete() -> str:
        kept = 0
        for meta in orphans:
            now = await case.store.head(meta.path)
            if now is not None and now.last_modified - meta.last_modified > _PRECISION:
                kept += 1  # somebody made it anew
            elif now is not None:
                await case.store.delete(meta.path)
        return f"{table}: {len(orphans) - kept} orphan files deleted" + (f", {kept} kept" if kept else "")

    return warning(
        f"{len(orphans)} files of {size} bytes belong to nothing and are older than 7 days: {', '.join(paths[:_SHOWN])}",
        "--repair deletes them; so does VACUUM",
        table=table,
        repair=Repair(what=f"delete {len(orphans)} orphan files of {case.store.uri}: {', '.join(paths)}", make=delete),
    )
