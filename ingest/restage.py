"""Stages captures again whose rows a committer lost before they were committed: the `announce` of `ingest` and `backfill`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.common.plain_text import counted
from pcaplake.ingest.captures.objects import Unavailable
from pcaplake.ingest.captures.reference import reference_from_capture
from pcaplake.lake.commit.swap_records import read_removed_captures
from pcaplake.lake.lake import Lake
from pcaplake.lake.ledger import CaptureLeaves, Removals
from pcaplake.lake.records import Capture

from .pipeline import Reader
from .stage_sightings import stage_sightings
from .stager import CaptureStager, Outcome, Request, Result


async def restage_captures(
    stager: CaptureStager,
    lake: Lake,
    reader_of: Callable[[str], Reader | None],
    captures: Sequence[Capture],
    on_result: Callable[[Capture, Result], None],
) -> None:
    """Read captures again and stage them, before the captures that wait. `on_result` is called for each one.

    They are not staged when an overwrite begins meanwhile, because it replaces their rows. Raises Retryable if a capture
    cannot be read: head stays before the batch that returns it, and the next committer asks for it again.
    """
    generation = lake.generation
    failed: dict[str, str] = {}

    def find_vehicle(uri: str) -> str | None:
        reader = reader_of(uri)
        return None if reader is None else reader.profile.vehicle_id_of(uri)

    sightings = await _without_removed(lake, [capture for capture in captures if capture.is_sighting])
    try:
        await stage_sightings(lake, sightings, find_vehicle)
    except CaptureLeaves as leaves:
        raise Retryable(str(leaves)) from leaves
    captures = [capture for capture in captures if not capture.is_sighting]

    async def restage_capture(capture: Capture) -> None:
        reader = reader_of(capture.uri)
        if reader is None:
            failed[capture.uri] = "no route leads from it to this lake"
            return
        request = Request(
            lake=lake,
            reader=reader,
            ref=reference_from_capture(capture),
            first=True,
            wanted=lambda: lake.generation == generation,
        )
        try:
            result = await stager.stage_capture(request)
            if result.why is not None:
                raise result.why
        except Exception as error:
            if is_lake_failure(error):
                raise
            failed[capture.uri] = str(error) or repr(error)
            return
        if result.outcome is not Outcome.STOPPED:
            on_result(capture, result)
        elif request.wanted():
            raise Retryable(f"{capture.uri} must be read again, but the run ends")

    ends = await asyncio.gather(*(restage_capture(capture) for capture in captures), return_exceptions=True)
    for end in ends:
        if end is not None:
            raise end
    if failed:
        raise Retryable(
            f"the lake lost the rows of {counted(len(failed), 'capture')} before they were committed, and cannot read these "
            f"captures again: {'; '.join(f'{uri}: {why}' for uri, why in failed.items())}. Put each back with the "
            "content that it had; the next run reads it. If one is gone for good, `pcaplake doctor` says how to go on "
            "without it"
        )


async def _without_removed(lake: Lake, sightings: Sequence[Capture]) -> Sequence[Capture]:
    """Without those of contents that leave the lake of a fleet or have left it: these go with their contents."""
    if not sightings or not isinstance(lake.ledger, Removals):
        return sightings
    items = await lake.find_captures({one.content_id for one in sightings})
    removed = await read_removed_captures(lake.store)
    gone = removed.keys() - items.keys() | {capture_id for capture_id, item in items.items() if item.leaving}
    return [one for one in sightings if one.content_id not in gone]


def is_lake_failure(error: Exception) -> bool:
    """Is it an error of the lake? All others are errors of one capture, and must not stop the other captures."""
    return isinstance(error, Fatal) or (isinstance(error, Retryable) and not isinstance(error, Unavailable))
