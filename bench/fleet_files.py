"""A plain HTTP file server with ranges and eTags, in its own process: a store of captures that does not limit the worker.

    python -m bench.fleet_files NAME=FILE...

`NAME/anything` is FILE, so one file serves as any number of captures. The server answers every request on stdin with its URL
and the number of HTTP requests so far. This module also makes tiny captures.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from .fleet_child import answer_requests

SOCKETCAN = 227  # LINKTYPE_CAN_SOCKETCAN
DAY = 86_400
T0 = 1_790_000_000


def build_tiny_capture(frames: int, first_id: int = 0, day: int = 0) -> bytes:
    """A pcap of classic CAN frames, one per millisecond. `day`: days after the first day."""
    parts = [struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262_144, SOCKETCAN)]
    for i in range(frames):
        frame = struct.pack(">IB3x8s", (first_id + i) & 0x7FF, 8, i.to_bytes(8, "big"))
        parts += [struct.pack("<IIII", T0 + day * DAY, i * 1000, len(frame), len(frame)), frame]
    return b"".join(parts)


async def main(files: Mapping[str, Path]) -> None:
    requests = 0

    async def send_capture(request: web.Request) -> web.StreamResponse:
        nonlocal requests
        requests += 1
        path = files.get(request.match_info["name"])
        if path is None:
            raise web.HTTPNotFound
        return web.FileResponse(path, chunk_size=1 << 20)

    async def answer_request(asked: dict[str, Any]) -> dict[str, Any]:
        return {"url": "http://{}:{}/".format(*runner.addresses[0][:2]), "requests": requests}

    app = web.Application()
    app.router.add_get("/{name}/{rest:.*}", send_capture)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    await answer_requests(answer_request)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main({name: Path(path) for name, _, path in (each.partition("=") for each in sys.argv[1:])}))
