"""A worker that only stages, or a committer that only commits, on one lake of the fleet.

    python -m bench.fleet_stager LAKE LEDGER_TABLE LOCK_TABLE worker|committer

For {"prepare": stages, "days": d, "worker": k} a worker decodes tiny captures of d days into so many windows and writes their
Parquet files; for {"stage": true} it stages them in the ledger, one after the other. For {"until": capture_ids} a committer
answers when all of them are in every table.
"""

from __future__ import annotations

import asyncio
import io
import sys
import time
from typing import Any

from pcaplake.ingest.pipeline import Reader
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.lake import Lake
from pcaplake.lake.records import Capture, Stage, compute_capture_id
from pcaplake.lake.shared_tables import SharedTables
from pcaplake.parser import Profile

from .fleet_child import OPTIONS, answer_requests
from .fleet_files import build_tiny_capture

FRAMES = 20
_AT_ONCE = 4
_LOOK, _ASKED = 0.05, 50


class StagerChild:
    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._reader = Reader(profile=Profile.default(), decoder_version="bench", now=time.time)
        self._stages: list[Stage] = []

    async def respond_to_request(self, request: dict[str, Any]) -> dict[str, Any]:
        began = time.monotonic()
        if "prepare" in request:
            slots = asyncio.Semaphore(_AT_ONCE)

            async def write_one_stage(number: int) -> Stage:
                async with slots:
                    return await asyncio.to_thread(self._stage_window, request["worker"], number, request["days"])

            self._stages = list(await asyncio.gather(*map(write_one_stage, range(request["prepare"]))))
        elif "stage" in request:
            for stage in self._stages:
                staged = await self._lake.stage(stage)
                if staged.staged != stage.captures:
                    raise SystemExit(f"{stage.stage_id} was not staged: {staged}")
        else:
            left = set(request["until"])  # all are staged, so a capture that the ledger lacks counts as committed
            while left:
                left -= await self._lake.find_committed_captures(sorted(left)[:_ASKED])
                self._lake.raise_if_stopped()
                await asyncio.sleep(_LOOK)
        return {
            "seconds": time.monotonic() - began,
            "cpu": time.process_time(),
            "adds": sum(stage.add_count for stage in self._stages),
            "capture_ids": [stage.captures[0].capture_id for stage in self._stages],  # one of each stage is enough
            "batch": await self._lake.ledger.read_head(),
        }

    def _stage_window(self, worker: int, number: int, days: int) -> Stage:
        window = self._lake.window()
        for day in range(days):
            data, uri = build_tiny_capture(FRAMES, day=day), f"s3://bench/{worker}/{number}/{day}.pcap"
            capture = Capture(capture_id=compute_capture_id(uri, "0"), uri=uri, etag="0", size=len(data))
            self._reader.read(io.BytesIO(data), capture, window)
        stage = window.close()
        assert stage is not None
        return stage


async def main(uri: str, ledger: str, locks: str, role: str) -> None:
    async with (
        await SharedTables.open(ledger, locks) as shared_tables,
        await Lake.open(
            uri,
            lake_config=LakeConfig(lease_timeout=10.0, commits=role == "committer"),
            ledger=shared_tables,
            storage_options=OPTIONS,
        ) as lake,
    ):
        await answer_requests(StagerChild(lake).respond_to_request)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
