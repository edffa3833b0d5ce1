"""A protocol for the tests: a chain whose entries carry a leaf directly or inside an optional layer.

entry (a chain) -> leaf
entry (a chain) -> inner (optional) -> leaf
entry (a chain) -> frame, or twin and then frame at the same byte -> leaf, by an identifier of 32 bits in a byte order

And another one, whose chain may contain its own carrier: group -> member (a chain) -> group, or stalk (its value, the group's id)
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import dpkt
import pytest

from pcaplake.parser.capture import reader as capture
from pcaplake.parser.engine.key_spaces import LINKTYPE, KeySpace
from pcaplake.parser.engine.layer import Layer, Rows
from pcaplake.parser.engine.program import Program
from pcaplake.parser.protocols import containers, packets

KIND, NEXT = KeySpace("entry kind"), KeySpace("next")
TWIN = KeySpace("twin", 1)
IDENTIFIER, SWAPPED = KeySpace("identifier", 32, sparse=True), KeySpace("swapped identifier", 32, sparse=True)
USER0 = 147  # a link type that nobody declares


class Entry(dpkt.Packet):
    __hdr__ = (("kind", "I", 0), ("length", "I", 0))


class Inner(dpkt.Packet):
    __hdr__ = (("id", "H", 0), ("next", "H", 0))


class Box(dpkt.Packet):
    __hdr__ = (("len", "B", 0), ("next", "B", 0))


class Frame(dpkt.Packet):
    __hdr__ = (("id", "I", 0),)


class Twin(dpkt.Packet):
    __byte_order__ = "<"
    __hdr__ = (("id", "I", 0),)


class Leaf(dpkt.Packet):
    __hdr__ = (("value", "H", 0),)


ENTRY = Layer(
    Entry,
    name="entry",
    under=[LINKTYPE[USER0]],
    total=lambda h: h.length + 8,
    repeats=True,
    align=4,
    selects=[KIND(lambda h: h.kind)],
)
INNER = Layer(Inner, name="inner", under=[KIND[1], NEXT[1]], selects=[NEXT(lambda h: h.next)])
BOX = Layer(
    Box, name="box", under=[KIND[3]], total=lambda h: h.len, trailer=lambda h: 2, selects=[NEXT(lambda h: h.next)]
)
TWINS = Layer(Twin, name="twin", under=[KIND[9]], header=lambda h: 0, selects=[TWIN(lambda h: 0)])
FRAME = Layer(
    Frame,
    name="frame",
    under=[KIND[8], TWIN[0]],
    selects=[SWAPPED(lambda h: TWINS.id.here), IDENTIFIER(lambda h: h.id)],
)
LEAF = Layer(
    Leaf,
    name="leaf",
    under=[KIND[2], NEXT[2], *(IDENTIFIER[n] for n in (5, 7, 0x9FFFFFFF)), IDENTIFIER[16:32], SWAPPED[3]],
)
LAYERS = (*containers.LAYERS, ENTRY, INNER, BOX, TWINS, FRAME, LEAF)
ROWS = (
    Rows(
        "can_frames",
        LEAF,
        {
            "can_id": LEAF.value,
            "source": ENTRY("tecmp"),
            "data_len": ENTRY.length,
            "error_class": INNER.id,
            "xl_acceptance": LEAF.value.where(INNER.id.between(-(2**62), 2**62)),
            "xl_vcid": BOX.len,
        },
    ),
)
MEMBERS, MEMBER_KIND = KeySpace("members", 1), KeySpace("member kind")
USER1 = 148


class Group(dpkt.Packet):
    __hdr__ = (("id", "I", 0),)


GROUP = Layer(Group, name="group", under=[LINKTYPE[USER1], MEMBER_KIND[1]], selects=[MEMBERS(lambda h: 0)])
MEMBER = Layer(
    Entry,
    name="member",
    under=[MEMBERS[0]],
    total=lambda h: h.length + 8,
    repeats=True,
    selects=[MEMBER_KIND(lambda h: h.kind)],
)
STALK = Layer(Leaf, name="stalk", under=[MEMBER_KIND[2]])
GROUPS = (*containers.LAYERS, GROUP, MEMBER, STALK)
GROUP_ROWS = (
    Rows(
        "can_frames",
        STALK,
        {
            "can_id": STALK.value,
            "source": MEMBER("tecmp"),
            "data_len": MEMBER.length,
            "dlc": ((MEMBER.length + 5).where(MEMBER.kind.between(0, 1)), MEMBER.kind),
            "error_class": GROUP.id,
        },
    ),
)
PACKETS = Rows("packets", None, {n: packets.ROWS[0].columns[n] for n in ("captured_len", "original_len", "protocol")})


def entry(kind: int, body: bytes) -> bytes:
    return struct.pack(">II", kind, len(body)) + body + bytes(-len(body) % 4)


def inner(ident: int, following: int, body: bytes) -> bytes:
    return struct.pack(">HH", ident, following) + body


def box(size: int, following: int, body: bytes) -> bytes:
    return struct.pack(">BB", size, following) + body


def frame(ident: int, body: bytes, order: str = ">") -> bytes:
    return struct.pack(order + "I", ident) + body


def leaf(value: int) -> bytes:
    return struct.pack(">H", value)


def use(monkeypatch: pytest.MonkeyPatch, layers: Any = LAYERS, rows: Any = (*ROWS, PACKETS), **more: Any) -> Program:
    """From now on `open_capture` decodes with these declarations."""
    program = Program(layers, rows, **more)
    compiled: Callable[..., Program] = lambda *_, **__: program  # noqa: E731
    monkeypatch.setattr(capture, "compiled_program", compiled)
    return program
