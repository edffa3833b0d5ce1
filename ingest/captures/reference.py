"""References to captures: which file or object, and which version of its content.

A capture is identified by URI and eTag.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pcaplake.lake.identity import local_file_uri
from pcaplake.lake.records import Capture, compute_capture_id

UNKNOWN_SIZE = -1
_EPOCH, _MILLISECOND = datetime.fromtimestamp(0, UTC), timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRef:
    """A possible capture that was named, found or announced. An `explicit` one always gets a row in the table `captures`.

    `uri`: `file://` and the real path, or the URI as the store writes it, never percent-encoded.
    `size`: bytes when it was found, or UNKNOWN_SIZE.
    `etag` (without quotes) and `version_id` select the content; None means the current content.
    `sequencer`: hex digits that order the events of one key; `event_time`: when the object was created, by the event or
    the listing that names it. `modified`, epoch ms, takes its place in messages of pcaplake, which are no such event.
    `owed_to`: URI of the lake that lost the capture's rows after its message had been deleted.
    """

    uri: str
    size: int
    explicit: bool
    etag: str | None = None
    version_id: str | None = None
    sequencer: str | None = None
    event_time: datetime | None = None
    modified: int | None = None
    owed_to: str | None = None

    @property
    def modified_ms(self) -> int | None:
        """When the object got this content, by its store, epoch ms."""
        return self.modified if self.modified is not None or self.event_time is None else epoch_ms(self.event_time)


def capture_from_reference(ref: ObjectRef) -> Capture:
    """The capture of a resolved reference, with its id."""
    etag = ref.etag or ""
    return Capture(
        capture_id=compute_capture_id(ref.uri, etag),
        uri=ref.uri,
        etag=etag,
        size=ref.size,
        version_id=ref.version_id,
        modified=ref.modified_ms,
        sequencer=ref.sequencer,
    )


def reference_from_capture(capture: Capture) -> ObjectRef:
    """A reference to this content of a capture, the inverse of `capture_from_reference`."""
    return ObjectRef(
        uri=capture.uri,
        size=capture.size,
        explicit=True,
        etag=capture.etag,
        version_id=capture.version_id,
        modified=capture.modified,
        sequencer=capture.sequencer,
    )


def epoch_ms(time: datetime) -> int:
    """Milliseconds since 1970, rounded down."""
    return (time - _EPOCH) // _MILLISECOND


def is_remote_uri(text: str) -> bool:
    return "://" in text and not text.startswith("file://")


def local_reference(path: Path, *, explicit: bool) -> ObjectRef:
    """A reference to a local file. Raises OSError if it does not exist."""
    found = path.stat()
    modified = datetime.fromtimestamp(found.st_mtime, UTC)
    return ObjectRef(uri=local_file_uri(path), size=found.st_size, explicit=explicit, event_time=modified)
