"""The one-packet reference: dpkt unpacks each header, the declarations' lambdas run on it as plain Python.

It shares the declarations (`pcaplake.parser.engine.layer`) with the engine, and neither compiler, machine, bit
arithmetic nor clocks. It reads whole captures as long as their containers are good; a file may end inside a record. Slow
and plain on purpose.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import dpkt
import numpy as np
import pyarrow as pa

from pcaplake.parser import protocols
from pcaplake.parser.capture.claims import profile_claims
from pcaplake.parser.capture.reader import DECODED
from pcaplake.parser.engine.key_spaces import BIG_ENDIAN, SPAN, Claim, KeySpace
from pcaplake.parser.engine.layer import (
    BODY,
    HERE,
    LATEST,
    PACKET,
    RUN_END,
    Case,
    Column,
    FixedBytes,
    Layer,
    Range,
    Rows,
    Run,
    Term,
    column_cases,
)
from pcaplake.parser.engine.pieces import Reassembly
from pcaplake.parser.profile import Profile
from pcaplake.parser.protocols import containers, rtps, someip, v2g
from pcaplake.parser.protocols.ethernet import TCP_PORT, UDP_PORT
from pcaplake.parser.schemas import TABLES
from tests.parser.reference_messages import plain_assembler
from tests.parser.reference_pairing import PlainRequests
from tests.parser.reference_ports import MOST_LEARNED, port_of_station, ports_in_offers
from tests.parser.reference_values import (
    Met,
    Packet,
    Reading,
    Row,
    Wire,
    buses,
    comments,
    cut_option,
    number,
    options,
    piece_value,
    read_bytes,
    term_value,
    variable,
    wrap,
)

LONGEST_PACKET, LONGEST_BLOCK, DEPTH, DATES, BESIDE = 262_144, 524_288, 32, 8, 1 << 20

# by identity, because terms have no hash; this keeps them alive
_CASES: dict[int, tuple[Column, tuple[Case, ...]]] = {}


def _cases(column: Column) -> tuple[Case, ...]:
    known = _CASES.get(id(column))
    if known is None:
        known = _CASES[id(column)] = (column, column_cases(column))
    return known[1]


class Reference:
    def __init__(
        self,
        profile: Profile | None = None,
        *,
        layers: Sequence[Layer] = protocols.LAYERS,
        rows: Sequence[Rows] = protocols.ROWS,
        claims: Sequence[tuple[Claim, Layer]] = (),
        reassemblies: Sequence[Reassembly] = protocols.REASSEMBLIES,
    ) -> None:
        self.profile = profile or Profile.default()
        from_profile, self.partners = profile_claims(self.profile)
        claims = [*claims, *from_profile]
        under = [(claim, layer) for layer in layers for claim in layer.under]
        self.claims = [(keys, values, layer) for (keys, values), layer in reversed([*under, *claims])]
        self.claimed: dict[tuple[KeySpace, int], Layer | None] = {}
        self.by_layer = {r.layer: r for r in rows if r.layer is not None}
        self.reassemblies = reassemblies
        self.pieces = {layer: kind for kind in reassemblies for layer in kind.layers}
        self.by_packet = next((r for r in rows if r.layer is None), None)
        self.wires: list[Wire] = []

    # -- captures ---------------------------------------------------------------------------------------------------
    def read(self, data: bytes) -> Reading:
        """All rows of a capture by table, keys and faults included; every column of a table, absent ones as None."""
        self.reading, self.dates, self.lost_dates = Reading(), [], False
        self.learned: dict[tuple[KeySpace, int], Layer] = {}
        self.overflowed = False
        self.drops: dict[Wire | None, int] = {}  # interface -> offset of its last record that tells of a loss
        self.reading.rows = {name: [] for name in DECODED}
        self.assemblers = {kind: plain_assembler(kind, len(self.reassemblies)) for kind in self.reassemblies}
        self.requests = {
            rows.pairing: PlainRequests(rows.pairing, self.partners) for rows in self.by_layer.values() if rows.pairing
        }
        self._pcapng(data) if data[:4] == b"\n\r\r\n" else self._pcap(data)
        gaps = [(kind.name, gap) for kind, assembler in self.assemblers.items() for gap in assembler.finish()]
        for name, gap in sorted(gaps, key=lambda found: found[1][1:]):
            self._fault(None, name, *gap)
        number(self.reading.rows["faults"])
        return self.reading

    def _pcap(self, data: bytes) -> None:
        magics = {0xA1B2C3D4: (containers.PCAP, 1000), 0xA1B23C4D: (containers.PCAP, 1)}
        magics[0xA1B2CD34] = (containers.MODIFIED_PCAP, 1000)
        order = next(o for o in "<>" if struct.unpack(o + "I", data[:4])[0] in magics)
        magic, _, _, _, _, snaplen, network = struct.unpack(order + "IHHiIII", data[:24])
        layers, unit = magics[magic]
        fcs = network >> 28 if network & 1 << 26 else 0
        self.wires = [Wire(network & 0xFFFF, unit=unit, fcs=fcs, snaplen=snaplen, big_endian=order == ">")]
        root = layers[order]
        at = 24
        while at < len(data):
            if len(data) - at < root.least:
                return self._cut(at, len(data))
            (captured,) = struct.unpack(order + "I", data[at + 8 : at + 12])
            if at + root.least + captured > len(data):
                return self._cut(at, len(data))
            size = root.least + captured
            assert captured <= LONGEST_PACKET
            self._walk(data[at : at + size], root, at)
            at += size
        return None

    def _pcapng(self, data: bytes) -> None:
        at, order, section = 0, "<", 0
        while at < len(data):
            if len(data) - at < 12:
                return self._cut(at, len(data))
            if data[at : at + 4] == b"\n\r\r\n":
                order = "<" if data[at + 8 : at + 12] == b"\x4d\x3c\x2b\x1a" else ">"
            kind, size = struct.unpack(order + "II", data[at : at + 8])
            if at + size > len(data):
                return self._cut(at, len(data))
            assert 12 <= size <= LONGEST_BLOCK
            assert size % 4 == 0
            block = data[at : at + size]
            if kind == 0x0A0D0D0A:
                self.wires, section = [], section + 1
                self._options_fit(block[:-4], 24, order, at)
            elif kind == 5:
                (named,) = struct.unpack(order + "I", block[8:12])
                if 12 < size < 24:  # without a body it says nothing
                    self._fault(None, "block", "short_header", at, 24, size)
                elif size >= 24 and named >= len(self.wires):
                    self._fault(None, "block", "bad_value", at, 0, named)
                elif size >= 24:
                    self._options_fit(block[:-4], 20, order, at)
            elif kind == 1:
                self._options_fit(block[:-4], 16, order, at)
                self.wires.append(self._interface(block[8:-4], order))
            else:
                self._walk(block, containers.BLOCK[order], at)
            at += size
        return None

    def _options_fit(self, block: bytes, begin: int, order: str, at: int) -> None:
        cut = cut_option(block[begin:], order)
        if cut is not None:
            self._fault(None, "block", "overrun", at + begin + cut[0], *cut[1:])

    def _interface(self, body: bytes, order: str) -> Wire:
        link_type, _, snaplen = struct.unpack(order + "HHI", body[:8])
        found = options(body[8:], order, {9: 1, 13: 1, 14: 8})
        wire = Wire(link_type, number=len(self.wires), snaplen=snaplen, big_endian=order == ">")
        if 2 in found:
            wire.name = found[2].rstrip(b"\0").decode("utf-8", "replace") or None
        resolution = found.get(9, b"\6")[0]
        wire.tick = Fraction(1, 2 ** (resolution & 127) if resolution & 128 else 10**resolution)
        (wire.offset,) = struct.unpack(order + "q", found.get(14, bytes(8)))
        wire.fcs = 4 if found.get(13, b"\0")[0] and link_type == 1 else 0
        buses = self.profile.interface_buses
        wire.bus = buses.get(str(wire.number)) if wire.name is None else buses.get(wire.name) or wire.name
        return wire

    def _cut(self, at: int, end: int) -> None:
        self._fault(None, "capture", "truncated", at, 0, end - at)

    def _date(self, packet: Packet | None) -> int | None:
        if packet is None or packet.time is None:
            return None
        day = packet.time // 86_400_000_000_000
        if day not in self.dates and len(self.dates) < DATES:
            self.dates.append(day)
        return day if day in self.dates else None

    # -- one packet -------------------------------------------------------------------------------------------------
    def _walk(self, data: bytes, root: Layer, offset: int) -> None:
        self.data, self.offset, self.packet = data, offset, None
        self.last_piece: int | None = None  # its offset in the capture, while a message is walked
        self.met: list[Met] = []
        self.before = 0  # headers before the last packet inside the packet
        self.inside, self.here = (
            0,
            0,
        )  # so many packets inside the packet; where the last header is: in the packet (0) or in one of these
        self.given: list[tuple[Rows, dict[Layer, Met], Met]] = []
        self.origins: dict[int, int] = {}  # id of a message -> offset of its last piece
        self.found: list[tuple[dict[Layer, Met], Met, int]] = []  # pieces and their offsets
        self._enter(root, 0, len(data), {}, 0)
        packet: Packet | None = self.packet
        if packet is None:
            return
        named = self._named_ports()
        self._put_together(packet)
        self.nothing = self._too_much_repeated()
        day = self._date(packet)
        if packet.time is not None and day is None and not self.lost_dates:
            self.lost_dates = True
            self._fault(packet, "capture", "too_many_dates", None, DATES, DATES + 1)
        subs: dict[str, int] = {}
        for rows, path, here in self.given:
            sub = subs[rows.table] = subs.get(rows.table, -1) + 1
            self._row(rows, packet, sub, path, here)
        if self.by_packet is not None:
            self._row(self.by_packet, packet, 0, {}, None)
        self._learn(packet, named)

    def _named_ports(self) -> list[tuple[str, int]]:
        """The ports that the packet offers or announces; `given` and `met` have nothing of messages that are put together yet."""
        if not self.profile.service_discovery:
            return []
        stations = (port_of_station(self.data[m.at : m.end]) for m in self.met if m.layer is v2g.SDP_RESPONSE)
        announced = [("v2g", port) for port in stations if port is not None]
        bodies = {
            path[someip.SOMEIP].body: self.data[path[someip.SOMEIP].body : path[someip.SOMEIP].end]
            for rows, path, _ in self.given
            if rows.table == "someip_sd_entries"
        }
        return [*(port for body in bodies.values() for port in ports_in_offers(body)), *announced]

    def _learn(self, packet: Packet, named: list[tuple[str, int]]) -> None:
        for transport, port in named:
            key = UDP_PORT if transport == "udp" else TCP_PORT, port
            known = self._claimant(*key) not in (None, rtps.DATAGRAM) or key in self.learned
            if port < 1024 or known or self.overflowed:
                continue
            if len(self.learned) == MOST_LEARNED:
                self.overflowed = True
                self._fault(None, "capture", "too_many_ports", None, MOST_LEARNED, MOST_LEARNED + 1)
                continue
            leads = {"udp": someip.OFFERED_DATAGRAM, "tcp": someip.SOMEIP_TCP_SEGMENT, "v2g": v2g.TCP_SEGMENT}
            self.learned[key] = leads[transport]

    def _put_together(self, packet: Packet) -> None:
        """Give the packet's pieces to their assemblers, and walk each message that is whole, one kind after the other."""
        met, data, last = self.met, self.data, self.here
        for kind in self.reassemblies:
            pieces = [found for found in self.found if self.pieces[found[1].layer] is kind]
            whole: list[tuple[bytes, int, int, dict[Layer, Met], int]] = []
            for path, here, offset in pieces:
                values = {
                    name: piece_value(v, path) if not isinstance(v, int) else v for name, v in kind.values().items()
                }
                key = packet.wire, buses(path), *(piece_value(v, path) for v in kind.key)
                messages, gaps = self.assemblers[kind].add(
                    key, packet.time, here.data[here.body : here.end], offset, values
                )
                whole += [(*message, path, offset) for message in messages]
                for gap in gaps:
                    self._fault(packet, kind.name, *gap)
            for body, count, value, path, offset in whole:
                self.met, self.last_piece, self.here = [], offset, 0
                self.data = struct.pack(">IIII", len(body), value & 0xFFFFFFFF, count, 0) + body
                self.origins[id(self.data)] = offset
                self._enter(kind.message, 0, len(self.data), dict(path), 0)
        self.met, self.data, self.last_piece, self.here = met, data, None, last

    def _enter(self, layer: Layer, at: int, limit: int, path: dict[Layer, Met], level: int) -> None:
        """The layer at data[at:limit] and all that follows it there. `path`: the last header of each kind above it."""
        above, home = path, self.here
        while True:
            self.here = home
            have, padded = limit - at, layer.repeats == "padded"
            if have < layer.least and layer.otherwise is not None and have >= layer.otherwise.least:
                return self._enter(layer.otherwise, at, limit, above, level)
            if have < layer.least:
                if not padded or any(self.data[at : at + min(max(have - 4, 0), 8)]):
                    self._fault_at(layer, "short_header", at, layer.least, have)
                return None
            if level > DEPTH:
                return self._fault_at(layer, "too_deep", at, layer.least, have)
            h = layer.packet.__new__(layer.packet)
            dpkt.Packet.unpack(h, self.data[at : at + layer.least])  # never the subclass: it would go on into the body
            here = Met(layer, at, h, data=self.data)
            outside = {
                carrier: met for carrier, met in above.items() if not layer.new_packet or carrier.bus is not None
            }
            path = {**outside, layer: here}

            def value(of: Any, path: dict[Layer, Met] = path) -> int:
                return int(term_value(of, path[of.layer])) if isinstance(of, Term) else int(of)

            head, total, trailer = value(layer.header(h)), value(layer.total(h)), value(layer.trailer(h))
            total = have if total == layer.unsized else total
            good = layer.check is None or self._holds(layer.check(h), path)
            if not good and layer.otherwise is not None:
                return self._enter(layer.otherwise, at, limit, above, level)
            if not good:
                return self._fault_at(layer, "bad_value", at, total, have)
            padding = isinstance(layer.trailer(layer), Term) and head <= total < head + trailer
            trailer = total - head if padding else trailer
            if total < head + trailer or head < (layer.least if variable(layer) else 0):
                return self._fault_at(layer, "bad_length", at, total, have)
            if padded and (total == head or total > have) and not any(self.data[at : at + 8]):
                return None
            over = total > have
            here.body, here.end = min(at + head, limit), min(at + total - trailer, limit)
            wrong = self._record(here, limit, over) if layer.record is not None and self.last_piece is None else []
            if over:
                self._fault_at(layer, "overrun", at, total, have, decoded=True)
            elif padding or (layer.expect is not None and not self._holds(layer.expect(h), path)):
                self._fault_at(layer, "bad_value", at, total, have, decoded=True)
            if layer.lossless is not None and not self._holds(layer.lossless(h), path):
                self._fault_at(layer, "dropped", at, 0, 0, decoded=True)
            for reason, where, *sizes in wrong:
                self._fault_at(layer, reason, where, *sizes, decoded=True)
            if layer.new_packet:
                self.before, self.inside = len(self.met), self.inside + 1
                self.here = self.inside
            here.home = self.here
            self.met.append(here)
            if layer.tail is not None and not over and trailer >= layer.tail.least:
                behind = layer.tail.packet.__new__(layer.tail.packet)
                dpkt.Packet.unpack(behind, self.data[here.end : here.end + layer.tail.least])
                path[layer.tail] = Met(layer.tail, here.end, behind)
            if self.packet is not None:
                self.packet.deepest = layer
            if layer in self.by_layer:
                self.given.append((self.by_layer[layer], dict(path), here))
            if layer in self.pieces:
                offset = self.offset + here.body if self.last_piece is None else self.last_piece
                self.found.append((dict(path), here, offset))
            for keys, expression, when in layer.selects:
                if when is not None and not self._holds(when(h), path):
                    continue
                key = limit - at if expression is SPAN else self._key(expression(h), path, here)
                child = self._child(keys, key)
                if child is not None:
                    if here.body < here.end or child.bare:
                        self._enter(child, here.body, here.end, path, level + 1)
                    break
            at += -(-total // layer.align) * layer.align
            if over or at >= limit or level == 0:
                return None
            if layer.then is not None:
                return self._enter(layer.then, at, limit, above, level)
            if not layer.repeats:
                return None

    @staticmethod
    def _holds(condition: Any, path: Mapping[Layer, Met]) -> bool:
        """A condition over the layer's own header is a bool, else the bytes of the headers above say it."""
        if not isinstance(condition, Range):
            return bool(condition)
        terms = iter(condition.terms)
        groups = [[next(terms) for _ in range(count)] for count in condition.alternatives]
        return all(any(least <= read_bytes(t, path[t.layer]) <= most for t, least, most in group) for group in groups)  # type: ignore[index]

    @staticmethod
    def _key(of: Any, path: Mapping[Layer, Met], here: Met) -> int:
        """-1 if it is a field of a layer that does not begin where the selecting one does."""
        if not isinstance(of, Term):
            return int(of)
        met = path.get(of.layer)  # type: ignore[arg-type]
        if of.place == HERE and (met is None or met.at != here.at):
            return -1
        assert met is not None
        return int(term_value(of, met))

    def _child(self, keys: KeySpace, key: int) -> Layer | None:
        if keys.stands_for is not None:
            wire = self.wires[key] if key < len(self.wires) else Wire(-1)
            keys, key = keys.stands_for, wire.link_type
            if wire.big_endian and (layer := self._claimant(keys, key | BIG_ENDIAN)) is not None:
                return layer
        return self.learned.get((keys, key)) or self._claimant(keys, key)

    def _claimant(self, keys: KeySpace, key: int) -> Layer | None:
        """The layer that claims this value; the last claim counts."""
        if (keys, key) not in self.claimed:
            found = (layer for space, values, layer in self.claims if space is keys and key in values)
            self.claimed[keys, key] = next(found, None)
        return self.claimed[keys, key]

    def _record(self, here: Met, limit: int, over: bool) -> list[tuple[str, int, int, int]]:
        """A captured packet begins; what is wrong with its record: reason, where, need, have."""
        record, h = here.layer.record, here.header
        assert record is not None
        interface, original = record.interface(h), record.original(h)
        captured = min(record.captured(h), here.end - here.body)
        wire = self.wires[interface] if interface < len(self.wires) else None
        if wire is not None and not record.timed and wire.snaplen:
            captured = min(captured, wire.snaplen)
        high, low = record.high(h), record.low(h)
        time = wire.time(high, low) if wire is not None and record.timed else None
        direction, fcs, comment, cut = 0, wire.fcs if wire is not None else 0, None, None
        dropped = record.dropped(h) if record.dropped(h) != 0xFFFF else 0
        if record.options and not over:
            order = "<" if here.layer.packet.__hdr_fmt__[0] == "<" else ">"
            behind = self.data[here.body + (captured + 3 & ~3) : limit]
            cut = cut_option(behind, order)
            found = options(behind, order, {2: 4, 4: 8})
            (lost,) = struct.unpack(order + "Q", found.get(4, bytes(8)))
            dropped, comment = lost % 2**63 or dropped, comments(behind, order)
            (bits,) = struct.unpack(order + "I", found.get(2, bytes(4)))
            direction, fcs = bits & 3, bits >> 5 & 15 or fcs
        first_option = here.body + (captured + 3 & ~3)
        whole = self.data[here.body : here.body + captured]
        self.reading.packets += 1
        long, captured = captured, min(captured, LONGEST_PACKET)
        whole = whole[:captured]
        self.packet = Packet(
            self.reading.packets, time, wire, captured, original, direction, whole, here.layer, comment
        )
        here.end = here.body + captured
        if fcs:  # the last bytes of the original frame, as far as they were captured
            here.end -= min(captured, max(0, fcs - max(0, original - captured)))
        wrong: list[tuple[str, int, int, int]] = []
        if wire is None:
            wrong.append(("bad_value", here.at, 0, interface))
        elif record.timed and time is None:
            wrong.append(("bad_time", here.at, 0, low))
        if cut is not None:
            wrong.append(("overrun", first_option + cut[0], *cut[1:]))
        if dropped:
            wrong.append(("dropped", here.at, 0, dropped))
        if captured < long:
            wrong.append(("overrun", here.at, long, captured))
        return wrong

    def _fault_at(self, layer: Layer, reason: str, at: int, need: int, have: int, *, decoded: bool = False) -> None:
        offset = self.offset + at if self.last_piece is None else self.last_piece
        self._fault(self.packet, layer.name, reason, offset, need, have, decoded)

    def _fault(
        self,
        packet: Packet | None,
        layer: str,
        reason: str,
        offset: int | None,
        need: int,
        have: int,
        decoded: bool | None = None,
    ) -> None:
        """A fault of the file stands at the last packet before it, and has no time."""
        row = {"layer": layer, "reason": reason, "decoded": decoded, "offset": offset, "need": need, "have": have}
        wire = packet.wire if packet is not None else None  # not its number, which begins anew in a section
        if reason == "dropped" and offset is not None:
            self.drops[wire] = offset
        last = self.drops.get(wire) if packet is not None else max(self.drops.values(), default=None)
        beside = last is not None and offset is not None and last > offset - BESIDE
        row["recorder_dropped"] = beside if reason == "gap" else None
        no = packet.no if packet is not None else self.reading.packets
        self.reading.rows["faults"].append({**self._keys(packet, no, 0), **row})

    # -- rows -------------------------------------------------------------------------------------------------------
    def _keys(self, packet: Packet | None, no: int, sub: int) -> Row:
        time = packet.time if packet is not None else None
        return {
            "date": self._date(packet),
            "ts": None if time is None else time // 1000,
            "ts_ns": time,
            "packet_no": no,
            "sub_no": sub,
            "interface": packet.wire.shown if packet is not None and packet.wire is not None else None,
        }

    def _row(self, rows: Rows, packet: Packet, sub: int, path: Mapping[Layer, Met], here: Met | None) -> None:
        schema = TABLES[rows.table].schema
        row = dict.fromkeys(set(schema.names) - {"capture_id", "vehicle_id"})
        row |= self._keys(packet, packet.no, sub)
        for name, column in rows.columns.items():
            kind = schema.field(name).type
            if isinstance(column, FixedBytes):
                row[name] = self._fixed_bytes(column, kind, here)
                continue
            row[name] = (
                self._run(column) if isinstance(column, Run) else self._column(_cases(column), kind, packet, path, here)
            )
        if here is None:
            row |= {"raw": packet.whole, "comment": packet.comment}
        else:
            row |= {name: here.data[here.body : here.end] for name in ("payload", "data") if name in row}
        if rows.pairing is not None:
            row |= self.requests[rows.pairing].columns(path, packet)
        if rows.finish is not None and rows.within is not None and here is not None:
            outer = path[rows.within]
            span = (here.at, here.at) if (id(here.data), here.at) in self.nothing else (outer.body, outer.end)
            spans = (np.array([x]) for x in (here.at, *span))
            row |= {k: v[0] for k, v in rows.finish(np.frombuffer(here.data, np.uint8), *spans).items()}
        self.reading.rows[rows.table].append(row)

    def _too_much_repeated(self) -> set[tuple[int, int]]:
        """The starts of rows that get no objects, as the rows before them have used up what their message allows."""
        messages: dict[tuple[int, int, int], list[tuple[Rows, Met]]] = {}
        for rows, path, here in self.given:
            if rows.within is not None:
                outer = path[rows.within]
                messages.setdefault((id(here.data), outer.body, outer.end), []).append((rows, here))
        nothing: set[tuple[int, int]] = set()
        for (_, begin, end), found in messages.items():
            total, first = 0, None
            for rows, here in found:
                assert rows.repeats is not None
                data = np.frombuffer(here.data, np.uint8)
                total += int(rows.repeats(data, np.array([here.at]), begin, end)[0])
                if total > 32 * (end - begin):
                    first = first or here
                    nothing.add((id(here.data), here.at))
            if first is not None:
                offset = self.origins.get(id(first.data), self.offset + first.at)
                self._fault(self.packet, first.layer.name, "too_much_repeated", offset, total, 32 * (end - begin))
        return nothing

    @staticmethod
    def _fixed_bytes(column: FixedBytes, kind: pa.DataType, here: Met | None) -> Any:
        assert here is not None
        value = here.data[here.at + column.offset :][: column.size]
        if column.read is not None:
            number, known = column.read(np.frombuffer(value, np.uint8)[None])
            return number[0].item() if np.all(known) else None
        return value.split(b"\0")[0].decode("utf-8", "replace") if pa.types.is_string(kind) else value

    def _run(self, run: Run) -> list[int] | None:
        stacked = [m for m in self.met if m.layer is run.term.layer and not m.home]
        first = [m for i, m in enumerate(stacked) if i == 0 or m.at == stacked[0].at + i * m.layer.least]
        return [int(term_value(run.term, m)) for m in first] or None

    def _column(
        self, column: tuple[Case, ...], kind: pa.DataType, packet: Packet, path: Mapping[Layer, Met], here: Met | None
    ) -> Any:
        for case in column:
            found = self._value(case.term, packet, path, here)
            if found is None:
                continue
            if case.when is not None:
                ((guard, least, most),) = case.when.terms
                held = self._value(guard, packet, path, here)
                if held is None or not least <= held <= most:
                    continue
            if case.table is not None:
                found = case.table.get(found)
            elif case.names is not None and case.term.place == PACKET and not case.names:
                found = packet.deepest.protocol
            elif case.names is not None:
                found = case.names.get(found)
            elif case.kind is not None:
                found = self._text(case.kind, found, packet)
            if found is not None:
                return wrap(found, kind)
        return None

    def _value(self, term: Term, packet: Packet, path: Mapping[Layer, Met], here: Met | None) -> Any:
        if term.place == PACKET:
            wire = packet.wire
            facts = {2: packet.captured, 3: packet.original, 4: packet.direction, 5: 0}  # kernels.CAPTURED and on
            facts |= {
                6: None if wire is None or wire.bus is None else 0,
                7: wire.link_type if wire is not None else None,
            }
            return facts[term.offset]
        if here is not None:
            met = path.get(term.layer)  # type: ignore[arg-type]
        else:  # of a whole packet: the first such header, or the last one
            every = [m for m in self.met if m.layer is term.layer and not (m.layer.stacks and m.home)]
            run = [m for i, m in enumerate(every) if i == 0 or m.at == every[0].at + i * m.layer.least]
            bodies = [m for m in self.met[self.before :] if m.layer is term.layer]
            latest = [m for m in self.met if m.layer is term.layer and m.home == self.here]
            chosen = {LATEST: latest, BODY: bodies, RUN_END: run}.get(term.place, every[:1])
            met = chosen[-1] if chosen else None
        if met is None:
            return None
        return met.end - met.body if term.place == BODY else term_value(term, met)

    def _text(self, kind: str, value: Any, packet: Packet) -> str:
        if kind == "mac":
            return dpkt.utils.mac_to_str(value)
        if kind in ("ipv4", "ipv6"):
            return dpkt.utils.inet_to_str(value)
        if kind == "characters":
            return bytes(value >> bits & 255 for bits in (24, 16, 8, 0)).split(b"\0")[0].decode("utf-8", "replace")
        if kind == "interface":
            assert packet.wire is not None
            assert packet.wire.bus is not None
            return packet.wire.bus
        return self.profile.names_by_id.get(kind, {}).get(value, str(value))
