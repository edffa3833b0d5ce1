"""Options of SOME/IP-SD: endpoints and configuration of the entries that refer to them, and the ports that are offered.

AUTOSAR PRS_SOMEIPServiceDiscovery. Options are rare and irregular, and often the same bytes, so plain Python reads them.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

FIND, OFFER, SUBSCRIBE, ACK = 0x00, 0x01, 0x06, 0x07  # types of entries
ENTRY_BYTES = 16

_ENDPOINTS = {
    0x04: ("endpoint", socket.AF_INET),
    0x06: ("endpoint", socket.AF_INET6),
    0x14: ("multicast", socket.AF_INET),
    0x16: ("multicast", socket.AF_INET6),
    0x24: ("sd_endpoint", socket.AF_INET),
    0x26: ("sd_endpoint", socket.AF_INET6),
}
_TRANSPORTS = {6: "tcp", 17: "udp"}
# the endpoints of an entry to which messages of its service go; over TCP, events come from the port of the server
_NAMED_PORTS = {
    OFFER: {("endpoint", "tcp"), ("endpoint", "udp")},
    SUBSCRIBE: {("endpoint", "udp"), ("multicast", "udp")},
    ACK: {("multicast", "udp")},
}
CONFIGURATION = 0x01
REMEMBERED = 1024  # bytes; options up to this size are cached for later messages with the same options
Referred = tuple[list[dict[str, Any]] | None, list[tuple[str, str]] | None]  # endpoints and configuration of an entry


def _parse_sd_options(data: bytes) -> tuple[tuple[str, Any], ...]:
    """("endpoint", {...}), ("configuration", ((key, value), ...)) or ("other", None) for each option, in order."""
    options: list[tuple[str, Any]] = []
    at = 0
    while len(data) - at >= 3:
        size, kind = struct.unpack_from(">HB", data, at)
        body, at = data[at + 4 : at + 3 + size], at + 3 + size
        if at > len(data) or size < 1:
            break  # the walk has already reported this fault
        if kind in _ENDPOINTS:
            options.append(("endpoint", _parse_endpoint_option(kind, body)))
        elif kind == CONFIGURATION:
            options.append(("configuration", tuple(_parse_configuration_option(body))))
        else:
            options.append(("other", None))
    return tuple(options)


def _parse_endpoint_option(kind: int, body: bytes) -> dict[str, Any] | None:
    name, family = _ENDPOINTS[kind]
    size = 4 if family == socket.AF_INET else 16
    if len(body) < size + 4:
        return None
    protocol, port = struct.unpack_from(">xBH", body, size)
    address = socket.inet_ntop(family, body[:size])
    return {"kind": name, "address": address, "port": port, "transport": _TRANSPORTS.get(protocol, str(protocol))}


def _parse_configuration_option(body: bytes) -> list[tuple[str, str]]:
    """Length-prefixed `key=value` strings as in DNS-SD (RFC 6763). If a key is repeated, the first one counts."""
    entries: dict[str, str] = {}
    at = 0
    while at < len(body) and body[at]:
        key, _, value = body[at + 1 : at + 1 + body[at]].decode("utf-8", "replace").partition("=")
        entries.setdefault(key, value)
        at += 1 + body[at]
    return list(entries.items())


_options = lru_cache(maxsize=1024)(_parse_sd_options)


@lru_cache(maxsize=4096)
def _parse_referred_options(runs: bytes, options: bytes) -> Referred:
    return _select_referred_options(runs, _options(options))


def _select_referred_options(runs: bytes, known: Sequence[tuple[str, Any]]) -> Referred:
    """The endpoints and the configuration that an entry refers to. runs: its index1, index2 and counts bytes."""
    first, second, counts = runs
    chosen = [*known[first : first + (counts >> 4)], *known[second : second + (counts & 15)]]
    endpoints = [value for kind, value in chosen if kind == "endpoint" and value is not None]
    configuration = {key: text for kind, value in reversed(chosen) if kind == "configuration" for key, text in value}
    return endpoints or None, list(configuration.items()) or None


def _option_boundaries(options: bytes) -> tuple[int, ...]:
    """Item n is the number of bytes before option n; options that give no value count 0. The last item is the sum."""
    sizes, at = [0], 0
    while len(options) - at >= 3:
        size, kind = struct.unpack_from(">HB", options, at)
        if size < 1 or at + 3 + size > len(options):
            break
        sizes.append(sizes[-1] + (3 + size if kind == CONFIGURATION or kind in _ENDPOINTS else 0))
        at += 3 + size
    return tuple(sizes)


def referred_option_bytes(data: Any, starts: Any, begin: int, end: int) -> Any:
    """int64[n]: bytes of the options that the entries at data[starts[i]] refer to; data[begin:end] is the SD payload."""
    places = np.array(_option_boundaries(_options_of_payload(data, begin, end)), np.int64)
    counts = data[starts + 3].astype(np.int64)
    total = np.zeros(len(starts), np.int64)
    for index, count in ((1, counts >> 4), (2, counts & 15)):
        first = data[starts + index].astype(np.int64)
        last = len(places) - 1
        total += places[np.minimum(first + count, last)] - places[np.minimum(first, last)]
    return total


def _options_of_payload(data: Any, begin: int, end: int) -> bytes:
    """The options of the SD payload data[begin:end]."""
    return _split_payload(data[begin:end].tobytes())[1]


def _split_payload(payload: bytes) -> tuple[bytes, bytes]:
    """The entries and the options of an SD payload, as far as they were captured."""
    at = 8 + int.from_bytes(payload[4:8], "big")
    return payload[8:at], payload[at + 4 : at + 4 + int.from_bytes(payload[at : at + 4], "big")]


def resolve_entry_options(data: Any, starts: Any, begins: Any, ends: Any) -> dict[str, list[Any]]:
    """The columns `endpoints` and `configuration` of the entries at starts[i], with the SD payload data[begins[i]:ends[i]]."""
    endpoints, configurations = [], []
    before, options = None, b""
    known: Sequence[tuple[str, Any]] = ()
    large: dict[bytes, Referred] = {}
    for start, begin, end in zip(starts.tolist(), begins.tolist(), ends.tolist(), strict=True):
        if begin != before:
            before, options = begin, _options_of_payload(data, begin, end)
            large = {}
            known = _parse_sd_options(options) if len(options) > REMEMBERED else ()
        runs = data[start + 1 : start + 4].tobytes()
        if len(options) <= REMEMBERED:
            listed, configured = _parse_referred_options(runs, options)
        else:
            if runs not in large:
                large[runs] = _select_referred_options(runs, known)
            listed, configured = large[runs]
        endpoints.append(listed)
        configurations.append(configured)
    return {"endpoints": endpoints, "configuration": configurations}


def offered_ports(payload: bytes) -> Sequence[tuple[str, int]]:
    """(transport, port) of each endpoint at which an SD payload says that messages arrive, in the order of the options.

    Those of services that are offered; the UDP ports to which a client wants events; the multicast ports to which it or a server
    that acknowledges says that they go. An entry with the time to live 0 takes back what it names.
    """
    return _remembered_ports(payload) if len(payload) <= REMEMBERED else _find_offered_ports(payload)


def _find_offered_ports(payload: bytes) -> Sequence[tuple[str, int]]:
    entries, options = _split_payload(payload)
    starts = range(0, len(entries) - ENTRY_BYTES + 1, ENTRY_BYTES)
    runs = {
        (entries[at], entries[at + 1 : at + 4])
        for at in starts
        if entries[at] in _NAMED_PORTS and any(entries[at + 9 : at + 12])
    }  # of many entries few differ: type, index1, index2 and counts
    referred = {
        (i, entry)
        for entry, (first, second, counts) in runs
        for at, n in ((first, counts >> 4), (second, counts & 15))
        for i in range(at, at + n)
    }
    known = _parse_sd_options(options) if referred else ()
    found = [(entry, known[i][1]) for i, entry in sorted(referred) if i < len(known) and known[i][0] == "endpoint"]
    return tuple(
        dict.fromkeys(
            (one["transport"], one["port"])
            for entry, one in found
            if one is not None and (one["kind"], one["transport"]) in _NAMED_PORTS[entry]
        )
    )


_remembered_ports = lru_cache(maxsize=1024)(_find_offered_ports)
