"""Where a lake lives: one port over local files, memory, S3, GCS and Azure.

Knows obstore and, for local files, the small durable put (obstore's LocalStore does not fsync). Translates every error
into worker/errors.py. Must not know tables, logs or the ledger.

Paths are relative to the root, with `/` between parts. A method raises

    Retryable       nothing happened, or it was a read
    OutcomeUnknown  a write may or may not have been carried out
    Fatal           no permission, no such bucket, a setting the store does not take

`asyncio.CancelledError` during a write leaves its outcome unknown as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import obstore
from obstore import exceptions as obstore_errors
from obstore.store import MemoryStore, from_url

from worker.errors import Fatal, OutcomeUnknown, Retryable
from worker.meter import SILENT, Meter

from . import credentials, durable

Buffer = durable.Buffer

_SCHEMES = {"s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs", "gcs": "gs", "az": "az", "azure": "az"}
_SCHEMES |= {"abfs": "abfs", "abfss": "abfss", "memory": "memory", "file": "file"}
_CLIENT_OPTIONS = frozenset({"allow_http", "allow_invalid_certificates", "connect_timeout", "proxy_url", "timeout"})
# A request gives up well within a commit's time, which then looks what came of it.
_TIMEOUTS = {"connect_timeout": "5s", "timeout": "30s"}
_RETRIES: dict[str, Any] = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}
_PART_BYTES = 8 * 1024 * 1024
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_WRITES = frozenset({"put", "delete"})

# Memory stores of one name are one store within the process.
_memories: dict[str, MemoryStore] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectMeta:
    """What a store says about an object; `last_modified` is the store's clock, never ours."""

    path: str
    size: int
    etag: str | None
    last_modified: datetime


Listing = list[ObjectMeta]


class Upload(Protocol):
    """One object being written by a worker thread. It appears whole, at `finish`; it has not a name before."""

    def write(self, data: Buffer) -> None: ...

    def finish(self) -> ObjectMeta:
        """Durable when this returns. Raises Fatal when a local file of that name exists: names are unique."""
        ...

    def abort(self) -> None:
        """Forget it; harmless after `finish`."""
        ...


class Store(ABC):
    """The port. `uri` has no trailing slash; `local` is the folder of a local store, else None."""

    uri: str
    local: Path | None = None
    options: Mapping[str, str]

    @classmethod
    def open(cls, uri: str | Path, options: Mapping[str, str] | None = None, *, meter: Meter = SILENT) -> Store:
        """`uri`: a path, or file://, memory:///, s3://, gs:// or az://; `options`: storage options as obstore's.

        Nothing is read or made yet. Raises Fatal for a scheme or an option that nobody knows.
        """
        scheme, separator, rest = str(uri).partition("://")
        if isinstance(uri, Path) or not separator:
            return LocalStore(Path(uri))
        if scheme not in _SCHEMES:
            raise Fatal(f"{uri}: no store for {scheme}://; use a path, s3://, gs://, az:// or memory:///")
        if scheme == "file":
            return LocalStore(Path("/" + rest.lstrip("/")))
        if not rest.strip("/"):
            raise Fatal(f"{uri}: a bucket or a name is missing")
        if scheme == "memory":
            name = rest.strip("/")
            return ObjectStore(f"memory:///{name}", _memories.setdefault(name, MemoryStore()), options, meter=meter)
        plain = f"{_SCHEMES[scheme]}://{rest.rstrip('/')}"
        return ObjectStore(plain, _remote(plain, options or {}), options, meter=meter)

    def options_now(self) -> dict[str, str]:
        """`options` for another library that opens the lake now; may ask the network who we are."""
        return dict(self.options)

    def location(self, path: str) -> str:
        """Where `path` is, as deltalake, DuckDB and Polars take it: a path of this machine, or a URI.

        A file:// URI would be taken apart at `#` and `?`, which a folder's name may hold.
        """
        return f"{self.uri}/{checked(path)}" if self.local is None else str(self.local / checked(path))

    def above(self) -> Iterator[Store]:
        """The folders that this one lies in, the nearest first; none where names have no folders."""
        return iter(())

    @abstractmethod
    async def put_if_absent(self, path: str, data: bytes) -> bool:
        """True: made; False: it exists already."""

    @abstractmethod
    async def put(self, path: str, data: bytes) -> None:
        """Make or replace."""

    @abstractmethod
    async def replace(self, path: str, data: bytes, etag: str) -> bool:
        """Replace the version that has `etag`; False: it is another one by now, or gone."""

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
    async def folders(self) -> tuple[str, ...]:
        """Names of the folders at the top, sorted, without listing what is in them."""

    @abstractmethod
    async def delete(self, path: str) -> None:
        """An absent object is fine."""

    @abstractmethod
    def upload(self, path: str) -> Upload:
        """Blocking, for worker threads."""


def nameable(path: str) -> bool:
    """Can obstore name it, as it is? It refuses control characters, which S3 allows in keys."""
    return _inside(path) and _CONTROL.search(path) is None


def checked(path: str) -> str:
    """A path inside the store, or ValueError."""
    if not _inside(path):
        raise ValueError(f"not a path relative to the store: {path!r}")
    return path


def _inside(path: str) -> bool:
    return "\0" not in path and not any(part in ("", ".", "..") for part in path.split("/"))


class LocalStore(Store):
    """A folder. The blocking calls run in threads, so that an fsync does not hold up the event loop."""

    def __init__(self, folder: Path) -> None:
        self.local: Path = folder.resolve()
        self.uri = f"file://{self.local}".rstrip("/")
        self.options = {}

    def above(self) -> Iterator[Store]:
        return map(LocalStore, self.local.parents)

    async def put_if_absent(self, path: str, data: bytes) -> bool:
        return await asyncio.to_thread(self._create, self._path(path), data)

    async def put(self, path: str, data: bytes) -> None:
        await asyncio.to_thread(self._replace, self._path(path), data, None)

    async def replace(self, path: str, data: bytes, etag: str) -> bool:
        return await asyncio.to_thread(self._replace, self._path(path), data, etag)

    async def get(self, path: str) -> tuple[bytes, ObjectMeta] | None:
        return await asyncio.to_thread(self._get, self._path(path))

    async def get_range(self, path: str, start: int, length: int) -> bytes:
        return await asyncio.to_thread(self._get_range, self._path(path), start, length)

    async def head(self, path: str) -> ObjectMeta | None:
        return await asyncio.to_thread(self._head, self._path(path))

    async def list(self, prefix: str, start_after: str | None = None) -> Listing:
        folder = self.local / checked(prefix.rstrip("/")) if prefix.rstrip("/") else self.local
        return await asyncio.to_thread(self._list, folder, start_after)

    async def folders(self) -> tuple[str, ...]:
        return await asyncio.to_thread(self._folders)

    async def delete(self, path: str) -> None:
        await asyncio.to_thread(self._delete, self._path(path))

    def upload(self, path: str) -> Upload:
        target = self._path(path)
        with _os_errors(target):
            return _LocalUpload(self, durable.NewFile(target, self.local))

    def meta(self, target: Path, stat: os.stat_result) -> ObjectMeta:
        return ObjectMeta(
            path=target.relative_to(self.local).as_posix(),
            size=stat.st_size,
            etag=durable.etag(stat),
            last_modified=datetime.fromtimestamp(stat.st_mtime, UTC),
        )

    def _path(self, path: str) -> Path:
        return self.local / checked(path)

    def _create(self, target: Path, data: bytes) -> bool:
        with _os_errors(target):
            return durable.create(target, self.local, data)

    def _replace(self, target: Path, data: bytes, etag: str | None) -> bool:
        with _os_errors(target):
            return durable.replace(target, self.local, data, etag)

    def _get(self, target: Path) -> tuple[bytes, ObjectMeta] | None:
        with _os_errors(target):
            try:
                data, stat = durable.read(target)
            except FileNotFoundError:
                return None
        return data, self.meta(target, stat)

    def _get_range(self, target: Path, start: int, length: int) -> bytes:
        with _os_errors(target, FileNotFoundError), target.open("rb") as file:
            return os.pread(file.fileno(), length, start)

    def _head(self, target: Path) -> ObjectMeta | None:
        with _os_errors(target):
            try:
                return self.meta(target, target.stat())
            except FileNotFoundError:
                return None

    def _list(self, folder: Path, start_after: str | None) -> Listing:
        found = []
        with _os_errors(folder):
            for parent, _, names in os.walk(folder):
                for name in names:
                    target = Path(parent, name)
                    relative = target.relative_to(self.local).as_posix()
                    if name.endswith(durable.TEMPORARY) or (start_after is not None and relative <= start_after):
                        continue
                    with contextlib.suppress(FileNotFoundError):
                        found.append(self.meta(target, target.stat()))
        return sorted(found, key=lambda meta: meta.path)

    def _folders(self) -> tuple[str, ...]:
        with _os_errors(self.local), contextlib.suppress(FileNotFoundError), os.scandir(self.local) as found:
            return tuple(sorted(one.name for one in found if one.is_dir()))
        return ()

    def _delete(self, target: Path) -> None:
        with _os_errors(target):
            durable.delete(target)


class _LocalUpload:
    def __init__(self, store: LocalStore, file: durable.NewFile) -> None:
        self._store, self._file = store, file

    def write(self, data: Buffer) -> None:
        with _os_errors(self._file.path):
            self._file.write(data)

    def finish(self) -> ObjectMeta:
        with _os_errors(self._file.path):
            if not self._file.finish():
                raise Fatal(f"{self._file.path} exists already; a file is written once, under a name of its own")
            return self._store.meta(self._file.path, self._file.path.stat())

    def abort(self) -> None:
        self._file.abort()


class ObjectStore(Store):
    """Anything that obstore opens: its conditional puts are the store's own (If-None-Match, If-Match)."""

    def __init__(self, uri: str, inner: Any, options: Mapping[str, str] | None, *, meter: Meter = SILENT) -> None:
        self.uri = uri
        self.options = dict(options or {})
        self._inner, self._meter = inner, meter

    @property
    def client(self) -> Any:
        """The obstore client, for requests that lakes do not make."""
        return self._inner

    def options_now(self) -> dict[str, str]:
        """With the credentials of this moment where only botocore finds them."""
        found = getattr(self._inner, "credential_provider", None)
        return {**(found.options() if isinstance(found, credentials.Botocore) else {}), **self.options}

    def above(self) -> Iterator[Store]:
        scheme, _, path = self.uri.partition("://")
        parts = [] if scheme == "memory" else [part for part in path.split("/") if part]
        for length in range(len(parts) - 1, 0, -1):
            yield Store.open(f"{scheme}://{'/'.join(parts[:length])}", self.options, meter=self._meter)

    async def put_if_absent(self, path: str, data: bytes) -> bool:
        with self._asking("put", path):
            try:
                await obstore.put_async(self._inner, checked(path), data, mode="create", use_multipart=False)
            except obstore_errors.AlreadyExistsError:
                return False
        return True

    async def put(self, path: str, data: bytes) -> None:
        with self._asking("put", path):
            await obstore.put_async(self._inner, checked(path), data, use_multipart=False)

    async def replace(self, path: str, data: bytes, etag: str) -> bool:
        with self._asking("put", path):
            try:
                await obstore.put_async(self._inner, checked(path), data, mode={"e_tag": etag}, use_multipart=False)
            except (obstore_errors.PreconditionError, FileNotFoundError):
                return False
        return True

    async def get(self, path: str) -> tuple[bytes, ObjectMeta] | None:
        with self._asking("get", path):
            try:
                result = await obstore.get_async(self._inner, checked(path))
                return bytes(await result.bytes_async()), _meta(result.meta)
            except FileNotFoundError:
                return None

    async def get_range(self, path: str, start: int, length: int) -> bytes:
        with self._asking("get", path):
            return bytes(await obstore.get_range_async(self._inner, checked(path), start=start, length=length))

    async def head(self, path: str) -> ObjectMeta | None:
        with self._asking("head", path):
            try:
                return _meta(await obstore.head_async(self._inner, checked(path)))
            except FileNotFoundError:
                return None

    async def list(self, prefix: str, start_after: str | None = None) -> Listing:
        folder = checked(prefix.rstrip("/")) if prefix.rstrip("/") else None
        with self._asking("list", prefix):
            found = [
                _meta(each) async for chunk in obstore.list(self._inner, folder, offset=start_after) for each in chunk
            ]
        return sorted(found, key=lambda meta: meta.path)

    async def folders(self) -> tuple[str, ...]:
        with self._asking("list", ""):
            found = await obstore.list_with_delimiter_async(self._inner)
        return tuple(sorted(path.rstrip("/") for path in found["common_prefixes"]))

    async def delete(self, path: str) -> None:
        with self._asking("delete", path), contextlib.suppress(FileNotFoundError):
            await obstore.delete_async(self._inner, checked(path))

    def upload(self, path: str) -> Upload:
        self._meter.count("requests", service="objects", operation="upload")
        return _ObjectUpload(self._inner, checked(path))

    @contextlib.contextmanager
    def _asking(self, operation: str, path: str) -> Iterator[None]:
        """One request, counted, and its errors in our words."""
        self._meter.count("requests", service="objects", operation=operation)
        try:
            with (_writing if operation in _WRITES else _reading)(path):
                yield
        except Retryable:
            self._meter.count("request_failures", service="objects", operation=operation)
            raise


class _ObjectUpload:
    """One PUT of what is up to 8 MiB, else parts of 8 MiB; an upload that is dropped without `finish` makes no object."""

    def __init__(self, inner: Any, path: str) -> None:
        self._inner, self._path = inner, path
        self._held: bytearray | None = bytearray()  # a writer's own PUT, when it is closed, fails without saying why
        self._writer: Any = None

    def write(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        with _writing(self._path):
            if self._held is not None and len(self._held) + len(view) <= _PART_BYTES:
                self._held += view
                return
            if self._held is not None:
                self._writer = obstore.open_writer(self._inner, self._path, buffer_size=_PART_BYTES)
                self._writer.write(self._held)
                self._held = None
            self._writer.write(view)

    def finish(self) -> ObjectMeta:
        with _writing(self._path):
            if self._held is not None:
                obstore.put(self._inner, self._path, self._held, use_multipart=False)
            else:
                self._writer.close()
        self._held = self._writer = None
        try:
            with _reading(self._path):
                return _meta(obstore.head(self._inner, self._path))
        except FileNotFoundError as error:
            raise OutcomeUnknown(f"{self._path} was written and is not there: {_first_line(error)}") from error

    def abort(self) -> None:
        self._held = self._writer = None


def _remote(uri: str, options: Mapping[str, str]) -> Any:
    """A client's options may carry the prefix that deltalake wants, as in AWS_ALLOW_HTTP."""
    config: dict[str, str] = {}
    client: dict[str, Any] = dict(_TIMEOUTS)
    for name, value in options.items():
        plain = name.lower()
        bare = plain.removeprefix("aws_").removeprefix("google_").removeprefix("azure_")
        if bare in _CLIENT_OPTIONS:
            client[bare] = value.lower() == "true" if bare.startswith("allow_") else value
        else:
            config[plain] = value
    given: dict[str, Any] = {}
    found = credentials.provider(config) if uri.startswith("s3:") else None
    if found is not None:
        given["credential_provider"] = found
        if found.region is not None and not any(name.endswith("region") for name in config):
            config["region"] = found.region
    try:
        return from_url(uri, config=config, client_options=client, retry_config=_RETRIES, **given)  # type: ignore[call-overload]
    except (obstore_errors.BaseError, ValueError, TypeError) as error:
        raise Fatal(f"{uri}: {_first_line(error)}") from error


def _meta(raw: Any) -> ObjectMeta:
    return ObjectMeta(
        path=raw["path"], size=raw["size"], etag=raw["e_tag"], last_modified=raw["last_modified"].astimezone(UTC)
    )


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


_REFUSED = (
    obstore_errors.PermissionDeniedError,
    obstore_errors.UnauthenticatedError,
    obstore_errors.UnknownConfigurationKeyError,
    obstore_errors.NotSupportedError,
    obstore_errors.InvalidPathError,
)


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except _REFUSED as error:
        raise Fatal(f"{path}: {_first_line(error)}") from error
    except FileNotFoundError:
        raise
    except (obstore_errors.BaseError, OSError) as error:
        raise Retryable(f"{path}: {_first_line(error)}") from error


@contextlib.contextmanager
def _writing(path: str) -> Iterator[None]:
    """A failed write may have been carried out: the store's answer, not the request, may be what was lost."""
    try:
        with _reading(path):
            yield
    except FileNotFoundError as error:
        if "NoSuchUpload" in str(error):  # completed already, and the answer was lost; or aborted by somebody else
            raise OutcomeUnknown(f"{path}: {_first_line(error)}") from error
        raise Fatal(f"{path}: the store has no such bucket or container: {_first_line(error)}") from error
    except Retryable as error:
        raise OutcomeUnknown(str(error)) from error


@contextlib.contextmanager
def _os_errors(target: Path, *known: type[OSError]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, known):
            raise
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR):
            raise Fatal(f"{target}: {error.strerror}") from error
        raise Retryable(f"{target}: {error.strerror}") from error
