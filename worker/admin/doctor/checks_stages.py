"""What waits: held stages, old ones, those whose files are gone; and what the manifests know that the ledger does not.

Knows ledger, manifests and ages by the store's clock. Must not know logs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..lake.files import CHECK_AFTER_MS, Files
from ..lake.ledger import StageItem
from ..lake.manifest import Stage
from .checks_common import Case, Finding, NotExamined, Repair, error, manifests, ok, warning
from .rebuild import lacks, rebuild

OLD_MS = 10 * 60_000  # a stage that waits for longer is worth a word
_LOOKED_AT = 1_000  # of the waiting stages, the oldest
_BATCHES = 10  # above head, whose files are looked for


async def held(case: Case) -> list[Finding]:
    """Stages whose rows cannot be written, with the reason."""
    lake, ledger = case.known()
    found = await ledger.held(lake.generation)
    if not found:
        return [ok("no stage is held")]

    async def release() -> str:
        await ledger.release(lake.generation)
        return f"{len(found)} stages wait for the next batch again"

    repair = Repair(what=f"put {len(found)} held stages of {case.store.uri} back on the work list", make=release)
    return [
        error(
            f"stage {stage_id} is held: {why}",
            "mend the table; then --repair, or the next committer that takes over, tries it again",
            repair=repair,
        )
        for stage_id, why in sorted(found.items())
    ]


async def pending(case: Case) -> list[Finding]:
    """Stages that wait for long, and those that wait for files that are not there any more."""
    lake, ledger = case.known()
    waiting = await ledger.pending(lake.generation, _LOOKED_AT)
    aside = await ledger.held(lake.generation)
    items = await ledger.stages(lake.generation, [*waiting, *aside])
    stages = [item.stage for item in items.values() if item.batch is None and item.stage is not None]
    found = [
        *_forgotten(waiting, items),
        *_emptied(items),
        *_old(case, [one for one in stages if one.stage_id not in aside]),
    ]
    files = Files(case.store)
    found += [_incomplete(stage, gone) for stage in stages if (gone := await files.missing(stage.paths))]
    found += await _uncommitted(case, files)
    most = " or more" if len(waiting) == _LOOKED_AT else ""
    return found or [ok(f"{len(waiting)}{most} stages wait, all files are there")]


def _forgotten(waiting: Iterable[str], items: Mapping[str, StageItem]) -> list[Finding]:
    gone = [one for one in waiting if one not in items]
    if not gone:
        return []
    return [
        error(
            f"{len(gone)} stages are on the work list and not in the ledger: {', '.join(gone[:5])}",
            "the ledger has lost items: put back a copy, or rebuild it with --repair when it says what is missing; "
            "captures that were only staged are read again with `pcaplake replay`",
        )
    ]


def _emptied(items: Mapping[str, StageItem]) -> list[Finding]:
    gone = [one for one, item in items.items() if item.batch is None and item.stage is None]
    if not gone:
        return []
    return [
        error(
            f"{len(gone)} stages wait whose objects in _pcaplake/stages are gone: {', '.join(gone[:5])}",
            "somebody else deletes from this lake: put them back (a version of the bucket, a copy); until then they are held",
        )
    ]


def _old(case: Case, stages: Iterable[Stage]) -> list[Finding]:
    if case.store_now is None:
        raise NotExamined("the store did not say its time, see above")
    now = case.store_now
    ages = sorted((now - stage.written_at for stage in stages), reverse=True)
    old = [age for age in ages if age > OLD_MS]
    if not old:
        return []
    what = f"{len(old)} stages wait for more than {OLD_MS // 60_000} minutes, the oldest for {_hours(old[0])}"
    do = "is a committer running, and are tables blocked? `pcaplake status` shows both"
    return [(error if old[0] > CHECK_AFTER_MS else warning)(what, do)]


def _hours(ms: int) -> str:
    return f"{ms / 3_600_000:.1f} h" if ms >= 3_600_000 else f"{ms // 60_000} minutes"


def _incomplete(stage: Stage, gone: list[str]) -> Finding:
    return error(
        f"stage {stage.stage_id} waits, and {len(gone)} of its files are gone: {', '.join(gone[:3])}",
        "put them back before it is committed, or readers fail; one that is older than a day is given back by the "
        f"committer, and read again: {', '.join(capture.uri for capture in stage.captures[:3])}",
    )


async def _uncommitted(case: Case, files: Files) -> list[Finding]:
    """Files of the batches that are next, of tables that have not got them yet."""
    books = await case.books()
    found = []
    async for batch, manifest in manifests(case.store, [one for one in books.batches if one > books.head][:_BATCHES]):
        done = {table: books.txn(table) for table in books.logs}
        paths = [
            f"{table}/{add.path}"
            for stage in (() if manifest is None else manifest.stages)
            for table, adds in stage.adds.items()
            for add in adds
            if (last := done.get(table)) is None or last < batch
        ]
        if gone := await files.missing(paths):
            found.append(
                error(
                    f"batch {batch} waits, and {len(gone)} of its files are gone: {', '.join(gone[:3])}",
                    "put them back before it is committed; the committer makes those of a stage that is older than a day "
                    "anew, from its captures",
                )
            )
    return found


async def memory(case: Case) -> list[Finding]:
    """Does the ledger know what the manifests say: stages above head, captures of the last batches up to it?"""
    books = await case.books()
    _, ledger = case.known()
    forgotten: dict[int, int] = {}
    async for batch, manifest in manifests(case.store, books.batches):
        if manifest is not None and (lost := await lacks(ledger, manifest, above_head=batch > books.head)):
            forgotten[batch] = len(lost)
    if not forgotten:
        return [
            ok(f"it knows all of the batches {books.batches[0]} to {books.last}" if books.batches else "no batch yet")
        ]
    return [
        error(
            f"manifests name {sum(forgotten.values())} stages that the ledger has lost, in {len(forgotten)} batches "
            f"from {min(forgotten)} to {max(forgotten)}: their captures would be read and written again",
            "stop everything on this lake; put the ledger back from a copy, or rebuild it with --repair",
            repair=Repair(
                what=f"rebuild what the ledger of {case.store.uri} has lost from the manifests",
                make=lambda: rebuild(case, adopt=False),
            ),
        )
    ]
