"""The ports that a message of SOME/IP service discovery (AUTOSAR PRS_SOMEIPServiceDiscovery) or a charging station (ISO 15118-2)
offers."""

from __future__ import annotations

import struct
from collections.abc import Iterator

MOST_LEARNED = 1024
OFFER, SUBSCRIBE, ACKNOWLEDGE = 1, 6, 7
TRANSPORTS = {6: "tcp", 17: "udp"}
ADDRESS_BYTES = {0x04: 4, 0x06: 16, 0x14: 4, 0x16: 16}  # of endpoints and multicast endpoints, in IPv4 and IPv6


def _options(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and body of each option that is whole."""
    while len(data) >= 3:
        size, kind = struct.unpack(">HB", data[:3])
        if size < 1 or len(data) < 3 + size:
            return
        yield kind, data[4 : 3 + size]
        data = data[3 + size :]


def ports_in_offers(body: bytes) -> list[tuple[str, int]]:
    """(transport, port) of the endpoints to which offers and subscriptions say that messages go, in the order of the options."""
    size = int.from_bytes(body[4:8], "big")
    entries, rest = body[8 : 8 + size], body[8 + size :]
    named: dict[int, set[int]] = {OFFER: set(), SUBSCRIBE: set(), ACKNOWLEDGE: set()}
    while len(entries) >= 16:
        kind, first, second, counts = entries[:4]
        ttl = int.from_bytes(entries[9:12], "big")
        if kind in named and ttl > 0:
            named[kind] |= {first + i for i in range(counts >> 4)} | {second + i for i in range(counts & 15)}
        entries = entries[16:]
    found = []
    for number, (kind, option) in enumerate(_options(rest[4 : 4 + int.from_bytes(rest[:4], "big")])):
        if kind in ADDRESS_BYTES and len(option) >= ADDRESS_BYTES[kind] + 4:
            _, protocol, port = struct.unpack_from(">BBH", option, ADDRESS_BYTES[kind])
            multicast, wanted = kind >= 0x10, number in named[SUBSCRIBE] and protocol == 17
            counts = wanted or (
                number in named[ACKNOWLEDGE] and protocol == 17 if multicast else number in named[OFFER]
            )
            if counts and protocol in TRANSPORTS and (TRANSPORTS[protocol], port) not in found:
                found.append((TRANSPORTS[protocol], port))
    return found


def port_of_station(response: bytes) -> int | None:
    """The port of a response of SDP: an address, the port, 0x10 for no TLS, 0 for TCP."""
    _, port, security, transport = struct.unpack_from(">16sHBB", response)
    return port if (security, transport) == (0x10, 0) else None
