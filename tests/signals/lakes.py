"""Lakes of frames, written without Spark, and what `signals` must then hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from pcaplake.parser.schemas import TABLES
from pcaplake.signals import Databases
from pcaplake.signals.decoder import SignalDecoder
from pcaplake.signals.frames import FrameDecoder
from pcaplake.signals.someip.decoder import SomeipDecoder
from pcaplake.signals.someip.description import NOTIFICATION, PayloadMessage
from pcaplake.signals.sources import TABLES as SOURCE_TABLES
from pcaplake.signals.tables import SOURCES, wide_table_name
from pcaplake.signals.wide import source_of_message
from tests.signals.frame_files import BYTES

Row = tuple[Any, ...]
BATCH = CommitProperties(app_transactions=[Transaction("pcaplake-test", 0)])
"""Of a version that pcaplake wrote."""
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
    "service_id",
    "method_id",
    "values",
    "can_id",
    "lin_id",
    "slot_id",
    "pdu_id",
    "tp_packets",
    "contained_no",
)


def make_nullable(schema: pa.Schema) -> pa.Schema:
    """The schema with all columns nullable, as in the worker's tables."""
    return pa.schema([field.with_nullable(True) for field in schema])


class SignalLake:
    """A folder with frames. Every `append` is one version of one table, of a capture of its own. `batch`: of the next versions;
    None: of no number."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.captures = 0
        self.batch: int | None = None

    def append(self, table: str, rows: list[dict[str, Any]], **extra: pa.Array) -> str:
        """Rows with keys -> their capture. `extra`: columns that the table may not have yet."""
        self.captures += 1
        capture = f"capture-{self.captures:03}"
        made: list[dict[str, Any]] = []
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
        schema = make_nullable(TABLES[table].schema)
        made = [{name: value for name, value in row.items() if name in schema.names} for row in made]
        batch = pa.Table.from_pylist(made, schema)
        for name, array in extra.items():
            batch = batch.append_column(name, array)
        self._write(table, batch)
        return capture

    def _write(self, table: str, rows: pa.Table) -> None:
        ours = BATCH if self.batch is None else CommitProperties(app_transactions=[Transaction("pcaplake", self.batch)])
        write_deltalake(
            str(self.folder / table),
            rows,
            mode="append",
            partition_by=["date"],
            schema_mode="merge",
            commit_properties=ours,
        )

    def add_captures(self, *captures: str) -> None:
        """Their rows in the table `captures`, in one version."""
        schema = make_nullable(TABLES["captures"].schema)
        rows = [{"capture_id": capture, "uri": capture, "vehicle_id": "car", "profile": "p"} for capture in captures]
        self._write("captures", pa.Table.from_pylist(rows, schema))

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
        rows = [{"lin_id": 1, "bus": "doors", "payload": bytes([n % 251, n % 5])} for n in range(count)]
        return self.append("lin_frames", rows)

    def flexray(self, count: int, bus: str | None = "1", **more: Any) -> str:
        """Frames of slot 7 in the cycles from 0 on, as in frame_files.py; a null frame comes last."""
        rows = [
            {
                "frame_id": 7,
                "cycle": n % 64,
                "channel": "A",
                "null_frame": n == count - 1,
                "errors": n % 9 // 8,
                "bus": bus,
                "payload": bytes([n % 8, n % 251]) + BYTES[2:],
                **more,
            }
            for n in range(count)
        ]
        return self.append("flexray_frames", rows)

    def pdus(self, count: int, pdu_id: int = 0x77) -> str:
        rows = [
            {"pdu_id": pdu_id, "pdu_name": "", "header": "long", "length": 5, "payload": bytes([n % 251]) + BYTES[3:7]}
            for n in range(count)
        ]
        return self.append("pdus", rows)

    def someip(self, message: PayloadMessage, payloads: Iterable[bytes]) -> str:
        head = {
            "service_id": message.service_id,
            "method_id": message.method_id,
            "client_id": 1,
            "session_id": 2,
            "protocol_version": 1,
            "interface_version": message.interface_version or 0,
            "message_type": message.message_type,
            "return_code": 0,
            "is_event": message.message_type == NOTIFICATION,
        }
        return self.append("someip_messages", [{**head, "length": 8 + len(one), "payload": one} for one in payloads])

    def table(self, name: str) -> pa.Table:
        return DeltaTable(str(self.folder / name)).to_pyarrow_table()

    def has(self, name: str) -> bool:
        return (self.folder / name).is_dir()

    def version(self, name: str) -> int:
        return int(DeltaTable(str(self.folder / name)).version())

    def signals(self) -> Counter[Row]:
        return counted(self.table("signals"))

    def expected(self, databases: Databases) -> Counter[Row]:
        """By the decoder alone, from the frames that are there now."""
        found: Counter[Row] = Counter()
        for kind, table in SOURCES.items():
            if self.has(table):
                for batch in self.table(table).to_batches():
                    found += counted(FrameDecoder(databases).decode_signals(kind, batch))
        if self.has("someip_messages"):
            for batch in self.table("someip_messages").to_batches():
                found += counted(SomeipDecoder(databases.services).decode_signals(batch))
        return found

    def wide(self, message: str) -> Counter[str]:
        return texts(self.table(wide_table_name(message)))

    def expected_wide(self, databases: Databases, message: str) -> Counter[str]:
        """By the decoder alone, from the frames that are there now."""
        source = source_of_message(databases, message)
        found: Counter[str] = Counter()
        if self.has(SOURCE_TABLES[source]):
            for batch in self.table(SOURCE_TABLES[source]).to_batches():
                found += texts(SignalDecoder(databases, source, message).decode(batch))
        return found


def texts(rows: Any) -> Counter[str]:
    """All columns of all rows; as text, because NaN is not equal to itself."""
    return Counter(repr(sorted(row.items())) for row in rows.to_pylist())


def counted(rows: Any) -> Counter[Row]:
    columns = (rows.column(name).to_pylist() for name in COMPARED)
    return Counter(
        tuple(tuple(one) if isinstance(one, list) else repr(one) if one != one else one for one in row)
        for row in zip(*columns, strict=True)
    )
