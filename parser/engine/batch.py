"""One Arrow batch being filled: where its columns lie, and how they leave it without a copy.

All number columns of a batch lie in one arena; a column that nothing fills is never touched. Strings are dictionary
arrays: `capture_id` has one entry and 262,144 zeros that all batches share.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from . import kernels as k
from .memory import SLACK
from .program import Program, Source, Text
from .tables import TableSpec

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]
Formatter = Callable[[int, int], str]
KNOWN = 1024  # distinct texts of a column before its table grows
SPARE = 16  # rows of room behind each column
SPARE_ARENAS = 6  # of a layout, kept for later batches
FEW = 4  # a batch that fills less than this part of its arena is copied out of it
_ZEROS: list[np.ndarray[Any, Any]] = [np.zeros(1 << 18, np.int32)]


def _mac(high: int, low: int) -> str:
    return (low & (1 << 48) - 1).to_bytes(6, "big").hex(":")


def _ipv4(high: int, low: int) -> str:
    return socket.inet_ntop(socket.AF_INET, (low & 0xFFFFFFFF).to_bytes(4, "big"))


def _ipv6(high: int, low: int) -> str:
    """RFC 5952 text."""
    return socket.inet_ntop(socket.AF_INET6, high.to_bytes(8, "big", signed=True) + low.to_bytes(8, "big", signed=True))


FORMATTERS: dict[str, Formatter] = {"mac": _mac, "ipv4": _ipv4, "ipv6": _ipv6, "decimal": lambda high, low: str(low)}


def constant(value: str | None, n: int) -> pa.Array:
    """n times the same string, without writing it n times."""
    if value is None:
        return pa.nulls(n, pa.string())
    if _ZEROS[0].size < n:
        _ZEROS[0] = np.zeros(n, np.int32)
    codes = pa.Array.from_buffers(pa.int32(), n, [None, pa.py_buffer(_ZEROS[0][:n])])
    return _coded(codes, [value])


def _coded(codes: pa.Array, texts: list[str]) -> pa.Array:
    """The codes are ours, so nobody looks at each again."""
    return pa.DictionaryArray.from_arrays(codes, pa.array(texts, pa.string()), safe=False)


class Layout:
    """Where the columns of a table lie in an arena for `rows` rows, and the plans of its sources for the kernels."""

    def __init__(self, program: Program, spec: TableSpec, wanted: Sequence[str], rows: int) -> None:
        self.spec, self.wanted, self.rows, self.program = spec, tuple(wanted), rows, program
        at = 64  # bytes; a column begins on a cache line
        schema, n = spec.schema, len(spec.schema)
        self.place, self.width, self.valid = [-1] * n, [0] * n, [-1] * n

        def room(size: int) -> int:
            nonlocal at
            start, at = at, at + ((rows + SPARE) * size + 63 & -64)
            return start

        self.sources: dict[int, tuple[Source, Any, Any, Any]] = {}
        for number, source in enumerate(program.sources):
            if program.tables[source.table] != spec.name:
                continue
            plans: list[list[list[int]]] = []
            for group in (source.columns, source.texts):
                plan = []
                for case, count, column in group:
                    if schema.names[column] not in self.wanted:
                        continue
                    if self.place[column] < 0:
                        self.width[column] = _width(schema.field(column).type)
                        self.place[column] = room(self.width[column])
                        if schema.field(column).nullable:
                            self.valid[column] = room(1)
                    plan.append([self.place[column], self.width[column], self.valid[column], case, count, column])
                plans.append(plan)
            cases = np.array(source.cases or [(0,) * k.CASE_WIDTH], np.int64)
            numbers, texts = (np.array(plan, np.int64).reshape(-1, k.COLUMN_WIDTH) for plan in plans)
            self.sources[number] = (source, numbers, texts, cases)
        self.keys = {
            name: (room(np.dtype(kind).itemsize), kind)
            for name, kind in (
                ("ts_ns", "i8"),
                ("ts", "i8"),
                ("date", "i4"),
                ("packet_no", "i8"),
                ("sub_no", "i4"),
                ("interface", "i4"),
                ("offsets", "i4"),
            )
        }
        self.size = at + 64
        self.spare: list[Bytes] = []

    def arena(self) -> Bytes:
        """Room for one batch: a used one that nobody looks at any more (fresh pages cost as much as the columns)."""
        for _ in range(len(self.spare)):
            try:
                arena = self.spare.pop(0)
            except IndexError:  # another thread was faster
                break
            if sys.getrefcount(arena) == 2:  # `arena` and the argument: no array of a batch
                return arena
            self.spare.append(arena)
        return np.empty(self.size, np.uint8)

    def give_back(self, arena: Bytes) -> None:
        self.spare.append(arena)
        del self.spare[:-SPARE_ARENAS]

    def text(self, column: str) -> Text | None:
        return self.program.texts.get((self.spec.name, column))


def _width(kind: pa.DataType) -> int:
    if pa.types.is_boolean(kind):
        return 1
    return 4 if pa.types.is_string(kind) else int(kind.bit_width) // 8


class Batch:
    """Rows of one table, morsel by morsel; `finish` hands them over as a `pa.RecordBatch`."""

    def __init__(self, layout: Layout, names: Mapping[str, str | None], formatters: Mapping[str, Formatter]) -> None:
        self.layout, self.names, self.formatters = layout, names, formatters
        self.n, self.filled_bytes, self.null_times = 0, 0, 0
        self.few = False
        rows, columns = layout.rows, len(layout.spec.schema)
        self.arena = layout.arena()
        self.align = -self.arena.ctypes.data % 64
        self.data = self.arena[self.align :]
        self.live, self.filled = np.zeros(columns, np.int64), np.zeros(columns, np.int64)
        self.keys = {name: self.column(at, kind, rows + SPARE) for name, (at, kind) in layout.keys.items()}
        self.dates, self.interfaces = "date" in layout.wanted, "interface" in layout.wanted
        self.known: dict[int, tuple[Any, Any]] = {}
        self.lists: dict[str, list[tuple[Any, Any]]] = {}
        self.objects: dict[str, list[Any]] = {}
        self.body = next((c for c in ("payload", "raw") if c in layout.wanted), None)
        self.payload = np.empty((rows * 16 if self.body else 0) + 64, np.uint8)

    def column(self, at: int, kind: str, rows: int) -> Any:
        return self.data[at : at + rows * np.dtype(kind).itemsize].view(kind)

    def take(
        self, data: Bytes, table: Any, m: int, sources: Any, counts: Any, packets: Any, by_packet: Any, first_no: int
    ) -> None:
        """m rows of the table from a morsel: table int32[TABLE_FIELDS, room], sources int32[sources, slots, room]."""
        base, keys, layout = self.n, self.keys, self.layout
        part = slice(base, base + m)
        none = keys["date"][:0]
        self.null_times += k.stamps(
            table,
            m,
            first_no,
            by_packet.times,
            by_packet.micros,
            by_packet.days,
            by_packet.interfaces,
            keys["ts_ns"][part],
            keys["ts"][part],
            keys["date"][part] if self.dates else none,
            keys["packet_no"][part],
            keys["sub_no"][part],
            keys["interface"][part] if self.interfaces else none,
        )
        ordinals, lookup = table[k.ORDINAL], layout.program.lookup_table
        for number, (source, numbers, texts, cases) in layout.sources.items():
            count = int(counts[number])
            if not count:
                continue
            rows = sources[number]
            present = np.empty(len(rows), np.int64)
            k.presence(rows, count, present)
            common = (data, rows, count, base, m, packets, ordinals, present)
            if len(numbers):
                k.columns(*common, numbers, cases, lookup, self.data, self.live, self.filled)
            for plan in texts:
                self._texts(common, plan, cases)
            for name, (first, last, term) in source.runs.items():
                if name in layout.wanted:
                    self._run(data, name, rows, count, m, (first, last), term)
            if source.rows.finish is not None:
                self._objects(data, source, rows, count, m)
            if number == layout.program.late:
                k.forget(rows, count, present)
        if self.body:
            self._gather(data, table, m)
        self.n += m

    def _texts(self, common: tuple[Any, ...], plan: Any, cases: Any) -> None:
        column, lookup = int(plan[k.K_COLUMN]), self.layout.program.lookup_table
        if column not in self.known:
            self.known[column] = (np.zeros((KNOWN, 3), np.int64), np.full(4 * KNOWN, -1, np.int32))
        while not k.texts(*common, plan, cases, lookup, self.data, self.live, self.filled, *self.known[column]):
            known, _ = self.known[column]
            wider = np.zeros((4 * len(known), 3), np.int64)
            wider[: len(known)] = known
            self.known[column] = (wider, np.empty(16 * len(known), np.int32))
            k.rehash(*self.known[column])

    def _run(self, data: Bytes, name: str, rows: Any, count: int, m: int, slots: tuple[int, int], term: Any) -> None:
        first, last = rows[slots[0], :count], rows[slots[1], :count]
        counts = np.empty(count, np.int64)
        step = term.layer.least
        values = np.empty(k.run_lengths(first, last, step, counts), np.int32)
        if values.size:
            k.run_values(data, first, counts, step, term.offset, term.shift, term.mask, int(term.big), values)
        self.lists.setdefault(name, []).append((counts, values))

    def _objects(self, data: Bytes, source: Source, rows: Any, count: int, m: int) -> None:
        start, span = source.span
        finish = source.rows.finish
        assert finish is not None
        made = finish(data, rows[start, :count], rows[span, :count], rows[span + 1, :count])
        for name, values in made.items():
            if name in self.layout.wanted:
                self.objects.setdefault(name, []).extend(values)

    def _gather(self, data: Bytes, table: Any, m: int) -> None:
        need = self.filled_bytes + k.sizes(table, m) + 2 * SLACK
        if need > self.payload.size:
            wider = np.empty(max(need, 2 * self.payload.size), np.uint8)
            wider[: self.filled_bytes] = self.payload[: self.filled_bytes]
            self.payload = wider
        offsets = self.keys["offsets"][self.n :]
        self.filled_bytes = int(k.gather(data, table, m, offsets, self.filled_bytes, self.payload))

    # -- handing over -------------------------------------------------------------------------------------------
    def finish(self) -> pa.RecordBatch:
        """All rows so far, columns in the order of the table; string columns are dictionary<int32, string>.

        Who keeps the rows keeps the arena they lie in, unless they are few: of many small captures that would be much.
        """
        layout, arrays, fields = self.layout, [], []
        self.few = FEW * self.n < layout.rows
        for index, entry in enumerate(layout.spec.schema):
            if entry.name not in layout.wanted:
                continue
            array = self._key(entry.name) if entry.name in _KEY_NAMES else self._array(index, entry)
            arrays.append(array)
            fields.append(pa.field(entry.name, array.type, entry.nullable))
        layout.give_back(self.arena)
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _own(self, values: Any) -> Any:
        return values.copy() if self.few else values

    def _key(self, name: str) -> pa.Array:
        n = self.n
        if name in ("capture_id", "vehicle_id"):
            return constant(self.names[name], n)
        values = self._own(self.keys[name][:n])
        if name == "interface":
            return self._interfaces(values)
        kind = {"date": pa.date32(), "ts": pa.timestamp("us", tz="UTC"), "sub_no": pa.int32()}.get(name, pa.int64())
        valid = None
        if self.null_times and name in ("ts", "ts_ns"):
            valid = self.keys["ts_ns"][:n] != k.NO_TIME
        elif name == "date":
            valid = values != NO_DAY
            if valid.all():
                valid = None
        return _numbers(kind, values, valid)

    def _interfaces(self, codes: Any) -> pa.Array:
        names = self.formatters["interface_names"]
        valid = codes >= 0
        if not valid.any():
            return pa.nulls(self.n, pa.string())
        low, high = int(codes.min()), int(codes.max())
        if low == high:
            return constant(names(0, low), self.n)
        return _coded(_numbers(pa.int32(), codes, None if low >= 0 else valid), [names(0, i) for i in range(high + 1)])

    def _array(self, index: int, entry: pa.Field) -> pa.Array:
        layout, n, name = self.layout, self.n, entry.name
        if name == self.body:
            offsets = self.keys["offsets"][: n + 1]
            offsets[n] = self.filled_bytes
            payload = self._own(self.payload[: self.filled_bytes])
            return pa.Array.from_buffers(
                pa.binary(), n, [None, pa.py_buffer(self._own(offsets)), pa.py_buffer(payload)]
            )
        if name in self.lists:
            return self._list(self.lists[name])
        if name in self.objects:
            return pa.array(self.objects[name], entry.type)
        filled = int(self.filled[index])
        if filled == 0:
            if not entry.nullable and n:
                raise AssertionError(f"{layout.spec.name}.{name} is required, but no source fills it")
            return pa.nulls(n, entry.type)
        valid = None
        if filled < n:
            at = layout.valid[index]
            self.data[at + int(self.live[index]) : at + n] = 0
            valid = self.data[at : at + n]
        width = layout.width[index]
        values = self._own(self.column(layout.place[index], f"i{width}", n))
        if not pa.types.is_string(entry.type):
            return _numbers(entry.type, values, valid)
        if valid is not None:
            values[valid == 0] = 0
        return _coded(_numbers(pa.int32(), values, valid), self._words(index, name))

    def _words(self, index: int, name: str) -> list[str]:
        if index in self.known:
            known = self.known[index][0]
            rows = known[1 : 1 + int(known[0, 0])].tolist()
            return [self.formatters[k.TEXT_KINDS[kind]](high, low) for kind, high, low in rows]
        text = self.layout.text(name)
        return text.names if text else []

    def _list(self, parts: list[tuple[Any, Any]]) -> pa.Array:
        counts = np.concatenate([c for c, _ in parts])
        if not counts.any():
            return pa.nulls(self.n, pa.list_(pa.int32()))
        offsets = np.zeros(counts.size + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        values = pa.array(np.concatenate([v for _, v in parts]), pa.int32())
        bits = pa.py_buffer(np.packbits(counts > 0, bitorder="little"))
        return pa.Array.from_buffers(pa.list_(pa.int32()), self.n, [bits, pa.py_buffer(offsets)], children=[values])


_KEY_NAMES = ("capture_id", "vehicle_id", "date", "ts", "ts_ns", "packet_no", "sub_no", "interface")
NO_DAY = np.int32(-(2**31))


def _numbers(kind: pa.DataType, values: Any, valid: Any) -> pa.Array:
    """An array over `values`, without a copy but for bools; valid: bytes or bools, None if all are there."""
    bits = None if valid is None else pa.py_buffer(np.packbits(valid.view(np.bool_), bitorder="little"))
    n = values.size
    if pa.types.is_boolean(kind):
        values = np.packbits(values.view(np.bool_), bitorder="little")
    return pa.Array.from_buffers(kind, n, [bits, pa.py_buffer(values)])
