"""Reads one exact content of an object: the port, and its adapter for every store that `obstore` opens.

Handles ranges, versions and eTags. Errors of a store become one of these:

    Gone        there is no object of this name or version
    Changed     the object has another content than the expected one
    Unavailable the object cannot be read at the moment
    Refused     Unavailable because of this object alone: access is denied, or it differs from what was announced
    Retryable   everything else
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

import obstore
from obstore import exceptions as obstore_errors

from pcaplake.common.errors import PcaplakeError, Retryable
from pcaplake.lake.store.credentials import explain_missing_credentials
from pcaplake.lake.store.store import checked_path

PART_BYTES = 1 << 20
"""The most bytes that a broken connection costs, if the store's client does not recover by itself."""
_CODE = re.compile(r"<Code>(\w+)</Code>")
REFUSALS = frozenset({"AccessDenied", "AllAccessDisabled", "InvalidObjectState", "NoSuchBucket", "InvalidBucketName"})
"""Codes of S3 that are about one object or bucket."""
_NO_OBJECT = frozenset({"NoSuchKey", "NoSuchVersion", "BlobNotFound"})


class Gone(PcaplakeError):
    """The object does not exist, or no longer exists."""


class Changed(PcaplakeError):
    """The content changed since the object was listed or since reading began."""


class Unavailable(Retryable):
    """The store of a capture cannot deliver it at the moment. This says nothing about the store of the lake."""


class Refused(Unavailable):
    """The store refuses this object, or it differs from what was announced. This is not a sign of an outage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """One content of one object: `size` in bytes, `etag` without quotes; `modified`: when, if the store has said it."""

    key: str
    size: int
    etag: str
    version_id: str | None = None
    modified: datetime | None = field(default=None, compare=False)


class Objects(Protocol):
    """The objects of a bucket. Methods raise Gone, Changed or Retryable."""

    async def head_object(self, key: str, version_id: str | None = None) -> Content:
        """The current content, or the content of that version."""
        ...

    def read_range(self, content: Content, start: int, end: int) -> AsyncIterator[memoryview]:
        """The bytes [start, end) of exactly this content, in parts. The answer may end early, with or without an exception."""
        ...


class StoredObjects:
    """A bucket behind an obstore client; `uri` as `s3://bucket`."""

    def __init__(self, uri: str, client: Any) -> None:
        self.uri = uri
        self._client = client
        self._over_http = not uri.startswith("memory:")

    async def head_object(self, key: str, version_id: str | None = None) -> Content:
        with self._translate_errors(key):
            try:
                meta = (await self._get_object(key, {"head": True, "version": version_id})).meta
            except FileNotFoundError:  # HEAD has no body, which would tell a missing key from a missing bucket
                meta = (await self._get_object(key, {"version": version_id})).meta
        if not _unquoted_etag(meta):
            raise Retryable(f"{self.uri}/{key}: the store returns no eTag, which is needed to detect changed contents")
        return Content(
            key=key,
            size=meta["size"],
            etag=_unquoted_etag(meta),
            version_id=version_id,
            modified=meta["last_modified"],
        )

    async def read_range(self, content: Content, start: int, end: int) -> AsyncIterator[memoryview]:
        options: dict[str, Any] = {"version": content.version_id, "if_match": f'"{content.etag}"'}
        if (start, end) != (0, content.size):
            options["range"] = (start, end)
        with self._translate_errors(content.key):
            result = await self._get_content(content, options)
            etag = _unquoted_etag(result.meta)
            if etag not in ("", content.etag):  # some stores ignore If-Match
                raise Changed(f"{self.uri}/{content.key} has the eTag {etag}, not {content.etag}")
            if result.meta["size"] != content.size or result.range[0] != start:
                raise Refused(
                    f"{self.uri}/{content.key}: asked for bytes from {start} of {content.size}, the store gave them "
                    f"from {result.range[0]} of {result.meta['size']}"
                )
            async for part in result.stream(min_chunk_size=PART_BYTES):
                yield memoryview(part)

    async def _get_content(self, content: Content, options: dict[str, Any]) -> Any:
        """Gets the content by its version, or without it if the version is gone but the object has the same content."""
        try:
            return await self._get_object(content.key, options)
        except FileNotFoundError as gone:
            if content.version_id is None:
                raise
            try:
                return await self._get_object(content.key, {**options, "version": None})
            except obstore_errors.PreconditionError:
                raise gone from None

    async def _get_object(self, key: str, options: dict[str, Any]) -> Any:
        """Gets an object. Refuses keys such as `/a` and `a/`, for which obstore would read `a`."""
        given = {name: value for name, value in options.items() if value is not None}
        return await obstore.get_async(self._client, checked_path(key), options=given)  # type: ignore[arg-type]

    @contextmanager
    def _translate_errors(self, key: str) -> Iterator[None]:
        where = f"{self.uri}/{key}"
        try:
            yield
        except FileNotFoundError as error:
            code = _CODE.search(str(error))
            if self._over_http and (code is None or code[1] not in _NO_OBJECT):
                kind = Refused if code and code[1] in REFUSALS else Retryable
                raise kind(
                    f"{where}: not found, but the answer does not say that the object is missing: {_first_line(error)}"
                ) from error
            raise Gone(f"{where} does not exist") from error
        except obstore_errors.PreconditionError as error:
            raise Changed(f"{where} has changed since it was listed or announced") from error
        except ValueError as error:
            raise Refused(f"{where}: this key cannot be read: {_first_line(error)}") from error
        except (obstore_errors.BaseError, OSError) as error:
            code = _CODE.search(str(error))
            kind = Refused if code and code[1] in REFUSALS else Retryable
            what_to_do = explain_missing_credentials(self.uri, error)
            raise kind(what_to_do or f"{where}: {_first_line(error)}") from error


def _unquoted_etag(meta: Any) -> str:
    return (meta["e_tag"] or "").strip('"')


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
