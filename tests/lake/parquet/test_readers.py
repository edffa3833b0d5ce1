"""What readers hold a file to that most of them are lenient about: types in the footer, and the ends of LZ4 blocks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from pcaplake.lake.parquet import ParquetSink
from pcaplake.parser.schemas import TABLES

I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
FOOTER = {2: STRUCT, 4: STRUCT, 5: STRUCT, 7: STRUCT}  # parquet.thrift: FileMetaData's lists and their items
GROUP = {1: STRUCT, 4: STRUCT}  # RowGroup's
COLUMN = {2: I32, 3: BINARY, 8: STRUCT, 13: STRUCT}  # ColumnMetaData's
Decoded = dict[int, Any]


class Compact:
    """A reader of Thrift's compact protocol that keeps what kind of items each list says to have."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def number(self) -> int:
        value = self.varint()
        return value >> 1 ^ -(value & 1)

    def struct(self) -> Decoded:
        """Field id -> value; of a list: (kind of its items, items)."""
        fields: Decoded = {}
        last = 0
        while head := self.data[self.at]:
            self.at += 1
            last = last + (head >> 4) if head >> 4 else self.number()
            fields[last] = head & 15 == 1 if head & 15 in (1, 2) else self.value(head & 15)
        self.at += 1
        return fields

    def value(self, kind: int) -> Any:
        if kind == STRUCT:
            return self.struct()
        if kind == BINARY:
            size = self.varint()
            self.at += size
            return self.data[self.at - size : self.at]
        if kind == LIST:
            head = self.data[self.at]
            self.at += 1
            count = self.varint() if head >> 4 == 15 else head >> 4
            return head & 15, [self.value(head & 15) for _ in range(count)]
        if kind == 3:
            self.at += 1
            return self.data[self.at - 1]
        assert kind in (4, I32, I64), kind
        return self.number()


def footer(data: bytes) -> Decoded:
    size = int.from_bytes(data[-8:-4], "little")
    found = Compact(data[-8 - size : -8]).struct()
    check_lists(found, FOOTER)
    for group in found[4][1]:
        check_lists(group, GROUP)
        for column in group[1][1]:
            check_lists(column[3], COLUMN)
    return found


def check_lists(found: Decoded, kinds: dict[int, int]) -> None:
    lists = {field: value[0] for field, value in found.items() if isinstance(value, tuple)}
    assert lists == {field: kinds[field] for field in lists}


def write(schema: pa.Schema, batches: list[pa.RecordBatch], **options: Any) -> tuple[bytes, str]:
    out = bytearray()
    sink = ParquetSink(schema, out.extend, **options)
    for batch in batches:
        sink.write_batch(batch)
    stats = sink.close().stats
    return bytes(out), stats


@pytest.mark.parametrize("table", TABLES)
def test_a_file_without_rows_can_be_read(table: str, tmp_path: Path) -> None:
    """By DataFusion, too, which looks at the kinds of empty lists: it refused the empty list of row groups."""
    schema = TABLES[table].schema
    data, stats = write(schema, [])
    assert footer(data)[4] == (STRUCT, [])
    assert pq.read_table(pa.BufferReader(data)).num_rows == 0
    DeltaTable.create(tmp_path / "lake", pa.schema([f.with_nullable(True) for f in schema]), partition_by=["date"])
    (tmp_path / "lake" / "x.parquet").write_bytes(data)
    values = {"partitionValues": {"date": "2026-01-02"}, "size": len(data), "modificationTime": 0, "dataChange": True}
    (tmp_path / "lake" / "_delta_log" / f"{1:020d}.json").write_text(
        json.dumps({"add": {"path": "x.parquet", **values}})
    )
    lake = DeltaTable(tmp_path / "lake")
    got = pa.table(QueryBuilder().register("t", lake).execute("SELECT * FROM t").read_all())
    assert got.num_rows == 0
    assert json.loads(stats)["numRecords"] == 0


def test_lists_of_a_full_footer_name_their_items() -> None:
    schema = pa.schema([("n", pa.int64()), ("l", pa.list_(pa.int32())), ("b", pa.binary())])
    batch = pa.RecordBatch.from_pydict({"n": [1, 2], "l": [[1], None], "b": [b"x", None]}, schema)
    data, _ = write(schema, [batch])
    assert len(footer(data)[4][1][0][1][1]) == 3


# -- LZ4 --------------------------------------------------------------------------------------------------------------
def lz4_block(data: bytes) -> bytes:
    """Decode one block, and hold it to the restrictions on its end (lz4_Block_format.md, "End of block conditions").

    The last sequence has literals alone, at least 5 of them where there is any match before, and the last match begins at
    least 12 bytes before the end.
    """
    out, at, last_match = bytearray(), 0, None
    while True:
        token = data[at]
        at += 1
        literals = token >> 4
        if literals == 15:
            literals, at = _longer(data, at, literals)
        assert at + literals <= len(data)
        out += data[at : at + literals]
        at += literals
        if at == len(data):
            assert not token & 15, "the last sequence has a match length"
            break
        offset = int.from_bytes(data[at : at + 2], "little")
        at += 2
        assert 0 < offset <= len(out)
        length = token & 15
        if length == 15:
            length, at = _longer(data, at, length)
        last_match = len(out)
        for _ in range(length + 4):
            out.append(out[-offset])
    if last_match is not None:
        assert literals >= 5
        assert len(out) - last_match >= 12
    return bytes(out)


def _longer(data: bytes, at: int, length: int) -> tuple[int, int]:
    while True:
        length += data[at]
        at += 1
        if data[at - 1] != 255:
            return length, at


def pages(data: bytes) -> list[tuple[bytes, int]]:
    """Bodies of all pages of chunks in LZ4_RAW as they lie in the file, and their bytes before compression."""
    found = []
    for group in footer(data)[4][1]:
        for column in group[1][1]:
            said = column[3]
            if said[4] != 7:
                assert said[4] == 0
                continue
            at = said.get(11, said[9])
            end = at + said[7]
            while at < end:
                reader = Compact(data, at)
                head = reader.struct()
                at = reader.at + head[3]
                found.append((data[reader.at : at], head[2]))
            assert at == end
    return found


@st.composite
def skewed_cells(draw: st.DrawFn) -> list[bytes | None]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows, width = draw(st.integers(0, 400)), draw(st.integers(0, 70))
    common = draw(st.sampled_from([0.3, 0.6, 0.9, 0.99, 1.0]))
    kinds = draw(st.integers(2, 256))
    chances = [common, *[(1 - common) / (kinds - 1)] * (kinds - 1)]
    cells = rng.choice(kinds, (rows, width), p=chances).astype(np.uint8)
    cut = rng.integers(0, width + 1, rows) if draw(st.booleans()) else np.full(rows, width)
    missing = rng.random(rows) < draw(st.sampled_from([0, 0.2]))
    return [None if missing[row] else cells[row, : cut[row]].tobytes() for row in range(rows)]


@pytest.mark.slow
@given(cells=skewed_cells())
@settings(max_examples=150, deadline=None)
def test_lz4_pages_of_skewed_binaries_keep_the_rules_of_the_block_format(cells: list[bytes | None]) -> None:
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("b", pa.binary())])
    batch = pa.RecordBatch.from_pydict({"n": list(range(len(cells))), "b": cells}, schema)
    data, _ = write(schema, [batch], compression="lz4")
    for body, size in pages(data):
        assert len(lz4_block(body)) == size
    assert pq.read_table(pa.BufferReader(data))["b"].to_pylist() == cells


def test_lz4_is_tried_at_all() -> None:
    schema = pa.schema([("b", pa.binary())])
    data, _ = write(
        schema,
        [pa.RecordBatch.from_pydict({"b": [b"\1\2\3\4" * 9 + b"%d" % i for i in range(500)]}, schema)],
        compression="lz4",
    )
    (page,) = pages(data)
    assert len(page[0]) < page[1] // 8
