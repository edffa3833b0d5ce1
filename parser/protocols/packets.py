"""The table `packets`: one row per captured packet, whatever it carries. Addresses and ports are the outermost ones.

Layout: that of the protocols from which the columns come.

Not read: nothing; with `raw`, a row has all bytes.
"""

from __future__ import annotations

from pcaplake.parser.engine.kernels import encoding
from pcaplake.parser.engine.layer import Rows, packet_field

from .can import DIRECTION
from .ethernet import (
    AUTHENTICATION,
    ETHERNET,
    EXTENSION,
    FRAGMENT6,
    IP_DST,
    IP_FRAGMENTED,
    IP_SRC,
    IPV4,
    IPV6,
    TCP,
    TCP_FIRST,
    TCP_FLAGS,
    UDP,
    UDP_FIRST,
    VLAN,
)

# below 0x0600 the field is a length (IEEE 802.3); a tagged frame has its type after the last tag
_TYPES = ((0x0600, 0x80FF), (0x8101, 0x88A7), (0x88A9, 0x90FF), (0x9101, 0xFFFF))
_ETH_TYPE = (
    VLAN.type.last.where(VLAN.type.last >= 0x0600),
    *(ETHERNET.type.where(ETHERNET.type.between(*types)) for types in _TYPES),
)
ROWS = (
    Rows(
        "packets",
        None,
        dict(
            link_type=packet_field(encoding.LINK),
            captured_len=packet_field(encoding.CAPTURED),
            original_len=packet_field(encoding.ORIGINAL),
            direction=DIRECTION,
            eth_src=ETHERNET.src.text("mac"),
            eth_dst=ETHERNET.dst.text("mac"),
            eth_type=_ETH_TYPE,
            vlan_ids=VLAN.id.run,
            vlan_pcp=VLAN.pcp,
            ip_version=(IPV4(4), IPV6(6)),
            ip_src=IP_SRC,
            ip_dst=IP_DST,
            ip_proto=(
                IPV4.p,
                UDP(17),
                TCP(6),
                FRAGMENT6.nxt,
                AUTHENTICATION.nxt.latest,
                EXTENSION.nxt.latest,
                IPV6.nxt,
            ),
            ip_ttl=(IPV4.ttl, IPV6.hlim),
            ip_dscp=(IPV4.tos >> 2, IPV6.tclass >> 2),
            ip_fragment=IP_FRAGMENTED,
            src_port=(UDP.sport, TCP.sport, UDP_FIRST.sport, TCP_FIRST.sport),
            dst_port=(UDP.dport, TCP.dport, UDP_FIRST.dport, TCP_FIRST.dport),
            tcp_flags=TCP_FLAGS,
            tcp_seq=(TCP.seq, TCP_FIRST.seq),
            tcp_ack=(TCP.ack, TCP_FIRST.ack),
            l4_payload_len=(UDP.body_len, TCP.body_len, UDP_FIRST.body_len, TCP_FIRST.body_len),
            protocol=packet_field(encoding.DEEPEST).names({}),
        ),
    ),
)
