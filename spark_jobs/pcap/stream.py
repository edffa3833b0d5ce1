"""Finds new captures in folders and prefixes, batch by batch. Only the offset records which captures were read.

An offset names the captures of its batch, so a batch is the same however often it is planned, and holds a mark of every capture
that was ever read. So no capture is missed because of an old time or name, and none is read twice. A mark has 16 bytes.
`forgetAfter` drops marks of captures that are this much older than the newest one; captures that appear later with such an
old time are not read.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

from pcaplake.ingest.captures.discovery import NotThere, find_captures
from pcaplake.ingest.captures.reference import ObjectRef, is_remote_uri
from pcaplake.ingest.captures.source import Sources

from .options import PcapOptions

_MARK = struct.Struct(">12sI")  # of a capture: hash, time
_MAGIC = frozenset("*?[")


def list_captures(options: PcapOptions) -> list[ObjectRef]:
    """List all captures. Raises NotThere for a path that matches nothing."""
    if not options.paths:
        raise ValueError("nothing to read: name captures, folders or s3:// prefixes in load(...)")
    refs = asyncio.run(find_captures(options.paths, Sources(options.storage)))
    return [ref for ref in refs if fnmatchcase(ref.uri.rpartition("/")[2], options.name_filter)]


def list_captures_so_far(options: PcapOptions) -> list[ObjectRef]:
    """Like `list_captures`, but a prefix or a pattern may match nothing yet; a folder must exist."""
    refs_by_uri: dict[str, ObjectRef] = {}
    for path in options.paths or ("",):
        try:
            refs = list_captures(replace(options, paths=(path,) if path else ()))
        except NotThere:
            if not is_remote_uri(path) and not _MAGIC & set(path):
                raise
            refs = []
        for ref in refs:
            refs_by_uri.setdefault(ref.uri, ref)
    return list(refs_by_uri.values())


def _event_seconds(ref: ObjectRef) -> int:
    """Whole seconds since 1970, within what a mark can hold."""
    seconds = ref.event_time.timestamp() if ref.event_time is not None else 0.0
    return min(max(int(seconds), 0), 2**32 - 1)


def _capture_mark(ref: ObjectRef) -> bytes:
    """A mark of this content; another content under the same name is another capture."""
    when = "" if ref.event_time is None else ref.event_time.isoformat()
    identity = "\0".join([ref.uri, ref.etag or f"{ref.size} {when}"])
    return _MARK.pack(
        hashlib.blake2b(identity.encode(errors="surrogateescape"), digest_size=12).digest(), _event_seconds(ref)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """`number`: batches so far. `files`: captures of the last batch. `marks`: of all captures read so far, sorted.

    `horizon`: epoch seconds; older captures are not read.
    """

    number: int = 0
    files: tuple[ObjectRef, ...] = ()
    marks: tuple[bytes, ...] = ()
    horizon: int = 0

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Offset:
        """Parse an offset. Raises ValueError for one of another source."""
        if raw.get("pcap") != 1:
            raise ValueError(
                "the checkpoint belongs to another source or a newer pcaplake: start with a new checkpoint"
            )
        marks = base64.b64decode(raw["marks"])
        return cls(
            number=raw["number"],
            files=tuple(_ref_from_json(file) for file in raw["files"]),
            marks=tuple(marks[at : at + _MARK.size] for at in range(0, len(marks), _MARK.size)),
            horizon=raw["horizon"],
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "pcap": 1,
            "number": self.number,
            "files": [_ref_to_json(ref) for ref in self.files],
            "marks": base64.b64encode(b"".join(self.marks)).decode(),
            "horizon": self.horizon,
        }

    def unread_captures(self, refs: Iterable[ObjectRef]) -> list[ObjectRef]:
        """Captures that were not read yet, oldest first."""
        known = set(self.marks)
        fresh = [ref for ref in refs if _event_seconds(ref) >= self.horizon and _capture_mark(ref) not in known]
        return sorted(fresh, key=lambda ref: (_event_seconds(ref), ref.uri))

    def advance_past(self, refs: Sequence[ObjectRef], forget_after: float | None = None) -> Offset:
        """The offset after reading these captures; unchanged if there are none."""
        if not refs:
            return self
        marks = {*self.marks, *map(_capture_mark, refs)}
        horizon = self.horizon
        if forget_after is not None:
            newest = max(_MARK.unpack(mark)[1] for mark in marks)
            horizon = max(horizon, newest - int(forget_after))
            marks = {mark for mark in marks if _MARK.unpack(mark)[1] >= horizon}
        return Offset(number=self.number + 1, files=tuple(refs), marks=tuple(sorted(marks)), horizon=horizon)


def take_within_limits(
    refs: Sequence[ObjectRef], *, max_files: int | None = None, max_bytes: int | None = None
) -> list[ObjectRef]:
    """The first captures within the limits, but at least one."""
    taken, used = list[ObjectRef](), 0
    for ref in refs[:max_files]:
        if max_bytes is not None and taken and used + ref.size > max_bytes:
            break
        taken.append(ref)
        used += ref.size
    return taken


def captures_of_batch(start: Offset, end: Offset) -> Collection[ObjectRef]:
    """The captures of the batch between two offsets. Raises ValueError if they are not one batch apart."""
    if start.number == end.number:
        return ()
    if start.number + 1 != end.number:
        raise ValueError(
            f"the checkpoint has lost offsets between batch {start.number} and {end.number}: restore it or start a new one"
        )
    return end.files


def _ref_to_json(ref: ObjectRef) -> dict[str, Any]:
    when = None if ref.event_time is None else ref.event_time.isoformat()
    return {"uri": ref.uri, "size": ref.size, "etag": ref.etag, "time": when, "explicit": ref.explicit}


def _ref_from_json(raw: Mapping[str, Any]) -> ObjectRef:
    when = None if raw["time"] is None else datetime.fromisoformat(raw["time"]).astimezone(UTC)
    return ObjectRef(uri=raw["uri"], size=raw["size"], explicit=raw["explicit"], etag=raw["etag"], event_time=when)
