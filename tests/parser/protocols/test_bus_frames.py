"""Bus frames in capture modules, ACF and CAN-ETH: the rows say what was sent, and nothing has neither a row nor a fault."""

from __future__ import annotations

from random import Random

import pytest

from pcaplake.parser.engine.key_spaces import KeySpace
from pcaplake.parser.protocols import LAYERS, asam_cmp, avtp, tecmp
from tests.parser.can_carriers import CARRIERS, REQUEST
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
