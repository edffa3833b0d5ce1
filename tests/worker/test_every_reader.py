"""Every reader that docs/querying.md names finds the rows that the live files have, whatever wrote and rewrote them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pcaplake.worker.lake.compaction import compact_table
from pcaplake.worker.lake.config import LakeConfig
from pcaplake.worker.lake.delta import AddFile, LogStore, Txn
from pcaplake.worker.lake.parquet import ParquetSink
from pcaplake.worker.lake.store.store import Store
from tests.worker import readers
from tests.worker.readers import READERS, Filter

NAN, INF = math.nan, math.inf
DAY = date(2026, 11, 21)
TYPES: dict[str, tuple[pa.DataType, list[list[Any]]]] = {  # column -> its type, and the values of each file
    "flag": (pa.bool_(), [[True, True], [False, False], [None, True], [None, None], [True, False]]),
    "double": (
        pa.float64(),
        [[1.5, NAN], [INF, -INF], [-0.0, 0.0], [None, None], [-1e300, 5e-324]],
    ),
    "nan": (pa.float64(), [[NAN, NAN], [1.0, 2.0], [None, NAN], [-1.0, -2.0], [0.0, -0.0]]),
    "infinite": (pa.float64(), [[INF, INF], [-INF, 1.0], [3.0, INF], [-INF, -INF], [None, 2.0]]),
    "text": (
        pa.string(),
        [["a" * 40 + "b", "a" * 40], ["\U0010ffff" * 40, "x"], ["", "'"], ["Größe", None], ["e\u0301", "\ud7ff\ue000"]],
    ),
    "long": (pa.int64(), [[2**63 - 1, -(2**63)], [2**53 + 1, 2**53], [0, None], [None, None], [-1, 1]]),
    "small": (pa.int16(), [[-(2**15), 2**15 - 1], [0, 0], [None, 1], [2, 3], [None, None]]),
    "day": (pa.date32(), [[date(1, 1, 1), DAY], [date(9999, 12, 31), DAY], [None, None], [DAY, None], [date(1969, 12, 31), DAY]]),
    "at": (
        pa.timestamp("us", tz="UTC"),
        [
            [datetime(2026, 11, 21, 1, 2, 3, 999_999, UTC), datetime(2026, 11, 21, 1, 2, 3, 4, UTC)],
            [datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), None],
            [None, None],
            [datetime(1700, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)],
            [datetime(2026, 11, 21, 1, 2, 3, 1, UTC), datetime(2026, 11, 21, 1, 2, 4, tzinfo=UTC)],
        ],
    ),
    "bytes": (pa.binary(), [[b"\x00", b"\xff"], [b"", None], [b"\x7f\x80", b"a"], [None, None], [b"\xff" * 40, b"b"]]),
}  # fmt: skip
SCHEMA = pa.schema([("number", pa.int64()), *((name, kind) for name, (kind, _) in TYPES.items())])
FILES = 5


async def write_file(store: Store, number: int) -> AddFile:
    columns = {"number": [2 * number, 2 * number + 1], **{name: values[number] for name, (_, values) in TYPES.items()}}
    path = f"{number}-0.zstd.parquet"
    upload = store.upload(f"t/{path}")
    sink = ParquetSink(SCHEMA, upload.write, omit=())
    sink.write_batch(pa.RecordBatch.from_pydict(columns, schema=SCHEMA))
    summary = sink.close()
    meta = upload.finish()
    return AddFile(path=path, size=meta.size, partition_values={}, modification_time=0, stats=summary.stats)


def every_filter() -> list[Filter]:
    """By each value of each column, in each way."""
    found = [Filter(column="number", op="=", value=3)]
    for name, (kind, files) in TYPES.items():
        found += [Filter(column=name, op="is null"), Filter(column=name, op="is not null")]
        values = [value for values in files for value in values if value is not None]
        ops: Sequence[readers.Op] = ("=",) if kind == pa.bool_() else ("=", "<", ">", "<=", ">=")
        distinct = {repr(value): value for value in values}.values()
        found += [Filter(column=name, op=op, value=value) for value in distinct for op in ops]
    return found


@pytest.mark.slow
def test_filters_by_values_of_every_type(tmp_path: Path) -> None:
    """In the files of commits, then in a checkpoint, then in files that compaction made, then in its checkpoint."""

    async def commit() -> None:
        store = Store.open(tmp_path)
        log = LogStore(store)
        await log.create("t", SCHEMA)
        for number in range(FILES):
            await log.commit("t", [await write_file(store, number)], txn=Txn(app_id="app", version=number))

    async def checkpoint() -> None:
        await LogStore(Store.open(tmp_path)).checkpoint("t")

    async def compact() -> None:
        store = Store.open(tmp_path)
        done = await compact_table(LogStore(store), store, "t", LakeConfig())
        assert (done.removed, done.added, done.problems) == (FILES, 1, [])

    table, filters = tmp_path / "t", every_filter()
    for step in (commit, checkpoint, compact, checkpoint):
        asyncio.run(step())
        rows = readers.read_live_rows(table)
        assert rows.num_rows == 2 * FILES
        assert readers.differences(table, rows, filters, READERS) == [], step.__name__
