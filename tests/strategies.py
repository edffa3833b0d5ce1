"""Hypothesis strategies: captures of every kind, spoilt in every way. The bytes come from tests/parser/frames.py."""

from __future__ import annotations

import gzip
from random import Random

import lz4.frame
import zstandard
from hypothesis import strategies as st

from tests.parser import conversations, frames
from tests.parser.captures import MAGICS, T0, Section, pcap, pcap_header

STARTS = [b"", b"\n\r\r\n", *(pcap_header(t, order=o, magic=m) for t in (1, 227) for o in "<>" for m in MAGICS)]
STARTS += [
    Section(order).header() + Section(order).interface(link_type) for order in "<>" for link_type in (1, 113, 227)
]
STARTS += [b"\x1f\x8b\x08\0\0\0\0\0\0\3", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18"]
seeds = st.integers(0, 2**32)


def sample(seed: int) -> bytes:
    """A good capture of some packets, of which a few are cut or spoilt; pcap or pcapng."""
    r = Random(seed)
    link_type = r.choice(tuple(frames.MAKERS))
    made = [frames.MAKERS[link_type](r) for _ in range(r.choice((1, 3, 10)))]
    if link_type == 1 and r.random() < 0.5:
        made = conversations.conversation(r, 3)
    made = [frames.spoil(r, frame) if r.random() < 0.2 else frame for frame in made]
    if r.random() < 0.4:
        files = [
            pcap(made, link_type, order=r.choice("<>"), magic=r.choice(tuple(MAGICS)))
            for _ in range(r.choice((1, 1, 2)))
        ]
        return bytes(r.choice((0, 0, 16, 48, 100))).join([*files, b""])
    data = b""
    for _ in range(r.choice((1, 1, 2))):
        s = Section(r.choice("<>"))
        data += s.header() + s.interface(
            link_type, name=r.choice((None, "can0")), resolution=r.choice((None, 9, 0x94)), fcs=r.choice((None, 4))
        )
        for frame in made:
            write = r.choice((s.enhanced, s.enhanced, s.obsolete, s.simple))
            data += write(frame) if write == s.simple else write(frame, T0 * 10**6)  # type: ignore[operator]
            if r.random() < 0.1:
                lost = s.option(1, b"a comment") + s.option(4, r.randbytes(8))
                data += s.enhanced(frame, T0 * 10**6, more=lost) + s.statistics(r.choice((0, 1)), dropped=2)
    return data


@st.composite
def spoilt(draw: st.DrawFn) -> bytes:
    """A good capture in which bytes were changed, removed, doubled or put in, and that may be cut and packed."""
    data = bytearray(sample(draw(seeds)))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(data)))
        what = draw(st.sampled_from(("set", "set", "set", "insert", "remove", "double")))
        if what == "set":
            new = draw(
                st.sampled_from((b"\0", b"\xff", b"\x7f", b"\x80", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\4\0"))
            )
            data[at : at + len(new)] = new
        elif what == "insert":
            data[at:at] = draw(st.binary(max_size=40))
        elif what == "remove":
            del data[at : at + draw(st.integers(1, 40))]
        else:
            data[at:at] = data[at : at + draw(st.integers(1, 200))]
    if draw(st.booleans()):
        del data[draw(st.integers(0, len(data))) :]
    packed = draw(
        st.sampled_from((None, None, None, gzip.compress, lz4.frame.compress, zstandard.ZstdCompressor().compress))
    )
    if packed is not None:
        data = bytearray(packed(bytes(data)))
        if draw(st.booleans()):
            del data[draw(st.integers(4, len(data))) :]
        elif draw(st.booleans()):
            data[draw(st.integers(4, len(data) - 1))] ^= 1 << draw(st.integers(0, 7))
    return bytes(data)


anything = st.builds(bytes.__add__, st.sampled_from(STARTS), st.binary(max_size=400))
