"""Bus frames in capture modules, ACF and CAN-ETH: the rows say what was sent, and each whole header has a row."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

import pytest

from pcaplake.parser.engine.key_spaces import KeySpace
from pcaplake.parser.protocols import LAYERS, asam_cmp, avtp, tecmp
from tests.parser import can_carriers
from tests.parser.can_carriers import (
    CARRIERS,
    MAC,
    REQUEST,
    cmp_can,
    cmp_message,
    cmp_packet,
    tecmp_entries,
    tecmp_entry,
    udp,
)
from tests.parser.captures import pcap
from tests.parser.compare import read
from tests.parser.random_values import some

# key spaces whose values all mean something, and which bits of them there are
CLOSED = {
    tecmp.MODULE: 0xFF,
    tecmp.MESSAGE: 0xFF,
    tecmp.DATA: 0xFFFF,
    asam_cmp.MESSAGE_KIND: 0xFF,
    asam_cmp.PAYLOAD: 0xCFF,
}
CLOSED[avtp.SUBTYPE] = 0xFF


@pytest.mark.parametrize("name", CARRIERS)
def test_what_was_sent_is_in_the_rows(name: str) -> None:
    """Data frames and remote frames, of which most carriers have a length and no data."""
    r, sent = Random(name), []
    for _ in range(60):
        extended, mark = r.random() < 0.5, r.choice(("", REQUEST))
        ident = 0x400 | some(r, 11) if not extended else some(r, 29)
        sent.append((extended, ident, r.randbytes(r.randrange(9)), mark))
    frames = [CARRIERS[name](ident | extended << 31, data, 7, mark) for extended, ident, data, mark in sent]
    rows, summary = read(pcap(frames, 1))
    assert not summary.faults
    for row, (extended, ident, data, mark) in zip(rows["can_frames"], sent, strict=True):
        size = 0 if mark and name.startswith("ACF") else len(data)  # it has no length beside that of the data
        wanted = (ident, extended, mark == REQUEST, size, size)
        assert (row["can_id"], row["extended"], row["rtr"], row["dlc"], row["data_len"]) == wanted
        assert row["payload"].strip(b"\0") == (b"" if mark else data.strip(b"\0"))


def tecmp_of(kind: int, head: bytes, flags: int) -> bytes:
    return tecmp_entries(kind, tecmp_entry(head, 7, flags))


def cmp_of(kind: int, head: bytes) -> bytes:
    return MAC + b"\x99\xfe" + cmp_packet(cmp_message(kind, head, 7))


def acf_of(kind: int, head: bytes) -> bytes:
    body = head + bytes(-(len(head) + 2) % 4)
    message = struct.pack(">H", kind << 9 | (len(body) + 2) // 4) + body
    return MAC + b"\x22\xf0" + struct.pack(">BHBQ", 0x82, 0x8000 | len(message), 0, 1) + message


# a frame of one entry whose header is whole, with any flags, length and bytes behind it: (id, flags, length, bytes) -> frame
HEADERS: dict[str, tuple[str, Callable[[int, int, int, bytes], bytes]]] = {
    **{
        f"TECMP {kind}": ("can_frames", lambda i, f, n, b, kind=kind: tecmp_of(kind, struct.pack(">IB", i, n) + b, f))
        for kind in (2, 3)
    },
    "TECMP LIN": ("lin_frames", lambda i, f, n, b: tecmp_of(4, struct.pack(">BB", i & 63, n) + b, f)),
    "TECMP FlexRay": ("flexray_frames", lambda i, f, n, b: tecmp_of(8, struct.pack(">BHB", 5, i, n) + b, f)),
    **{
        f"CMP {kind}": (
            "can_frames",
            lambda i, f, n, b, kind=kind: cmp_of(kind, struct.pack(">HHIIHBB", f, 0, i << 18, 0, 0, n & 15, n) + b),
        )
        for kind in (1, 2)
    },
    "CMP LIN": ("lin_frames", lambda i, f, n, b: cmp_of(3, struct.pack(">HHBBBB", f, 0, i & 63, 0, 0, n or 1) + b)),
    "CMP FlexRay": (
        "flexray_frames",
        lambda i, f, n, b: cmp_of(4, struct.pack(">HHHHB3sBB", f, 0, 0, i, 5, b"", 0, n) + b),
    ),
    "CMP, a type that is invalid": ("capture_module_messages", lambda i, f, n, b: cmp_of(0, b)),
    **{
        f"ACF {kind}": (
            "can_frames",
            # not 29 bits, for which the identifier of the row has more
            lambda i, f, n, b, kind=kind: acf_of(kind, struct.pack(">HI", f & (0x37FF if kind == 2 else 0x7FF), i) + b),
        )
        for kind in (2, 0x22)
    },
    "ACF LIN": ("lin_frames", lambda i, f, n, b: acf_of(3, struct.pack(">BBQ", f & 0x3F, i & 63, 0) + b)),
    "ACF FlexRay": (
        "flexray_frames",
        lambda i, f, n, b: acf_of(0, struct.pack(">BBQI", f & 63, f >> 8, 0, i << 21) + b),
    ),
    "CAN-ETH": (
        "can_frames",
        lambda i, f, n, b: udp(b"ISO11898\1\1" + struct.pack("<IB8sBB", i, n, b[:8], 0, f & 1), 11898),
    ),
}


@pytest.mark.parametrize("name", HEADERS)
def test_flags_and_lengths_mark_an_entry_and_never_hide_it(name: str) -> None:
    """The row has the identifier that its header has. A length that cannot be is a fault."""
    r, (table, make) = Random(name), HEADERS[name]
    sent = [
        (r.randrange(1, 0x7FF), r.getrandbits(16), r.choice((0, 1, 8, 9, 12, 15, 16, 64, 65, 255))) for _ in range(80)
    ]
    frames = [make(i, flags, n, r.randbytes(r.choice((0, 2, 8, 11, 70, 300)))) for i, flags, n in sent]
    rows, _ = read(pcap(frames, 1))
    assert [row["packet_no"] for row in rows[table]] == list(range(1, len(frames) + 1))
    column = {"can_frames": "can_id", "lin_frames": "lin_id", "flexray_frames": "frame_id"}.get(table)
    if column is not None:
        mask = 63 if column == "lin_id" else 0x7FF
        assert [row[column] for row in rows[table]] == [ident & mask for ident, _, _ in sent]
    faulty = {fault["packet_no"] for fault in rows["faults"]}
    for row in rows[table]:
        if table == "can_frames" and not row["fd"]:
            assert row["data_len"] <= 8 or row["packet_no"] in faulty
            assert row["dlc"] is not None or row["packet_no"] in faulty


@pytest.mark.parametrize("keys", CLOSED, ids=lambda keys: keys.name)
def test_every_kind_of_message_has_a_layer(keys: KeySpace) -> None:
    """Which gives a row, puts it together, or is a fault."""
    claimed = {int(value) for layer in LAYERS for space, values in layer.under if space is keys for value in values}
    assert claimed >= {value for value in range(2**keys.bits) if value & CLOSED[keys] == value}


def test_a_module_that_lost_packets_says_so() -> None:
    """The flags of overflow mark a frame or a packet, and hide nothing (Wireshark packet-tecmp.c, packet-asam-cmp.c)."""
    can = struct.pack(">IB", 0x123, 1) + b"a"
    device = bytearray(can_carriers.tecmp(0x123, b"a", 7))
    device[24] |= 0x80
    message = struct.pack(">QIBBH", 1000, 7, 0x20, 1, len(cmp_can(0x123, b"a"))) + cmp_can(0x123, b"a")
    marked = [
        bytes(device),
        tecmp_entries(2, tecmp_entry(can, 7), tecmp_entry(can, 7, 0x8000), tecmp_entry(can, 7)),
        MAC + b"\x99\xfe" + cmp_packet(message),
    ]
    rows, summary = read(pcap([can_carriers.tecmp(0x123, b"a", 7), *marked, can_carriers.cmp(0x123, b"a", 7)]))
    assert [row["packet_no"] for row in rows["can_frames"]] == [1, 2, 3, 3, 3, 4, 5]
    assert {(row["can_id"], row["payload"]) for row in rows["can_frames"]} == {(0x123, b"a")}
    found = [(f["packet_no"], f["layer"], f["reason"], f["decoded"], f["have"]) for f in rows["faults"]]
    assert found == [
        (2, "tecmp", "dropped", True, 0),
        (3, "tecmp_entry", "dropped", True, 0),
        (4, "cmp_message", "dropped", True, 0),
    ]
    assert summary.faults == {"dropped": 3}
