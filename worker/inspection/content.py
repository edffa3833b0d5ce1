"""Files whose bytes are hashed while they are read, and standard input as such a file."""

from __future__ import annotations

import hashlib
import io
import os
import select
import threading
from collections.abc import Callable
from typing import Any, Protocol

from blake3 import blake3

_STEP = 1 << 20
_WAIT_SECONDS = 0.2  # between looks at whether the inspection was stopped


class Stopped(Exception):
    """The inspection was stopped from another thread."""


class _Readable(Protocol):
    def readinto(self, out: Any, /) -> int | None: ...


class HashedFile(io.RawIOBase):
    """A file that is read once, from start to end. `progress` gets the number of bytes of each read.

    Raises Stopped after `stop` is set. `size`: bytes so far. `blake3` of the whole content, 16 bytes long, is the eTag of a
    local capture; `sha256` is what capinfos shows.
    """

    def __init__(self, file: _Readable, stop: threading.Event, progress: Callable[[int], None]) -> None:
        super().__init__()
        self.size = 0
        self._file, self._stop, self._progress = file, stop, progress
        self._blake3, self._sha256 = blake3(), hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, out: Any) -> int:
        if self._stop.is_set():
            raise Stopped
        count = self._file.readinto(out) or 0
        part = memoryview(out).cast("B")[:count]
        self._blake3.update(part)
        self._sha256.update(part)
        self.size += count
        self._progress(count)
        return count

    def read_rest(self) -> None:
        """Read to the end, so that size and hashes are those of the whole content."""
        buffer = bytearray(_STEP)
        while self.readinto(buffer):
            pass

    @property
    def hashes(self) -> dict[str, str]:
        return {"blake3": self._blake3.hexdigest(length=16), "sha256": self._sha256.hexdigest()}


class StandardInput:
    """Standard input, read until its end. A stop ends a read that waits for bytes."""

    def __init__(self, descriptor: int, stop: threading.Event) -> None:
        self._descriptor, self._stop = descriptor, stop

    def readinto(self, out: Any) -> int:
        while not select.select([self._descriptor], [], [], _WAIT_SECONDS)[0]:
            if self._stop.is_set():
                raise Stopped
        return os.readv(self._descriptor, [out])
