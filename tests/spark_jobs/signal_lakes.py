"""Lakes of CAN and LIN frames, written without Spark, and what `signals` must then hold."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from pcaplake.parser.schemas import TABLES
from pcaplake.spark_jobs.common.delta_writes import make_nullable
from pcaplake.spark_jobs.signals import Databases
from pcaplake.spark_jobs.signals.frames import FrameDecoder
from pcaplake.spark_jobs.signals.tables import SOURCES

Row = tuple[Any, ...]
COMPARED = (
    "capture_id",
    "packet_no",
    "sub_no",
    "bus",
    "message",
    "signal",
    "value",
    "label",
    "raw_value",
    "unit",
    "valid",
)


class SignalLake:
    """A folder with frames. Every `append` is one version of one table, of a capture of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.captures = 0

    def append(self, table: str, rows: list[dict[str, Any]], **extra: pa.Array) -> str:
        """Rows with keys -> their capture. `extra`: columns that the table may not have yet."""
        self.captures += 1
        capture = f"capture-{self.captures:03}"
        made = []
        for number, row in enumerate(rows):
            day = date(2026, 3, 1 + self.captures % 2)
            made.append(
                {
                    "capture_id": capture,
                    "vehicle_id": "car",
                    "date": day,
                    "ts": datetime(day.year, day.month, day.day, tzinfo=UTC),
                    "ts_ns": number,
                    "packet_no": number + 1,
                    "sub_no": 0,
                    "source": "tecmp",
                    "bus": "1",
                    **({"data_len": len(row["payload"])} if table == "can_frames" else {}),
                    **row,
                }
            )
        batch = pa.Table.from_pylist(made, make_nullable(TABLES[table].schema))
        for name, array in extra.items():
            batch = batch.append_column(name, array)
        write_deltalake(str(self.folder / table), batch, mode="append", partition_by=["date"], schema_mode="merge")
        return capture

    def can(self, count: int, can_id: int = 256, bus: str | None = "1", **extra: pa.Array) -> str:
        rows = [
            {
                "can_id": can_id,
                "extended": False,
                "bus": bus,
                "payload": bytes([n % 251, n % 3, n % 8, 0, 0, 0, 0, n % 256]),
            }
            for n in range(count)
        ]
        return self.append("can_frames", rows, **extra)

    def lin(self, count: int) -> str:
        return self.append("lin_frames", [{"lin_id": 1, "payload": bytes([n % 251, n % 5])} for n in range(count)])

    def table(self, name: str) -> pa.Table:
        return DeltaTable(str(self.folder / name)).to_pyarrow_table()

    def version(self, name: str) -> int:
        return int(DeltaTable(str(self.folder / name)).version())

    def signals(self) -> Counter[Row]:
        return counted(self.table("signals"))

    def expected(self, databases: Databases) -> Counter[Row]:
        """By the decoder alone, from the frames that are there now."""
        found: Counter[Row] = Counter()
        for kind, table in SOURCES.items():
            if (self.folder / table).is_dir():
                for batch in self.table(table).to_batches():
                    found += counted(FrameDecoder(databases).decode_signals(kind, batch))
        return found


def counted(rows: Any) -> Counter[Row]:
    return Counter(zip(*(rows.column(name).to_pylist() for name in COMPARED), strict=True))
