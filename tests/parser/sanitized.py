"""Decode hostile captures with kernels that check every access: `python -m tests.parser.sanitized FOLDER decode|beyond`.

FOLDER has `pcaplake/core` as KERNELS_SANITIZE compiles it. `beyond` shows that the checks work: it must fail.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import numpy as np

import pcaplake.core
from pcaplake.parser.engine.kernels import payloads
from pcaplake.parser.engine.reassembly import PieceRows, assembler_of
from pcaplake.parser.protocols import isotp
from tests.parser import captures, conversations, frames
from tests.parser.compare import read
from tests.parser.conversations import ipv4, someip, tcp, udp


def decode() -> None:
    r = Random(8)
    for link_type, make in frames.MAKERS.items():
        for _ in range(4):
            made = [frames.spoil(r, make(r)) for _ in range(r.choice((1, 2, 40)))]
            read(captures.pcap(made, link_type), tight=True, batch_rows=r.choice((1, 7, 1000)))
    for _ in range(6):
        read(conversations.timed(r, conversations.conversation(r)), tight=True)
        read(captures.pcap(in_order(r)), tight=True)
    assert len(assembler_of(isotp.MESSAGE, 1 << 20).add_pieces(numbered(60))[0]) == 10


def in_order(r: Random) -> list[bytes]:
    """Fragments and TCP segments of which none is lost."""
    made, data = list[bytes](), b"".join(someip(r.randbytes(r.randrange(80))) for _ in range(60))
    for number in range(1, 30):
        datagram = udp(someip(r.randbytes(200)))
        for start, end in conversations.cuts(r, len(datagram), 64, 8):
            more = 0x2000 if end < len(datagram) else 0
            made.append(ipv4(datagram[start:end], ident=number, fragment=more | start // 8))
    return made + [ipv4(tcp(1 + a, data[a:b]), 6) for a, b in conversations.cuts(r, len(data), 300, 1)]


def numbered(n: int) -> PieceRows:
    """Segments of 7 bytes, six for each message."""
    columns, ends = {name: np.zeros(n, np.int64) for name in isotp.MESSAGE.values()}, np.arange(1, n + 1) * 7
    columns["number"], columns["total"] = np.arange(n) % 6, np.full(n, 40)
    columns["first"] = (columns["number"] == 0).astype(np.int64)
    data, words = np.zeros(7 * n, np.uint8), np.zeros((n, 1), np.int64)
    return PieceRows(words, np.arange(n), data, ends - 7, ends, ends, columns)


def beyond() -> None:
    print(payloads.sum_payload_lengths(np.zeros((4, 8), np.int32), 1 << 20))


if __name__ == "__main__":
    folder, what = sys.argv[1:]
    pcaplake.core.__path__ = [str(Path(folder, "pcaplake", "core"))]
    {"decode": decode, "beyond": beyond}[what]()
