"""Decodes records in memory to Arrow batches by table. File formats and protocols are declared elsewhere.

It works in morsels of at most `MORSEL_ROWS` rows, so that working memory does not grow with the capture: `walk.walk_records`
finds the rows, then each open batch fills its columns from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from .batch import NO_DAY, Morsel
from .faults import UNKNOWN, FaultRows
from .found_rows import FoundRows
from .kernels import encoding, walk
from .key_spaces import BIG_ENDIAN, INTERFACE, LINKTYPE
from .layer import Layer
from .learned_keys import MOST_LEARNED, TOO_MANY_PORTS, Key, LearnedKeys
from .message_objects import TOO_MUCH_REPEATED, Bytes, Spans, measure_object_spans
from .messages import Fault, MessageDecoder
from .open_batches import OpenBatches
from .open_requests import OpenRequests
from .packet_times import MAX_DATES, PacketTimes, PacketValues
from .pcapng_options import read_comments
from .program import Program
from .reassembly import GAP
from .row_values import RowValueReader
from .scratch import ScratchBuffers, Walker
from .specialize import specialized_walk

DROPPED = encoding.FAULTS[encoding.DROPPED]
# bytes of the capture: a message of which pieces are missing began at most so far before its last piece
BESIDE = 1 << 20
# More rows need more cache, fewer rows more calls for each kind of row. In the working memory, the fields of a row are about
# MORSEL_ROWS numbers apart. With a power of two, that is a multiple of 4,096 bytes, and all fields share one set of the
# first-level cache.
MORSEL_ROWS = 65_550
MORSEL_ROWS_OF_FEW_KINDS, FEW_KINDS = 24_576, 16
MOST_AGAIN = 4 * MORSEL_ROWS  # packets that are walked again before morsels behind one that names a key are small
LEAST_AHEAD = 256  # packets of these
TOO_MANY_DATES = "too_many_dates"
REASSEMBLY_BYTES = 64 << 20  # of all messages of a capture that are not whole


def _packets_up_to(ordinals: Any) -> Any:
    """The packets of a morsel up to one of it; -1 - n: up to what is behind n packets."""
    return np.where(ordinals >= 0, 1 + ordinals, -1 - ordinals)


def choose_walk(program: Program) -> Any:
    """The kernel that walks records for this program."""
    if program.walk is None:
        program.walk = (specialized_walk(program) if program.frequent else None) or walk.walk_records
    return program.walk


class Decoder:
    """Decodes one capture.

    tables: table name -> columns to decode, including those of `faults`. names: capture_id and vehicle_id of all rows.
    batches: for the rows, after its `begin_capture`. shared: batches that are not full stay in it at the end of the capture.
    reassembly_bytes: memory for messages of which pieces are missing. learns: whether keys count that messages name.
    """

    def __init__(
        self,
        program: Program,
        tables: Mapping[str, Sequence[str]],
        names: Mapping[str, str | None],
        batches: OpenBatches,
        *,
        shared: bool = False,
        learns: bool = True,
        reassembly_bytes: int = REASSEMBLY_BYTES,
        morsel_rows: int = MORSEL_ROWS,
    ) -> None:
        self.program, self.tables, self.names = program, tables, names
        self.batches, self.shared = batches, shared
        self.lut = program.lut.copy()
        self._buffers = ScratchBuffers.take_or_allocate(program, morsel_rows)
        self.table_rows, self.source_rows = self._buffers.table_rows, self._buffers.source_rows
        self.table_room, self.source_room = self._buffers.tables, self._buffers.sources
        self.fault_room = self._buffers.faults
        self.state = np.zeros(encoding.STATE_FIELDS, np.int64)
        self.state[encoding.LONGEST] = encoding.LONGEST_PACKET
        self.state[encoding.LATE_USED], self.state[encoding.LATE_CLEAN] = program.late_used, self._buffers.clean
        self.clocks = np.zeros((1, encoding.CLOCK_WIDTH), np.int64)
        self.packets = 0  # so far
        self.faults = FaultRows(tables.get("faults"), names, batches.formatters)
        self.rows: dict[str, int] = dict.fromkeys(tables, 0)
        self.requests = {t: OpenRequests(pairing, program.partners) for t, pairing in program.pairings.items()}
        self._in_morsel = False  # the walk pauses, and its rows are not appended yet
        self._file_faults: list[Fault] = []  # between the packets of the morsel
        self._readers: dict[str, RowValueReader] = {}  # of the tables with requests
        self._ahead, self._again = MORSEL_ROWS, 0  # packets of the next morsel, at most; packets that are walked again
        self.times = PacketTimes()
        self.drops: dict[int, int] = {}  # interface -> offset of the last packet before which packets were lost
        self._walk = Walker(choose_walk(program), program, program.with_lut(self.lut))
        self.learned = LearnedKeys(program, self.lut) if learns else None
        self.messages: MessageDecoder | None = None  # if the capture has pieces of messages
        self._reassembly_bytes = reassembly_bytes

    def _new_buffers(self) -> ScratchBuffers:
        return ScratchBuffers.take_or_allocate(self.program, self._buffers.morsel_rows)

    def claim_interface_link_type(self, number: int, link_type: int | None, order: str = "<") -> None:
        """Decode packets of the section's interface as `link_type` (LINKTYPE_ of tcpdump.org) from now on; None: not at all.

        order: the byte order of the section, "<" or ">".
        """
        layer = -1
        if link_type is not None and link_type < BIG_ENDIAN:
            leads = self.program.lut[self.program.base[LINKTYPE] :]
            layer = leads[link_type | BIG_ENDIAN] if order == ">" else -1
            layer = layer if layer >= 0 else leads[link_type]
        self.lut[self.program.base[INTERFACE] + number] = layer

    # -- walking --------------------------------------------------------------------------------------------------
    def decode_records(
        self,
        data: Bytes,
        position: int,
        end: int,
        root: Layer,
        base: int,
        *,
        trusted: int = -1,
        skip: Callable[[int], int] = lambda position: -1,
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Decode the records of data[position:end], a uint8 array with SLACK bytes behind `end`.

        root: the layer of a record; base: offset of data[0] in the capture; trusted: position of a record whose closing length
        need not match; skip: gets the position where the walk paused, returns where it goes on in the same morsel, or -1.
        Afterwards, `position` and `status` (encoding.MORE, PAUSED, BROKEN or DONE) say where decoding stopped, and why.
        """
        p, state = self.program, self.state
        state[encoding.POSITION], state[encoding.TRUSTED] = position, trusted
        while True:
            begin = int(state[encoding.POSITION])
            few = np.count_nonzero(self.source_rows) <= FEW_KINDS  # in the morsel before
            most = self._buffers.morsel_rows
            state[encoding.MOST_ROWS] = min(most, MORSEL_ROWS_OF_FEW_KINDS) if few else most
            # rule: packets that are walked again are bounded
            ahead = self._buffers.with_packets(self._ahead) if self._ahead < most else self._buffers
            self.status = self._walk(data, end, p.number[root], p.late, self.clocks, state, ahead)
            while self.status == encoding.PAUSED and (after := self._skip(skip)) >= 0:
                kept = state.copy(), self.table_rows.copy(), self.source_rows.copy()
                kept[0][encoding.POSITION] = state[encoding.POSITION] = after
                self.status = self._walk.go_on(data, end, p.number[root], p.late, self.clocks, state, ahead)
                # rule: packets that may name keys begin a morsel, if bytes were skipped before them
                if self.learned is not None and self.learned.may_teach(self.source_rows):
                    state[:], self.table_rows[:], self.source_rows[:] = kept
                    state[encoding.LATE_CLEAN], self.status = 0, encoding.FULL
            lesson, keys = -1, list[Key]()
            if self.learned is not None:
                lesson, keys = self.learned.find_lesson(data, self.table_room, self.source_room, self.source_rows)
            # rule: the packets after one that names keys are walked again, with these keys
            if 0 <= lesson < state[encoding.N_PACKETS] - 1:
                self._again += int(state[encoding.N_PACKETS]) - (lesson + 1)
                state[encoding.POSITION], state[encoding.LATE_CLEAN] = begin, 0
                room = self._buffers.with_packets(lesson + 1)
                self.status = self._walk(data, end, p.number[root], p.late, self.clocks, state, room)
                yield from self._append_morsel(data, begin, base, room.packets)
                self._ahead = max(LEAST_AHEAD, 2 * (lesson + 1)) if self._again > MOST_AGAIN else MORSEL_ROWS
            else:
                yield from self._append_morsel(data, begin, base, ahead.packets)
                self._ahead = min(2 * self._ahead, MORSEL_ROWS)
            self._learn(keys)
            if self.status != encoding.FULL:
                self.position = int(state[encoding.POSITION])
                return

    def _skip(self, skip: Callable[[int], int]) -> int:
        """What `skip` says of where the walk paused. Faults that it records come after those of the packets so far."""
        if self.learned is not None and self.learned.may_teach(self.source_rows):
            return -1
        self._in_morsel = True
        after = skip(int(self.state[encoding.POSITION]))
        self._in_morsel = False
        return after

    def _learn(self, keys: Sequence[Key]) -> None:
        """Make keys lead to their layers from now on. They come from the last packet so far."""
        if keys and self.learned is not None:
            self.learned.learn(keys, self.packets)
            if self.learned.overflowed:
                self.record_file_fault("capture", TOO_MANY_PORTS, None, MOST_LEARNED, MOST_LEARNED + 1)

    def _append_morsel(self, data: Bytes, begin: int, base: int, packets: Any) -> Iterator[tuple[str, pa.RecordBatch]]:
        yield from self.batches.take_finished()
        n = int(self.state[encoding.N_PACKETS])
        by_packet = self.times.read(packets, n)
        found = FoundRows(
            program=self.program,
            data=data,
            begin=begin,
            end=int(self.state[encoding.POSITION]),
            base=base,
            tables=self.table_room,
            sources=self.source_room,
            table_rows=self.table_rows,
            source_rows=self.source_rows,
            scratch=self._buffers,
        )
        morsel = Morsel(
            data=data,
            sources=self.source_room,
            counts=self.source_rows,
            packets=packets,
            by_packet=by_packet,
            first_no=self.packets + 1,
            spans={},
            paired={},
            comments=self._take_comments(data),
            scratch=self._buffers,
        )
        more: list[Fault] = []
        if self.table_rows[self.program.first_piece_table :].any():
            if self.messages is None:
                self.messages = MessageDecoder(self._walk, self._reassembly_bytes, self._new_buffers())
            more = self.messages.put_together(found, morsel)
        spans = self._object_spans(found, more)
        more += self._file_faults
        self._file_faults = []
        self._collect_faults(n, by_packet, base, more)
        morsel = replace(morsel, paired=self._paired_columns(found, morsel))
        self.packets += n
        for t, name in enumerate(self.program.tables):
            m = int(found.table_rows[t])
            if m == 0 or name not in self.tables:
                continue
            self.rows[name] += m
            rows = morsel
            if spans or t in found.moved:
                rows = morsel.with_rows(found.data_of(t), found.sources, found.source_rows, m, spans)
            yield from self.batches.append_rows(name, found.tables[t], m, rows, self.names)
        if self.faults.is_batch_full:
            yield from self.faults.build_batch()

    def _object_spans(self, found: FoundRows, faults: list[Fault]) -> dict[int, Spans]:
        """The spans of each source whose rows have objects; adds a fault for each message that they repeat too much."""
        spans: dict[int, Spans] = {}
        for number in self.program.sources_with_objects:
            count, source = int(found.source_rows[number]), self.program.sources[number]
            if not count or source.rows.table not in self.tables:
                continue
            assert source.rows.layer is not None
            rows = found.sources[number]
            spans[number], excesses = measure_object_spans(found.data_of(source.table), source, rows, count)
            for excess in excesses:
                starts = spans[number].starts[excess.row : excess.row + 1]
                at = int(found.capture_offsets(source.table, starts)[0])
                ordinal = int(found.tables[source.table][encoding.ORDINAL, rows[encoding.DEST, excess.row]])
                layer, sizes = source.rows.layer.name, (excess.need, excess.have)
                faults.append(Fault(ordinal, layer, TOO_MUCH_REPEATED, at, *sizes))
        return spans

    def _paired_columns(self, found: FoundRows, morsel: Morsel) -> dict[str, dict[str, tuple[Any, Any]]]:
        """Table -> the columns that say to which request a row responds."""
        paired = {}
        for t, requests in self.requests.items():
            if found.table_rows[t]:
                name = self.program.tables[t]
                if name not in self._readers:
                    columns = [*requests.pairing.columns(), *self.program.buses[name]]
                    self._readers[name] = RowValueReader(self.program, name, columns)
                paired[name] = requests.match(self._readers[name].read(found, morsel))
        return paired

    # -- what the recorder says ------------------------------------------------------------------------------------
    def _take_comments(self, data: Bytes) -> dict[int, str]:
        """The comments of packets, by ordinal. They are no faults, so they are removed from those that the walk noted."""
        n = int(self.state[encoding.N_FAULTS])
        commented = np.flatnonzero(self.fault_room[encoding.X_REASON, :n] == encoding.COMMENT)
        if not commented.size:
            return {}
        comments = {}
        for packet, layer, _, at, limit, _ in self.fault_room[:, commented].T.tolist():
            order = ">" if self.program.program[layer, encoding.FLAGS] & encoding.F_BIG else "<"
            if text := read_comments(data, at, limit, order):
                comments[packet] = text
        rest = np.delete(self.fault_room[:, :n], commented, axis=1)
        self.state[encoding.N_FAULTS] = rest.shape[1]
        self.fault_room[:, : rest.shape[1]] = rest
        return comments

    def _lies_beside_drop(self, offset: int, interface: int | None) -> bool:
        """Whether the recorder lost packets of the interface (None: of any) where a message has a gap, whose last piece is at
        `offset`.
        """
        last = max(self.drops.values(), default=None) if interface is None else self.drops.get(interface)
        return last is not None and last > offset - BESIDE

    def _recorder_dropped(self, reasons: Sequence[str], offsets: Any, interfaces: Any) -> Any:
        """For faults in the order of their packets whether they are gaps beside a loss of the recorder: int8[n], or UNKNOWN."""
        beside = np.full(len(reasons), UNKNOWN, np.int8)
        for i, reason in enumerate(reasons):
            if reason == DROPPED:
                self.drops[int(interfaces[i])] = int(offsets[i])
            elif reason == GAP:
                beside[i] = self._lies_beside_drop(int(offsets[i]), int(interfaces[i]))
        return beside

    # -- faults ---------------------------------------------------------------------------------------------------
    def _collect_faults(self, n: int, by_packet: PacketValues, base: int, more: list[Fault]) -> None:
        """Record the faults that the walk found, and `more`, which come after the others of their packet."""
        if not self.state[encoding.N_FAULTS] and len(self.times.dates) < MAX_DATES and not more:
            return
        fault_columns = self.fault_room[:, : int(self.state[encoding.N_FAULTS])].copy()
        fault_columns[encoding.X_AT] += base
        reasons = [encoding.FAULTS[i] for i in fault_columns[encoding.X_REASON].tolist()]
        layers = [self.program.layers[i].name for i in fault_columns[encoding.X_LAYER].tolist()]
        ordinals = fault_columns[encoding.X_PACKET]
        numbers = self.packets + _packets_up_to(ordinals)
        lost = self._first_lost_date(by_packet)
        if lost >= 0:  # one fault per capture
            more.append(Fault(lost, "capture", TOO_MANY_DATES, -1, MAX_DATES, MAX_DATES + 1))
        if more:
            added = np.array([(f.ordinal, 0, f.code, f.offset, f.need, f.have) for f in more], np.int64).T
            fault_columns = np.concatenate([fault_columns, added], axis=1)
            numbers = np.concatenate([numbers, self.packets + _packets_up_to(added[encoding.X_PACKET])])
            # what is between packets comes after the faults of the packet before it
            order = np.argsort(2 * numbers + (fault_columns[encoding.X_PACKET] < 0), kind="stable")
            fault_columns, numbers = fault_columns[:, order], numbers[order]
            reasons, layers = reasons + [fault.reason for fault in more], layers + [fault.layer for fault in more]
            reasons, layers = [reasons[i] for i in order], [layers[i] for i in order]
        if not reasons:
            return
        in_packet, codes = fault_columns[encoding.X_PACKET] >= 0, fault_columns[encoding.X_REASON]
        inside = np.where(in_packet, fault_columns[encoding.X_PACKET], 0)

        def value_by_packet(values: Any, missing: int) -> Any:
            return np.where(in_packet, values[inside], missing) if n else np.full(len(reasons), missing)

        interfaces = value_by_packet(by_packet.interfaces, -1)
        self._append_faults(
            packet_no=numbers,
            ts_ns=value_by_packet(by_packet.times, int(encoding.NO_TIME)),
            day=value_by_packet(by_packet.days, int(NO_DAY)),
            interface=interfaces,
            layer=layers,
            reason=reasons,
            decoded=np.where(codes > 0, np.isin(codes, encoding.ENDS_NOTHING), UNKNOWN),
            offset=fault_columns[encoding.X_AT],
            need=fault_columns[encoding.X_NEED],
            have=fault_columns[encoding.X_HAVE],
            recorder_dropped=self._recorder_dropped(reasons, fault_columns[encoding.X_AT], interfaces),
        )

    def _first_lost_date(self, by_packet: PacketValues) -> int:
        """The ordinal of the first packet whose date exceeds MAX_DATES, if it is in this morsel, else -1."""
        if len(self.times.dates) < MAX_DATES or TOO_MANY_DATES in self.faults.by_reason:
            return -1
        lost = np.flatnonzero((by_packet.days == NO_DAY) & (by_packet.times != encoding.NO_TIME))
        return int(lost[0]) if lost.size else -1

    def record_file_fault(self, layer: str, reason: str, offset: int | None, need: int = 0, have: int = 0) -> None:
        """Record a fault of the file itself, with the number of the last packet before it (0 if there is none).

        offset: in the capture, None if unknown; need, have: bytes, or what the reason compares.
        """
        if self._in_morsel:
            ordinal = -1 - int(self.state[encoding.N_PACKETS])
            self._file_faults.append(Fault(ordinal, layer, reason, -1 if offset is None else offset, need, have))
            return
        self._append_faults(
            packet_no=np.array([self.packets]),
            ts_ns=np.array([int(encoding.NO_TIME)]),
            day=np.array([int(NO_DAY)]),
            interface=np.array([-1]),
            layer=[layer],
            reason=[reason],
            decoded=np.array([UNKNOWN]),
            offset=np.array([-1 if offset is None else offset]),
            need=np.array([need]),
            have=np.array([have]),
            recorder_dropped=np.array([self._lies_beside_drop(offset or 0, None) if reason == GAP else UNKNOWN]),
        )

    def _append_faults(self, **part: Any) -> None:
        if count := self.faults.append_rows(**part):
            self.rows["faults"] += count

    def finish_capture(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The remaining batches; those that are shared only if they cannot be. The decoder must not be used after that."""
        if self.messages is not None:
            for layer, gap in self.messages.finish():
                self.record_file_fault(layer, gap.reason, gap.offset, gap.need, gap.have)
            self.messages.release()
        yield from self.batches.take_finished() if self.shared else self.batches.finish()
        yield from self.faults.build_batch()
        self._buffers.release_buffers(self.program, int(self.state[encoding.LATE_CLEAN]))
