"""Files as older versions wrote them, for tests of their correction."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from pcaplake.lake.delta import AddFile, LogStore
from pcaplake.lake.store.store import Store

ROWS = pa.table(
    {
        "n": range(4),
        "b": [True, False, None, True],
        "x": [1.5, math.nan, math.inf, 0.0],
        "ts": pa.array([7, 8, 9, 10], pa.timestamp("us", tz="UTC")),
    }
)


def as_before(add: AddFile) -> AddFile:
    """Statistics as an older version wrote them, without bounds of booleans and doubles."""
    stats = json.loads(add.stats)
    for bounds in (stats["minValues"], stats["maxValues"]):
        for name in {"b", "x"} & bounds.keys():
            del bounds[name]
    return replace(add, stats=json.dumps(stats))


async def open_log(folder: Path, *, partitioned: bool = False) -> LogStore:
    log = LogStore(Store.open(folder))
    schema = ROWS.schema.append(pa.field("v", pa.string())) if partitioned else ROWS.schema
    await log.create("t", schema, partition_columns=["v"] if partitioned else [])
    return log
