"""Checks captures that a batch above head has returned and that were not read again yet: head waits for them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from pcaplake.common.errors import PcaplakeError
from pcaplake.common.plain_text import counted
from pcaplake.ingest.captures.source import is_readable_again
from pcaplake.lake.commit.compose import describe_unreadable_captures
from pcaplake.lake.records import Capture, Manifest
from pcaplake.worker.admin.case import Case, iterate_manifests

from .accept_loss import RETURNED, build_capture_loss_repair
from .findings import Finding, error, ok, warning


async def check_returned_captures(case: Case) -> list[Finding]:
    """Find the captures that head waits for, and those of them that can no longer be read."""
    batch_state = await case.read_batch_state()
    findings: list[Finding] = []
    async for batch, manifest in iterate_manifests(
        case.store, [batch for batch in batch_state.batches if batch > batch_state.head]
    ):
        if manifest is not None and manifest.returned:
            findings += [finding async for finding in _check_owed_captures(case, manifest, batch)]
    return findings or [ok("no batch waits for returned captures")]


async def _check_owed_captures(case: Case, manifest: Manifest, batch: int) -> AsyncIterator[Finding]:
    lake, ledger = case.require_identity_and_ledger()
    if manifest.generation != lake.generation:
        return  # an overwrite replaces their rows
    owed: list[Capture] = []
    for stage in manifest.returned:
        items = await ledger.get_capture_items(manifest.generation, [capture.capture_id for capture in stage.captures])
        owed += [
            capture
            for capture in stage.captures
            if (item := items.get(capture.capture_id)) is None or item.stage_id == stage.stage_id
        ]
    try:
        lost = [capture for capture in owed if not await is_readable_again(case.sources, capture)]
    except PcaplakeError as why:
        yield warning(
            f"batch {batch} waits until {counted(len(owed), 'capture is', 'captures are')} read again; "
            f"whether they can be read is not known: {why}",
            "run the doctor with the permissions and the storage options of a worker",
        )
        return
    if lost:
        yield error(
            f"batch {batch} waits for captures that must be read again, but {describe_unreadable_captures(lost)}",
            "restore each capture with its original content, and run `pcaplake ingest`. To give up these rows: "
            f"--repair --accept-loss {RETURNED}",
            repair=build_capture_loss_repair(case, manifest, lost) if case.accept_loss == RETURNED else None,
        )
    elif owed:
        yield warning(
            f"batch {batch} waits until {counted(len(owed), 'capture is', 'captures are')} read again",
            "a committer announces them to workers; on one machine the next `pcaplake ingest` reads them",
        )
