"""A store through obstore: S3, GCS, Azure, or the memory of this process."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import obstore
from obstore import exceptions as obstore_errors
from obstore.store import MemoryStore, from_url

from pcaplake.common.errors import BucketMissing, Fatal, OutcomeUnknown, Retryable
from pcaplake.common.meter import SILENT, Meter
from pcaplake.common.retry import OBJECT_REQUEST

from . import credentials
from .store import Buffer, Listing, ObjectMeta, Store, Unnameable, Upload, checked_path, register_opener

_SCHEMES = {"s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs", "gcs": "gs", "az": "az", "azure": "az"}
_SCHEMES |= {"abfs": "abfs", "abfss": "abfss"}
_CLIENT_OPTIONS = frozenset({"allow_http", "allow_invalid_certificates", "connect_timeout", "proxy_url", "timeout"})
# A request ends well before `commit_timeout`, so that the commit has time to read its outcome.
_TIMEOUTS = {"connect_timeout": "5s", "timeout": "30s"}
_RETRIES: dict[str, Any] = {"max_retries": OBJECT_REQUEST.attempts - 1, "retry_timeout": timedelta(seconds=20)}
_PART_BYTES = 8 * 1024 * 1024
_WRITES = frozenset({"put", "delete"})
_CLOCK_SECONDS = 10.0  # that a time of the store is used for later uploads

# Stores in memory with the same name are one store within the process.
_memories: dict[str, MemoryStore] = {}


@register_opener("memory")
def open_memory_store(uri: str, options: Mapping[str, str], meter: Meter) -> Store:
    name = _split_uri(uri)[1].strip("/")
    return ObjectStore(f"memory:///{name}", _memories.setdefault(name, MemoryStore()), options, meter=meter)


@register_opener(*_SCHEMES)
def open_object_store(uri: str, options: Mapping[str, str], meter: Meter) -> Store:
    scheme, place = _split_uri(uri)
    plain = f"{_SCHEMES[scheme]}://{place}"
    return ObjectStore(plain, _connect_obstore(plain, options), options, meter=meter)


def _split_uri(uri: str) -> tuple[str, str]:
    scheme, _, rest = uri.partition("://")
    if not rest.strip("/"):
        raise Fatal(f"{uri}: a bucket or a name is missing")
    return scheme, rest.rstrip("/")


class ObjectStore(Store):
    """A store through obstore, with the service's own conditional writes (If-None-Match, If-Match, generations)."""

    def __init__(self, uri: str, inner: Any, options: Mapping[str, str] | None, *, meter: Meter = SILENT) -> None:
        self.uri = uri
        self.options = dict(options or {})
        self._inner, self._meter = inner, meter
        self._clock = _StoreClock()
        self._had_answer = False  # without one, missing credentials are wrong settings and no outage
        self.unproven = not uri.startswith("memory:")

    @property
    def obstore_client(self) -> Any:
        """The obstore client, for requests that `Store` does not have."""
        return self._inner

    def current_options(self) -> dict[str, str]:
        """The options, with the current credentials if only botocore finds them."""
        provider = getattr(self._inner, "credential_provider", None)
        return {
            **(provider.storage_options() if isinstance(provider, credentials.BotocoreCredentials) else {}),
            **self.options,
        }

    def parent_stores(self) -> Iterator[Store]:
        scheme, _, path = self.uri.partition("://")
        parts = [] if scheme == "memory" else [part for part in path.split("/") if part]
        for length in range(len(parts) - 1, 0, -1):
            yield Store.open(f"{scheme}://{'/'.join(parts[:length])}", self.options, meter=self._meter)

    async def put_if_absent(self, path: str, data: bytes) -> bool:
        with self._counted_request("put", path):
            try:
                await obstore.put_async(self._inner, checked_path(path), data, mode="create", use_multipart=False)
            except obstore_errors.AlreadyExistsError:
                return False
        return True

    async def put(self, path: str, data: bytes) -> None:
        with self._counted_request("put", path):
            await obstore.put_async(self._inner, checked_path(path), data, use_multipart=False)

    async def replace(self, path: str, data: bytes, seen: ObjectMeta) -> bool:
        condition = {"e_tag": seen.etag, "version": seen.version}
        mode: Any = {name: value for name, value in condition.items() if value is not None}
        if not mode:
            raise Fatal(
                f"{self.uri}: the store returns no eTag for {path}, so it cannot be replaced safely: use another store"
            )
        with self._counted_request("put", path):
            try:
                await obstore.put_async(self._inner, checked_path(path), data, mode=mode, use_multipart=False)
            except (obstore_errors.PreconditionError, FileNotFoundError):
                return False
        return True

    async def get(self, path: str) -> tuple[bytes, ObjectMeta] | None:
        with self._counted_request("get", path):
            try:
                result = await obstore.get_async(self._inner, checked_path(path))
                return bytes(await result.bytes_async()), _object_meta(result.meta)
            except FileNotFoundError:
                return None

    async def get_range(self, path: str, start: int, length: int) -> bytes:
        with self._counted_request("get", path):
            return bytes(await obstore.get_range_async(self._inner, checked_path(path), start=start, length=length))

    async def head(self, path: str) -> ObjectMeta | None:
        with self._counted_request("head", path):
            try:
                return _object_meta(await obstore.head_async(self._inner, checked_path(path)))
            except FileNotFoundError:
                return None

    async def list(self, prefix: str, start_after: str | None = None) -> Listing:
        folder = checked_path(prefix.rstrip("/")) if prefix.rstrip("/") else None
        with self._counted_request("list", prefix):
            metas = [
                _object_meta(raw)
                async for chunk in obstore.list(self._inner, folder, offset=start_after)
                for raw in chunk
            ]
        # a service may ignore where to begin (Azurite), and obstore relies on it
        # rule: a list begins behind the name that was asked for
        after = start_after or ""
        return sorted((meta for meta in metas if meta.path > after), key=lambda meta: meta.path)

    async def list_folders(self) -> tuple[str, ...]:
        with self._counted_request("list", ""):
            listing = await obstore.list_with_delimiter_async(self._inner)
        return tuple(sorted(path.rstrip("/") for path in listing["common_prefixes"]))

    async def delete(self, path: str) -> None:
        with self._counted_request("delete", path), contextlib.suppress(FileNotFoundError):
            await obstore.delete_async(self._inner, checked_path(path))

    def upload(self, path: str) -> Upload:
        self._meter.count("requests", service="objects", operation="upload")
        return _ObjectUpload(self._inner, checked_path(path), self._clock)

    @contextlib.contextmanager
    def _counted_request(self, operation: str, path: str) -> Iterator[None]:
        """Count one request, and translate its errors."""
        self._meter.count("requests", service="objects", operation=operation)
        try:
            with (_translate_write_errors if operation in _WRITES else _translate_read_errors)(path):
                yield
            self._had_answer = True
        except Retryable as error:
            self._meter.count("request_failures", service="objects", operation=operation)
            if what_to_do := credentials.explain_missing_credentials(self.uri, error):
                raise (Retryable if self._had_answer else Fatal)(what_to_do) from error
            raise


class _StoreClock:
    """The last time that the store gave a new object.

    The answer to a PUT has no time, so it takes a HEAD. A time that was read before an upload is not after the upload, and
    files count as old by their age: one that counts as older than it is is checked too early, which costs a request. So
    uploads of the next seconds use the same time. Only how often it is read depends on the local clock.
    """

    def __init__(self) -> None:
        self._last: tuple[datetime, float] | None = None

    def recent_time(self) -> datetime | None:
        """A time of the store that has passed; None if it was not read within the last seconds."""
        last = self._last
        return last[0] if last is not None and time.monotonic() - last[1] < _CLOCK_SECONDS else None

    def set_time(self, now: datetime) -> None:
        self._last = now, time.monotonic()


class _ObjectUpload:
    """One PUT up to 8 MiB, else a multipart upload with parts of 8 MiB. Without `finish` there is no object."""

    def __init__(self, inner: Any, path: str, clock: _StoreClock) -> None:
        self._inner, self._path, self._clock, self._size = inner, path, clock, 0
        # not in `finish`, because the time of an object of several parts is that of the first request for it
        self._began_after = clock.recent_time()
        self._held: bytearray | None = bytearray()  # the PUT of obstore's writer fails without a reason, so we send it
        self._writer: Any = None

    def write(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        self._size += len(view)
        with _translate_write_errors(self._path):
            if self._held is not None and len(self._held) + len(view) <= _PART_BYTES:
                self._held += view
                return
            if self._held is not None:
                self._writer = obstore.open_writer(self._inner, self._path, buffer_size=_PART_BYTES)
                self._writer.write(self._held)
                self._held = None
            self._writer.write(view)

    def finish(self) -> ObjectMeta:
        with _translate_write_errors(self._path):
            if self._held is not None:
                obstore.put(self._inner, self._path, self._held, use_multipart=False)
            else:
                self._writer.close()
        self._held = self._writer = None
        if self._began_after is not None:
            return ObjectMeta(path=self._path, size=self._size, etag=None, last_modified=self._began_after)
        try:
            with _translate_read_errors(self._path):
                meta = _object_meta(obstore.head(self._inner, self._path))
        except FileNotFoundError as error:
            raise OutcomeUnknown(f"{self._path} was written and does not exist: {_first_line(error)}") from error
        self._clock.set_time(meta.last_modified)
        return meta

    def abort(self) -> None:
        self._held = self._writer = None


def _connect_obstore(uri: str, options: Mapping[str, str]) -> Any:
    """An obstore client. Client options may have the prefix that deltalake requires, such as AWS_ALLOW_HTTP."""
    config: dict[str, str] = {}
    client: dict[str, Any] = dict(_TIMEOUTS)
    for name, value in options.items():
        plain = name.lower()
        bare = plain.removeprefix("aws_").removeprefix("google_").removeprefix("azure_")
        if bare in _CLIENT_OPTIONS:
            client[bare] = value.lower() == "true" if bare.startswith("allow_") else value
        else:
            config[plain] = value
    extra_arguments: dict[str, Any] = {}
    credential_provider = credentials.find_credential_provider(config) if uri.startswith("s3:") else None
    if credential_provider is not None:
        extra_arguments["credential_provider"] = credential_provider
        if credential_provider.region is not None and not any(name.endswith("region") for name in config):
            config["region"] = credential_provider.region
    try:
        return from_url(uri, config=config, client_options=client, retry_config=_RETRIES, **extra_arguments)  # type: ignore[call-overload]
    except (obstore_errors.BaseError, ValueError, TypeError) as error:
        hint = "; set AZURE_STORAGE_ACCOUNT_NAME" if "Account must be specified" in str(error) else ""
        raise Fatal(f"{uri}: {_first_line(error)}{hint}") from error


def _object_meta(raw: Any) -> ObjectMeta:
    return ObjectMeta(
        path=raw["path"],
        size=raw["size"],
        etag=raw["e_tag"],
        last_modified=raw["last_modified"].astimezone(UTC),
        version=raw["version"],
    )


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


_REFUSED = (
    obstore_errors.PermissionDeniedError,
    obstore_errors.UnauthenticatedError,
    obstore_errors.UnknownConfigurationKeyError,
    obstore_errors.NotSupportedError,
)

# the codes of S3, Azure and GCS
_NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound|specified bucket does not exist")
BUCKET_MISSING = "the bucket or container does not exist. Create it, or correct its name, the region or the endpoint"


@contextlib.contextmanager
def _translate_read_errors(path: str) -> Iterator[None]:
    try:
        yield
    except obstore_errors.InvalidPathError as error:
        raise Unnameable(f"{path}: {_first_line(error)}") from error
    except _REFUSED as error:
        raise Fatal(f"{path}: {_first_line(error)}") from error
    except (obstore_errors.BaseError, OSError) as error:
        if _NO_BUCKET.search(str(error)):
            raise BucketMissing(f"{path}: {BUCKET_MISSING}") from error
        if isinstance(error, FileNotFoundError):
            raise
        raise Retryable(f"{path}: {_first_line(error)}") from error


@contextlib.contextmanager
def _translate_write_errors(path: str) -> Iterator[None]:
    """A failed write may have been carried out, because perhaps only the response was lost."""
    try:
        with _translate_read_errors(path):
            yield
    except FileNotFoundError as error:
        if "NoSuchUpload" in str(error):  # already completed, with the response lost, or aborted by another process
            raise OutcomeUnknown(f"{path}: {_first_line(error)}") from error
        raise BucketMissing(f"{path}: {BUCKET_MISSING}") from error
    except Retryable as error:
        raise OutcomeUnknown(str(error)) from error
