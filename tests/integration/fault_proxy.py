"""A proxy in front of one service, where chosen requests go wrong: S3, SQS or DynamoDB, on loopback, for one event loop.

    async with FaultProxy(aws.dynamodb) as proxy:
        held = proxy.add("PutItem", "hold_response", containing="delta_log")
        ...                       # a client whose endpoint is proxy.url
        await held.reached.wait()  # the service has done it, the client does not know yet
        held.release()

Requests pass as they are: Host, path and query byte for byte (a signature covers them), bodies as a stream. It knows
the names of operations, nothing of what they mean. A client that gives up on a held request does not call it back: the
request reaches the service when it is released, as a packet that was late would.
"""

from __future__ import annotations

import asyncio
import io
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any, Literal

import aiohttp
from aiohttp import web
from yarl import URL

from .operations import conditions_of, in_body, in_xml, name_of

Action = Literal[
    "error",  # the service is not asked; the client gets `status` and `code`
    "error_response",  # the service does it; the client gets `status` and `code`
    "drop_request",  # the service is not asked; the connection breaks
    "drop_response",  # the service does it; the connection breaks
    "truncate",  # the service does it; the connection breaks after half the body of the answer
    "delay",  # the service is asked `seconds` later
    "hold",  # the service is asked when the rule is released
    "hold_response",  # the service does it; the client hears of it when the rule is released
]
_HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "expect", "proxy-connection")
)
_STOP_SECONDS = 0.1
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@dataclass(slots=True, kw_only=True)
class Seen:
    """A request as it came; `status` is what the service answered, None if it was not asked or did not answer.

    `conditions`: its headers that make it conditional, in lower case.
    """

    operation: str
    key: str
    action: Action | None
    status: int | None = None
    conditions: frozenset[str] = frozenset()


@dataclass(slots=True, kw_only=True, eq=False)
class Rule:
    """What goes wrong with the next `times` requests (None: all) that match, after `skip` of them that pass.

    `operation` (`PutItem`, `*Object`) and the decoded `key` of S3 are the shell's patterns; `containing` is a piece of the
    body of an SQS or DynamoDB request, such as a table's name, or of DeleteObjects. `fields` are added to a JSON error.
    """

    operation: str
    action: Action
    key: str = "*"
    containing: str = ""
    times: int | None = 1
    skip: int = 0
    status: int = 500
    code: str = "InternalError"
    fields: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    hits: int = 0
    reached: asyncio.Event = field(default_factory=asyncio.Event)  # a request is held, or went wrong
    released: asyncio.Event = field(default_factory=asyncio.Event)

    def release(self) -> None:
        """Let go what is held, and what would be."""
        self.released.set()

    def takes(self, operation: str, key: str, body: bytes | None) -> bool:
        """Whether this request is one of its; counts it."""
        if not fnmatchcase(operation, self.operation) or not fnmatchcase(key, self.key):
            return False
        if self.containing.encode() not in (body or b""):
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.times == self.hits:
            return False
        self.hits += 1
        return True


class FaultProxy:
    """In front of the service at `upstream`, while the context is open; `log` has every request in order of arrival."""

    def __init__(self, upstream: str, *, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        self.upstream = upstream.rstrip("/")
        self.url = ""
        self.log: list[Seen] = []
        self._rules: list[Rule] = []
        self._sleep = sleep
        self._runner: web.ServerRunner
        self._http: aiohttp.ClientSession

    def add(self, operation: str, action: Action, **rule: Any) -> Rule:
        """What goes wrong from now on; the first rule that takes a request wins. `rule`: the other fields of `Rule`."""
        self._rules.append(Rule(operation=operation, action=action, **rule))
        return self._rules[-1]

    def clear(self) -> None:
        """All goes well from here; what is held goes on."""
        for rule in self._rules:
            rule.release()
        self._rules.clear()

    def operations(self) -> list[str]:
        """The names of what was asked, in order of arrival."""
        return [one.operation for one in self.log]

    async def __aenter__(self) -> FaultProxy:
        self._http = aiohttp.ClientSession(
            auto_decompress=False,
            connector=aiohttp.TCPConnector(limit=0, force_close=True),  # a stale connection would be a fault of its own
            timeout=aiohttp.ClientTimeout(total=None),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )
        # There is no other switch: without it aiohttp would ask twice when the service drops a request.
        self._http._retry_connection = False
        self._runner = web.ServerRunner(
            web.Server(self._handle, access_log=None, auto_decompress=False), shutdown_timeout=_STOP_SECONDS
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = "http://{}:{}".format(*self._runner.addresses[0][:2])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()
        await self._http.close()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")  # clients wait for it, and some for ever
        says = in_body(request.method, request.headers) or in_xml(request.method, request.raw_path)
        body = await request.content.read() if says else None
        operation, key = name_of(request.method, request.raw_path, request.headers, body or b"")
        rule = next((rule for rule in self._rules if rule.takes(operation, key, body)), None)
        seen = Seen(
            operation=operation,
            key=key,
            action=rule.action if rule else None,
            conditions=conditions_of(request.headers),
        )
        self.log.append(seen)
        try:
            return await self._carry_out(rule, request, body, seen)
        except (aiohttp.ClientError, OSError):  # one side is gone: so is the connection to the other
            return _reset(request)

    async def _carry_out(
        self, rule: Rule | None, request: web.BaseRequest, body: bytes | None, seen: Seen
    ) -> web.StreamResponse:
        action = rule.action if rule else None
        if rule and action in ("drop_request", "error", "delay", "hold"):
            if action != "drop_request" and body is None:
                body = await request.content.read()  # from here the client can do nothing more about it
            rule.reached.set()
            if action == "drop_request":
                return _reset(request)
            if action == "error":
                return _error(rule, request)
            await (self._sleep(rule.seconds) if action == "delay" else rule.released.wait())
        async with self._ask(request, body) as answer:
            seen.status = answer.status
            if rule and action in ("drop_response", "error_response", "hold_response"):
                await answer.read()
                rule.reached.set()
                if action == "drop_response":
                    return _reset(request)
                if action == "error_response":
                    return _error(rule, request)
                await rule.released.wait()
            if rule and action == "truncate":
                rule.reached.set()
                return await _hand_on(request, answer, int(answer.headers.get("Content-Length", 0)) // 2)
            return await _hand_on(request, answer)

    def _ask(self, request: web.BaseRequest, body: bytes | None) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        data: io.BytesIO | aiohttp.StreamReader | None = None
        if body is not None:
            data = io.BytesIO(body)  # bytes as they are would bring a warning when they are many
        elif request.body_exists:
            data = request.content
        return self._http.request(
            request.method,
            URL(self.upstream + request.raw_path, encoded=True),
            headers=_end_to_end(request.headers),
            data=data,
            allow_redirects=False,
        )


def _end_to_end(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers.items() if name.lower() not in _HOP_BY_HOP]


async def _hand_on(
    request: web.BaseRequest, answer: aiohttp.ClientResponse, cut: int | None = None
) -> web.StreamResponse:
    """The answer as a stream; with `cut` only so many bytes of its body, then the connection ends."""
    out = web.StreamResponse(status=answer.status, reason=answer.reason, headers=_end_to_end(answer.headers))
    await out.prepare(request)
    left = cut
    async for chunk in _chunks(answer):
        if left is not None and len(chunk) >= left:
            await out.write(chunk[:left])
            break
        await out.write(chunk)
        left = None if left is None else left - len(chunk)
    if cut is None:
        await out.write_eof()
    elif request.transport is not None:
        request.transport.close()  # after what was written: the client gets all of it
    return out


async def _chunks(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    if answer.content.at_eof():
        yield await answer.read()  # again what was read while the client waited
    else:
        async for chunk in answer.content.iter_any():
            yield chunk


def _error(rule: Rule, request: web.BaseRequest) -> web.Response:
    """As the service would say it, by the protocol that was spoken."""
    headers = {"x-amzn-RequestId": "injected", "x-amz-request-id": "injected"}
    if "X-Amz-Target" in request.headers:
        answer = {"__type": f"com.amazonaws#{rule.code}", "message": "injected", **rule.fields}
        headers["Content-Type"] = request.headers.get("Content-Type", "application/x-amz-json-1.0")
        return web.Response(status=rule.status, headers=headers, body=json.dumps(answer).encode())
    error = f"<Error><Code>{rule.code}</Code><Message>injected</Message></Error>"
    if in_body(request.method, request.headers):
        error = f"<ErrorResponse>{error}</ErrorResponse>"
    headers["Content-Type"] = "application/xml"
    return web.Response(status=rule.status, headers=headers, body=b"" if request.method == "HEAD" else error.encode())


def _reset(request: web.BaseRequest) -> web.Response:
    """The connection breaks: RST, so that no client can take it for the end of an answer."""
    if request.transport is not None:
        connection: socket.socket = request.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        request.transport.abort()
    return web.Response()  # aiohttp wants one, and finds nobody to send it to
