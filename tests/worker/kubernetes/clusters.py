"""An API server that is none: pods, leases and jobs of one namespace over HTTP on loopback, with faults by name."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from aiohttp import web

from pcaplake.worker.kubernetes.api import Cluster

Fault = int | Literal["drop", "lose", "hang"]
"""A status; `drop`: no answer, nothing done; `lose`: done, no answer; `hang`: no answer, and no end."""
COLLECTION = re.compile(r"/(?:api|apis/[a-z0-9.]+)/v1/namespaces/ns/(pods|leases|jobs)(?:/([a-z0-9-]+))?")


class Api:
    """Objects by (kind, name); every write moves `resourceVersion`, a PUT with an old one is a conflict."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.asked: Counter[str] = Counter()
        self.headers: list[dict[str, str]] = []
        self._faults: list[tuple[re.Pattern[str], Fault, int]] = []
        self._version = 0
        self.url = ""

    def at(self, request: str, fault: Fault, times: int = 1) -> None:
        """The next `times` requests that match, as `PUT leases/name`."""
        self._faults.append((re.compile(request), fault, times))

    def well(self) -> None:
        self._faults.clear()

    def put(self, kind: str, name: str, doc: dict[str, Any]) -> dict[str, Any]:
        self._version += 1
        old = self.objects.get((kind, name), {}).get("metadata", {})
        doc.setdefault("metadata", {}).update(name=name, namespace="ns", resourceVersion=str(self._version))
        doc["metadata"].setdefault("uid", old.get("uid") or f"uid-{self._version}")
        self.objects[kind, name] = doc
        return doc

    def _fault(self, request: str) -> Fault | None:
        for number, (pattern, fault, times) in enumerate(self._faults):
            if pattern.search(request):
                if times > 1:
                    self._faults[number] = pattern, fault, times - 1
                else:
                    del self._faults[number]
                return fault
        return None

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        match = COLLECTION.fullmatch(request.path)
        if match is None:
            return _status(404, f"no such path {request.path}")
        kind, name = match[1], match[2] or ""
        what = f"{request.method} {kind}/{name}"
        self.asked[f"{request.method} {kind}"] += 1
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        fault = self._fault(what)
        if fault == "hang":
            await asyncio.Event().wait()
        if fault == "drop":
            _cut(request)
        if isinstance(fault, int):
            return _status(fault, "as the test wants it")
        answer = self._do(request.method, kind, name, await request.json() if request.can_read_body else {}, request)
        if fault == "lose":
            _cut(request)
        return answer

    def _do(self, method: str, kind: str, name: str, body: dict[str, Any], request: web.Request) -> web.Response:
        there = self.objects.get((kind, name))
        if method == "POST":
            name = body["metadata"]["name"]
            if (kind, name) in self.objects:
                return _status(409, f"{name} exists")
            return web.json_response(self.put(kind, name, body), status=201)
        if method == "GET" and not name:
            asked = dict(part.split("=") for part in request.query["labelSelector"].split(","))
            found = [
                doc
                for (of, _), doc in self.objects.items()
                if of == kind and asked.items() <= (doc["metadata"].get("labels") or {}).items()
            ]
            return web.json_response({"kind": "List", "items": found})
        if there is None:
            return _status(404, f"{name} not found")
        if method == "PATCH":
            assert request.content_type == "application/merge-patch+json"
            merged = json.loads(json.dumps(there))
            _merge(merged, body)
            there = self.put(kind, name, merged)
        if method == "PUT":
            if body["metadata"]["resourceVersion"] != there["metadata"]["resourceVersion"]:
                return _status(409, "the object has been modified")
            there = self.put(kind, name, body)
        if method == "DELETE":
            if (body.get("preconditions") or {}).get("uid", there["metadata"]["uid"]) != there["metadata"]["uid"]:
                return _status(409, "another uid")
            del self.objects[kind, name]
        return web.json_response(there)


def _merge(into: dict[str, Any], patch: dict[str, Any]) -> None:
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict):
            _merge(into.setdefault(key, {}), value)
        else:
            into[key] = value


def _cut(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()
    raise ConnectionResetError


def _status(code: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "message": message, "reason": "x"}, status=code)


@asynccontextmanager
async def serving(api: Api | None = None) -> AsyncIterator[Api]:
    """It listens until the end of the body."""
    api = api or Api()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api._answer)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.05)
    await runner.setup()
    await web.TCPSite(runner, "localhost", 0).start()
    api.url = f"http://localhost:{runner.addresses[0][1]}"
    try:
        yield api
    finally:
        await runner.cleanup()


def kubeconfig(path: Path, api: Api) -> Path:
    """A file that says who to be there."""
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "test",
                "clusters": [{"name": "test", "cluster": {"server": api.url}}],
                "users": [{"name": "test", "user": {"token": "of-the-pod"}}],
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            }
        )
    )
    return path


@asynccontextmanager
async def connected(folder: Path, *, request: float = 5.0) -> AsyncIterator[tuple[Api, Cluster]]:
    async with serving() as api, Cluster.connected(kubeconfig(folder / "kubeconfig", api), request=request) as cluster:
        yield api, cluster


async def until(holds: Callable[[], Any], what: str, seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.01)
    assert holds(), what
