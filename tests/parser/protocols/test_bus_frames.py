"""Bus frames in capture modules, ACF and CAN-ETH: the rows say what was sent, and nothing has neither a row nor a fault."""

from __future__ import annotations

import struct
from random import Random

import pytest

from pcaplake.parser.engine.key_spaces import KeySpace
from pcaplake.parser.protocols import LAYERS, asam_cmp, avtp, tecmp
from tests.parser import can_carriers
from tests.parser.can_carriers import CARRIERS, MAC, REQUEST, cmp_can, cmp_packet, tecmp_entries, tecmp_entry
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
