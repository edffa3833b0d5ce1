"""Client of the API server for the simulated node: requests, and a watch that never ends. Objects are plain JSON."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import re
import ssl
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

import aiohttp

Doc = dict[str, Any]
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
_UNITS = {"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def microsecond_timestamp() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def second_timestamp() -> str:
    """The present time as a timestamp. Most fields accept only whole seconds."""
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_quantity(text: Any) -> float:
    """The number of a quantity such as `64Mi` or `250m`."""
    match = re.fullmatch(r"([0-9.eE+-]+?)([kMGT]i?|m)?", str(text))
    assert match is not None, text
    return float(match[1]) * _UNITS[match[2] or ""]


class KubernetesApi:
    """Requests with the administrator credentials of `kubeconfig`."""

    def __init__(self, kubeconfig: Path) -> None:
        doc = json.loads(kubeconfig.read_text())
        cluster, user = doc["clusters"][0]["cluster"], doc["users"][0]["user"]
        self.server: str = cluster["server"]
        context = ssl.create_default_context(cafile=cluster["certificate-authority"])
        context.load_cert_chain(user["client-certificate"], user["client-key"])
        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, limit=0))

    async def send_request(
        self, verb: str, path: str, body: Any = None, *, kind: str = "application/json", ok: Collection[int] = ()
    ) -> Doc:
        """Send a request. Raises RuntimeError for a status of 400 or more that is not in `ok`."""
        data = None if body is None else json.dumps(body)
        async with self._http.request(verb, self.server + path, data=data, headers={"Content-Type": kind}) as answer:
            doc: Doc = await answer.json(content_type=None)
            if answer.status >= 400 and answer.status not in ok:
                raise RuntimeError(f"{verb} {path}: {answer.status} {doc.get('message')}")
            return doc

    async def watch_objects(self, path: str, selector: str) -> AsyncIterator[tuple[str, Doc]]:
        """Yield ("LIST", all objects) at first and after each interruption, then each change. Never ends."""
        while True:
            try:
                doc = await self.send_request("GET", f"{path}?fieldSelector={selector}")
                yield "LIST", doc
                version = doc["metadata"]["resourceVersion"]
                async for event in self._stream_events(
                    f"{path}?watch=1&fieldSelector={selector}&resourceVersion={version}"
                ):
                    yield event["type"], event["object"]
            except (aiohttp.ClientError, RuntimeError, TimeoutError, OSError) as error:
                print("watching again:", repr(error), flush=True)
                await asyncio.sleep(0.5)

    async def _stream_events(self, path: str) -> AsyncIterator[Doc]:
        async with self._http.get(self.server + path, timeout=aiohttp.ClientTimeout(total=None)) as answer:
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event: Doc = json.loads(line)
                    if event["type"] == "ERROR":
                        raise RuntimeError(event["object"].get("message"))
                    yield event

    async def close(self) -> None:
        await self._http.close()
