"""Where a lake lives: the port that local files, memory, S3, GCS and Azure implement.

Paths are relative to the root, with `/` between parts. Each implementation translates its errors into those of
worker/errors.py. A method raises

    Retryable       nothing happened, or it was a read
    OutcomeUnknown  a write may or may not have been carried out
    Fatal           no permission, no such bucket, a setting that the store refuses

A write that is cancelled (`asyncio.CancelledError`) has an unknown outcome as well.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from pcaplake.worker.errors import Fatal
from pcaplake.worker.meter import SILENT, Meter

from . import durable

Buffer = durable.Buffer
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Unnameable(Fatal):
    """A listing found a key that obstore cannot name, and so gives none of the other keys either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectMeta:
    """What a store says about an object; `last_modified` is the store's clock, never ours.

    `etag` and `version` name one content; what a write is conditional on is the store's choice: the eTag on S3 and
    Azure, the version on GCS, where it is the generation.
    """

    path: str
    size: int
    etag: str | None
    last_modified: datetime
    version: str | None = None


Listing = list[ObjectMeta]


class Upload(Protocol):
    """One object that a worker thread writes. It appears whole when `finish` is called."""

    def write(self, data: Buffer) -> None: ...

    def finish(self) -> ObjectMeta:
        """Durable when this returns. Raises Fatal when a local file of that name exists: names are unique."""
        ...

    def abort(self) -> None:
        """Forget it; harmless after `finish`."""
        ...


class Store(ABC):
    """An object store, or a folder. `uri` has no trailing slash; `local`: the folder, None for an object store."""

    uri: str
    local: Path | None = None
    options: Mapping[str, str]
    unproven = False
    """Is it a service that may ignore the conditions of a write?"""

    @classmethod
    def open(cls, uri: str | Path, options: Mapping[str, str] | None = None, *, meter: Meter = SILENT) -> Store:
        """`uri`: a path, or file://, memory:///, s3://, gs:// or az://; `options`: storage options as obstore's.

        Nothing is read or created yet. Raises Fatal for an unknown scheme or option, WrongChoice for a local path
        that is not UTF-8.
        """
        scheme, separator, _ = str(uri).partition("://")
        if isinstance(uri, Path) or not separator:
            scheme = ""
        if scheme not in _OPENERS:
            raise Fatal(f"{uri}: no store for {scheme}://; use a path, s3://, gs://, az:// or memory:///")
        return _OPENERS[scheme](str(uri), options or {}, meter)

    def current_options(self) -> dict[str, str]:
        """`options` for another library that opens the lake now; may ask the network who we are."""
        return dict(self.options)

    def external_location(self, path: str) -> str:
        """Where `path` is, as deltalake, DuckDB and Polars take it: a path of this machine, or a URI.

        A file:// URI would be taken apart at `#` and `?`, which a folder's name may hold.
        """
        return f"{self.uri}/{checked_path(path)}" if self.local is None else str(self.local / checked_path(path))

    def parent_stores(self) -> Iterator[Store]:
        """The folders that this one lies in, the nearest first; none where names have no folders."""
        return iter(())

    def open_other_store(self, uri: str) -> Store:
        """Another place, with the options of this one. Fatal as `open`."""
        return Store.open(uri, self.options)

    @abstractmethod
    async def put_if_absent(self, path: str, data: bytes) -> bool:
        """True: made; False: it exists already."""

    @abstractmethod
    async def put(self, path: str, data: bytes) -> None:
        """Make or replace."""

    @abstractmethod
    async def replace(self, path: str, data: bytes, seen: ObjectMeta) -> bool:
        """Replace the content that `get` or `head` has told of; False: it is another one by now, or gone."""

    @abstractmethod
    async def get(self, path: str) -> tuple[bytes, ObjectMeta] | None:
        """All of it, or None. Durable when this returns, whoever wrote it: acts may follow from what was read."""

    @abstractmethod
    async def get_range(self, path: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`, fewer at the end of the object. Raises FileNotFoundError."""

    @abstractmethod
    async def head(self, path: str) -> ObjectMeta | None: ...

    @abstractmethod
    async def list(self, prefix: str, start_after: str | None = None) -> Listing:
        """Everything below the folder `prefix` ("" is the root), sorted by path, after the path `start_after`."""

    @abstractmethod
    async def list_folders(self) -> tuple[str, ...]:
        """Names of the folders at the top, sorted, without listing what is in them."""

    @abstractmethod
    async def delete(self, path: str) -> None:
        """An absent object is fine."""

    @abstractmethod
    def upload(self, path: str) -> Upload:
        """Blocking, for worker threads."""

    async def delete_abandoned_uploads(self) -> int:
        """Delete what writers that are dead left of uploads -> how many; where the store itself does, none."""
        return 0


Opener = Callable[[str, Mapping[str, str], Meter], Store]
_OPENERS: dict[str, Opener] = {}


def register_opener(*schemes: str) -> Callable[[Opener], Opener]:
    """Marks the function that opens URIs of these schemes; "" is a path of this machine."""

    def register(opener: Opener) -> Opener:
        _OPENERS.update(dict.fromkeys(schemes, opener))
        return opener

    return register


def is_nameable(path: str) -> bool:
    """Can obstore name it, as it is? It refuses control characters, which S3 allows in keys."""
    return _is_relative_path(path) and _CONTROL.search(path) is None


def is_utf8(text: str) -> bool:
    """False for what Python makes of a path whose bytes are not UTF-8: no table, ledger or URI can hold it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def checked_path(path: str) -> str:
    """A path inside the store, or ValueError."""
    if not _is_relative_path(path):
        raise ValueError(f"not a path relative to the store: {path!r}")
    return path


def _is_relative_path(path: str) -> bool:
    return "\0" not in path and not any(part in ("", ".", "..") for part in path.split("/"))
