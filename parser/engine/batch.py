"""Fills the columns of one Arrow batch and returns them without a copy.

All columns of fixed width are in one buffer, the arena. The memory of a column that no source fills is not touched. Strings
are dictionary arrays: `capture_id` has one entry, and all batches share its 262,144 zero codes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from .arrays import array_of_runs, constant_dictionary_array, dictionary_array, null_array, primitive_array
from .fixed_bytes import Found, fixed_bytes_array, read_fixed_bytes
from .kernel_arguments import Columns, KnownTexts, SourceRows, TextMemory
from .kernels import columns, encoding, key_columns, payloads, shapes, text_codes
from .kernels.raw_memory import SLACK
from .layout import SPARE_ROWS, Layout
from .message_objects import Bytes, MessageObjects, Spans
from .scratch import ScratchBuffers
from .sources import BODIES, KEY_COLUMNS
from .texts import Formatter

KNOWN_TEXTS = 1024  # distinct texts of a column before its hash table grows
MANY_NAMES = 1024  # with more interfaces than this, the dictionary of a batch has only those that occur in it
COMMENT = "comment"  # the column of packets
FEW = 4  # a batch that fills less than a quarter of its arena is copied out of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Morsel:
    """The rows of all tables that one call of `walk.walk_records` found.

    sources: for each source int32[slots, >= rows]; counts: int64[sources], the rows of each; packets:
    int64[PACKET_FIELDS, packets]; by_packet: times, dates and interfaces; first_no: number in the capture of the morsel's
    first packet; spans: source -> the spans of its rows, if they have objects; comments: of packets, by ordinal; paired: table ->
    column -> values int64 of its rows and whether they are known; scratch: working memory of the kernels.
    """

    data: Bytes
    sources: Any
    counts: Any
    packets: Any
    by_packet: Any
    first_no: int
    spans: Mapping[int, Spans]
    comments: Mapping[int, str]
    paired: Mapping[str, Mapping[str, tuple[Any, Any]]]
    scratch: ScratchBuffers

    def with_rows(
        self, data: Bytes, sources: Any, counts: Any, most: int, spans: Mapping[int, Spans] | None = None
    ) -> Morsel:
        """The morsel with other rows, at most `most` of a table."""
        scratch = self.scratch.with_room(most)
        return replace(self, data=data, sources=sources, counts=counts, scratch=scratch, spans=spans or {})


class BatchBuilder:
    """Collects the rows of one table, morsel by morsel; `finish_batches` returns them as record batches.

    A morsel is the packets that one call of `walk.walk_records` finds.
    """

    def __init__(self, layout: Layout, formatters: Mapping[str, Formatter]) -> None:
        self.layout, self.formatters = layout, formatters
        self.captures: list[tuple[int, Mapping[str, str | None]]] = []  # first row and names of each
        self.n, self.filled_bytes, self.null_times = 0, 0, 0
        self.few = False
        rows, columns = layout.rows, len(layout.spec.schema)
        self.arena = layout.take_arena()
        self.align = -self.arena.ctypes.data % 64
        self.data = self.arena[self.align :]
        self.live, self.filled = np.zeros(columns, np.int64), np.zeros(columns, np.int64)
        self.columns = Columns(layout.program.lookup, self.data, self.live, self.filled)
        self.keys = {name: self.column_view(at, kind, rows + SPARE_ROWS) for name, (at, kind) in layout.keys.items()}
        self.dates, self.interfaces = "date" in layout.wanted, "interface" in layout.wanted
        self.known: dict[int, KnownTexts] = {}
        self.lists: dict[str, list[tuple[Any, Any]]] = {}
        self.fixed_bytes: dict[str, Found] = {}
        self.paired: dict[str, list[tuple[Any, Any]]] = {}
        self.objects = MessageObjects()
        self.comments: dict[int, str] = {}  # by row
        self.comment_bytes = 0
        self.body = next((c for c in (*BODIES, "raw") if c in layout.wanted), None)
        self.payload = np.empty(layout.payload_bytes if self.body else 0, np.uint8)

    def clear(self) -> None:
        """Forget all rows. Only for a batch of numbers, whose arena no Arrow array refers to."""
        self.captures.clear()
        self.n = self.null_times = 0
        self.live[:], self.filled[:] = 0, 0
        if self.known or self.lists or self.fixed_bytes or self.paired:
            raise AssertionError("only columns of numbers are forgotten")

    def column_view(self, at: int, kind: str, rows: int) -> Any:
        return self.data[at : at + rows * np.dtype(kind).itemsize].view(kind)

    def append_morsel(self, table: Any, m: int, morsel: Morsel, names: Mapping[str, str | None]) -> None:
        """Append m rows of a table from a morsel. table: int32[TABLE_FIELDS, room]; names: capture_id and vehicle_id of the
        rows, the same object for all morsels of a capture.
        """
        if not self.captures or self.captures[-1][1] is not names:
            self.captures.append((self.n, names))
        data, by_packet = morsel.data, morsel.by_packet
        base, keys, layout = self.n, self.keys, self.layout
        part = slice(base, base + m)
        none = keys["date"][:0]
        self.null_times += key_columns.fill_key_columns(
            table,
            m,
            morsel.first_no,
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
        counts = morsel.counts.tolist()
        ordinals = table[encoding.ORDINAL]
        for number, (source, numbers, texts, cases) in layout.sources.items():
            count = counts[number]
            if not count:
                continue
            rows = morsel.sources[number]
            scratch = morsel.scratch
            grouped = scratch.order, scratch.shapes
            n_shapes = shapes.group_rows_by_shape(rows, count, scratch.masks, *grouped, scratch.shape_slots)
            common = data, count, base, m, n_shapes, SourceRows(rows, morsel.packets, ordinals, *grouped)
            if len(numbers):
                columns.fill_number_columns(*common, numbers, cases, self.columns, scratch.todo, scratch.columns_of_all)
            if len(texts):
                self._fill_text_columns(common, texts, cases, scratch.text_memory)
            for name, (first, last, term) in source.runs.items():
                if name in layout.wanted:
                    self._append_stacked_values(data, name, rows, count, m, (first, last), term)
            for name, (slot, field) in source.fixed_bytes.items():
                if name in layout.wanted:
                    read = read_fixed_bytes(data, rows[slot, :count], field)
                    self.fixed_bytes.setdefault(name, []).append((base + rows[encoding.DEST, :count], read))
            if number in morsel.spans:
                self.objects.keep_messages(data, source.rows, morsel.spans[number])
            if number == layout.program.late:
                columns.clear_row_slots(rows, count, scratch.shapes, n_shapes)
        for name, values in morsel.paired.get(layout.spec.name, {}).items():
            self.paired.setdefault(name, []).append(values)
        if morsel.comments and COMMENT in layout.wanted:
            self._keep_comments(ordinals[:m], morsel.comments)
        if self.body:
            self._append_payloads(data, table, m)
        self.n += m

    def _fill_text_columns(
        self, common: tuple[Bytes, int, int, int, int, SourceRows], texts: Any, cases: Any, memory: TextMemory
    ) -> None:
        for plan in texts:
            column = int(plan[encoding.K_COLUMN])
            if column not in self.known:
                values = np.zeros((KNOWN_TEXTS, 3), np.int64)
                self.known[column] = KnownTexts(values, np.full(4 * KNOWN_TEXTS, -1, np.int32))
            while not text_codes.fill_text_codes(*common, plan, cases, self.columns, memory, self.known[column]):
                values = self.known[column].values
                wider = np.zeros((4 * len(values), 3), np.int64)
                wider[: len(values)] = values
                self.known[column] = KnownTexts(wider, np.empty(16 * len(values), np.int32))
                text_codes.rehash_known_values(self.known[column])

    def _keep_comments(self, ordinals: Any, comments: Mapping[int, str]) -> None:
        for row in np.flatnonzero(np.isin(ordinals, list(comments))).tolist():
            self.comments[self.n + row] = text = comments[int(ordinals[row])]
            self.comment_bytes += len(text)

    def _append_stacked_values(
        self, data: Bytes, name: str, rows: Any, count: int, m: int, slots: tuple[int, int], term: Any
    ) -> None:
        first, last = rows[slots[0], :count], rows[slots[1], :count]
        counts = np.empty(count, np.int64)
        step = term.layer.least
        values = np.empty(payloads.count_stacked_headers(first, last, step, counts), np.int32)
        if values.size:
            payloads.read_stacked_values(
                data, first, counts, step, term.offset, term.shift, term.mask, int(term.big), values
            )
        self.lists.setdefault(name, []).append((counts, values))

    def _append_payloads(self, data: Bytes, table: Any, m: int) -> None:
        need = self.filled_bytes + payloads.sum_payload_lengths(table, m) + 2 * SLACK
        if need > self.payload.size:
            wider = np.empty(max(need, 2 * self.payload.size), np.uint8)
            wider[: self.filled_bytes] = self.payload[: self.filled_bytes]
            self.payload = wider
        offsets = self.keys["offsets"][self.n :]
        self.filled_bytes = int(payloads.gather_payloads(data, table, m, offsets, self.filled_bytes, self.payload))

    def int64_values(self, index: int) -> Any:
        """The values so far of an int64 column, 0 for null."""
        n, filled, at, live = self.n, int(self.filled[index]), self.layout.valid[index], int(self.live[index])
        if filled == 0:
            return np.zeros(n, np.int64)
        values = self.column_view(self.layout.place[index], "i8", n)
        if filled == n:
            return values
        if live < n:
            self.data[at + live : at + n] = 0
        return values * self.data[at : at + n]  # a validity byte is 0 or 1

    # -- results ------------------------------------------------------------------------------------------------
    @property
    def variable_bytes(self) -> int:
        """Bytes of payloads and comments, and of messages from which `finish_batches` makes columns."""
        return self.filled_bytes + self.objects.bytes + self.comment_bytes

    def finish_batches(self) -> Iterator[pa.RecordBatch]:
        """All rows so far, with the columns in the order of the table; string columns are dictionary<int32, string>.

        The arrays refer to the arena and keep it alive. A batch of few rows is copied, so that many small captures do not
        keep many large buffers. Rows with objects come in several batches, because an entry of service discovery may repeat
        all of its message.
        """
        layout, arrays, fields = self.layout, [], []
        self.few = FEW * self.n < layout.rows
        object_columns = [name for name in self.objects.object_columns() if name in layout.wanted]
        for index, entry in enumerate(layout.spec.schema):
            if entry.name not in layout.wanted:
                continue
            array = None
            if entry.name not in object_columns:
                array = (
                    self._key_column_array(entry.name)
                    if entry.name in KEY_COLUMNS
                    else self._column_array(index, entry)
                )
            arrays.append(array)
            fields.append(pa.field(entry.name, entry.type if array is None else array.type, entry.nullable))
        layout.release_arena(self.arena)
        layout.expect_payload(self.filled_bytes)
        schema = pa.schema(fields)
        if not object_columns:
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
            return
        for first, last, objects in self.objects.resolve_objects():
            parts = [
                pa.array(objects[field.name], field.type) if array is None else array.slice(first, last - first)
                for array, field in zip(arrays, fields, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(parts, schema=schema)

    def _copy_if_few(self, values: Any) -> Any:
        return values.copy() if self.few else values

    def _key_column_array(self, name: str) -> pa.Array:
        n = self.n
        if name in ("capture_id", "vehicle_id"):
            return array_of_runs([(start, names[name]) for start, names in self.captures], n)
        values = self._copy_if_few(self.keys[name][:n])
        if name == "interface":
            return self._interface_array(values)
        kind = {"date": pa.date32(), "ts": pa.timestamp("us", tz="UTC"), "sub_no": pa.int32()}.get(name, pa.int64())
        valid = None
        if self.null_times and name in ("ts", "ts_ns"):
            valid = self.keys["ts_ns"][:n] != encoding.NO_TIME
        elif name == "date":
            valid = values != NO_DAY
            if valid.all():
                valid = None
        return primitive_array(kind, values, valid)

    def _interface_array(self, codes: Any) -> pa.Array:
        names = self.formatters["interface_names"]
        valid = codes >= 0
        if not valid.any():
            return null_array(pa.string(), self.n)
        low, high = int(codes.min()), int(codes.max())
        if low == high:
            return constant_dictionary_array(names(0, low), self.n)
        occurring: Any = range(high + 1)
        if high >= MANY_NAMES:
            occurring = np.unique(codes[valid])
            place = np.zeros(high + 1, np.int32)
            place[occurring] = np.arange(len(occurring), dtype=np.int32)
            codes = place[np.where(valid, codes, 0)]
        return dictionary_array(
            primitive_array(pa.int32(), codes, None if low >= 0 else valid), [names(0, i) for i in occurring]
        )

    def _column_array(self, index: int, entry: pa.Field) -> pa.Array:
        layout, n, name = self.layout, self.n, entry.name
        if name == self.body:
            offsets = self.keys["offsets"][: n + 1]
            offsets[n] = self.filled_bytes
            payload = self._copy_if_few(self.payload[: self.filled_bytes])
            return pa.Array.from_buffers(
                pa.binary(), n, [None, pa.py_buffer(self._copy_if_few(offsets)), pa.py_buffer(payload)]
            )
        if name == COMMENT and self.comments:
            rows = np.full(n, -1, np.int32)
            rows[list(self.comments)] = np.arange(len(self.comments), dtype=np.int32)
            return dictionary_array(primitive_array(pa.int32(), rows, rows >= 0), list(self.comments.values()))
        if name in self.lists:
            return self._list_array(self.lists[name])
        if name in self.fixed_bytes:
            return fixed_bytes_array(entry.type, self.fixed_bytes[name], n)
        if name in self.paired:
            return primitive_array(entry.type, *(np.concatenate(x) for x in zip(*self.paired[name], strict=True)))
        filled = int(self.filled[index])
        if filled == 0:
            if not entry.nullable and n:
                raise AssertionError(f"{layout.spec.name}.{name} is required, but no source fills it")
            return null_array(entry.type, n)
        valid = None
        if filled < n:
            at = layout.valid[index]
            self.data[at + int(self.live[index]) : at + n] = 0
            valid = self.data[at : at + n]
        width = layout.width[index]
        values = self._copy_if_few(self.column_view(layout.place[index], f"i{width}", n))
        if not pa.types.is_string(entry.type):
            return primitive_array(entry.type, values, valid)
        if valid is not None:
            values *= valid  # 20 times as fast as `values[valid == 0] = 0`
        return dictionary_array(primitive_array(pa.int32(), values, valid), self._dictionary_words(index, name))

    def _dictionary_words(self, index: int, name: str) -> list[str]:
        if index in self.known:
            known = self.known[index][0]
            rows = known[1 : 1 + int(known[0, 0])].tolist()
            return [self.formatters[encoding.TEXT_KINDS[kind]](high, low) for kind, high, low in rows]
        text = self.layout.text_column(name)
        return text.names if text else []

    def _list_array(self, parts: list[tuple[Any, Any]]) -> pa.Array:
        counts = np.concatenate([c for c, _ in parts])
        if not counts.any():
            return null_array(pa.list_(pa.int32()), self.n)
        offsets = np.zeros(counts.size + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        values = primitive_array(pa.int32(), np.concatenate([v for _, v in parts]).astype(np.int32), None)
        bits = pa.py_buffer(np.packbits(counts > 0, bitorder="little"))
        return pa.Array.from_buffers(pa.list_(pa.int32()), self.n, [bits, pa.py_buffer(offsets)], children=[values])


NO_DAY = np.int32(-(2**31))
