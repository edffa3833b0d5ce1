"""A plain HTTP file server with ranges: as much of S3 as reading a capture takes. Contents are made as they are asked for.

Knows GET, Range and If-Match of the client that fetches captures. It stands in where S3 must not be the bottleneck, and
where captures are too large to be kept anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

_RANGE = re.compile(r"bytes=(\d+)-(\d+)?")
_PIECE = 1 << 20


class Content(Protocol):
    """The bytes of one object."""

    @property
    def size(self) -> int: ...

    def read(self, start: int, end: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Whole:
    """In memory."""

    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, start: int, end: int) -> bytes:
        return self.data[start:end]


class Repeated:
    """A head, and so many times the same piece; nowhere as a whole."""

    def __init__(self, head: bytes, piece: bytes, times: int) -> None:
        self.size = len(head) + len(piece) * times
        self._head, self._piece = head, piece
        self._run = piece * (2 + _PIECE // len(piece))

    def read(self, start: int, end: int) -> bytes:
        """At most a megabyte of it."""
        head = self._head[start:end]
        at = max(0, start - len(self._head)) % len(self._piece)
        return head + self._run[at : at + (end - start) - len(head)]


class FileServer:
    """`content_of` a key, KeyError for one that is not there; `etag` is everybody's. `url` while the context is open."""

    def __init__(self, content_of: Callable[[str], Content], *, etag: str) -> None:
        self.url = ""
        self.bytes = 0
        self._content_of, self._etag = content_of, etag

    async def __aenter__(self) -> FileServer:
        self._runner = web.ServerRunner(web.Server(self._handle, access_log=None), shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = "http://{}:{}".format(*self._runner.addresses[0][:2])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            content = self._content_of(request.path.lstrip("/").partition("/")[2])
        except KeyError:
            return web.Response(status=404, text="<Error><Code>NoSuchKey</Code></Error>")
        if request.headers.get("If-Match", f'"{self._etag}"') != f'"{self._etag}"':
            return web.Response(status=412)
        start, end = 0, content.size
        if asked := _RANGE.fullmatch(request.headers.get("Range", "")):
            start, end = int(asked[1]), min(int(asked[2] or content.size) + 1, content.size)
        answer = web.StreamResponse(status=206 if asked else 200)
        answer.headers["ETag"] = f'"{self._etag}"'
        answer.headers["Last-Modified"] = "Mon, 24 Nov 2025 16:00:00 GMT"
        answer.content_length = end - start
        if asked:
            answer.headers["Content-Range"] = f"bytes {start}-{end - 1}/{content.size}"
        await answer.prepare(request)
        while start < end:
            piece = content.read(start, min(start + _PIECE, end))
            await answer.write(piece)
            start += len(piece)
            self.bytes += len(piece)
        return answer
