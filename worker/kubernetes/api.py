"""Requests to the Kubernetes API server in JSON, and the errors that its answers stand for.

Uses the asyncio client of the package `kubernetes`. Objects stay maps, because the client's models drop every field that is
newer than the client.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import client, config

from pcaplake.common.errors import Fatal, PcaplakeError, Retryable

TRANSPORT = (aiohttp.ClientError, OSError, TimeoutError)
"""The exceptions of a request without a response, which the client does not translate."""
REQUEST = 5.0  # seconds
LASTING = 30.0  # seconds; a refusal that lasts longer is final
_JSON, _MERGE = "application/json", "application/merge-patch+json"
_ROLE = "the Role must allow this (`pcaplake docs operator` has the rules), and no quota or webhook may forbid it"


class Refused(PcaplakeError):
    """The API server refused the request. `status` is the HTTP status: 404 not found, 409 exists already, 422 not valid."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Forbidden(Retryable):
    """The Role, a quota or a webhook forbids the request, or the server has just started and does not know the Role yet."""


class Rights:
    """Decides when a refusal is final. A starting server forbids everything for some seconds; the Role forbids for ever."""

    def __init__(self, clock: Callable[[], float], *, lasting: float = LASTING) -> None:
        self._clock, self._lasting = clock, lasting
        self._since: dict[str, float] = {}

    def allowed(self, what: str) -> None:
        self._since.pop(what, None)

    def refused(self, what: str) -> bool:
        """True if `what` has been refused for so long that the refusal is final."""
        return self._clock() - self._since.setdefault(what, self._clock()) >= self._lasting


class Cluster:
    """An open connection. `http` is the client object that the library's own classes take."""

    def __init__(self, http: client.ApiClient, *, timeout: float = REQUEST) -> None:
        self.http, self.timeout = http, timeout

    @classmethod
    @asynccontextmanager
    async def connected(cls, kubeconfig: Path | None = None, *, request: float = REQUEST) -> AsyncIterator[Cluster]:
        """Connect with `kubeconfig` or as the pod's ServiceAccount. Raises Fatal if there is neither. `request`: timeout in s."""
        configuration = client.Configuration()
        try:
            if kubeconfig is None:
                config.load_incluster_config(client_configuration=configuration)
            else:
                await config.load_kube_config(str(kubeconfig), client_configuration=configuration, persist_config=False)
        except (config.ConfigException, OSError, ValueError, TypeError) as error:
            where = (
                "this is not a pod with a ServiceAccount token"
                if kubeconfig is None
                else f"{kubeconfig} cannot be used"
            )
            raise Fatal(f"cannot reach Kubernetes: {where}: {error}; outside a pod, pass --kubeconfig FILE") from error
        async with client.ApiClient(configuration) as http:
            yield cls(http, timeout=request)

    async def ask(
        self,
        method: Literal["GET", "POST", "PATCH", "DELETE"],
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Sends a request and returns the object in the answer. A PATCH merges (RFC 7386).

        Raises Refused, or Retryable (Forbidden is one) if there is no answer or a temporary error; the server may have
        executed the request.
        """
        what = f"{method} {path}"
        kind = _MERGE if method == "PATCH" else _JSON
        target = path + (f"?{urlencode(query)}" if query else "")
        try:
            async with asyncio.timeout(self.timeout):
                _, url, headers, _, _ = await self.http.param_serialize(
                    method, target, header_params={"Content-Type": kind, "Accept": _JSON}, auth_settings=["BearerToken"]
                )
                response = await self.http.call_api(
                    method, url, headers, body=body, _request_timeout=aiohttp.ClientTimeout(total=self.timeout)
                )
                data = await response.read()
        except TRANSPORT as error:
            raise Retryable(f"Kubernetes: {what}: no answer: {type(error).__name__} {error}") from error
        try:
            answer = json.loads(data)
        except ValueError:  # the answer of a proxy in front of the server
            answer = None
        if not isinstance(answer, dict):
            answer = {"message": data[:200].decode(errors="replace")}
        _raise_for(response.status, f"Kubernetes: {what}: {response.status} {answer.get('message', '')}")
        return answer


def _raise_for(status: int, text: str) -> None:
    if status < 300:
        return
    if status == 403:
        raise Forbidden(f"{text}; {_ROLE}")
    if status in (401, 408, 429) or status >= 500:  # 401: the token was renewed, or the server is starting
        raise Retryable(text)
    raise Refused(status, text)
