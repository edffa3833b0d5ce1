"""Sightings: an object was seen to have a content again that the lake already has. The content is not read again.

A sighting is staged and committed like a capture, under an id of its own. So each one is in the table `sightings` once,
and a ledger that is rebuilt from the manifests has it, too. Its row is made from its record alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa

from pcaplake.parser.schemas import TABLES

from .records import SEEN, SIGHTINGS, Capture, compute_capture_id
from .staging.window import Window

VehicleOf = Callable[[str], str | None]
_SECOND = 1000  # ms: a listing has whole seconds, an event has milliseconds


def sighting_of(capture: Capture, number: int = 0) -> Capture:
    """The record of a sighting of this content at its `modified`, which must be known; `number`: of those in this second.

    An event and a listing that say the same have one id in most cases, so that `reconcile` finds it.
    """
    assert capture.modified is not None
    content = f"{capture.etag} {capture.modified // _SECOND} {number}"
    return replace(capture, capture_id=compute_capture_id(capture.uri, content), rows=1, outcome=SEEN)


def is_later(seen: Capture, known: Capture) -> bool:
    """Whether the object got this content again after the lake's capture of it was announced or listed.

    Two events of one object are compared by their sequencers. If one of the two comes from a listing, times that differ by
    less than a second are the same upload. A listing says nothing of a capture whose time is not known.
    """
    if seen.modified is None:
        return False
    if seen.sequencer and known.sequencer:
        return _padded(seen.sequencer) > _padded(known.sequencer)
    if known.modified is None:
        return seen.sequencer is not None and (seen.version_id is None or seen.version_id != known.version_id)
    return seen.modified - known.modified >= _SECOND


def ids_of_listed(listed: Capture) -> tuple[str, str]:
    """The ids of the sightings that show that the lake knows of a listed content: the event may say the next second."""
    assert listed.modified is not None
    later = replace(listed, modified=listed.modified + _SECOND)
    return sighting_of(listed).capture_id, sighting_of(later).capture_id


def _padded(sequencer: str) -> str:
    """S3 compares the shorter one as if it ended with zeros ("Event message structure" in the S3 user guide)."""
    return sequencer.upper().rstrip("0")


def write_sightings(window: Window, sightings: Iterable[Capture], vehicle_of: VehicleOf) -> None:
    """Write the rows of these sightings. `vehicle_of`: the vehicle id for a URI. Raises as the window does. Blocks."""
    schema = TABLES[SIGHTINGS].schema
    for sighting in sightings:
        assert sighting.modified is not None
        at = datetime.fromtimestamp(sighting.modified / 1000, UTC)
        row = {
            "capture_id": sighting.content_id,
            "vehicle_id": vehicle_of(sighting.uri),
            "date": at.date(),
            "uri": sighting.uri,
            "etag": sighting.etag,
            "modified_at": at,
            "sequencer": sighting.sequencer,
        }
        window.begin(sighting)
        window.write(SIGHTINGS, pa.RecordBatch.from_pylist([row], schema))
        window.end(SEEN)
