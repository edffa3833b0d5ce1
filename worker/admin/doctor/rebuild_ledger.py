"""A ledger that was lost, or has lost some of it, from the manifests of the lake.

What is staged and in no manifest yet cannot be known again: its captures are read again when their messages come back,
or by `pcaplake replay`. Everything that is in a table is in a manifest.
"""

from __future__ import annotations

from ..errors import Fatal
from ..lake import identity
from ..lake import lake as lakes
from ..lake.ledger import Ledger
from ..lake.manifest import Manifest
from .checks_common import Case, batches_from, beats, manifests


async def lacks(ledger: Ledger, manifest: Manifest, *, above_head: bool) -> list[str]:
    """Stages of a manifest that the ledger has forgotten: above head the stage itself, below it its captures."""
    if above_head:
        ids = [stage.stage_id for stage in (*manifest.stages, *manifest.returned)]
        known = await ledger.stages(manifest.generation, ids)
        return [one for one in ids if one not in known]
    captures = {one.capture_id: stage.stage_id for stage in manifest.stages for one in stage.captures}
    there = await ledger.captures(manifest.generation, captures)
    return list(dict.fromkeys(stage_id for one, stage_id in captures.items() if one not in there))


async def rebuild(case: Case, *, adopt: bool) -> str:
    """May be done again. `adopt`: the ledger is made the lake's. Fatal while somebody leads, or where it is another's."""
    if case.identity is None:
        raise Fatal("there is no lake.json to rebuild a ledger for")
    lake = case.identity
    ledger = await case.ledger_of(lake, True)
    bound = await ledger.bind(lake.lake_id)
    if bound != lake.lake_id:
        raise Fatal(f"the ledger {ledger.name} belongs to the lake {bound}: name another one")
    lease = await ledger.lease()
    if lease.owner and await beats(ledger, lease, case.patience, case.sleep):
        raise Fatal(f"{lease.owner} is committing: stop everything on this lake before its ledger is rebuilt")
    head, restored = await ledger.head(), 0
    batches = await batches_from(case.store, 0)
    async for _, manifest in manifests(case.store, [one for one in batches if one <= head]):
        if manifest is not None and await lacks(ledger, manifest, above_head=False):
            await ledger.mark(manifest, rebuild=True)
            await ledger.flag(manifest)
            restored += 1
    await lakes.rebuild(case.store, ledger)
    if adopt:
        await identity.adopt(case.store, ledger)
    above = sum(batch > head for batch in batches)
    return f"{restored} batches up to {head} were restored, {above} above it are known; the next committer drives them"
