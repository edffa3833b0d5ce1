"""Opens captures: local files, and objects of every store that `obstore` opens.

A capture that changes while it is read is refused, because the bytes read belong to no single version of it.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import stat
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Protocol

from blake3 import blake3

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.lake.records import Capture, compute_capture_id
from pcaplake.lake.store.object_store import ObjectStore
from pcaplake.lake.store.store import Listing, Store, Unnameable, is_nameable, is_utf8

from .objects import Changed, Content, Gone, Objects, StoredObjects
from .objects_signed import SignedObjects
from .range_reader import Budget, FetchConfig, RangeReader
from .reference import ObjectRef, epoch_ms, is_remote_uri, reference_from_capture

log = logging.getLogger(__name__)


class CaptureFile(Protocol):
    """An open capture, local or remote. All methods except the closing ones block, so call them in a worker thread.

    `require_unchanged` raises Changed if the content changed while it was read. `close_and_discard` closes the file when
    no thread reads it.
    """

    def read(self, size: int = -1, /) -> bytes | None: ...

    def readinto(self, out: Any, /) -> int: ...

    def rewind(self) -> None: ...

    def require_unchanged(self) -> None: ...

    def close_and_discard(self) -> None: ...

    def close(self) -> None: ...


class LocalFile(io.RawIOBase):
    """A local capture. Raises OSError like `open`, and for anything but a regular file, because a pipe has no end."""

    _fd = -1  # not open yet: `close` is also called if `__init__` failed

    def __init__(self, uri: str) -> None:
        super().__init__()
        self.uri = uri
        self._closing = threading.Lock()  # a closed descriptor's number may soon be that of another file
        self._fd = os.open(uri.removeprefix("file://"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._before = os.fstat(self._fd)
        if not stat.S_ISREG(self._before.st_mode):
            self.close()
            raise OSError(f"{uri} is not a regular file")

    def identify_capture(self) -> Capture:
        """The capture with its id. Reads the whole file, in bounded memory. Raises OSError for a path that is not UTF-8."""
        if not is_utf8(self.uri):
            raise OSError(
                "its path is not UTF-8, and tables hold only UTF-8 text: rename it, for example with `convmv`"
            )
        digest, buffer = blake3(), bytearray(1 << 20)
        view = memoryview(buffer)
        self.rewind()
        while count := self.readinto(view):
            digest.update(view[:count])
        self.rewind()
        etag = digest.hexdigest(length=16)
        return Capture(
            capture_id=compute_capture_id(self.uri, etag),
            uri=self.uri,
            etag=etag,
            size=self._before.st_size,
            modified=epoch_ms(self.modification_time),
        )

    @property
    def modification_time(self) -> datetime:
        """The file's modification time when it was opened."""
        return datetime.fromtimestamp(self._before.st_mtime, UTC)

    def rewind(self) -> None:
        with self._closing:
            os.lseek(self._fd, 0, os.SEEK_SET)

    def readable(self) -> bool:
        return True

    def readinto(self, out: Any) -> int:
        with self._closing:
            return os.readv(self._fd, [out])

    def require_unchanged(self) -> None:
        """Raise Changed if the file was written to since it was opened."""
        with self._closing:
            now = os.fstat(self._fd)
        if (now.st_size, now.st_mtime_ns) != (self._before.st_size, self._before.st_mtime_ns):
            raise Changed(f"{self.uri} was written to while it was read: ingest it when it is complete")

    def close(self) -> None:
        """Close the file, also while another thread reads it: that thread gets an OSError."""
        if self._fd >= 0:
            with self._closing:
                os.close(self._fd)
                self._fd = -1
        super().close()

    def close_and_discard(self) -> None:
        self.close()


class RemoteFile(io.RawIOBase):
    """A capture in an object store, read from a thread while `loop` runs in another. Raises OSError.

    All bytes come from the content that the object had when it was opened.
    """

    _body: RangeReader

    def __init__(self, uri: str, objects: Objects, key: str, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.uri = uri
        self._loop = loop

        async def open_reader() -> RangeReader:
            return await RangeReader.open(
                objects, await objects.head_object(key), fetch_config=FetchConfig(eager=False)
            )

        with _translate_store_errors():
            self._body = asyncio.run_coroutine_threadsafe(open_reader(), loop).result()

    def identify_capture(self) -> Capture:
        content = self._body.content
        return Capture(
            capture_id=compute_capture_id(self.uri, content.etag), uri=self.uri, etag=content.etag, size=content.size
        )

    def rewind(self) -> None:
        self._body.rewind()

    def readable(self) -> bool:
        return True

    def readinto(self, out: Any) -> int:
        with _translate_store_errors():
            return self._body.readinto(out)

    def require_unchanged(self) -> None:
        """Do nothing: reading a changed object fails."""

    def close(self) -> None:
        if not self.closed and hasattr(self, "_body"):  # as `LocalFile._fd`
            self._body.close()
        super().close()


@contextmanager
def _translate_store_errors() -> Iterator[None]:
    """Turn errors of one object into OSError, because they say nothing about the store of the lake."""
    try:
        yield
    except Gone as error:
        raise FileNotFoundError(str(error)) from error
    except (Changed, Retryable) as error:
        raise OSError(str(error)) from error


class Sources:
    """Opens captures by their `ObjectRef`s. `options`: storage options of all remote stores, or a function of a store's URI.

    `buckets` by `s3://name`: adapters to use instead of a store opened with these options.
    """

    def __init__(
        self,
        options: Mapping[str, str] | Callable[[str], Mapping[str, str]] | None = None,
        buckets: Mapping[str, Objects] | None = None,
    ) -> None:
        self._options = options if callable(options) else lambda uri: options or {}
        self._stores: dict[str, Store] = {}
        self._buckets = dict(buckets or {})

    def open_store(self, uri: str) -> tuple[Store, str]:
        """The store of a remote URI, and the key in it. Raises Fatal for an unknown scheme."""
        root, key = _split_bucket_and_key(uri)
        if root not in self._stores:
            self._stores[root] = Store.open(root, self._options(root))
        return self._stores[root], key

    def open_objects(self, uri: str) -> tuple[Objects, str]:
        """The adapter that reads objects of a remote URI's bucket, and the key in it. Raises Fatal as in `open_store`."""
        root, key = _split_bucket_and_key(uri)
        if root not in self._buckets:
            store, _ = self.open_store(uri)
            if not isinstance(store, ObjectStore):
                raise Fatal(f"{uri} is not in an object store")
            self._buckets[root] = StoredObjects(store.uri, store.obstore_client)
        objects = self._buckets[root]
        if isinstance(objects, StoredObjects) and root.startswith("s3:") and not is_nameable(key):
            return SignedObjects(root, self._options(root)), key
        return objects, key

    async def list_below(self, uri: str) -> Listing:
        """Objects below a folder of a store, in the order of their keys. Raises Fatal and Retryable.

        On S3, if obstore's listing may be incomplete or may change keys, S3's own listing is used instead: obstore lists
        nothing in a folder with a key that it does not support, and returns `a` for `a/`, an empty folder marker. Raises
        Unnameable for such a key in another store.
        """
        root, prefix = _split_bucket_and_key(uri)
        exact = SignedObjects(root, self._options(root)) if root.startswith("s3:") else None
        folder = f"{prefix}/" if prefix and not prefix.endswith("/") else prefix
        store, _ = self.open_store(uri)
        try:
            if not is_nameable(f"{folder}x"):
                raise Unnameable(f"{uri}: this name is not supported in {store.uri}")
            listing = await store.list(folder)
        except Unnameable as error:
            if exact is None:
                raise Unnameable(
                    f"{error}. Because of this key, nothing below {store.uri}/{folder} can be listed in this store: rename or "
                    "delete that object, or name the other folders and objects one by one"
                ) from error
            return await exact.list_objects(folder)
        if exact is not None and (
            any(not meta.size for meta in listing) or len({meta.path for meta in listing}) < len(listing)
        ):
            try:
                return await exact.list_objects(folder)
            except Retryable as error:
                log.info("the listing may lack keys that end with a slash: %s", error)
        return listing

    async def resolve_reference(self, ref: ObjectRef) -> ObjectRef:
        """The reference with size and eTag, which are requested only if they are missing. Raises Gone, Changed and Retryable.

        A size of 0 is requested too: some stores announced multipart uploads with size 0 (Ceph, pull request 34641), and
        an empty capture is never read, which would show the real size.
        """
        if ref.size > 0 and ref.etag:
            return ref
        objects, key = self.open_objects(ref.uri)
        content = await objects.head_object(key, ref.version_id)
        if ref.etag not in (None, content.etag):
            raise Changed(f"{ref.uri} has changed since it was listed or announced")
        event_time = content.modified if ref.modified_ms is None else ref.event_time
        return replace(ref, size=content.size, etag=content.etag, event_time=event_time)

    async def open_range_reader(
        self, ref: ObjectRef, *, fetch_config: FetchConfig | None = None, budget: Budget | None = None
    ) -> RangeReader:
        """Open a capture in an object store: exactly this version of its content.

        Raises what `resolve_reference` and `RangeReader.open` raise.
        """
        ref = await self.resolve_reference(ref)
        objects, key = self.open_objects(ref.uri)
        content = Content(key=key, size=ref.size, etag=ref.etag or "", version_id=ref.version_id)
        return await RangeReader.open(objects, content, fetch_config=fetch_config, budget=budget)

    @asynccontextmanager
    async def open_capture_file(
        self, ref: ObjectRef, *, fetch_config: FetchConfig | None = None, budget: Budget | None = None
    ) -> AsyncIterator[CaptureFile]:
        """Open a capture: a local file, or an object whose first chunk has arrived.

        Raises Gone, OSError for a local file that cannot be opened, and as `open_range_reader` for an object.
        """
        if is_remote_uri(ref.uri):
            async with await self.open_range_reader(ref, fetch_config=fetch_config, budget=budget) as body:
                await body.wait_until_ready()
                yield body
            return
        try:
            file = await asyncio.to_thread(LocalFile, ref.uri)
        except FileNotFoundError as error:
            raise Gone(str(error)) from error
        with file:
            yield file

    async def is_readable(self, ref: ObjectRef) -> bool:
        """True if the store still delivers exactly this content. Reads one byte, because HEAD succeeds for archived objects.

        Raises Retryable and Fatal as `resolve_reference`, if the store does not tell.
        """
        try:
            ref = await self.resolve_reference(ref)
            objects, key = self.open_objects(ref.uri)
            content = Content(key=key, size=ref.size, etag=ref.etag or "", version_id=ref.version_id)
            async with aclosing(objects.read_range(content, 0, min(1, ref.size))) as parts:  # type: ignore[type-var]
                async for _ in parts:
                    break
        except (Gone, Changed):
            return False
        return True

    def open_blocking(self, uri: str, loop: asyncio.AbstractEventLoop) -> LocalFile | RemoteFile:
        """Open a capture. Raises OSError if that fails. Blocks, so call it in a worker thread."""
        if uri.startswith("file://"):
            return LocalFile(uri)
        store, key = self.open_store(uri)
        return RemoteFile(f"{store.uri}/{key}", self.open_objects(uri)[0], key, loop)


def _split_bucket_and_key(uri: str) -> tuple[str, str]:
    """Split a remote URI into the URI of its bucket and the key."""
    scheme, _, rest = uri.partition("://")
    bucket, _, key = rest.lstrip("/").partition("/")
    return f"{scheme}://{'/' if scheme == 'memory' else ''}{bucket}", key


def require_same_content(file: CaptureFile, named: Capture) -> None:
    """Raise Changed if a local file has another content than this capture. Blocks, so call it in a worker thread.

    Objects need no check, because another content is never read.
    """
    if isinstance(file, LocalFile) and file.identify_capture().capture_id != named.capture_id:
        raise Changed(f"{named.uri} has another content now")


def is_still_there(sources: Sources, capture: Capture, loop: asyncio.AbstractEventLoop) -> bool:
    """True if the capture still exists with the same content. Blocks, so call it in a worker thread."""
    try:
        with sources.open_blocking(capture.uri, loop) as file:
            return file.identify_capture().capture_id == capture.capture_id
    except OSError:
        return False


async def is_readable_again(sources: Sources, capture: Capture) -> bool:
    """True if the same content of a capture can be read again. Raises Retryable and Fatal as `Sources.is_readable`.

    The row of a sighting is made from its record, so nothing has to be read.
    """
    if capture.is_sighting:
        return True
    if is_remote_uri(capture.uri):
        return await sources.is_readable(reference_from_capture(capture))
    return await asyncio.to_thread(is_still_there, sources, capture, asyncio.get_running_loop())
