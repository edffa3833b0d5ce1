"""Where captures are read from: local files, and objects of every store that `obstore` opens.

Knows paths and URIs, and how a capture is named (uri and eTag). Must not know what is in a capture, nor the lake.

A capture that changes while it is read is refused: what was read is of no version that ever was.
"""

from __future__ import annotations

import asyncio
import io
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from blake3 import blake3

from .errors import Fatal, Retryable
from .fetch import Body, Budget, Fetching
from .lake.identity import capture_id, local_uri
from .lake.manifest import Capture
from .lake.store import ObjectStore, Store, nameable
from .objects import Changed, Content, Gone, Objects, StoredObjects
from .objects_signed import SignedObjects

UNKNOWN_SIZE = -1


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

    @property
    def modified(self) -> datetime:
        """When it had last been written to, when it was opened."""
        return _modified(self._before)

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
    """A capture in an object store, read from a thread while `loop` runs in another; what it raises is an OSError.

    Every byte comes from the content that was there when it was opened, or none does.
    """

    def __init__(self, uri: str, objects: Objects, key: str, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.uri = uri
        self._loop = loop

        async def opened() -> Body:
            return await Body.open(objects, await objects.head(key), fetching=Fetching(eager=False))

        with _of_one_capture():
            self._body = asyncio.run_coroutine_threadsafe(opened(), loop).result()

    def named(self) -> Capture:
        content = self._body.content
        return Capture(
            capture_id=capture_id(self.uri, content.etag), uri=self.uri, etag=content.etag, size=content.size
        )

    def rewind(self) -> None:
        self._body.rewind()

    def readable(self) -> bool:
        return True

    def readinto(self, out: Any) -> int:
        with _of_one_capture():
            return self._body.readinto(out)

    def unchanged(self) -> None:
        """Reading would have failed."""

    def close(self) -> None:
        if not self.closed:
            self._body.close()
        super().close()


@contextmanager
def _of_one_capture() -> Iterator[None]:
    """What a store says of one object says nothing about the lake."""
    try:
        yield
    except Gone as error:
        raise FileNotFoundError(str(error)) from error
    except (Changed, Retryable) as error:
        raise OSError(str(error)) from error


class Sources:
    """Opens what `ObjectRef`s name. `options`: storage options of all remote stores, or those of one by its URI.

    `buckets`: by `s3://name`, those that are reached another way than by these options.
    """

    def __init__(
        self,
        options: Mapping[str, str] | Callable[[str], Mapping[str, str]] | None = None,
        buckets: Mapping[str, Objects] | None = None,
    ) -> None:
        self._options = options if callable(options) else lambda uri: options or {}
        self._stores: dict[str, Store] = {}
        self._buckets = dict(buckets or {})

    def store(self, uri: str) -> tuple[Store, str]:
        """The bucket of a remote URI, and the key in it. Fatal for a scheme that nobody knows."""
        root, key = _split(uri)
        if root not in self._stores:
            self._stores[root] = Store.open(root, self._options(root))
        return self._stores[root], key

    def objects(self, uri: str) -> tuple[Objects, str]:
        """The bucket of a remote URI as one of objects to be read, and the key in it. Fatal as `store`."""
        root, key = _split(uri)
        if root not in self._buckets:
            store, _ = self.store(uri)
            if not isinstance(store, ObjectStore):
                raise Fatal(f"{uri} is in no object store")
            self._buckets[root] = StoredObjects(store.uri, store.client)
        objects = self._buckets[root]
        if isinstance(objects, StoredObjects) and root.startswith("s3:") and not nameable(key):
            return SignedObjects(root, self._options(root)), key
        return objects, key

    async def resolve(self, ref: ObjectRef) -> ObjectRef:
        """With size and eTag, which the store is asked for only where they are not known. Gone, Changed, Retryable.

        A size of 0 is asked for, too: of what has no bytes none is read, which would tell another size, and stores
        have announced uploads of many parts so (Ceph, pull request 34641).
        """
        if ref.size > 0 and ref.etag:
            return ref
        objects, key = self.objects(ref.uri)
        content = await objects.head(key, ref.version_id)
        if ref.etag not in (None, content.etag):
            raise Changed(f"{ref.uri} is not what it was when it was named")
        return replace(ref, size=content.size, etag=content.etag)

    async def fetch(self, ref: ObjectRef, *, fetching: Fetching | None = None, budget: Budget | None = None) -> Body:
        """The bytes of a capture in an object store, of this content and no other. As `resolve`, and as `Body.open`."""
        ref = await self.resolve(ref)
        objects, key = self.objects(ref.uri)
        content = Content(key=key, size=ref.size, etag=ref.etag or "", version_id=ref.version_id)
        return await Body.open(objects, content, fetching=fetching, budget=budget)

    def open(self, uri: str, loop: asyncio.AbstractEventLoop) -> LocalFile | RemoteFile:
        """OSError when it cannot be opened. Blocks: for a worker thread."""
        if uri.startswith("file://"):
            return LocalFile(uri)
        store, key = self.store(uri)
        return RemoteFile(f"{store.uri}/{key}", self.objects(uri)[0], key, loop)


def _split(uri: str) -> tuple[str, str]:
    """A remote URI -> its bucket, as a URI, and the key in it."""
    scheme, _, rest = uri.partition("://")
    bucket, _, key = rest.lstrip("/").partition("/")
    return f"{scheme}://{'/' if scheme == 'memory' else ''}{bucket}", key


def capture(ref: ObjectRef) -> Capture:
    """What the ledger calls a resolved reference."""
    etag = ref.etag or ""
    return Capture(
        capture_id=capture_id(ref.uri, etag), uri=ref.uri, etag=etag, size=ref.size, version_id=ref.version_id
    )


def is_remote(text: str) -> bool:
    return "://" in text and not text.startswith("file://")


def local(path: Path, *, explicit: bool) -> ObjectRef:
    """A reference to a local file; OSError when there is none."""
    found = path.stat()
    return ObjectRef(uri=local_uri(path), size=found.st_size, explicit=explicit, event_time=_modified(found))


def _modified(found: os.stat_result) -> datetime:
    return datetime.fromtimestamp(found.st_mtime, UTC)
