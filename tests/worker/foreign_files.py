"""Files of a lake's tables as other writers make them: the same rows, with other types of Arrow and of Parquet.

A `Story` runs each command on such a lake.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from pcaplake.lake.delta.actions import parse_json_lines
from pcaplake.lake.store.store import Store
from pcaplake.lake.table_rows import TableRows
from pcaplake.parser.schemas import TABLES
from tests.worker import lakes
from tests.worker.fleets import can_capture

Retype = Callable[[pa.DataType], pa.DataType]


def views(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind) and not pa.types.is_struct(kind.value_type):
        return pa.list_view(kind.value_type)
    return {pa.string(): pa.string_view(), pa.binary(): pa.binary_view()}.get(kind, kind)


def large(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.large_list(kind.value_field)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ns", "Europe/Berlin")
    return {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(kind, kind)


def dictionaries(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ns")
    return pa.dictionary(pa.int32(), kind) if kind in (pa.string(), pa.binary()) else kind


def wider_numbers(kind: pa.DataType) -> pa.DataType:
    """Decimals are no type of these columns by the protocol, but pyarrow's dataset reads them, too."""
    return {pa.int64(): pa.decimal128(20, 0), pa.int32(): pa.int64(), pa.int16(): pa.float64()}.get(kind, kind)


RETYPES: Mapping[str, Retype] = {
    "views": views,
    "large": large,
    "dictionaries": dictionaries,
    "wider numbers": wider_numbers,
}


def _retype(array: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    if pa.types.is_dictionary(kind):
        return array.combine_chunks().dictionary_encode()
    if pa.types.is_decimal(kind):
        return pa.array([None if value is None else Decimal(value) for value in array.to_pylist()], kind)
    if pa.types.is_timestamp(kind):
        return array.cast(kind)
    return pa.array(array.to_pylist(), kind)


def write_by_pyarrow(retype: Retype) -> Callable[[Path, Path], None]:
    def write(old: Path, new: Path) -> None:
        rows = pq.ParquetFile(old).read()
        arrays = [_retype(rows.column(field.name), retype(field.type)) for field in rows.schema]
        pq.write_table(pa.Table.from_arrays(arrays, names=rows.schema.names), new)

    return write


def write_by_duckdb(old: Path, new: Path) -> None:
    connection = lakes.connect()
    connection.execute(
        f"COPY (SELECT * FROM read_parquet('{old}', hive_partitioning = false)) TO '{new}' (FORMAT parquet)"
    )
    connection.close()


def swap_files(table: Path, write: Callable[[Path, Path], None]) -> None:
    """Each file of a table is replaced in one version by one that `write(old, new)` makes, as a compaction would do it."""
    log = sorted((table / "_delta_log").glob("*.json"))
    live: dict[str, dict[str, Any]] = {}
    for line in (line for path in log for line in parse_json_lines(path.read_bytes())):
        if "add" in line:
            live[line["add"]["path"]] = line["add"]
        elif "remove" in line:
            del live[line["remove"]["path"]]
    lines: list[dict[str, Any]] = []
    for path, add in live.items():
        new = f"{path.rpartition('/')[0]}/{uuid.uuid4().hex}.parquet".removeprefix("/")
        write(table / path, table / new)
        size = (table / new).stat().st_size
        lines.append({"remove": {"path": path, "deletionTimestamp": add["modificationTime"], "dataChange": False}})
        lines.append({"add": {**add, "path": new, "size": size, "dataChange": False}})
    if lines:
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (table / "_delta_log" / f"{int(log[-1].stem) + 1:020d}.json").write_text(text)


def update(table: Path) -> None:
    """deltalake writes views where it updates or deletes rows."""
    opened = DeltaTable(table)
    name = opened.schema().fields[0].name
    opened.update(updates={name: name})


def z_order(table: Path) -> None:
    opened = DeltaTable(table)
    opened.optimize.z_order([opened.schema().fields[0].name])


def overwrite_with_views(table: Path) -> None:
    rows = DeltaTable(table).to_pyarrow_table()
    arrays = [_retype(rows.column(field.name), views(field.type)) for field in rows.schema]
    partitions = DeltaTable(table).metadata().partition_columns
    fields = [field.with_type(array.type) for field, array in zip(rows.schema, arrays, strict=True)]
    write_deltalake(
        table, pa.Table.from_arrays(arrays, schema=pa.schema(fields)), mode="overwrite", partition_by=partitions
    )


REWRITES: Mapping[str, Callable[[Path], None]] = {
    **{name: lambda table, kind=kind: swap_files(table, write_by_pyarrow(kind)) for name, kind in RETYPES.items()},  # type: ignore[misc]
    "DuckDB": lambda table: swap_files(table, write_by_duckdb),
    "update": update,
    "z-order": z_order,
    "overwrite with views": overwrite_with_views,
}
"""Name -> what rewrites all rows of a table."""

DBC = """
VERSION ""
BU_: A
BO_ 4 Speed: 8 A
 SG_ Little : 3|12@1+ ({factor},-10) [0|100] "km/h" A
 SG_ Gear : 56|3@1+ (1,0) [0|5] "" A
VAL_ 4 Gear 0 "P" 1 "R" ;
"""
DOCTOR = ("doctor", "--repair", "--yes")  # other writers leave out bounds of booleans
SIGNAL_TABLES = ("signals", "signals_Speed", "signal_catalog")
UNEQUAL = {"ingested_at", "first_seen", "modified_at"}


@dataclass
class Story:
    """What happens to a lake. `rewrites`: one after the other, of each table that has rows, before each command."""

    folder: Path
    lake: Path
    capsys: Any
    rewrites: Sequence[Callable[[Path], None]] = ()
    seen: list[dict[str, list[str]]] = field(default_factory=list)

    def act(self, *arguments: object, say: str = "") -> None:
        for name in (*TABLES, *SIGNAL_TABLES) if self.rewrites else ():
            if (self.lake / name).exists() and lakes.parquet(self.lake / name):
                self.rewrites[len(self.seen) % len(self.rewrites)](self.lake / name)
        for command in (arguments, DOCTOR):
            code, out, err = lakes.run(self.capsys, *command, "--lake", self.lake)
            assert code == 0, (command, out + err)
            assert command == DOCTOR or say in out, out + err
        self.seen.append(self.rows())

    def rows(self) -> dict[str, list[str]]:
        found = {}
        for name in (*TABLES, *SIGNAL_TABLES):
            if (self.lake / name).exists():
                table = TableRows(Store.open(str(self.lake)), name)
                columns = [column for column in table.schema.names if column not in UNEQUAL]
                found[name] = sorted(str(row) for batch in table.read(columns) for row in batch.to_pylist())
        return found

    def run(self) -> list[dict[str, list[str]]]:
        captures = self.folder / "in"
        captures.mkdir(exist_ok=True)
        database, profile = self.folder / "car.dbc", self.folder / "profile.yaml"
        profile.write_text("vehicle_id: '/(?P<vehicle_id>[^/]+)/[^/]+$'\n")
        for number in range(3):
            (captures / f"{number}.pcap").write_bytes(can_capture(20 + number, 2))
        (captures / "3.pcap").write_bytes(b"no capture")
        ingest = ("ingest", captures / "0.pcap", captures / "1.pcap", captures / "2.pcap", "--threads", 1)
        self.act(*ingest)
        self.act(*ingest, say="3 already ingested")
        (captures / "1.pcap").write_bytes(can_capture(30, 3))
        self.act(*ingest, "--replace-changed", say="1 capture read, 2 already ingested")
        self.act(*ingest, "--replace-changed", say="3 already ingested")
        self.act(*ingest, "--reread", "--profile", profile, say="3 already ingested")
        (captures / "4.pcap").write_bytes(can_capture(7))
        self.act("ingest", captures / "4.pcap", "--profile", profile)
        for factor in (0.5, 0.25):
            database.write_text(DBC.format(factor=factor))
            self.act("signals", "--databases", database, "--wide", "Speed")
        self.act("signals", "--databases", database, "--wide", "Speed")
        self.act("maintain")
        self.act(*ingest, say="3 already ingested")
        return self.seen
