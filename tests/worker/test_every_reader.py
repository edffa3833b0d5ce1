"""Every reader that docs/querying.md names finds the rows that the live files have, whatever wrote and rewrote them."""

from __future__ import annotations

import asyncio
import math
import shutil
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pcaplake.lake.compaction.run import Compactor
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.delta import AddFile, LogStore, Txn
from pcaplake.lake.parquet import ParquetSink
from pcaplake.lake.store.store import Store
from pcaplake.parser.schemas import TABLES
from tests.drives import Drive
from tests.worker import lakes, readers
from tests.worker.readers import READERS, Filter

Capsys = pytest.CaptureFixture[str]
COMMON = list(TABLES["packets"].schema.names)[:9]
CHECKS = 5
HAVE_COMMON = ("packets", "signals")  # the tables whose common columns are filtered, too
WIDE = ("Brake_Speed", "Engine_Status")
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
        if kind == pa.float64():
            found.append(Filter(column=name, op="is nan"))
        ops: Sequence[readers.Op] = ("=",) if kind == pa.bool_() else ("=", "<", ">", "<=", ">=")
        distinct = {repr(value): value for value in values}.values()
        found += [Filter(column=name, op=op, value=value) for value in distinct for op in ops]
    return found


@pytest.mark.slow
def test_filters_by_values_of_every_type(tmp_path: Path, torture: bool) -> None:
    """In the files of commits, then in a checkpoint, then in files that compaction made, then in its checkpoint; each filter
    at one of these steps, with --torture at all.
    """

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
        done = await Compactor(log_store=LogStore(store), store=store, lake_config=LakeConfig()).compact("t")
        assert (done.removed, done.added, done.problems) == (FILES, 1, [])

    table, filters = tmp_path / "t", every_filter()
    for number, step in enumerate((commit, checkpoint, compact, checkpoint)):
        asyncio.run(step())
        rows = readers.read_live_rows(table)
        assert rows.num_rows == 2 * FILES
        asked = filters if torture else filters[number::4]
        assert readers.differences(table, rows, asked, READERS) == [], step.__name__


class EveryTable:
    """A lake that has every table, and the readers that see it after each command."""

    def __init__(self, lake: Path, capsys: Capsys, torture: bool) -> None:
        self.lake, self._capsys, self._torture = lake, capsys, torture
        self._checks = 0

    def run(self, *arguments: object) -> None:
        code, _, err = lakes.run(self._capsys, *arguments)
        assert code == 0, err

    def check(self, after: str) -> None:
        """Filters by values of a fifth of the columns, which is another one each time."""
        wrong = list[str]()
        for folder in sorted(self.lake.iterdir()):
            if not (folder / "_delta_log").is_dir():
                continue
            rows = readers.read_live_rows(folder)
            common = [] if folder.name in HAVE_COMMON or self._torture else COMMON
            columns = [name for name in rows.schema.names if name not in common]
            chosen = columns if self._torture else columns[self._checks :: CHECKS]
            wrong += readers.differences(folder, rows, list(readers.choose_filters(rows, chosen)), READERS)
            if after == "maintain" or self._torture:
                readers.require_same_rows(folder, rows, READERS)
        assert wrong == [], after
        assert self._checks < CHECKS
        self._checks += 1


@pytest.mark.slow
def test_every_table_after_every_command(drive: Drive, tmp_path: Path, capsys: Capsys, torture: bool) -> None:
    every, captures, profile = (
        EveryTable(tmp_path / "lake", capsys, torture),
        tmp_path / "captures",
        tmp_path / "p.yaml",
    )
    shutil.copytree(drive.folder, captures)
    shutil.copy(drive.profile, profile)
    options = ("--lake", every.lake, "--profile", profile)
    first, *others = sorted(path for path in captures.rglob("*") if path.name.endswith((".pcapng", ".pcap")))
    later = others.pop()
    everything = [path for path in sorted(captures.iterdir()) if path.is_dir()]
    later = later.rename(tmp_path / later.name)
    every.run("ingest", *everything, *options)
    every.check("ingest")

    shutil.copy(others[0], first)
    shutil.copy(later, others[0])
    every.run("ingest", *everything, *options, "--replace-changed")
    profile.write_text(profile.read_text().replace("0x510-0x51f: nm", "0x510-0x51e: nm"))
    every.run("ingest", *everything, *options, "--reread")
    every.check("swaps")

    databases = captures / "databases.yaml"
    every.run("signals", "--lake", every.lake, "--databases", databases, *(f"--wide={name}" for name in WIDE))
    every.check("signals")

    every.run("maintain", "--lake", every.lake)
    every.check("maintain")

    every.run("ingest", later, *options)
    every.check("ingest after a checkpoint")
    assert {path.name for path in every.lake.iterdir()} >= {*TABLES, "signals", *(f"signals_{name}" for name in WIDE)}
