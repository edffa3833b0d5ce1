"""What a version of pcaplake does to a lake in a test: run by the interpreter with that version's sources before all others.

    python versions.py FOLDER ACTION [CAPTURE...]

stage    stage these captures, and commit nothing
compose  the same, then make a batch of what waits, and die before it is in any table
drain    commit everything that waits
signals  decode the frames of the lake: FOLDER signals DATABASE

PARTITION_BY in the environment: the partition columns of a new lake, separated by commas.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

try:  # the names of the versions before everything was under one import name
    from parser.tables import TABLES
    from worker.lake.knobs import Knobs as LakeConfig
    from worker.lake.lake import Lake
    from worker.lake.manifest import Capture

    def options(commits: bool, step: Callable[[str], None]) -> dict[str, Any]:
        return {"knobs": LakeConfig(max_batch_age=0.05), "lease_timeout": 0.3, "commits": commits, "step": step}

except ImportError:
    from pcaplake.parser.schemas import TABLES

    try:
        from pcaplake.common.runtime import Runtime
        from pcaplake.lake.config import Creation, LakeConfig
        from pcaplake.lake.lake import Lake
        from pcaplake.lake.records import Capture
        from pcaplake.lake.store.store import Store
    except ImportError:  # of the versions in which the lake was a part of the worker
        from pcaplake.worker.lake.config import Creation, LakeConfig
        from pcaplake.worker.lake.lake import Lake
        from pcaplake.worker.lake.records import Capture
        from pcaplake.worker.lake.store.store import Store
        from pcaplake.worker.runtime import Runtime

    def options(commits: bool, step: Callable[[str], None]) -> dict[str, Any]:
        columns = tuple(os.environ["PARTITION_BY"].split(",")) if "PARTITION_BY" in os.environ else None
        config = LakeConfig(
            max_batch_age=0.05, lease_timeout=0.3, commits=commits, creation=Creation(partition_columns=columns)
        )
        return {"lake_config": config, "runtime": Runtime(step=step)}


def captures(name: str) -> pa.RecordBatch:
    given = {
        "capture_id": name,
        "vehicle_id": f"car-{name}",
        "uri": f"file:///{name}",
        "etag": f"etag-{name}",
        "object_size": 10,
        "outcome": "decoded",
        "decoder_version": "test",
        "ingested_at": datetime(2026, 1, 2, tzinfo=UTC),
        "date": date(2026, 1, 2),
    }
    return pa.RecordBatch.from_pylist([given], TABLES["captures"].schema)


def rows(name: str) -> pa.RecordBatch:
    schema = TABLES["faults"].schema
    given = {"capture_id": name, "sub_no": 0, "layer": "can", "reason": "gap", "date": date(2026, 1, 2)}
    return pa.RecordBatch.from_pylist([{**given, "packet_no": number} for number in (1, 2)], schema)


def frames(name: str) -> pa.RecordBatch:
    schema = TABLES["can_frames"].schema
    given = {
        "capture_id": name,
        "vehicle_id": f"car-{name}",
        "date": date(2026, 1, 2),
        "ts": datetime(2026, 1, 2, tzinfo=UTC),
        "ts_ns": 1_767_312_000_000_000_000,
        "sub_no": 0,
        "source": "pcap",
        "bus": "1",
        "can_id": 256,
        "extended": False,
        "data_len": 8,
        "payload": bytes(range(8)),
    }
    return pa.RecordBatch.from_pylist([{**given, "packet_no": number} for number in (1, 2)], schema)


def decode_signals(folder: str, database: str) -> None:
    from pcaplake.signals import Databases
    from pcaplake.worker.cli.signals import run_signals

    try:
        from pcaplake.derived.signals.run import Options
    except ImportError:
        from pcaplake.worker.signals.run import Options

    options = Options(databases=Databases.from_file(Path(database)), wide=("Speed",))
    sys.exit(run_signals(Store.open(folder), options))


def die(step: str) -> None:
    if step == "after commit.3b":
        os._exit(0)


async def main(folder: str, action: str, names: list[str]) -> None:
    lake = await Lake.open(folder, **options(action != "stage", die if action == "compose" else lambda name: None))
    async with lake:
        for name in names:
            window = lake.window()
            window.begin(Capture(capture_id=name, uri=f"file:///{name}", etag=f"etag-{name}", size=10))
            window.write("captures", captures(name))
            window.write("faults", rows(name))
            window.write("can_frames", frames(name))
            window.end()
            stage = window.close()
            assert stage is not None
            await lake.stage(stage)
        if action != "stage":
            await lake.drain()


if __name__ == "__main__" and sys.argv[2] == "signals":
    decode_signals(sys.argv[1], sys.argv[3])
elif __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
