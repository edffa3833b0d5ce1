"""Records that an object got a content again that its lake already has (lake/sightings.py)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pcaplake.common.batched import Batched
from pcaplake.ingest.stage_sightings import stage_sightings
from pcaplake.ingest.stager import Request
from pcaplake.lake.lake import Lake
from pcaplake.lake.records import Capture
from pcaplake.lake.sightings import is_later, sighting_of

log = logging.getLogger(__name__)
_Seen = tuple[Capture, str | None]  # a capture at the time at which it was seen again, and its vehicle


class SightingRecorder:
    """Records sightings; those that come at the same time share a stage."""

    def __init__(self) -> None:
        self._batched: dict[Lake, Batched[_Seen, bool]] = {}

    async def record(self, request: Request, known: Capture) -> bool:
        """Stage a sighting if the message of a request is later than the one that `known`, its capture, was read for.

        False if the lake was overwritten meanwhile. Raises as `Lake.stage`. A message that is delivered twice asks for
        nothing: it is not later.
        """
        ref, lake = request.ref, request.lake
        # a message may lack the size and the eTag
        seen = replace(known, version_id=ref.version_id, modified=ref.modified_ms, sequencer=ref.sequencer)
        if not is_later(seen, known):
            return True
        if lake not in self._batched:
            self._batched[lake] = Batched(lambda some: _stage_sightings(lake, some))
        return bool(await self._batched[lake].ask((seen, request.reader.profile.vehicle_id_of(ref.uri))))


async def _stage_sightings(lake: Lake, seen: Sequence[_Seen]) -> Mapping[_Seen, bool]:
    vehicles = {capture.uri: vehicle for capture, vehicle in seen}
    generation, numbers = lake.generation, dict.fromkeys((capture for capture, _ in seen), 0)
    while numbers and lake.generation == generation:
        sightings = {capture: sighting_of(capture, number) for capture, number in numbers.items()}
        items = await lake.find_captures([one.capture_id for one in sightings.values()])
        known = {
            capture: items[one.capture_id].capture for capture, one in sightings.items() if one.capture_id in items
        }
        new = {capture: one for capture, one in sightings.items() if capture not in known}
        done = await stage_sightings(lake, new.values(), vehicles.get)
        for capture, one in new.items():
            if one.capture_id in done:  # if not, another process is faster: compare with what it has seen
                del numbers[capture]
                log.info("content seen again", extra={"uri": capture.uri, "etag": capture.etag})
        for capture, other in known.items():
            if is_later(capture, other):
                numbers[capture] += 1
            else:
                del numbers[capture]
    return dict.fromkeys(seen, lake.generation == generation)
