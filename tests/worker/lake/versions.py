"""What a version of pcaplake does to a lake in a test: run by the interpreter with that version's sources before all others.

    python versions.py FOLDER ACTION [CAPTURE...]

stage    stage these captures, and commit nothing
compose  the same, then make a batch of what waits, and die before it is in any table
drain    commit everything that waits
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from datetime import date
from typing import Any

import pyarrow as pa

try:  # the names of the versions before everything was under one import name
    from parser.tables import TABLES
    from worker.lake.knobs import Knobs as LakeConfig
    from worker.lake.manifest import Capture

    from worker.lake.lake import Lake

    def options(commits: bool, step: Callable[[str], None]) -> dict[str, Any]:
        return {"knobs": LakeConfig(max_batch_age=0.05), "lease_timeout": 0.3, "commits": commits, "step": step}

except ImportError:
    from pcaplake.parser.schemas import TABLES
    from pcaplake.worker.lake.config import LakeConfig
    from pcaplake.worker.lake.lake import Lake
    from pcaplake.worker.lake.records import Capture
    from pcaplake.worker.runtime import Runtime

    def options(commits: bool, step: Callable[[str], None]) -> dict[str, Any]:
        config = LakeConfig(max_batch_age=0.05, lease_timeout=0.3, commits=commits)
        return {"lake_config": config, "runtime": Runtime(step=step)}


def rows(name: str) -> pa.RecordBatch:
    schema = TABLES["faults"].schema
    given = {"capture_id": name, "sub_no": 0, "layer": "can", "reason": "gap", "date": date(2026, 1, 2)}
    return pa.RecordBatch.from_pylist([{**given, "packet_no": number} for number in (1, 2)], schema)


def die(step: str) -> None:
    if step == "after commit.3b":
        os._exit(0)


async def main(folder: str, action: str, names: list[str]) -> None:
    lake = await Lake.open(folder, **options(action != "stage", die if action == "compose" else lambda name: None))
    async with lake:
        for name in names:
            window = lake.window()
            window.begin(Capture(capture_id=name, uri=f"file:///{name}", etag=f"etag-{name}", size=10))
            window.write("faults", rows(name))
            window.end()
            stage = window.close()
            assert stage is not None
            await lake.stage(stage)
        if action != "stage":
            await lake.drain()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
