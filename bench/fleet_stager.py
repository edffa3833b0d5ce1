"""A worker that only stages, or a committer that only commits, on one lake of the fleet.

    python -m bench.fleet_stager LAKE LEDGER_TABLE LOCK_TABLE worker|committer

Asked {"prepare": stages, "days": d, "worker": k} a worker decodes tiny captures of d days into so many merge windows
and writes their Parquet files; {"stage": true} hands them to the ledger, one after the other. A committer is asked
{"until": capture_ids} and answers when all of them are in every table.
"""

from __future__ import annotations

import asyncio
import io
import sys
import time
from typing import Any

from parser import Profile
from worker.lake.fleet import Services, open_lake
from worker.lake.identity import capture_id
from worker.lake.lake import Lake
from worker.lake.manifest import Capture, Stage
from worker.pipeline import Reader

from .fleet_child import OPTIONS, answer
from .fleet_files import tiny_capture

FRAMES = 20
_AT_ONCE = 4
_LOOK, _ASKED = 0.05, 50


class Stager:
    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._reader = Reader(profile=Profile.default(), decoder_version="bench", now=time.time)
        self._stages: list[Stage] = []

    async def respond(self, asked: dict[str, Any]) -> dict[str, Any]:
        began = time.monotonic()
        if "prepare" in asked:
            slots = asyncio.Semaphore(_AT_ONCE)

            async def one(number: int) -> Stage:
                async with slots:
                    return await asyncio.to_thread(self._window, asked["worker"], number, asked["days"])

            self._stages = list(await asyncio.gather(*map(one, range(asked["prepare"]))))
        elif "stage" in asked:
            for stage in self._stages:
                staged = await self._lake.stage(stage)
                if staged.staged != stage.captures:
                    raise SystemExit(f"{stage.stage_id} was not staged: {staged}")
        else:
            left = set(asked["until"])  # staged by now: what the ledger does not know counts as long committed
            while left:
                left -= await self._lake.committed(sorted(left)[:_ASKED])
                self._lake.check()
                await asyncio.sleep(_LOOK)
        return {
            "seconds": time.monotonic() - began,
            "cpu": time.process_time(),
            "adds": sum(stage.add_count for stage in self._stages),
            "capture_ids": [stage.captures[0].capture_id for stage in self._stages],  # one of each stage tells of it
            "batch": await self._lake.ledger.head(),
        }

    def _window(self, worker: int, number: int, days: int) -> Stage:
        window = self._lake.window()
        for day in range(days):
            data, uri = tiny_capture(FRAMES, day=day), f"s3://bench/{worker}/{number}/{day}.pcap"
            capture = Capture(capture_id=capture_id(uri, "0"), uri=uri, etag="0", size=len(data))
            self._reader.read(io.BytesIO(data), capture, window)
        stage = window.close()
        assert stage is not None
        return stage


async def main(uri: str, ledger: str, locks: str, role: str) -> None:
    async with (
        await Services.open(ledger, locks) as services,
        await open_lake(uri, services, options=OPTIONS, commits=role == "committer") as lake,
    ):
        await answer(Stager(lake).respond)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
