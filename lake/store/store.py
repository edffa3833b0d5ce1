"""The storage of a lake: the port that local files, memory, S3, GCS and Azure implement.

Paths are relative to the root, with `/` between parts. Each implementation translates its errors into those of
common/errors.py. A method raises

    Retryable       a read failed, or a write failed and nothing happened
    OutcomeUnknown  a write may or may not have been carried out
    Fatal           no permission, no such bucket, or a setting that the store refuses

A write that is canceled (`asyncio.CancelledError`) has an unknown outcome as well.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from pcaplake.common.errors import Fatal
from pcaplake.common.meter import SILENT, Meter

from . import durable
from .place import refuse_ambiguous_folder, refuse_ambiguous_uri

Buffer = durable.Buffer
SCHEMES = "s3:// az:// gs:// (not tried)"  # as help and errors name them; docs/object-stores.md says what was tried
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Unnameable(Fatal):
    """A listing failed because of a key that obstore does not support; the other keys are unknown too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectMeta:
    """Metadata of an object. `last_modified`: by the store's clock, never by a local one.

    `etag` and `version` identify the content. Conditional writes use the eTag on S3 and Azure, and the version (GCS's
    generation) on GCS.
    """

    path: str
    size: int
    etag: str | None
    last_modified: datetime
    version: str | None = None


Listing = list[ObjectMeta]


class Upload(Protocol):
    """One object that a worker thread writes. It exists only after `finish`."""

    def write(self, data: Buffer) -> None: ...

    def finish(self) -> ObjectMeta:
        """Create the object; it is durable on return. Raises Fatal when a local file with this name exists.

        `last_modified` of the result is a time of the store that is not after the object's own, and some seconds before
        `upload` at most, unless the process was suspended. `etag` may be None.
        """
        ...

    def abort(self) -> None:
        """Discard the object; harmless after `finish`."""
        ...


class Store(ABC):
    """An object store, or a folder. `uri` has no trailing slash; `local`: the folder, None for an object store."""

    uri: str
    local: Path | None = None
    options: Mapping[str, str]
    unproven = False
    """May the service ignore the conditions of a write?"""

    @classmethod
    def open(cls, uri: str | Path, options: Mapping[str, str] | None = None, *, meter: Meter = SILENT) -> Store:
        """Open a store, without a request. `uri`: a path, or file://, memory:///, s3://, gs:// or az://.

        `options`: storage options of obstore. Raises Fatal for an unknown scheme or option, WrongChoice for a local path
        that is not UTF-8, and for a place that other programs spell differently (see `place`).
        """
        refuse_ambiguous_uri(str(uri))
        store = _open_any(uri, options or {}, meter)
        if store.local is not None:
            refuse_ambiguous_folder(store.local)
        return store

    def current_options(self) -> dict[str, str]:
        """Storage options with current credentials, for another library. May request credentials over the network."""
        return dict(self.options)

    def external_location(self, path: str) -> str:
        """The location of `path` for deltalake, DuckDB and Polars: a local path, or a URI.

        Local paths are not file:// URIs, because a folder's name may contain `#` and `?`. Raises WrongChoice for a location
        that is another one for these programs.
        """
        if self.local is not None:
            refuse_ambiguous_folder(self.local / checked_path(path))
            return str(self.local / path)
        location = f"{self.uri}/{checked_path(path)}"
        refuse_ambiguous_uri(location)
        return location

    def parent_stores(self) -> Iterator[Store]:
        """The stores of the folders above this one, nearest first; none for a store in memory."""
        return iter(())

    def open_other_store(self, uri: str) -> Store:
        """Open another store with the options of this one. Raises Fatal as `open`.

        `uri` may have been recorded by a version that did not refuse several spellings, and is read as that version did.
        """
        return _open_any(uri, self.options, SILENT)

    @abstractmethod
    async def put_if_absent(self, path: str, data: bytes) -> bool:
        """Create an object. False: it exists already."""

    @abstractmethod
    async def put(self, path: str, data: bytes) -> None:
        """Create or replace an object."""

    @abstractmethod
    async def replace(self, path: str, data: bytes, seen: ObjectMeta) -> bool:
        """Replace the content that `get` or `head` returned (`seen`). False: the object has changed or is gone."""

    @abstractmethod
    async def get(self, path: str) -> tuple[bytes, ObjectMeta] | None:
        """The whole object; None if there is none. It is durable on return, whichever process wrote it."""

    @abstractmethod
    async def get_range(self, path: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`, fewer at the end of the object. Raises FileNotFoundError."""

    @abstractmethod
    async def head(self, path: str) -> ObjectMeta | None:
        """Size, time and eTag of an object; None if it does not exist."""

    @abstractmethod
    async def list(self, prefix: str, start_after: str | None = None) -> Listing:
        """All objects below the folder `prefix` ("": the root), sorted by path, after the path `start_after`."""

    @abstractmethod
    async def list_folders(self) -> tuple[str, ...]:
        """The names of the folders at the root, sorted. Does not list their contents."""

    @abstractmethod
    async def delete(self, path: str) -> None:
        """Delete an object, if it exists."""

    @abstractmethod
    def upload(self, path: str) -> Upload:
        """Begin an upload. Its methods block, so call them in worker threads."""

    async def delete_abandoned_uploads(self) -> int:
        """Delete unfinished uploads of dead writers, and return how many; 0 for a store that deletes them itself."""
        return 0


Opener = Callable[[str, Mapping[str, str], Meter], Store]
_OPENERS: dict[str, Opener] = {}


def register_opener(*schemes: str) -> Callable[[Opener], Opener]:
    """Register the function that opens URIs of these schemes; "": a local path."""

    def register(opener: Opener) -> Opener:
        _OPENERS.update(dict.fromkeys(schemes, opener))
        return opener

    return register


def _open_any(uri: str | Path, options: Mapping[str, str], meter: Meter) -> Store:
    scheme, separator, _ = str(uri).partition("://")
    if isinstance(uri, Path) or not separator:
        scheme = ""
    if scheme not in _OPENERS:
        raise Fatal(f"{uri}: no store for {scheme}://; use a path, memory:///, or {SCHEMES}")
    return _OPENERS[scheme](str(uri), options, meter)


def is_nameable(path: str) -> bool:
    """Whether obstore supports this path. It refuses control characters, which S3 allows in keys."""
    return _is_relative_path(path) and _CONTROL.search(path) is None


def is_utf8(text: str) -> bool:
    """Whether the text can be encoded as UTF-8. Python's text for a path with other bytes cannot, and tables and
    ledgers need it.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def checked_path(path: str) -> str:
    """The path itself. Raises ValueError unless it is relative to the store."""
    if not _is_relative_path(path):
        raise ValueError(f"not a path relative to the store: {path!r}")
    return path


def _is_relative_path(path: str) -> bool:
    return "\0" not in path and not any(part in ("", ".", "..") for part in path.split("/"))
