"""Spans of bytes -> Arrow batches by table. It drives the kernels and knows neither files nor protocols.

A morsel of some thousand rows stays in the cache: `route` finds the rows, then every open batch takes its columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from . import kernels as k
from .batch import FORMATTERS, NO_DAY, Batch, Bytes, Formatter, Layout
from .layer import Layer
from .program import Program
from .protocols.containers import INTERFACE, LINKTYPE
from .tables import FAULTS, TABLES

DAY_NS = 86_400 * k.BILLION
MAX_DATES = 8  # dates of one capture; the rest goes to the null partition
TOO_MANY_DATES = "too_many_dates"
MAX_BATCH_BYTES = 24 << 20  # payload bytes after which a batch leaves before it is full of rows
FAULT_ROWS = 65_536
FIRST_ROWS = 16_384  # of a table's first batch; the next ones have batch_rows


@dataclass(slots=True)
class Packets:
    """What rows take from their packet, by its ordinal in the morsel."""

    times: Any  # int64 ns, kernels.NO_TIME
    micros: Any  # int64 us
    days: Any  # int32 days since 1970, batch.NO_DAY
    interfaces: Any  # int32 number over all sections, -1 unknown


class Rooms:
    """The working memory of one decoder at a time, kept for the next capture: fresh pages are dear."""

    def __init__(self, program: Program, morsel_rows: int) -> None:
        room = morsel_rows + k.RESERVE + 2
        self.morsel_rows, self.clean = morsel_rows, 0
        self.table_rows = np.zeros(len(program.tables), np.int64)
        self.source_rows = np.zeros(len(program.sources), np.int64)
        self.tables = np.empty((len(program.tables), k.TABLE_FIELDS, room), np.int32)
        self.sources = np.empty((len(program.sources), k.STARTS + program.uses.shape[1], room), np.int32)
        self.packets = np.empty((k.PACKET_FIELDS, morsel_rows), np.int64)
        self.faults = np.empty((6, room), np.int64)

    @classmethod
    def of(cls, program: Program, morsel_rows: int) -> Rooms:
        try:
            rooms: Rooms = program.layouts.setdefault(("rooms", morsel_rows), []).pop()
        except IndexError:
            rooms = cls(program, morsel_rows)
        return rooms

    def give_back(self, program: Program, clean: int) -> None:
        """clean: how many late rows are prepared and absent again."""
        self.clean = clean
        spare = program.layouts[("rooms", self.morsel_rows)]
        spare.append(self)
        del spare[:-4]


class Decoder:
    """One capture's way through the kernels.

    tables: table name -> wanted columns (FAULTS too, if wanted). names: capture_id and vehicle_id of all rows.
    formatters: more kinds of text beside `batch.FORMATTERS`.
    """

    def __init__(
        self,
        program: Program,
        tables: Mapping[str, Sequence[str]],
        names: Mapping[str, str | None],
        formatters: Mapping[str, Formatter],
        *,
        morsel_rows: int = 8192,
        batch_rows: int = 131_072,
    ) -> None:
        self.program, self.names, self.formatters = program, names, {**FORMATTERS, **formatters}
        self.tables, self.batch_rows = tables, batch_rows
        self.lut = program.lut.copy()
        self.rooms = Rooms.of(program, morsel_rows)
        self.table_rows, self.source_rows = self.rooms.table_rows, self.rooms.source_rows
        self.table_room, self.source_room = self.rooms.tables, self.rooms.sources
        self.packet_room, self.fault_room = self.rooms.packets, self.rooms.faults
        self.state = np.zeros(8, np.int64)
        self.state[k.LATE_USED], self.state[k.LATE_CLEAN] = program.late_used, self.rooms.clean
        self.clocks = np.zeros((1, k.CLOCK_WIDTH), np.int64)
        self.capacity = dict.fromkeys(tables, FIRST_ROWS)  # rows of a table's next batch
        self.open: dict[str, Batch] = {}
        self.packets = 0  # captured packets so far
        self.bytes = 0  # their captured bytes
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.faults: dict[str, int] = {}  # reason -> how often
        self.rows: dict[str, int] = dict.fromkeys(tables, 0)
        self.dates: list[int] = []
        self._fault_parts: list[dict[str, Any]] = []
        self._fault_count = 0
        self._fault_packet = (-1, 0)  # the last packet that had faults, and how many

    def claim_interface(self, number: int, link_type: int | None) -> None:
        """From now on packets of the section's interface start with what the link type says; None: with nothing known."""
        base = self.program.base
        known = link_type is not None and link_type < 1 << LINKTYPE.bits
        self.lut[base[INTERFACE] + number] = self.program.lut[base[LINKTYPE] + link_type] if known else -1  # type: ignore[operator]

    # -- walking --------------------------------------------------------------------------------------------------
    def feed(
        self, data: Bytes, position: int, end: int, root: Layer, base: int, *, trusted: int = -1
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Decode the records of data[position:end] (SLACK bytes must lie beyond `end`).

        base: offset of data[0] in the capture; trusted: a record whose closing length need not match. Afterwards
        `position` and `status` (kernels.MORE, PAUSED, BROKEN or DONE) say how far it came and why it stopped.
        """
        p, state = self.program, self.state
        state[k.POSITION], state[k.TRUSTED] = position, trusted
        while True:
            state[k.N_PACKETS] = state[k.N_FAULTS] = state[k.N_ROWS] = 0
            self.table_rows[:] = 0
            self.source_rows[:] = 0
            self.status = int(
                k.route(
                    data,
                    end,
                    p.number[root],
                    p.late,
                    p.program,
                    self.lut,
                    p.uses,
                    p.late_slots,
                    p.owner,
                    self.clocks,
                    state,
                    self.table_room,
                    self.source_room,
                    self.table_rows,
                    self.source_rows,
                    self.packet_room,
                    self.fault_room,
                )
            )
            yield from self._take(data, base)
            if self.status != k.FULL:
                self.position = int(state[k.POSITION])
                return

    def _take(self, data: Bytes, base: int) -> Iterator[tuple[str, pa.RecordBatch]]:
        n = int(self.state[k.N_PACKETS])
        by_packet = self._packets(n)
        self._collect_faults(n, by_packet, base)
        first_no = self.packets + 1
        self.packets += n
        for t, name in enumerate(self.program.tables):
            m = int(self.table_rows[t])
            if m == 0 or name not in self.tables:
                continue
            self.rows[name] += m
            batch = self.open.get(name)
            if batch is not None and (batch.n + m > batch.layout.rows or batch.filled_bytes > MAX_BATCH_BYTES):
                batch, self.capacity[name] = None, self.batch_rows
                yield name, self.open.pop(name).finish()
            if batch is None:
                batch = self.open[name] = Batch(self._layout(name, m), self.names, self.formatters)
            batch.take(
                data, self.table_room[t], m, self.source_room, self.source_rows, self.packet_room, by_packet, first_no
            )
        if self._fault_count >= FAULT_ROWS:
            yield from self._fault_batch()

    def _layout(self, name: str, rows: int) -> Layout:
        """For a batch that is small at first, so that a small capture touches little memory."""
        wanted = min(self.capacity[name], self.batch_rows)
        if rows > wanted:
            return Layout(self.program, TABLES[name], self.tables[name], rows)
        key = (name, tuple(self.tables[name]), wanted)
        if key not in self.program.layouts:
            self.program.layouts[key] = Layout(self.program, TABLES[name], self.tables[name], wanted)
        layout: Layout = self.program.layouts[key]
        return layout

    def _packets(self, n: int) -> Packets:
        """Times, dates and interfaces of the morsel's packets; keeps the capture's own figures."""
        times, micros = self.packet_room[k.TIME, :n], np.empty(n, np.int64)
        interfaces, span = np.empty(n, np.int32), np.zeros(4, np.int64)
        k.packet_times(self.packet_room, n, micros, interfaces, span)
        low, high, known, size = span.tolist()
        self.bytes += size
        if known:
            self.first_ns = low if self.first_ns is None else min(low, self.first_ns)
            self.last_ns = high if self.last_ns is None else max(high, self.last_ns)
        if known == n and n and low // DAY_NS == high // DAY_NS:
            days = np.full(n, self._day(low // DAY_NS), np.int32)
        else:
            days = self._days(times) if known else np.full(n, NO_DAY, np.int32)
        return Packets(times, micros, days, interfaces)

    def _day(self, day: int) -> int:
        """The date partition of a day: the day itself, or NO_DAY when the capture has too many."""
        if day not in self.dates:
            if len(self.dates) >= MAX_DATES:
                return int(NO_DAY)
            self.dates.append(day)
        return day

    def _days(self, times: Any) -> Any:
        exact = times // DAY_NS
        days = np.full(times.size, NO_DAY, np.int32)
        there = times != k.NO_TIME
        values, first = np.unique(exact[there], return_index=True)
        for at in np.argsort(first):  # in the order of their coming, whatever the morsels are
            days[there & (exact == values[at])] = self._day(int(values[at]))
        return days

    # -- faults ---------------------------------------------------------------------------------------------------
    def _collect_faults(self, n: int, by_packet: Packets, base: int) -> None:
        if not self.state[k.N_FAULTS] and len(self.dates) < MAX_DATES:
            return
        found = self.fault_room[:, : int(self.state[k.N_FAULTS])].copy()
        found[k.X_AT] += base
        reasons = [k.FAULTS[i] for i in found[k.X_REASON].tolist()]
        layers = [self.program.layers[i].name for i in found[k.X_LAYER].tolist()]
        ordinals = found[k.X_PACKET]
        numbers = self.packets + np.where(ordinals >= 0, 1 + ordinals, -1 - ordinals)
        lost = self._first_lost_date(by_packet)
        if lost >= 0:  # one fault per capture, behind the others of its packet
            at = int(np.searchsorted(numbers, self.packets + 1 + lost, side="right"))
            found = np.insert(found, at, [lost, 0, 0, -1, MAX_DATES, MAX_DATES + 1], axis=1)
            numbers = np.insert(numbers, at, self.packets + 1 + lost)
            reasons.insert(at, TOO_MANY_DATES)
            layers.insert(at, "capture")
        if not reasons:
            return
        for reason in reasons:
            self.faults[reason] = self.faults.get(reason, 0) + 1
        there = found[k.X_PACKET] >= 0
        inside = np.where(there, found[k.X_PACKET], 0)

        def of_packet(values: Any, missing: int) -> Any:
            return np.where(there, values[inside], missing) if n else np.full(len(reasons), missing)

        self._add_faults(
            packet_no=numbers,
            ts_ns=of_packet(by_packet.times, int(k.NO_TIME)),
            day=of_packet(by_packet.days, int(NO_DAY)),
            interface=of_packet(by_packet.interfaces, -1),
            layer=layers,
            reason=reasons,
            offset=found[k.X_AT],
            need=found[k.X_NEED],
            have=found[k.X_HAVE],
        )

    def _first_lost_date(self, by_packet: Packets) -> int:
        """The first packet of the capture whose date has no partition of its own, if it is in this morsel; or -1."""
        if len(self.dates) < MAX_DATES or TOO_MANY_DATES in self.faults:
            return -1
        lost = np.flatnonzero((by_packet.days == NO_DAY) & (by_packet.times != k.NO_TIME))
        return int(lost[0]) if lost.size else -1

    def fault(self, layer: str, reason: str, offset: int | None, need: int = 0, have: int = 0) -> None:
        """A fault of the file itself; it stands at the last packet before it (0 when there is none)."""
        self.faults[reason] = self.faults.get(reason, 0) + 1
        self._add_faults(
            packet_no=np.array([self.packets]),
            ts_ns=np.array([int(k.NO_TIME)]),
            day=np.array([int(NO_DAY)]),
            interface=np.array([-1]),
            layer=[layer],
            reason=[reason],
            offset=np.array([-1 if offset is None else offset]),
            need=np.array([need]),
            have=np.array([have]),
        )

    def _add_faults(self, **part: Any) -> None:
        if "faults" not in self.tables:
            return
        numbers = part["packet_no"]
        sub = np.empty(numbers.size, np.int32)
        last, count = self._fault_packet
        for i, number in enumerate(numbers.tolist()):
            count = count + 1 if number == last else 0
            sub[i], last = count, number
        self._fault_packet = (last, count)
        part["sub_no"] = sub
        self._fault_parts.append(part)
        self._fault_count += len(sub)
        self.rows["faults"] += len(sub)

    def _fault_batch(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        parts, n = self._fault_parts, self._fault_count
        self._fault_parts, self._fault_count = [], 0
        if not n:
            return
        joined = {
            name: np.concatenate([p[name] for p in parts])
            for name in ("packet_no", "sub_no", "ts_ns", "day", "interface", "offset", "need", "have")
        }
        words = {name: [w for p in parts for w in p[name]] for name in ("layer", "reason")}
        times, days = joined["ts_ns"].astype(np.int64), joined["day"].astype(np.int32)
        name_of = self.formatters["interface_names"]
        arrays = {
            **{key: pa.array([self.names[key]] * n, pa.string()) for key in ("capture_id", "vehicle_id")},
            "date": pa.array(days, pa.int32(), mask=days == NO_DAY).cast(pa.date32()),
            "ts": pa.array(times // 1000, pa.int64(), mask=times == k.NO_TIME).cast(pa.timestamp("us", tz="UTC")),
            "ts_ns": pa.array(times, pa.int64(), mask=times == k.NO_TIME),
            "packet_no": pa.array(joined["packet_no"], pa.int64()),
            "sub_no": pa.array(joined["sub_no"], pa.int32()),
            "interface": pa.array(
                [name_of(0, i) if i >= 0 else None for i in joined["interface"].tolist()], pa.string()
            ),
            **{name: pa.array(words[name], pa.string()) for name in words},
            "offset": pa.array(joined["offset"], pa.int64(), mask=joined["offset"] < 0),
            "need": pa.array(joined["need"], pa.int64()),
            "have": pa.array(joined["have"], pa.int64()),
        }
        wanted = self.tables["faults"]
        fields = [FAULTS.schema.field(name) for name in FAULTS.columns if name in wanted]
        columns = [
            arrays[f.name].dictionary_encode()
            if pa.types.is_string(f.type) and arrays[f.name].null_count < n
            else arrays[f.name]
            for f in fields
        ]
        schema = pa.schema([pa.field(f.name, a.type, f.nullable) for f, a in zip(fields, columns, strict=True)])
        yield "faults", pa.RecordBatch.from_arrays(columns, schema=schema)

    def finish(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """What is still open."""
        for name in list(self.open):
            yield name, self.open.pop(name).finish()
        yield from self._fault_batch()
        self.rooms.give_back(self.program, int(self.state[k.LATE_CLEAN]))
