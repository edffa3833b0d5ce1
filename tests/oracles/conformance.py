"""What the `.txt` beside each pcapng conformance file says a reader must find (hadrielk/pcapng-test-generator).

The text lists the blocks; `blocks` reads the same from the file with `struct` alone, and what is in each packet block
(draft-ietf-opsawg-pcapng). It knows good files only.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

BLOCKS = {0x0A0D0D0A: "SHB", 1: "IDB", 2: "PB", 3: "SPB", 4: "NRB", 5: "ISB", 6: "EPB", 0xBAD: "CB", 0x40000BAD: "DCB"}
PACKETS = {"EPB": True, "SPB": False, "PB": True}  # block: whether it carries a time and an interface


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The blocks of a file in their order: SHB, IDB, EPB, SPB, PB, NRB, ISB, CB, DCB."""

    blocks: tuple[str, ...]

    @property
    def sections(self) -> int:
        return self.blocks.count("SHB")

    @property
    def interfaces(self) -> int:
        return self.blocks.count("IDB")

    @property
    def timed(self) -> list[bool]:
        """For each packet, whether it has a time."""
        return [PACKETS[block] for block in self.blocks if block in PACKETS]


def expected(path: Path) -> Expected:
    """The file's sequence of blocks, checked against its own counts."""
    text = path.read_text(encoding="utf-8")
    (sequence,) = re.findall(r"^Block sequence: (.+)$", text, re.MULTILINE)
    blocks = tuple(sequence.split(", "))
    counts = {name: int(count) for name, count in re.findall(r"^\t(\w+): (\d+)$", text, re.MULTILINE)}
    if Counter(blocks) != Counter(counts):
        raise ValueError(f"{path}: the sequence and the counts disagree: {Counter(blocks)}, {counts}")
    return Expected(blocks=blocks)


@dataclass(slots=True)
class Block:
    """A block: what it is called, and of a packet the section (from 1), interface, time (ns) and lengths."""

    kind: str
    section: int
    interface: str | None = None
    link_type: int | None = None
    ts_ns: int | None = None
    captured_len: int = 0
    original_len: int = 0


@dataclass(slots=True)
class _Interface:
    link_type: int
    snaplen: int
    name: str
    tick: Fraction = field(default=Fraction(1, 10**6))
    offset: int = 0


def blocks(path: Path) -> list[Block]:
    """Every block of a pcapng file in its order."""
    data, at, section, order = path.read_bytes(), 0, 0, "<"
    found: list[Block] = []
    interfaces: list[_Interface] = []
    while at < len(data):
        if data[at : at + 4] == b"\x0a\x0d\x0d\x0a":
            order = "<" if data[at + 8 : at + 12] == b"\x4d\x3c\x2b\x1a" else ">"
            section, interfaces = section + 1, []
        kind, length = struct.unpack_from(order + "II", data, at)
        body = data[at + 8 : at + length - 4]
        block = Block(BLOCKS[kind], section)
        if block.kind == "IDB":
            interfaces.append(_interface(order, body, len(interfaces)))
        elif block.kind in PACKETS:
            _fill(block, order, body, interfaces)
        found.append(block)
        at += length
    return found


def _fill(block: Block, order: str, body: bytes, interfaces: list[_Interface]) -> None:
    number = high = low = 0
    if block.kind == "SPB":
        (block.original_len,) = struct.unpack_from(order + "I", body)
        block.captured_len = min(block.original_len, interfaces[0].snaplen or block.original_len)
    else:
        layout = "IIIII" if block.kind == "EPB" else "HxxIIII"
        number, high, low, block.captured_len, block.original_len = struct.unpack_from(order + layout, body)
    interface = interfaces[number]
    block.interface, block.link_type = interface.name, interface.link_type
    if PACKETS[block.kind]:
        block.ts_ns = int(((high << 32) + low) * interface.tick * 10**9 // 1) + interface.offset * 10**9


def _interface(order: str, body: bytes, number: int) -> _Interface:
    link_type, snaplen = struct.unpack_from(order + "HxxI", body)
    interface = _Interface(link_type, snaplen, str(number))
    for code, value in _options(order, body[8:]):
        if code == 2:
            interface.name = value.rstrip(b"\0").decode()
        elif code == 9:
            interface.tick = Fraction(1, 2 ** (value[0] & 0x7F) if value[0] & 0x80 else 10 ** value[0])
        elif code == 14:
            (interface.offset,) = struct.unpack(order + "q", value)
    return interface


def _options(order: str, data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        code, length = struct.unpack_from(order + "HH", data, at)
        if code == 0:
            return
        yield code, data[at + 4 : at + 4 + length]
        at += 4 + length + -length % 4
