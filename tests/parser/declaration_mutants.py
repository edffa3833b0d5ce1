"""What protocols declare of keys, each declared otherwise: a capture of test_mutants.py must be decoded otherwise."""

from __future__ import annotations

from collections.abc import Mapping

from pcaplake.parser.engine.layer import KeySpace, Layer
from pcaplake.parser.protocols import can, ethernet, someip

CLAIMS: Mapping[str, tuple[KeySpace, int, Layer | None]] = {
    "a first fragment is a later one": (ethernet.IP_FRAGMENT, 0x2000, ethernet.IPV4_LATER),
    "a first fragment is no fragment": (ethernet.IP_FRAGMENT, 0x2000, None),
    "a later fragment is a first one": (ethernet.IP_FRAGMENT, 0x00B9, ethernet.IPV4_FIRST),
    "IPv6: a first fragment is no fragment": (ethernet.IP6_FRAGMENT, 1, None),
    "IPv6: a later fragment is a first one": (ethernet.IP6_FRAGMENT, 0x05A8, ethernet.IPV6_FIRST),
    "the first part of UDP is a whole one": (ethernet.FIRST_FRAGMENT_OF, 17, ethernet.UDP),
    "802.1ad": (ethernet.ETHERTYPE, 0x88A8, None),
    "the older type of TECMP": (ethernet.ETHERTYPE, 0x2090, None),
    "72 captured bytes are FD": (can.CAPTURED, 72, None),
    "an error frame": (can.ERROR_FLAG, 1, None),
    "XL": (can.XL_FLAG, 1, None),
    "service discovery": (someip.SERVICE_DISCOVERY, 0, None),
    "hop-by-hop options": (ethernet.IP_PROTOCOL, 0, None),
    "destination options": (ethernet.IP_PROTOCOL, 60, None),
    "a family in the other byte order": (ethernet.ADDRESS_FAMILY, 2, None),
}
