"""Rebuilds a lost or incomplete ledger from the manifests of the lake.

Manifests have everything that is in the tables. Stages that were in no manifest yet are lost: their captures are read
again when SQS delivers their messages again, or by `pcaplake replay`.
"""

from __future__ import annotations

from collections.abc import Mapping

from pcaplake.common.errors import Fatal
from pcaplake.common.plain_text import counted
from pcaplake.common.runtime import Runtime
from pcaplake.lake import adoption, identity
from pcaplake.lake.commit import rebuild_ledger as from_manifests
from pcaplake.lake.commit.removals import restore_removals
from pcaplake.lake.commit.swap_records import read_removed_captures
from pcaplake.lake.commit.swaps import Swaps
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.ledger import Ledger
from pcaplake.lake.ledger.sqlite_file import LedgerDamaged
from pcaplake.lake.records import Manifest
from pcaplake.worker.admin.case import Case, is_lease_renewed, iterate_manifests, list_batches_from


async def find_forgotten_stages(
    ledger: Ledger, manifest: Manifest, *, above_head: bool, removed: Mapping[str, int]
) -> list[str]:
    """The stages of a manifest that the ledger has lost: above head those without an item, else those that lack captures.

    `removed`: the result of `swap_records.read_removed_captures`; the ledger must lack these captures.
    """
    if above_head:
        ids = [stage.stage_id for stage in (*manifest.stages, *manifest.returned)]
        known = await ledger.get_stage_items(manifest.generation, ids)
        return [stage_id for stage_id in ids if stage_id not in known]
    captures = {
        capture.capture_id: stage.stage_id
        for stage in manifest.stages
        for capture in stage.captures
        if manifest.batch > removed.get(capture.content_id, -1)
    }
    known_captures = await ledger.get_capture_items(manifest.generation, captures)
    return list(
        dict.fromkeys(stage_id for capture_id, stage_id in captures.items() if capture_id not in known_captures)
    )


async def rebuild_lake_ledger(case: Case, *, adopt: bool) -> str:
    """Rebuild the ledger; idempotent. Keeps a damaged file under another name.

    Raises Fatal while a committer leads, or if the ledger belongs to another lake. `adopt`: make the ledger the lake's; a
    copied lake gets an id and a ledger of its own.
    """
    identity_object = await identity.read_identity(case.store)
    if identity_object is None:
        raise Fatal("there is no lake.json to rebuild a ledger for")
    lake = identity_object[0]
    kept = ""
    try:
        ledger = await case.open_named_ledger(lake, True)
    except LedgerDamaged as damaged:
        kept = f"the damaged file is now {damaged.move_aside()}; "
        ledger = await case.open_named_ledger(lake, True)
    if adopt:
        adopted = await adoption.identity_to_adopt(case.store, lake, ledger, case.log_store)
        if adopted.lake_id != lake.lake_id:
            ledger = await case.open_named_ledger(adopted, True)
        lake = adopted
    await identity.bind_ledger(lake, ledger)
    lease = await ledger.read_lease()
    if lease.owner and await is_lease_renewed(ledger, lease, case.lease_wait, case.sleep):
        raise Fatal(f"{lease.owner} is committing: stop all processes that use this lake before you rebuild its ledger")
    head, restored = await ledger.read_head(), 0
    batches, removed = await list_batches_from(case.store, 0), await read_removed_captures(case.store)
    async for _, manifest in iterate_manifests(case.store, [number for number in batches if number <= head]):
        if manifest is not None and await find_forgotten_stages(ledger, manifest, above_head=False, removed=removed):
            await ledger.mark_batch_stages(manifest, rebuild=True)
            await ledger.flag_batch_committed(manifest)
            restored += 1
    await from_manifests.rebuild_from_manifests(case.store, ledger)
    swaps = Swaps(
        store=case.store,
        log_store=LogStore(case.store, lock_table=case.lock_table),
        ledger=ledger,
        generation=lake.generation,
        lake_config=LakeConfig(),
        runtime=Runtime(),
    )
    # before others use the ledger: it must lack captures that have left the lake
    await restore_removals(swaps)
    if adopt:
        await adoption.adopt_ledger(case.store, ledger, lake.lake_id)
    known, head = head, await ledger.read_head()
    restored += head - known
    above = sum(batch > head for batch in batches)
    return (
        f"{kept}restored {counted(restored, 'batch', 'batches')} up to head {head}; the next committer commits "
        f"{counted(above, 'batch', 'batches')} above head"
    )
