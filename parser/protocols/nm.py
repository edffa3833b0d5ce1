"""Network management of AUTOSAR in UDP and CAN, on the ports and identifiers that a profile names.

Layout: AUTOSAR SWS UDPNetworkManagement and CANNetworkManagement; Wireshark packet-autosar-nm.c.

The first two bytes are the control bit vector and the id of the source node, in either order, and each can be missing. The bits
that have columns have had their meaning since AUTOSAR 4.1.

Not read: what the user data means; messages in PDU transport and FlexRay.
"""

from __future__ import annotations

import dpkt

from pcaplake.parser.engine.layer import Column, Layer, Rows

from .can_content import ANY_IDENTIFIER, CAN_BUS, CAN_ID, CARRIERS, EXTENDED_WORDS, STANDARD_WORDS
from .ethernet import IP_DST, IP_SRC, UDP, UDP_PORT

_BITS = {
    "control": (
        *(("_manufacturer", 1), ("partial_network", 1), ("partial_network_learning", 1), ("active_wakeup", 1)),
        *(("coordinator_sleep_ready", 1), ("_coordinator", 2), ("repeat_message", 1)),
    )
}
_CONTROL, _NODE = ("control", "B", 0), ("node", "B", 0)


def _layer(name: str, *fields: tuple[str, str, int]) -> Layer:
    bits = _BITS if _CONTROL in fields else {}
    packet: type[dpkt.Packet] = type(name, (dpkt.Packet,), {"__hdr__": fields, "__bit_fields__": bits})
    return Layer(packet, name=name, protocol="nm", under=[UDP_PORT[:0], ANY_IDENTIFIER])


NM, NODE_FIRST = _layer("nm", _CONTROL, _NODE), _layer("nm_node_first", _NODE, _CONTROL)
NO_NODE, NO_CONTROL = _layer("nm_no_node", _CONTROL), _layer("nm_no_control", _NODE)
LAYERS = (NM, NODE_FIRST, NO_NODE, NO_CONTROL)
PROTOCOLS = {layer.name: layer for layer in LAYERS}
CAN_PROTOCOLS = {
    name: [(words, layer) for words in (STANDARD_WORDS, EXTENDED_WORDS)] for name, layer in PROTOCOLS.items()
}


def _rows(layer: Layer) -> Rows:
    columns: dict[str, Column] = dict(
        transport=(*(carrier("can") for carrier in CARRIERS), UDP("udp")),
        bus=CAN_BUS,
        ip_src=IP_SRC,
        ip_dst=IP_DST,
        src_port=UDP.sport,
        dst_port=UDP.dport,
        can_id=CAN_ID,
    )
    if layer is not NO_CONTROL:
        columns["control"] = layer.control
        columns |= {name: getattr(layer, name) for name, _ in _BITS["control"] if not name.startswith("_")}
    if layer is not NO_NODE:
        columns["source_node"] = layer.node
    return Rows("nm_messages", layer, columns)


ROWS = tuple(map(_rows, LAYERS))
