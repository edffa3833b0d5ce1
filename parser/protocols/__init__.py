"""The list of all layers and rows that the parser knows. A new protocol adds its module's `LAYERS` and `ROWS` here."""

from __future__ import annotations

from . import (
    asam_cmp,
    avtp,
    can,
    caneth,
    canopen,
    containers,
    control,
    dlt,
    doip,
    ethernet,
    flexray,
    homeplug,
    hsfz,
    isotp,
    j1939,
    lin,
    macsec,
    mqtt,
    nm,
    packets,
    pdu_transport,
    ptp,
    rtps,
    someip,
    tecmp,
    uds,
    v2g,
    xcp,
)

LAYERS = (
    *containers.LAYERS,
    *ethernet.LAYERS,
    *control.LAYERS,
    *macsec.LAYERS,
    *ptp.LAYERS,
    *can.LAYERS,
    *lin.LAYERS,
    *flexray.LAYERS,
    *tecmp.LAYERS,
    *asam_cmp.LAYERS,
    *avtp.LAYERS,
    *caneth.LAYERS,
    *pdu_transport.LAYERS,
    *someip.LAYERS,
    *doip.LAYERS,
    *hsfz.LAYERS,
    *isotp.LAYERS,
    *uds.LAYERS,
    *dlt.LAYERS,
    *rtps.LAYERS,
    *mqtt.LAYERS,
    *v2g.LAYERS,
    *homeplug.LAYERS,
    *nm.LAYERS,
    *xcp.LAYERS,
    *j1939.LAYERS,
    *canopen.LAYERS,
)

# names of the layers that most packets of vehicles have: the walk has compiled code for each, and tables for all others
_FREQUENT = """
    block epb pcap pcapng ethernet sll sll2 vlan ip ipv6 udp tcp socketcan can canfd canfd_unmarked lin_header lin
    flexray flexray_id flexray_frame capture_module tecmp tecmp_entry tecmp_can tecmp_canfd tecmp_lin_checksum
    tecmp_lin tecmp_flexray tecmp_ethernet cmp cmp_message cmp_payload cmp_can cmp_canfd cmp_lin
    avtp ntscf acf acf_can acf_can_brief acf_can_v2 acf_can_brief_v2 caneth caneth_frame pdu someip_datagram someip someip_sd
    someip_sd_entry
"""
FREQUENT = frozenset(_FREQUENT.split())

ROWS = (
    *packets.ROWS,
    *can.ROWS,
    *lin.ROWS,
    *flexray.ROWS,
    *tecmp.ROWS,
    *asam_cmp.ROWS,
    *avtp.ROWS,
    *caneth.ROWS,
    *pdu_transport.ROWS,
    *someip.ROWS,
    *doip.ROWS,
    *uds.ROWS,
    *ptp.ROWS,
    *dlt.ROWS,
    *macsec.ROWS,
    *v2g.ROWS,
    *homeplug.ROWS,
    *nm.ROWS,
    *xcp.ROWS,
    *j1939.ROWS,
    *canopen.ROWS,
)

# what is put together from several packets; a kind comes after those that carry its pieces
REASSEMBLIES = (
    *asam_cmp.REASSEMBLIES,
    *ethernet.REASSEMBLIES,
    *avtp.REASSEMBLIES,
    *pdu_transport.REASSEMBLIES,
    *someip.REASSEMBLIES,
    *doip.REASSEMBLIES,
    *hsfz.REASSEMBLIES,
    *isotp.REASSEMBLIES,
    *dlt.REASSEMBLIES,
    *mqtt.REASSEMBLIES,
    *v2g.REASSEMBLIES,
    *xcp.REASSEMBLIES,
    *j1939.REASSEMBLIES,
)

# protocols that a profile can assign to a port, and the layer that finds them there
UDP_PROTOCOLS = {
    "someip": someip.SOMEIP,
    "doip": doip.DOIP,
    "hsfz": hsfz.HSFZ,
    "dlt": dlt.MESSAGE,
    "rtps": rtps.RTPS,
    "cmp": asam_cmp.CMP,
    "caneth": caneth.CANETH,
    "v2gtp": v2g.V2GTP,
    "pdu": pdu_transport.PDU,
    "pdu_short": pdu_transport.PDU_SHORT,
    **nm.PROTOCOLS,
    "xcp": xcp.XCP,
}
TCP_PROTOCOLS = {
    "someip": someip.SOMEIP_TCP_SEGMENT,
    "doip": doip.TCP_SEGMENT,
    "hsfz": hsfz.TCP_SEGMENT,
    "dlt": dlt.TCP_SEGMENT,
    "mqtt": mqtt.TCP_SEGMENT,
    "v2gtp": v2g.TCP_SEGMENT,
    "pdu": pdu_transport.TCP_SEGMENT,
    "pdu_short": pdu_transport.SHORT_TCP_SEGMENT,
    "xcp": xcp.TCP_SEGMENT,
}

# protocols that a profile can assign to CAN identifiers, and the layers that ranges of identifier words lead to
CAN_PROTOCOLS = {**nm.CAN_PROTOCOLS, **xcp.CAN_PROTOCOLS, **j1939.CAN_PROTOCOLS, **canopen.CAN_PROTOCOLS}
# what a port leads to that its protocol needs to know, to tell who sends: key spaces of the port, and layers
PORT_ENDS = {"xcp": xcp.ENDS}

# keys that a profile can give to another layer: setting -> value -> claims
CAN_IDENTIFIERS = {"big-endian": (), "little-endian": (can.LITTLE_ENDIAN_IDENTIFIERS,)}
