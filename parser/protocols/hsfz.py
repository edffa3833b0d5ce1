"""HSFZ, the diagnostic protocol of BMW, on the ports that a profile names. BMW uses TCP 6801.

Layout: Wireshark packet-hsfz.c.

Not read: messages with a control word other than 1 (acknowledgments, identification, alive checks, errors).
"""

from __future__ import annotations

import dpkt

from pcaplake.parser.engine.key_spaces import KeySpace
from pcaplake.parser.engine.layer import Layer

from .doip import DIAGNOSTIC_MESSAGE
from .ethernet import TCP_PORT, UDP_PORT, Bare, tcp_stream

CONTROL, IN_STREAM = KeySpace("HSFZ control word"), KeySpace("HSFZ in a stream", 1)


class HsfzHeader(dpkt.Packet):
    __hdr__ = (("length", "I", 0), ("control", "H", 1))


class HsfzAddresses(dpkt.Packet):
    __hdr__ = (("source", "B", 0xF4), ("target", "B", 0))


HSFZ = Layer(
    HsfzHeader,
    name="hsfz",
    under=[IN_STREAM[0], UDP_PORT[:0]],
    total=lambda h: h.length + 6,
    repeats=True,
    selects=[CONTROL(lambda h: h.control)],
)
# a request or a response; control word 2 acknowledges one by repeating it
HSFZ_DIAGNOSTIC = Layer(
    HsfzAddresses,
    name="hsfz_diagnostic",
    protocol="hsfz",
    under=[CONTROL[1]],
    selects=[DIAGNOSTIC_MESSAGE(lambda h: 0)],
)
TCP_SEGMENT = Layer(Bare, name="hsfz_tcp_segment", protocol="tcp", under=[TCP_PORT[:0]], header=lambda h: 0, bare=True)
LAYERS = (HSFZ, HSFZ_DIAGNOSTIC, TCP_SEGMENT)
STREAM = tcp_stream(
    "hsfz_stream",
    TCP_SEGMENT,
    selects=[IN_STREAM(lambda h: 0)],
    frame=HSFZ,
    plausible=lambda h: (h.length <= 0xFFFF) & (h.control <= 0xFF),
)
REASSEMBLIES = (STREAM,)
