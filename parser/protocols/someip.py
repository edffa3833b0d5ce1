"""SOME/IP and SOME/IP-SD over UDP and TCP. One datagram can hold several messages.

Layout: AUTOSAR PRS_SOMEIPProtocol (header, TP segments) and PRS_SOMEIPServiceDiscovery (entries, options).

Each TP segment gives a row; the 4 bytes of its TP header are not part of the payload. The message that the segments make is one
more row. If a sender has one session id for all messages, and the capture lacks a middle segment of the first one, nothing in the
segments tells, and a segment of the next message may take its place (ADR 40). Over TCP messages follow each other in a stream.
Magic cookies are messages, so a stream is also found by them.
A port that an OfferService entry names in an endpoint option has SOME/IP from the next packet on. So has a UDP port to which
events go: SubscribeEventgroup and its acknowledgment name it. Other hosts may use the same port for something else: a datagram
that does not begin with a plausible header, and a stream in which none is found, give no rows and no faults there.

Not read: the serialized fields of a payload; options for load balancing, and those that the standard does not define.
"""

from __future__ import annotations

from typing import Any

import dpkt

from pcaplake.parser.engine.key_spaces import KeySpace
from pcaplake.parser.engine.layer import Column, Layer, Rows, Term
from pcaplake.parser.engine.learned import Learned
from pcaplake.parser.engine.pieces import LONGEST_MESSAGE, SECOND, Fragments

from .ethernet import (
    IP_DST,
    IP_KEY,
    IP_SRC,
    TCP,
    TCP_PORT,
    UDP,
    UDP_PORT,
    Bare,
    Empty,
    tcp_stream,
    unrelated,
)
from .rtps import DATAGRAM as RTPS_DATAGRAM
from .sd_options import ACK, FIND, OFFER, SUBSCRIBE, offered_ports, referred_option_bytes, resolve_entry_options

TP_SEGMENT = KeySpace("SOME/IP-TP", 1)
IN_STREAM = KeySpace("SOME/IP in a stream", 1)
ON_OFFERED_PORT = KeySpace("SOME/IP on an offered port", 1)
SERVICE_DISCOVERY = KeySpace("SOME/IP-SD message", 1)
SD_BODY = KeySpace("SOME/IP-SD", 1)
SD_OPTION_LIST = KeySpace("SOME/IP-SD options", 1)
SD_MESSAGE_ID = 0xFFFF_8100


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


def _is_plausible(header: Any) -> Any:
    """Whether bytes may be the header of a request, notification, response or error, also of TP, or of an acknowledgment.

    A length that is too small is a fault of a header that is right otherwise.
    """
    kind = header.message_type
    return (
        (header.length <= LONGEST_MESSAGE)
        & (header.protocol_version == 1)
        & ((kind & 0x1F) <= 2)
        & ((kind & 0x82) <= 0x80)  # 0x80 and 0x81 are answers, 0x82 is nothing
        & ((kind & 0x60) <= 0x40)  # an acknowledgment has no segments
    )


SOMEIP = Layer(
    SomeIp,
    under=[UDP_PORT[30490], IN_STREAM[0], ON_OFFERED_PORT[0]],
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
# a TCP segment of a port that has SOME/IP, as a profile or service discovery says
SOMEIP_TCP_SEGMENT = Layer(
    Bare, name="someip_tcp_segment", protocol="tcp", under=[TCP_PORT[0:0]], header=lambda h: 0, bare=True
)
NOT_SOMEIP = unrelated("not_someip", "udp")
OFFERED_DATAGRAM = Layer(  # on a port that service discovery offers
    SomeIp,
    name="someip_datagram",
    protocol="udp",
    under=[UDP_PORT[0:0]],
    header=lambda h: 0,
    check=_is_plausible,
    otherwise=NOT_SOMEIP,
    selects=[ON_OFFERED_PORT(lambda h: 0)],
)
LAYERS = (
    SOMEIP,
    SD,
    SD_ENTRY,
    SD_OPTIONS,
    SD_OPTION,
    SOMEIP_TP_SEGMENT,
    SOMEIP_TCP_SEGMENT,
    OFFERED_DATAGRAM,
    NOT_SOMEIP,
)

# -- what is put together ------------------------------------------------------------------------------------------
PORT_SPACES = {"udp": UDP_PORT, "tcp": TCP_PORT}
PORTS = dict(src_port=(UDP.sport, TCP.sport), dst_port=(UDP.dport, TCP.dport))
_TP_HEADER = Term(SOMEIP, SomeIp.__hdr_len__, 32, 0xFFFFFFFF)  # present where the TP flag is set and a body follows
SOMEIP_STREAM = tcp_stream(
    "someip_stream",
    SOMEIP_TCP_SEGMENT,
    selects=[IN_STREAM(lambda h: 0)],
    frame=SOMEIP,
    mixed=True,
    plausible=_is_plausible,
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
    stated=(SOMEIP.length - 12,),
    timeout_ns=5 * SECOND,
)
REASSEMBLIES = (SOMEIP_STREAM, SOMEIP_TP)
# a port below 1024 is that of a service which everyone knows (RFC 6335), whatever a capture says
LEARNED_PORTS = Learned(
    source="service discovery",
    read=lambda message: [(PORT_SPACES[transport], port) for transport, port in offered_ports(message)],
    leads={UDP_PORT: OFFERED_DATAGRAM, TCP_PORT: SOMEIP_TCP_SEGMENT},
    over=(RTPS_DATAGRAM,),
    least=1024,
)

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
            **{**_MESSAGE, "message_type": SOMEIP.message_type & 0xDF},  # without the flag of a TP segment
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
        finish=resolve_entry_options,
        made=("endpoints", "configuration"),
        repeats=referred_option_bytes,
        learned=LEARNED_PORTS,
    ),
)
