"""Lakes of believable drives for Spark's jobs, filled by the real windows and the real committer, without a decoder.

One drive is one capture with its rows in `captures`, `packets`, `can_frames` and `faults`, a stage and so a file per table
and day of its own. What is wrong with one is said by its fields.
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pcaplake.lake.config import Creation, LakeConfig
from pcaplake.lake.lake import Lake
from pcaplake.lake.records import Capture, Stage
from pcaplake.lake.shared_tables import SharedTables
from pcaplake.parser.schemas import TABLES
from pcaplake.worker.config.service_settings import FleetSettings

DAY = datetime.date(2026, 9, 21)
IDS = 32  # of CAN, by vehicle


@dataclass(frozen=True, slots=True, kw_only=True)
class Drive:
    """`packets` packets from `hour` on, a millisecond apart, each one CAN frame; without those in `missing`."""

    number: int
    vehicle: str | None = "v1"
    day: datetime.date | None = DAY
    hour: int = 12
    packets: int = 20
    payload: int = 8  # bytes of a frame, which nothing makes smaller
    missing: frozenset[int] = frozenset()
    faults: Mapping[str, int] = field(default_factory=dict)
    late: datetime.timedelta = datetime.timedelta(minutes=5)
    quarantined: bool = False

    @property
    def uri(self) -> str:
        return f"s3://raw/{self.vehicle}/{self.number}.pcap"

    @property
    def capture_id(self) -> str:
        return hashlib.blake2b(self.uri.encode(), digest_size=16).hexdigest()

    @property
    def start(self) -> datetime.datetime:
        return datetime.datetime.combine(self.day or DAY, datetime.time(self.hour), datetime.UTC)

    def tables(self) -> dict[str, pa.RecordBatch]:
        """Its rows."""
        if self.quarantined:
            return {"captures": self._capture(), "quarantine": self._quarantine()}
        numbers = [no for no in range(1, self.packets + 1) if no not in self.missing]
        tables = {"captures": self._capture()}
        if numbers:
            tables |= {"packets": self._packets(numbers), "can_frames": self._frames(numbers)}
        if self.faults:
            tables["faults"] = self._faults()
        return tables

    def _capture(self) -> pa.RecordBatch:
        end = self.start + datetime.timedelta(milliseconds=self.packets)
        found = self.packets - len(self.missing)
        rows = {} if self.quarantined or not found else {"packets": self.packets, "can_frames": self.packets}
        if self.faults:
            rows["faults"] = sum(self.faults.values())
        return _batch(
            "captures",
            1,
            capture_id=[self.capture_id],
            vehicle_id=[self.vehicle],
            date=[self.day],
            uri=[self.uri],
            etag=["e"],
            object_size=[1000],
            format=[None if self.quarantined else "pcap"],
            packets=[None if self.quarantined else self.packets],
            first_ts_ns=[None if self.quarantined else _ns(self.start)],
            last_ts_ns=[None if self.quarantined else _ns(end)],
            truncated=[False],
            faults=[list(self.faults.items())],
            rows=[list(rows.items())],
            outcome=["quarantined" if self.quarantined else "ok"],
            decoder_version=["1"],
            ingested_at=[end + self.late],
        )

    def _keys(self, numbers: Sequence[int]) -> dict[str, Any]:
        times = [self.start + datetime.timedelta(milliseconds=no) for no in numbers]
        return {
            "capture_id": [self.capture_id] * len(numbers),
            "vehicle_id": [self.vehicle] * len(numbers),
            "date": [self.day] * len(numbers),
            "ts": [None if self.day is None else time for time in times],
            "ts_ns": [None if self.day is None else _ns(time) for time in times],
            "packet_no": numbers,
            "sub_no": [0] * len(numbers),
            "interface": ["can0"] * len(numbers),
        }

    def _packets(self, numbers: Sequence[int]) -> pa.RecordBatch:
        count = len(numbers)
        lengths = {"captured_len": [16] * count, "original_len": [16] * count, "protocol": ["can"] * count}
        return _batch("packets", count, **self._keys(numbers), **lengths)

    def _frames(self, numbers: Sequence[int]) -> pa.RecordBatch:
        count = len(numbers)
        payload = np.random.default_rng(self.number).integers(0, 256, (count, self.payload), np.uint8)
        return _batch(
            "can_frames",
            count,
            **self._keys(numbers),
            bus=["chassis"] * count,
            source=["socketcan"] * count,
            can_id=[0x100 + no % IDS for no in numbers],
            error=[False] * count,
            data_len=[self.payload] * count,
            payload=[bytes(row) for row in payload],
        )

    def _faults(self) -> pa.RecordBatch:
        reasons = [reason for reason, count in self.faults.items() for _ in range(count)]
        return _batch(
            "faults",
            len(reasons),
            **self._keys(range(1, len(reasons) + 1)),
            layer=["can"] * len(reasons),
            reason=reasons,
        )

    def _quarantine(self) -> pa.RecordBatch:
        return _batch(
            "quarantine",
            1,
            capture_id=[self.capture_id],
            vehicle_id=[self.vehicle],
            date=[self.day],
            uri=[self.uri],
            stage=["open"],
            error=["NotACapture"],
            detail=["its first bytes <b>are</b> 'no' magic"],
            offset=[0],
            first_seen=[self.start],
        )


def _ns(time: datetime.datetime) -> int:
    return round(time.timestamp()) * 10**9 + time.microsecond * 1000


def _batch(table: str, count: int, **columns: Any) -> pa.RecordBatch:
    schema = TABLES[table].schema
    return pa.RecordBatch.from_arrays(
        [pa.array(columns.get(one.name, [None] * count), one.type) for one in schema], schema=schema
    )


def staged(lake: Lake, drives: Iterable[Drive]) -> list[Stage]:
    """Each drive's files, written; no ledger knows them yet."""
    stages = []
    for drive in drives:
        window = lake.window()
        window.begin(Capture(capture_id=drive.capture_id, uri=drive.uri, etag="e", size=1000))
        for table, batch in drive.tables().items():
            window.write(table, batch)
        window.end("quarantined" if drive.quarantined else "ok")
        stage = window.close()
        assert stage is not None
        stages.append(stage)
    return stages


def fill(folder: str | Path, drives: Iterable[Drive], **creation: Any) -> None:
    """A lake in a folder, made if it is not there, with these drives in its tables."""

    async def run() -> None:
        async with await Lake.open(folder, lake_config=LakeConfig(creation=Creation(**creation))) as lake:
            for stage in staged(lake, drives):
                await lake.stage(stage)
            await lake.drain()

    asyncio.run(run())


def fill_fleet(lake: str, settings: FleetSettings, drives: Iterable[Drive]) -> None:
    """The same in the local S3, under the lock table of the settings."""

    async def run() -> None:
        locks = settings.lock_table if settings.log_store == "dynamodb" else None
        async with AsyncExitStack() as stack:
            shared_tables = await stack.enter_async_context(await SharedTables.open(settings.ledger_table, locks))
            opened = await stack.enter_async_context(
                await Lake.open(lake, ledger=shared_tables, storage_options=settings.storage_option)
            )
            for stage in staged(opened, drives):
                await opened.stage(stage)
            await opened.drain()

    asyncio.run(run())
