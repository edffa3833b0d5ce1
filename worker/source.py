"""Where captures are read from: local files, and objects of every store that `obstore` opens.

Knows paths and URIs, and how a capture is named (uri and eTag). Must not know what is in a capture, nor the lake.

A capture that changes while it is read is refused: what was read is of no version that ever was.
"""

from __future__ import annotations

import asyncio
import io
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from blake3 import blake3

from .errors import Fatal, Retryable
from .lake.identity import capture_id, local_uri
from .lake.manifest import Capture
from .lake.store import Store

AHEAD = 8 << 20
UNKNOWN_SIZE = -1


class Changed(Exception):
    """It is not what it was when its reading began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRef:
    """A capture that was named, found or notified: `explicit` ones end in the table `captures`, whatever they are.

    `uri`: `file://` and the real path, or the store's own spelling, never percent-encoded.
    `size`: bytes when it was found; UNKNOWN_SIZE where nobody said.
    `etag` without quotes, `version_id`: which content is meant, None where nobody said: then what is there.
    `sequencer`: hex digits that order the events of one key; `event_time`: when the store made the object.
    """

    uri: str
    size: int
    explicit: bool
    etag: str | None = None
    version_id: str | None = None
    sequencer: str | None = None
    event_time: datetime | None = None


class LocalFile(io.RawIOBase):
    """A local capture. OSError as `open`; what is no regular file is refused, because a pipe has no end."""

    def __init__(self, uri: str) -> None:
        super().__init__()
        self.uri = uri
        self._fd = os.open(uri.removeprefix("file://"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._before = os.fstat(self._fd)
        if not stat.S_ISREG(self._before.st_mode):
            self.close()
            raise OSError(f"{uri} is no regular file")

    def named(self) -> Capture:
        """The capture's name: its content is read once for it, in bounded memory."""
        digest, buffer = blake3(), bytearray(1 << 20)
        view = memoryview(buffer)
        os.lseek(self._fd, 0, os.SEEK_SET)
        while count := os.readv(self._fd, [view]):
            digest.update(view[:count])
        os.lseek(self._fd, 0, os.SEEK_SET)
        etag = digest.hexdigest(length=16)
        return Capture(capture_id=capture_id(self.uri, etag), uri=self.uri, etag=etag, size=self._before.st_size)

    def rewind(self) -> None:
        os.lseek(self._fd, 0, os.SEEK_SET)

    def readable(self) -> bool:
        return True

    def readinto(self, out: Any) -> int:
        return os.readv(self._fd, [out])

    def unchanged(self) -> None:
        """Raise Changed when the file was written to or replaced since it was opened."""
        now = os.fstat(self._fd)
        if (now.st_size, now.st_mtime_ns) != (self._before.st_size, self._before.st_mtime_ns):
            raise Changed(f"{self.uri} was written to while it was read: ingest it when it is complete")

    def close(self) -> None:
        if not self.closed:
            os.close(self._fd)
        super().close()


class RemoteFile(io.RawIOBase):
    """A capture in an object store, read by ranges from a thread while `loop` runs in another."""

    def __init__(self, store: Store, key: str, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.uri = f"{store.uri}/{key}"
        self._store, self._key, self._loop = store, key, loop
        self._meta = self._wait(lambda: store.head(key))
        if self._meta is None:
            raise FileNotFoundError(f"{self.uri} is not there (any more)")
        self.rewind()

    def _wait(self, request: Callable[[], Any]) -> Any:
        try:
            return asyncio.run_coroutine_threadsafe(request(), self._loop).result()
        except (Retryable, Fatal) as error:
            raise OSError(str(error)) from error  # of one object: says nothing about the lake

    def named(self) -> Capture:
        etag = (self._meta.etag or "").strip('"')
        return Capture(capture_id=capture_id(self.uri, etag), uri=self.uri, etag=etag, size=self._meta.size)

    def rewind(self) -> None:
        self._at, self._held = 0, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, out: Any) -> int:
        if not self._held and self._at < self._meta.size:
            length = min(AHEAD, self._meta.size - self._at)
            self._held = memoryview(self._wait(lambda: self._store.get_range(self._key, self._at, length)))
            self._at += len(self._held)
        count = min(len(out), len(self._held))
        out[:count] = self._held[:count]
        self._held = self._held[count:]
        return count

    def unchanged(self) -> None:
        now = self._wait(lambda: self._store.head(self._key))
        if now is None or now.etag != self._meta.etag:
            raise Changed(f"{self.uri} was replaced while it was read")


class Sources:
    """Opens what `ObjectRef`s name. `options`: storage options, for every remote store."""

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        self._options = options
        self._stores: dict[str, Store] = {}

    def store(self, uri: str) -> tuple[Store, str]:
        """The bucket of a remote URI, and the key in it. Fatal for a scheme that nobody knows."""
        scheme, _, rest = uri.partition("://")
        bucket, _, key = rest.lstrip("/").partition("/")
        root = f"{scheme}://{'/' if scheme == 'memory' else ''}{bucket}"
        if root not in self._stores:
            self._stores[root] = Store.open(root, self._options)
        return self._stores[root], key

    def open(self, uri: str, loop: asyncio.AbstractEventLoop) -> LocalFile | RemoteFile:
        """OSError when it cannot be opened. Blocks: for a worker thread."""
        return LocalFile(uri) if uri.startswith("file://") else RemoteFile(*self.store(uri), loop)


def is_remote(text: str) -> bool:
    return "://" in text and not text.startswith("file://")


def local(path: Path, *, explicit: bool) -> ObjectRef:
    """A reference to a local file; OSError when there is none."""
    return ObjectRef(uri=local_uri(path), size=path.stat().st_size, explicit=explicit)
