"""The HTTP server of the service: /metrics for Prometheus, /healthz and /readyz for Kubernetes. The checks are callables.

/healthz    503: only a restart helps. Independent of other services, because a restart cannot end their outage
/readyz     503: the service does not work yet, or no longer
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from pcaplake.common.errors import Fatal

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 64
FIRST_REQUEST = 10.0  # seconds until the first request of a connection must have arrived whole

Check = Callable[[], str | None]
"""Returns why the check fails, or None. An exception is a failure, too. Must not block."""


class Server:
    """The server: `async with Server(...)`. Checks can be added to `health` and `ready` at any time; without checks: 200.

    It listens on the first of `ports` that is not in use, which is then `self.port`; 0 selects any free port.
    """

    def __init__(self, registry: CollectorRegistry, *, host: str = "127.0.0.1", ports: Sequence[int]) -> None:
        self.host, self.port = host, ports[0]
        self._ports = ports
        self.health: dict[str, Check] = {}
        self.ready: dict[str, Check] = {}
        self._registry = registry
        self._runner: web.ServerRunner | None = None

    async def start(self) -> None:
        """Listen. Raises Fatal if all ports are in use, or one is not allowed."""
        runner = web.ServerRunner(_BoundedServer(self._answer, access_log=None), shutdown_timeout=1.0)
        await runner.setup()
        for port in self._ports:
            try:
                await web.TCPSite(runner, self.host, port).start()
                break
            except OSError as error:
                if error.errno == errno.EADDRINUSE and port != self._ports[-1]:
                    continue
                await runner.cleanup()
                raise Fatal(
                    f"cannot listen on {self.host}:{port} for /metrics: {error.strerror}; set another http_port "
                    "(PCAPLAKE_HTTP_PORT), or 0 for a free one"
                ) from error
        self._runner = runner
        self.port = int(runner.addresses[0][1])
        log.info("/metrics, /healthz and /readyz are on %s:%d", self.host, self.port)

    async def close(self) -> None:
        """Stop listening; running requests have one second to finish."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, headers={"Allow": "GET, HEAD"})
        match request.path:
            case "/metrics":
                encode, content_type = choose_encoder(request.headers.get("Accept", ""))
                return web.Response(body=encode(self._registry), headers={"Content-Type": content_type})
            case "/healthz":
                return _answer_checks(self.health)
            case "/readyz":
                return _answer_checks(self.ready)
        return web.Response(status=404)


class _BoundedServer(web.Server):
    """An HTTP server that clients cannot make use up the files of the process, which its captures need.

    When a connection comes above MOST_CONNECTIONS, the oldest one is closed, so that probes and scrapes are still answered.
    """

    def __init__(self, answer: Callable[[web.BaseRequest], Any], **options: Any) -> None:
        super().__init__(self._answer_in_time, **options)
        self._answer = answer
        self._waiting: dict[web.RequestHandler, asyncio.TimerHandle] = {}
        self._open: dict[web.RequestHandler, asyncio.Transport] = {}  # in the order of their beginnings

    async def _answer_in_time(self, request: web.BaseRequest) -> web.StreamResponse:
        self._forget(request.protocol)
        response: web.StreamResponse = await self._answer(request)
        return response

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._waiting[handler] = asyncio.get_running_loop().call_later(FIRST_REQUEST, handler.force_close)
        self._open[handler] = transport
        for oldest in list(self._open.values())[: max(len(self._open) - MOST_CONNECTIONS, 0)]:
            oldest.abort()  # `close` would wait for a client that does not read its answer

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        self._forget(handler)
        self._open.pop(handler, None)
        super().connection_lost(handler, exc)

    def _forget(self, handler: web.RequestHandler) -> None:
        if timer := self._waiting.pop(handler, None):
            timer.cancel()


def _answer_checks(checks: Mapping[str, Check]) -> web.Response:
    reasons: dict[str, Any] = {name: _run_check(check) for name, check in checks.items()}
    bad = [name for name, reason in reasons.items() if reason is not None]
    body = {"ok": not bad, "checks": {name: reason or "ok" for name, reason in reasons.items()}}
    return web.json_response(body, status=503 if bad else 200)


def _run_check(check: Check) -> str | None:
    try:
        return check()
    except Exception as error:  # noqa: BLE001 -- any exception is a failed check
        return f"{type(error).__name__}: {error}"
