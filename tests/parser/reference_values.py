"""What the reference knows of an interface, a header and a packet, and how it takes a value out of a dpkt object."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import dpkt
import pyarrow as pa

from pcaplake.parser.engine.layer import BODY, Layer, Term, column_cases

END_OF_TIME_NS = 7_258_118_400 * 10**9  # 2200-01-01
Row = dict[str, Any]


@dataclass(slots=True, eq=False)
class Wire:
    """An interface: `tick` in seconds (None: pcap, whose second word counts `unit` ns)."""

    link_type: int
    number: int | None = None
    name: str | None = None
    bus: str | None = None
    tick: Fraction | None = None
    unit: int = 1000
    offset: int = 0
    fcs: int = 0
    snaplen: int = 0
    big_endian: bool = False  # the file or section

    @property
    def shown(self) -> str | None:
        return self.name if self.name is not None or self.number is None else str(self.number)

    def time(self, high: int, low: int) -> int | None:
        if self.tick is None:
            ns = high * 10**9 + low * self.unit
        else:
            if 2**64 * self.tick <= 1:
                return None
            ns = int(((high << 32) + low) * self.tick * 10**9 // 1) + self.offset * 10**9
        return ns if 0 <= ns < END_OF_TIME_NS else None


@dataclass(slots=True, eq=False)
class Met:
    """A header that was met: where it began, what dpkt made of it, its body; in which packet inside the packet it is."""

    layer: Layer
    at: int
    header: dpkt.Packet
    body: int = 0
    end: int = 0
    data: bytes = b""
    home: int = 0


@dataclass(slots=True)
class Packet:
    """What rows take from their packet."""

    no: int
    time: int | None
    wire: Wire | None
    captured: int
    original: int
    direction: int
    whole: bytes
    deepest: Layer
    comment: str | None


@dataclass(slots=True)
class Reading:
    rows: dict[str, list[Row]] = field(default_factory=dict)
    packets: int = 0


def term_value(term: Term, met: Met) -> Any:
    """The term from the attribute of the dpkt object that holds its bits; an address as bytes."""
    if term.mul == 0:
        return term.add
    order = met.layer.packet.__hdr_fmt__[0]
    sizes = [struct.calcsize(order + code) for _, code, _ in met.layer.packet.__hdr__]
    index = [sum(sizes[:i]) for i in range(len(sizes))].index(term.offset)
    name, code, _ = met.layer.packet.__hdr__[index]
    size, whole = sizes[index], getattr(met.header, name)
    if isinstance(whole, bytes):
        if (term.mul, term.add) == (1, 0) and size in (4, 6, 16):
            return whole
        whole = int.from_bytes(whole, "big")
    assert term.big == (order in ">!") or code.endswith("s")
    low = term.shift - (64 - 8 * size if term.big else 0)  # the lowest bit of the term in its field
    width = min((term.mask & (1 << 64) - 1).bit_length(), 8 * size - low)
    left = 8 * size
    for part, bits in (getattr(met.layer.packet, "__bit_fields__", None) or {}).get(name, ()):
        left -= bits
        if left <= low and low + width <= left + bits and not part.startswith("_"):
            whole, low = getattr(met.header, part), low - left
            break
    return (whole >> low & term.mask) * term.mul + term.add


def read_bytes(term: Term, met: Met) -> int:
    """The term from the bytes of the header, and of what follows it."""
    word = met.data[met.at + term.offset :][:8].ljust(8, b"\0")
    number = int.from_bytes(word, "big" if term.big else "little")
    return (number >> term.shift & term.mask) * term.mul + term.add


def piece_value(column: Any, path: Mapping[Layer, Met]) -> int:
    """The first case whose header is there, whose condition holds, and whose table has the value; 0 if there is none."""
    for case in column_cases(column):
        if case.term.layer not in path:
            continue
        if case.when is not None:
            ((guard, least, most),) = case.when.terms
            if guard.layer not in path or not least <= read_bytes(guard, path[guard.layer]) <= most:
                continue
        met = path[case.term.layer]
        value = read_bytes(case.term, met)
        if case.term.place == BODY:
            value = (met.end - met.body) * case.term.mul + case.term.add
        if case.table is None or value in case.table:
            return value if case.table is None else case.table[value]
    return 0


def buses(path: Mapping[Layer, Met]) -> frozenset[tuple[Layer, int]]:
    """The buses of capture modules from which what is below these headers comes."""
    return frozenset((layer, int(term_value(layer.bus(layer), met))) for layer, met in path.items() if layer.bus)


def variable(layer: Layer) -> bool:
    """Whether the header's length is computed."""
    return isinstance(layer.header(layer), Term)


def wrap(value: Any, kind: pa.DataType) -> Any:
    """An unsigned value as the column's signed type of the same bits."""
    if isinstance(value, str):
        return value
    if pa.types.is_boolean(kind):
        return bool(value)
    bits = kind.bit_width
    return ((value + (1 << bits - 1)) & (1 << bits) - 1) - (1 << bits - 1)


def options(data: bytes, order: str, sizes: Mapping[int, int]) -> dict[int, bytes]:
    """pcapng options: the first of each code that has its proper size."""
    found: dict[int, bytes] = {}
    at = 0
    while at + 4 <= len(data):
        code, size = struct.unpack(order + "HH", data[at : at + 4])
        if code == 0 or at + 4 + size > len(data):
            break
        if sizes.get(code, size) == size:
            found.setdefault(code, data[at + 4 : at + 4 + size])
        at += 4 + (size + 3 & ~3)
    return found


def cut_option(data: bytes, order: str) -> tuple[int, int, int] | None:
    """Where a pcapng option begins that does not fit, its bytes, and those that are there."""
    at = 0
    while at + 4 <= len(data):
        code, size = struct.unpack(order + "HH", data[at : at + 4])
        if code == 0:
            break
        if 4 + size > len(data) - at:
            return at, 4 + size, len(data) - at
        at += 4 + (size + 3 & ~3)
    return None


def comments(data: bytes, order: str) -> str | None:
    """All comments among pcapng options, one in a line."""
    texts, at = [], 0
    while at + 4 <= len(data):
        code, size = struct.unpack(order + "HH", data[at : at + 4])
        if code == 0 or at + 4 + size > len(data):
            break
        if code == 1 and (text := data[at + 4 : at + 4 + size].rstrip(b"\0").decode("utf-8", "replace")):
            texts.append(text)
        at += 4 + (size + 3 & ~3)
    return "\n".join(texts) or None


def number(faults: list[Row]) -> None:
    """sub_no of faults: dense per packet, in the order in which they were found."""
    counts: dict[int, int] = {}
    for row in faults:
        row["sub_no"] = counts[row["packet_no"]] = counts.get(row["packet_no"], -1) + 1
