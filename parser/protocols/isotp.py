"""ISO-TP, diagnostic messages in CAN frames, on the identifiers that a profile names.

Layout: ISO 15765-2:2016.

Extended and mixed addressing put an address before the protocol control information (PCI). The first nibble of the PCI is the
type of the frame; flow control (3) carries nothing. A single frame of length 0 is a long frame of CAN FD, with the length in the
next byte; a first frame of length 0 has a length of 32 bits. A frame that no sender may send is a fault and has no message: a
type from 4 on, a single frame whose length cannot be, a first frame that holds the whole message. A length in the long form
that fits into the short one is a fault beside the message.

Not read: flow control frames.
"""

from __future__ import annotations

from collections.abc import Iterable

import dpkt

from pcaplake.parser.engine.key_spaces import SPAN, Claim, KeySpace
from pcaplake.parser.engine.layer import Layer
from pcaplake.parser.engine.pieces import SECOND, Segments
from pcaplake.parser.profile import IsoTpChannel

from .can import CAN_WORD, STANDARD
from .can_content import ANY_IDENTIFIER, WORDS, fixed_word_cases
from .doip import DIAGNOSTIC_MESSAGE
from .ethernet import always_a_fault

PCI, CAN_FD_BYTES = KeySpace("ISO-TP PCI"), KeySpace("ISO-TP bytes of a CAN FD frame")
# ISO 15765-2:2016, 9.6: with an address before it, a short single frame has at most 6 bytes, so that a long one has 7
LEAST_LONG_SINGLE, MOST_SHORT_FIRST = 7, 0xFFF


class Pci(dpkt.Packet):
    __hdr__ = (("pci", "H", 0x0100),)
    __bit_fields__ = {"pci": (("type", 4), ("length", 4), ("next", 8))}


class AddressedPci(dpkt.Packet):
    __hdr__ = (("address", "B", 0), ("pci", "H", 0x0100))


class LongFirst(dpkt.Packet):
    __hdr__ = (("pci", "H", 0x1000), ("size", "I", 0))


ISOTP, EXTENDED, MIXED = (
    Layer(packet, name=name, protocol="isotp", under=[ANY_IDENTIFIER], header=header, selects=[PCI(lambda h: h.pci)])
    for packet, name, header in (
        (Pci, "isotp", lambda h: 0),
        (AddressedPci, "isotp_extended", lambda h: 1),
        (AddressedPci, "isotp_mixed", lambda h: 1),
    )
)
UDS = [DIAGNOSTIC_MESSAGE(lambda h: 0)]
SINGLE, LONG_SINGLE, ESCAPED, FIRST, LONG_FIRST, CONSECUTIVE = (
    Layer(packet, name=f"isotp_{name}", protocol="isotp", **facts)
    for name, packet, facts in (
        ("single", Pci, dict(under=[PCI[0x100:0x800]], header=lambda h: 1, total=lambda h: h.length + 1, selects=UDS)),
        (
            "long_single",
            Pci,
            dict(
                under=[CAN_FD_BYTES[9:65]],
                total=lambda h: h.next + 2,
                expect=lambda h: h.next >= LEAST_LONG_SINGLE,
                selects=UDS,
            ),
        ),
        ("escaped", Pci, dict(under=[PCI[:0x100]], header=lambda h: 0, selects=[CAN_FD_BYTES(SPAN)])),
        ("first", Pci, dict(under=[PCI[0x1001:0x2000]])),
        ("long_first", LongFirst, dict(under=[PCI[0x1000]], expect=lambda h: h.size >= MOST_SHORT_FIRST + 1)),
        ("consecutive", Pci, dict(under=[PCI[0x2000:0x3000]], header=lambda h: 1)),
    )
)
IMPOSSIBLE = always_a_fault(
    "isotp_impossible", "isotp", PCI[0x800:0x1000], PCI[0x4000:], CAN_FD_BYTES[:9], CAN_FD_BYTES[65:]
)
LAYERS = (ISOTP, EXTENDED, MIXED, SINGLE, LONG_SINGLE, ESCAPED, FIRST, LONG_FIRST, CONSECUTIVE, IMPOSSIBLE)
MESSAGE = Segments(
    "isotp_message",
    protocol="isotp",
    layers=(FIRST, LONG_FIRST, CONSECUTIVE),
    key=(WORDS, (EXTENDED.address, MIXED.address)),
    selects=UDS,
    first=(FIRST(1), LONG_FIRST(1)),
    number=CONSECUTIVE.length,
    modulus=16,
    total=(FIRST.pci & 0xFFF, LONG_FIRST.size),
    timeout_ns=5 * SECOND,
)
REASSEMBLIES = (MESSAGE,)
ADDRESSING = {"normal": ISOTP, "extended": EXTENDED, "mixed": MIXED}

# -- what the identifiers say --------------------------------------------------------------------------------------------
# with 29 bits: upper half of normal fixed and mixed addressing; the lower half is target and source
FIXED = FIXED_ONE, FIXED_GROUP, MIXED_ONE, MIXED_GROUP = 0x98DA, 0x98DB, 0x98CE, 0x98CD


SOURCE, TARGET = (
    fixed_word_cases(lambda word: word & 0xFF, *FIXED),
    fixed_word_cases(lambda word: word >> 8 & 0xFF, *FIXED),
)
GROUP = fixed_word_cases(lambda word: (word & 0) + 1, FIXED_GROUP, MIXED_GROUP)
CHANNEL = (
    *fixed_word_cases(lambda word: word & 0, *FIXED),
    *WORDS,
)  # the addresses say which request a response belongs to


def claims_and_partners(channels: Iterable[IsoTpChannel]) -> tuple[list[tuple[Claim, Layer]], dict[int, int]]:
    """What the identifiers of a profile lead to, and the request of each response; -1 for a request to a group."""
    claims: list[tuple[Claim, Layer]] = []
    partners: dict[int, int] = {}
    for channel in channels:
        layer = ADDRESSING[channel.addressing.removesuffix("_fixed")]
        words = [id | (id > STANDARD) << 31 for id in (channel.request, channel.response) if id >= 0]
        if len(words) == 2:
            partners[words[1]] = words[0]
        elif words:
            partners[words[0]] = -1
        if (tester := channel.tester) >= 0:
            one, group = (MIXED_ONE, MIXED_GROUP) if layer is MIXED else (FIXED_ONE, FIXED_GROUP)
            words = [one << 16 | tester << 8 | n for n in range(256)]
            words += [upper << 16 | n << 8 | tester for upper in (one, group) for n in range(256)]
        claims += [(CAN_WORD[word], layer) for word in words]
    return claims, partners
