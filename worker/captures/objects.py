"""Objects of which one content is read and no other: the port, and its adapter for every store that `obstore` opens.

Knows ranges, versions and eTags, and what stores answer, which it says in worker/errors.py and two words of its own.
Must not know what an object holds, nor who waits for it.

    Gone        no object of that name, or not in that version
    Changed     another content than the one that was meant
    Refused     this object is not given, or not as it was announced: it says nothing about the others
    Retryable   everything else
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import obstore
from obstore import exceptions as obstore_errors

from .errors import PcaplakeError, Retryable
from .lake.store import checked

PART_BYTES = 1 << 20
"""What a cut connection may cost at most, beyond what the store's client mends by itself."""
_CODE = re.compile(r"<Code>(\w+)</Code>")
REFUSALS = frozenset({"AccessDenied", "AllAccessDisabled", "InvalidObjectState", "NoSuchBucket", "InvalidBucketName"})
"""Codes of S3 that are about one object or bucket."""
_NO_OBJECT = frozenset({"NoSuchKey", "NoSuchVersion", "BlobNotFound"})


class Gone(PcaplakeError):
    """It is not there, or not any more."""


class Changed(PcaplakeError):
    """It is not what it was when it was named, or when its reading began."""


class Refused(Retryable):
    """It is not given, or is not as it was announced: no sign of an outage, in which nothing else is given either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """One content of one object: `size` in bytes, `etag` without quotes."""

    key: str
    size: int
    etag: str
    version_id: str | None = None


class Objects(Protocol):
    """A bucket. Methods raise Gone, Changed or Retryable."""

    async def head(self, key: str, version_id: str | None = None) -> Content:
        """What is there now, or what that version is."""
        ...

    def read(self, content: Content, start: int, end: int) -> AsyncIterator[memoryview]:
        """The bytes [start, end) of this very content, part by part; the answer may end early, with or without a word."""
        ...


class StoredObjects:
    """A bucket behind an obstore client; `uri` as `s3://bucket`."""

    def __init__(self, uri: str, client: Any) -> None:
        self.uri = uri
        self._client = client
        self._over_http = not uri.startswith("memory:")

    async def head(self, key: str, version_id: str | None = None) -> Content:
        with self._errors(key):
            try:
                meta = (await self._get(key, {"head": True, "version": version_id})).meta
            except FileNotFoundError:  # the answer to HEAD has no body, and so does not say what is not there
                meta = (await self._get(key, {"version": version_id})).meta
        if not _etag(meta):
            raise Retryable(f"{self.uri}/{key}: the store gives it no eTag: one content cannot be told from another")
        return Content(key=key, size=meta["size"], etag=_etag(meta), version_id=version_id)

    async def read(self, content: Content, start: int, end: int) -> AsyncIterator[memoryview]:
        options: dict[str, Any] = {"version": content.version_id, "if_match": f'"{content.etag}"'}
        if (start, end) != (0, content.size):
            options["range"] = (start, end)
        with self._errors(content.key):
            result = await self._content(content, options)
            etag = _etag(result.meta)
            if etag not in ("", content.etag):  # not every store minds If-Match
                raise Changed(f"{self.uri}/{content.key} has the eTag {etag}, not {content.etag}")
            if result.meta["size"] != content.size or result.range[0] != start:
                raise Refused(
                    f"{self.uri}/{content.key}: asked for bytes from {start} of {content.size}, the store gave them "
                    f"from {result.range[0]} of {result.meta['size']}"
                )
            async for part in result.stream(min_chunk_size=PART_BYTES):
                yield memoryview(part)

    async def _content(self, content: Content, options: dict[str, Any]) -> Any:
        """By its version; when that is gone, the same content may have been uploaded once more, which nobody reads."""
        try:
            return await self._get(content.key, options)
        except FileNotFoundError as gone:
            if content.version_id is None:
                raise
            try:
                return await self._get(content.key, {**options, "version": None})
            except obstore_errors.PreconditionError:
                raise gone from None

    async def _get(self, key: str, options: dict[str, Any]) -> Any:
        """obstore would read `a` for `/a` and `a/`, which are other objects."""
        given = {name: value for name, value in options.items() if value is not None}
        return await obstore.get_async(self._client, checked(key), options=given)  # type: ignore[arg-type]

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        where = f"{self.uri}/{key}"
        try:
            yield
        except FileNotFoundError as error:
            code = _CODE.search(str(error))
            if self._over_http and (code is None or code[1] not in _NO_OBJECT):
                kind = Refused if code and code[1] in REFUSALS else Retryable
                raise kind(f"{where}: not found, but not as an object: {_first_line(error)}") from error
            raise Gone(f"{where} is not there (any more)") from error
        except obstore_errors.PreconditionError as error:
            raise Changed(f"{where} is not what it was when it was named") from error
        except ValueError as error:
            raise Refused(f"{where}: no name that can be read: {_first_line(error)}") from error
        except (obstore_errors.BaseError, OSError) as error:
            code = _CODE.search(str(error))
            kind = Refused if code and code[1] in REFUSALS else Retryable
            raise kind(f"{where}: {_first_line(error)}") from error


def _etag(meta: Any) -> str:
    return (meta["e_tag"] or "").strip('"')


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
