"""The API server of the cluster: requests in JSON, and what an answer means.

Knows the package `kubernetes`, its asyncio client. Must not know pods, leases or jobs. Objects stay maps: the client's
models would drop every field that is newer than they are.
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

from ..errors import Fatal, PcaplakeError, Retryable

TRANSPORT = (aiohttp.ClientError, OSError, TimeoutError)
"""What a request raises when no answer came; the client passes these on."""
REQUEST = 5.0  # seconds
LASTING = 30.0  # seconds until a refusal is believed
_JSON, _MERGE = "application/json", "application/merge-patch+json"
_ROLE = "its Role must allow that (docs/operator.md has the rules), and no quota or webhook forbid it"


class Refused(PcaplakeError):
    """The API server understood, and will not: `status` as in HTTP, 404 not there, 409 there already, 422 not valid."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Forbidden(Retryable):
    """The Role does not allow it, or a quota or webhook, or the server has just begun and does not know the Role yet."""


class Rights:
    """When is a refusal final? A server that begins forbids all for some seconds; only what lasts is the Role's."""

    def __init__(self, clock: Callable[[], float], *, lasting: float = LASTING) -> None:
        self._clock, self._lasting = clock, lasting
        self._since: dict[str, float] = {}

    def allowed(self, what: str) -> None:
        self._since.pop(what, None)

    def refused(self, what: str) -> bool:
        """Has `what` been refused for so long that it is final?"""
        return self._clock() - self._since.setdefault(what, self._clock()) >= self._lasting


class Cluster:
    """An open connection. `http`: what the library's own classes take."""

    def __init__(self, http: client.ApiClient, *, timeout: float = REQUEST) -> None:
        self.http, self.timeout = http, timeout

    @classmethod
    @asynccontextmanager
    async def connected(cls, kubeconfig: Path | None = None, *, request: float = REQUEST) -> AsyncIterator[Cluster]:
        """As the pod's own ServiceAccount, or as `kubeconfig` says; `request`: seconds for one. Fatal where there is neither."""
        configuration = client.Configuration()
        try:
            if kubeconfig is None:
                config.load_incluster_config(client_configuration=configuration)
            else:
                await config.load_kube_config(str(kubeconfig), client_configuration=configuration, persist_config=False)
        except (config.ConfigException, OSError, ValueError, TypeError) as error:
            where = (
                "this is no pod with a ServiceAccount's token" if kubeconfig is None else f"{kubeconfig} says nothing"
            )
            raise Fatal(
                f"cannot reach Kubernetes: {where}: {error}; outside of a pod give --kubeconfig FILE"
            ) from error
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
        """The answer's object. A PATCH merges (RFC 7386).

        Retryable (Forbidden is one): no answer, or one that is worth another try; what was asked for may have been done.
        Refused.
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
        except ValueError:  # of something between us and the server
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
    if status in (401, 408, 429) or status >= 500:  # 401: the token was renewed, or the server starts
        raise Retryable(text)
    raise Refused(status, text)
