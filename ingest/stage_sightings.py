"""Stages sightings (lake/sightings.py), and finds those that a run on one machine has to stage."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import replace

from pcaplake.common.errors import PcaplakeError
from pcaplake.ingest.captures.reference import epoch_ms
from pcaplake.ingest.captures.source import Sources, is_readable_again
from pcaplake.lake.current_captures import find_current
from pcaplake.lake.lake import Lake
from pcaplake.lake.records import SIGHTINGS, Capture, Stage
from pcaplake.lake.sightings import VehicleOf, sighting_of, write_sightings
from pcaplake.lake.staging.window import MAX_CAPTURES, Window

log = logging.getLogger(__name__)
_AT_ONCE = MAX_CAPTURES // 2  # a ledger in DynamoDB writes two items for each of them, and one more


async def stage_sightings(lake: Lake, sightings: Collection[Capture], vehicle_of: VehicleOf) -> set[str]:
    """Stage sightings -> the ids of those that this call has staged.

    The others are staged already, or an overwrite has begun meanwhile: it replaces their captures, too. Raises as
    `Lake.stage` and `write_sightings`, and CaptureLeaves if one of their contents is being removed from a fleet's lake.
    """
    generation, done, waiting = lake.generation, set[str](), list(sightings)
    while waiting and lake.generation == generation:
        some, waiting = waiting[:_AT_ONCE], waiting[_AT_ONCE:]
        window = lake.window(tables=(SIGHTINGS,))
        try:
            stage = await asyncio.to_thread(_write_stage, window, some, vehicle_of)
        finally:
            window.abandon()
        staged = await lake.stage(stage)
        done |= {capture.capture_id for capture in staged.staged}
        waiting += staged.retry
    return done


def _write_stage(window: Window, sightings: Collection[Capture], vehicle_of: VehicleOf) -> Stage:
    write_sightings(window, sightings, vehicle_of)
    stage = window.close()
    assert stage is not None
    return stage


async def _is_still_there(sources: Sources, capture: Capture) -> bool:
    try:
        return await is_readable_again(sources, capture)
    except PcaplakeError as error:  # the next run looks again
        log.warning("it is not known whether %s still has the content that was read: %s", capture.uri, error)
        return False


async def see_contents(
    lake: Lake, sources: Sources, seen: Mapping[str, Capture], vehicle_of: VehicleOf
) -> tuple[dict[str, str], int]:
    """Make the contents that a run has seen the current ones -> URI -> the current capture, and how many sightings were staged.

    `seen`: by URI, captures that are in every table, with the times of their objects now. For lakes of one machine: what a
    run sees there is what the object has now, whatever its time says (a restored file has its old time), so the sighting
    gets a time after that of every other content. Each object is looked at once more: another run may have read a newer
    content meanwhile. Raises Retryable and Fatal as the tables and the lake do.
    """
    before = await find_current(lake.store, seen)
    current, waiting = {uri: now.capture_id for uri, now in before.items()}, list[Capture]()
    for uri, capture in seen.items():
        now = before.get(uri)
        if now is None or now.capture_id == capture.capture_id or not await _is_still_there(sources, capture):
            continue
        after = capture.modified or 0
        if now.modified_at is not None:
            after = max(after, epoch_ms(now.modified_at) + 1)
        waiting.append(replace(capture, modified=after, sequencer=None))
        current[uri] = capture.capture_id
    generation, number, seen_before = lake.generation, 0, len(waiting)
    while waiting and lake.generation == generation:
        sightings = [sighting_of(capture, number) for capture in waiting]
        done = await stage_sightings(lake, sightings, vehicle_of)
        waiting = [capture for capture, one in zip(waiting, sightings, strict=True) if one.capture_id not in done]
        number += 1
    return current, seen_before
