"""New captures of folders and prefixes, batch by batch: what has been taken is told by the offset, and by nothing else.

Knows listings and offsets. Must not know how a capture is read.

An offset names the captures of its own batch, so that a batch is the same however often it is planned, and holds a
mark of every capture that was ever taken. So no capture is missed because its time or its name is old, and none comes
twice. A mark is 16 bytes; `forgetAfter` drops those of captures that are so much older than the newest one, and then
what appears with such an old time is not taken any more.
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

from worker.queue.directory import NotThere, find
from worker.source import ObjectRef, Sources, is_remote

from .pcap_options import Options

_MARK = struct.Struct(">12sI")  # of a capture: hash, time
_MAGIC = frozenset("*?[")


def listed(options: Options) -> list[ObjectRef]:
    """All captures that there are now. NotThere for a path that stands for nothing."""
    if not options.paths:
        raise ValueError("nothing to read: name captures, folders or s3:// prefixes in load(...)")
    refs = asyncio.run(find(options.paths, Sources(options.storage)))
    return [ref for ref in refs if fnmatchcase(ref.uri.rpartition("/")[2], options.name_filter)]


def appeared(options: Options) -> list[ObjectRef]:
    """As `listed`; a folder must be there, and a prefix or a pattern may still be empty."""
    found: dict[str, ObjectRef] = {}
    for path in options.paths or ("",):
        try:
            some = listed(_only(options, path))
        except NotThere:
            if not is_remote(path) and not _MAGIC & set(path):
                raise
            some = []
        for ref in some:
            found.setdefault(ref.uri, ref)
    return list(found.values())


def _only(options: Options, path: str) -> Options:
    return replace(options, paths=(path,) if path else ())


def _time(ref: ObjectRef) -> int:
    """Whole seconds since 1970, within what a mark can hold."""
    seconds = ref.event_time.timestamp() if ref.event_time is not None else 0.0
    return min(max(int(seconds), 0), 2**32 - 1)


def _mark(ref: ObjectRef) -> bytes:
    """Of this content of it: another one under the same name is another capture."""
    when = "" if ref.event_time is None else ref.event_time.isoformat()
    said = "\0".join([ref.uri, ref.etag or f"{ref.size} {when}"])
    return _MARK.pack(hashlib.blake2b(said.encode(errors="surrogateescape"), digest_size=12).digest(), _time(ref))


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """`number`: batches so far. `files`: the captures of the last one. `marks`: of all that were taken, sorted.

    `horizon`: seconds since 1970; what is older is not taken.
    """

    number: int = 0
    files: tuple[ObjectRef, ...] = ()
    marks: tuple[bytes, ...] = ()
    horizon: int = 0

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Offset:
        """ValueError for one that is not ours."""
        if raw.get("pcap") != 1:
            raise ValueError("the checkpoint is of another source, or of a newer pcaplake: start with a new one")
        marks = base64.b64decode(raw["marks"])
        return cls(
            number=raw["number"],
            files=tuple(_ref(one) for one in raw["files"]),
            marks=tuple(marks[at : at + _MARK.size] for at in range(0, len(marks), _MARK.size)),
            horizon=raw["horizon"],
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "pcap": 1,
            "number": self.number,
            "files": [_raw(ref) for ref in self.files],
            "marks": base64.b64encode(b"".join(self.marks)).decode(),
            "horizon": self.horizon,
        }

    def new(self, refs: Iterable[ObjectRef]) -> list[ObjectRef]:
        """Those that were not taken yet, oldest first."""
        known = set(self.marks)
        fresh = [ref for ref in refs if _time(ref) >= self.horizon and _mark(ref) not in known]
        return sorted(fresh, key=lambda ref: (_time(ref), ref.uri))

    def after(self, taken: Sequence[ObjectRef], forget_after: float | None = None) -> Offset:
        """The next one, when these have been taken; this very one when there are none."""
        if not taken:
            return self
        marks = {*self.marks, *map(_mark, taken)}
        horizon = self.horizon
        if forget_after is not None:
            newest = max(_MARK.unpack(mark)[1] for mark in marks)
            horizon = max(horizon, newest - int(forget_after))
            marks = {mark for mark in marks if _MARK.unpack(mark)[1] >= horizon}
        return Offset(number=self.number + 1, files=tuple(taken), marks=tuple(sorted(marks)), horizon=horizon)


def limited(
    refs: Sequence[ObjectRef], *, max_files: int | None = None, max_bytes: int | None = None
) -> list[ObjectRef]:
    """The first of them, within the limits, and one at least."""
    taken, used = list[ObjectRef](), 0
    for ref in refs[:max_files]:
        if max_bytes is not None and taken and used + ref.size > max_bytes:
            break
        taken.append(ref)
        used += ref.size
    return taken


def between(start: Offset, end: Offset) -> Collection[ObjectRef]:
    """The captures of the batch that leads from one to the other. ValueError where that is no single batch."""
    if start.number == end.number:
        return ()
    if start.number + 1 != end.number:
        raise ValueError(
            f"the checkpoint has lost offsets between batch {start.number} and {end.number}: restore it, or start anew"
        )
    return end.files


def _raw(ref: ObjectRef) -> dict[str, Any]:
    when = None if ref.event_time is None else ref.event_time.isoformat()
    return {"uri": ref.uri, "size": ref.size, "etag": ref.etag, "time": when, "explicit": ref.explicit}


def _ref(raw: Mapping[str, Any]) -> ObjectRef:
    when = None if raw["time"] is None else datetime.fromisoformat(raw["time"]).astimezone(UTC)
    return ObjectRef(uri=raw["uri"], size=raw["size"], explicit=raw["explicit"], etag=raw["etag"], event_time=when)
