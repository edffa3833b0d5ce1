"""SOME/IP and SOME/IP-SD over UDP and TCP. One datagram can hold several messages.

AUTOSAR PRS_SOMEIPProtocol (header, TP segments) and PRS_SOMEIPServiceDiscovery (entries, options).
Each TP segment gives a row; the 4 bytes of its TP header are not part of the payload. The message that the segments make is one
more row. Over TCP messages follow each other in a stream. Magic cookies are messages, so a stream is also found by them.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import dpkt
import numpy as np

from pcaplake.parser.engine.layer import Column, KeySpace, Layer, Rows, Term
from pcaplake.parser.engine.pieces import LONGEST_MESSAGE, SECOND, Fragments, Stream

from .ethernet import (
    FIN_OR_RST,
    IP_DST,
    IP_KEY,
    IP_SRC,
    SYN,
    TCP,
    TCP_KEY,
    TCP_PORT,
    TCP_STATED,
    UDP,
    UDP_PORT,
    Bare,
    Empty,
)

TP_SEGMENT = KeySpace("SOME/IP-TP", 1)
IN_STREAM = KeySpace("SOME/IP in a stream", 1)
SERVICE_DISCOVERY = KeySpace("SOME/IP-SD message", 1)
SD_BODY = KeySpace("SOME/IP-SD", 1)
SD_OPTION_LIST = KeySpace("SOME/IP-SD options", 1)
SD_MESSAGE_ID = 0xFFFF_8100
FIND, OFFER, SUBSCRIBE, ACK = 0x00, 0x01, 0x06, 0x07


class SomeIp(dpkt.Packet):
    __hdr__ = (
        ("message_id", "I", 0),
        ("length", "I", 8),
        ("client_id", "H", 0),
        ("session_id", "H", 0),
        ("protocol_version", "B", 1),
        ("interface_version", "B", 1),
        ("message_type", "B", 0),
        ("return_code", "B", 0),
    )
    __bit_fields__ = {"message_id": (("service_id", 16), ("method_id", 16))}


class Sd(dpkt.Packet):
    __hdr__ = (("flags", "I", 0), ("entries_len", "I", 0))
    __bit_fields__ = {"flags": (("reboot", 1), ("unicast", 1), ("explicit_initial", 1), ("_reserved", 29))}


class SdEntry(dpkt.Packet):
    __hdr__ = (
        ("type", "B", 0),
        ("index1", "B", 0),
        ("index2", "B", 0),
        ("counts", "B", 0),
        ("service_id", "H", 0),
        ("instance_id", "H", 0),
        ("major_ttl", "I", 0),
        ("minor", "I", 0),
    )
    __bit_fields__ = {
        "major_ttl": (("major", 8), ("ttl", 24)),
        "minor": (("_reserved", 12), ("counter", 4), ("eventgroup", 16)),
    }


class SdOptions(dpkt.Packet):
    __hdr__ = (("options_len", "I", 0),)


class SdOption(dpkt.Packet):
    __hdr__ = (("len", "H", 1), ("type", "B", 0))


SOMEIP = Layer(
    SomeIp,
    under=[UDP_PORT[30490], IN_STREAM[0]],
    header=lambda h: (h.message_type >> 5 & 1) * 4 + 16,
    total=lambda h: h.length + 8,
    check=lambda h: (h.length >= 8) & (h.protocol_version == 1),
    repeats=True,
    measured=True,
    selects=[
        TP_SEGMENT(lambda h: (h.message_type >> 5 & 1) - 1),
        SERVICE_DISCOVERY(lambda h: h.message_id - SD_MESSAGE_ID),
    ],
)
SD_OPTIONS = Layer(
    SdOptions,
    name="someip_sd_options",
    protocol="someip_sd",
    total=lambda h: h.options_len + 4,
    selects=[SD_OPTION_LIST(lambda h: 0)],
)
SD = Layer(
    Sd,
    name="someip_sd",
    under=[SERVICE_DISCOVERY[0]],
    total=lambda h: h.entries_len + 8,
    then=SD_OPTIONS,
    selects=[SD_BODY(lambda h: 0)],
)
SD_ENTRY = Layer(
    SdEntry, name="someip_sd_entry", protocol="someip_sd", under=[SD_BODY[0]], total=lambda h: 16, repeats=True
)
SD_OPTION = Layer(
    SdOption,
    name="someip_sd_option",
    protocol="someip_sd",
    under=[SD_OPTION_LIST[0]],
    total=lambda h: h.len + 3,
    repeats=True,
)
SOMEIP_TP_SEGMENT = Layer(Empty, name="someip_tp_segment", protocol="someip", under=[TP_SEGMENT[0]], header=lambda h: 0)
# a TCP segment of a port that has SOME/IP; only a profile names such ports
SOMEIP_TCP_SEGMENT = Layer(
    Bare, name="someip_tcp_segment", protocol="tcp", under=[TCP_PORT[0:0]], header=lambda h: 0, bare=True
)
LAYERS = (SOMEIP, SD, SD_ENTRY, SD_OPTIONS, SD_OPTION, SOMEIP_TP_SEGMENT, SOMEIP_TCP_SEGMENT)

# -- what is put together ------------------------------------------------------------------------------------------
PORTS = dict(src_port=(UDP.sport, TCP.sport), dst_port=(UDP.dport, TCP.dport))
_TP_HEADER = Term(SOMEIP, SomeIp.__hdr_len__, 32, 0xFFFFFFFF)  # present where the TP flag is set and a body follows
SOMEIP_STREAM = Stream(
    "someip_stream",
    protocol="tcp",
    layers=(SOMEIP_TCP_SEGMENT,),
    key=TCP_KEY,
    selects=[IN_STREAM(lambda h: 0)],
    sequence=TCP.seq,
    starts=SYN,
    ends=FIN_OR_RST,
    stated=TCP_STATED,
    frame=SOMEIP,
    # requests, notifications, responses and errors, also of TP, and acknowledgments
    plausible=lambda h: (
        (h.length >= 8) & (h.length <= LONGEST_MESSAGE) & (h.protocol_version == 1) & ((h.message_type & 0x1F) <= 2)
    ),
)
SOMEIP_TP = Fragments(
    "someip_tp",
    protocol="someip",
    layers=(SOMEIP_TP_SEGMENT,),
    key=(
        *IP_KEY,
        *PORTS.values(),
        SOMEIP.message_id,
        SOMEIP.client_id,
        SOMEIP.session_id,
        SOMEIP.message_type,
    ),
    start=_TP_HEADER & 0xFFFFFFF0,
    more=_TP_HEADER & 1,
    unique=SOMEIP.session_id,
    timeout_ns=5 * SECOND,
)
REASSEMBLIES = (SOMEIP_STREAM, SOMEIP_TP)

# -- options: rare and irregular, and often the same bytes ---------------------------------------------------------
_ENDPOINTS = {
    0x04: ("endpoint", socket.AF_INET),
    0x06: ("endpoint", socket.AF_INET6),
    0x14: ("multicast", socket.AF_INET),
    0x16: ("multicast", socket.AF_INET6),
    0x24: ("sd_endpoint", socket.AF_INET),
    0x26: ("sd_endpoint", socket.AF_INET6),
}
_TRANSPORTS = {6: "tcp", 17: "udp"}
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


def _referred_option_bytes(data: Any, starts: Any, begin: int, end: int) -> Any:
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
    payload: bytes = data[begin:end].tobytes()
    at = 8 + int.from_bytes(payload[4:8], "big")
    return payload[at + 4 : at + 4 + int.from_bytes(payload[at : at + 4], "big")]


def _resolve_entry_options(data: Any, starts: Any, begins: Any, ends: Any) -> dict[str, list[Any]]:
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


_SERVICE = SD_ENTRY.type.between(FIND, OFFER)
_EVENTGROUP = SD_ENTRY.type.between(SUBSCRIBE, ACK)
_MESSAGE: dict[str, Column] = dict(
    ip_src=IP_SRC,
    ip_dst=IP_DST,
    **PORTS,
    transport=(UDP("udp"), TCP("tcp")),
    service_id=SOMEIP.service_id,
    method_id=SOMEIP.method_id,
    client_id=SOMEIP.client_id,
    session_id=SOMEIP.session_id,
    protocol_version=SOMEIP.protocol_version,
    interface_version=SOMEIP.interface_version,
    message_type=SOMEIP.message_type,
    return_code=SOMEIP.return_code,
    is_event=SOMEIP.method_id >> 15,
)
ROWS = (
    Rows(
        "someip_messages",
        SOMEIP,
        dict(**_MESSAGE, length=SOMEIP.length, tp_complete=(SOMEIP.message_type >> 5 & 1).via({1: 0})),
    ),
    Rows(
        "someip_messages",
        SOMEIP_TP.message,
        dict(
            **_MESSAGE,
            length=SOMEIP_TP.message.length + 8,
            tp_complete=SOMEIP_TP.message(True),
            tp_segments=SOMEIP_TP.message.pieces,
        ),
    ),
    Rows(
        "someip_sd_entries",
        SD_ENTRY,
        dict(
            ip_src=IP_SRC,
            ip_dst=IP_DST,
            reboot=SD.reboot,
            unicast=SD.unicast,
            session_id=SOMEIP.session_id,
            entry_type=(
                SD_ENTRY.type.names(
                    {OFFER: "StopOfferService", SUBSCRIBE: "StopSubscribeEventgroup", ACK: "SubscribeEventgroupNack"}
                ).where(SD_ENTRY.ttl == 0),
                SD_ENTRY.type.names(
                    {
                        FIND: "FindService",
                        OFFER: "OfferService",
                        SUBSCRIBE: "SubscribeEventgroup",
                        ACK: "SubscribeEventgroupAck",
                    }
                ),
            ),
            service_id=SD_ENTRY.service_id,
            instance_id=SD_ENTRY.instance_id,
            major_version=SD_ENTRY.major,
            minor_version=SD_ENTRY.minor.where(_SERVICE),
            ttl=SD_ENTRY.ttl,
            eventgroup_id=SD_ENTRY.eventgroup.where(_EVENTGROUP),
            counter=SD_ENTRY.counter.where(_EVENTGROUP),
        ),
        within=SOMEIP,
        finish=_resolve_entry_options,
        made=("endpoints", "configuration"),
        repeats=_referred_option_bytes,
    ),
)
