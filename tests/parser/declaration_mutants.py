"""What protocols declare, declared otherwise: a capture of test_mutants.py must be decoded otherwise.

`CLAIMS`: a key leads to another layer, or to none. `column_mutants`: columns read a bit beside the truth.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from pcaplake.parser.engine.key_spaces import LINKTYPE, KeySpace
from pcaplake.parser.engine.layer import BODY, PACKET, Case, Column, FixedBytes, Layer, Rows, column_cases
from pcaplake.parser.protocols import (
    asam_cmp,
    avtp,
    can,
    caneth,
    canopen,
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
    pdu_transport,
    ptp,
    rtps,
    someip,
    tecmp,
    uds,
    v2g,
    xcp,
)

CLAIMS: Mapping[str, tuple[KeySpace, int, Layer | None]] = {
    "a first fragment is a later one": (ethernet.IP_FRAGMENT, 0x2000, ethernet.IPV4_LATER),
    "a first fragment is no fragment": (ethernet.IP_FRAGMENT, 0x2000, None),
    "a later fragment is a first one": (ethernet.IP_FRAGMENT, 0x00B9, ethernet.IPV4_FIRST),
    "IPv6: a first fragment is no fragment": (ethernet.IP6_FRAGMENT, 1, None),
    "IPv6: a later fragment is a first one": (ethernet.IP6_FRAGMENT, 0x05A8, ethernet.IPV6_FIRST),
    "the first part of UDP is a whole one": (ethernet.FIRST_FRAGMENT_OF, 17, ethernet.UDP),
    "PPI": (LINKTYPE, 192, None),
    "Ethernet in PPI": (LINKTYPE, 1, None),
    "802.1ad": (ethernet.ETHERTYPE, 0x88A8, None),
    "the older type of TECMP": (ethernet.ETHERTYPE, 0x2090, None),
    "72 captured bytes are FD": (can.CAPTURED, 72, None),
    "an error frame": (can.ERROR_FLAG, 1, None),
    "XL": (can.XL_FLAG, 1, None),
    "the error flag of XL is one": (can.ERROR_FLAG, 1, can.ERROR),
    "LIN": (LINKTYPE, 212, None),
    "a LIN event": (lin.KIND, 3, None),
    "a LIN frame without response must have data": (lin.CAPTURED, 8, None),
    "a LIN frame without response has no data": (lin.REST, 0, lin.NO_RESPONSE),
    "a LIN frame with response may lack its data": (lin.NO_RESPONSE_FLAG, 0, None),
    "FlexRay": (LINKTYPE, 210, None),
    "a FlexRay symbol": (flexray.KIND, 2, None),
    "a FlexRay frame may lack its data": (flexray.HAS_DATA, 1, None),
    "a null frame cannot lack its data": (flexray.CAPTURED, 7, None),
    "a null frame has no data": (flexray.REST, 0, flexray.BARE_NULL_FRAME),
    "FlexRay in TECMP": (tecmp.DATA, 8, None),
    "TECMP: a remote frame has data": (tecmp.REMOTE, 2, None),
    "TECMP: Ethernet": (tecmp.DATA, 0x80, None),
    "TECMP: raw Ethernet": (tecmp.DATA, 0x81, None),
    "TECMP: Ethernet of 10BASE-T1S": (tecmp.DATA, 0x82, None),
    "TECMP: replay data": (tecmp.MESSAGE, 10, tecmp.OTHER_ENTRY),
    "TECMP: other data": (tecmp.DATA, 0x20, None),
    "TECMP: a bus status": (tecmp.MESSAGE, 2, tecmp.OTHER_ENTRY),
    "TECMP: a status": (tecmp.MESSAGE, 1, None),
    "TECMP: a device id that begins with 1": (tecmp.MODULE, 16, asam_cmp.CMP),
    "ASAM CMP": (tecmp.MODULE, 1, tecmp.TECMP),
    "ASAM CMP: a status": (asam_cmp.MESSAGE_KIND, 3, None),
    "ASAM CMP: a segment is a message": (asam_cmp.PAYLOAD, 0x408, asam_cmp.CMP_ETHERNET),
    "ASAM CMP: a payload that is invalid": (asam_cmp.PAYLOAD, 0, asam_cmp.OTHER_PAYLOAD),
    "a remote frame with a DLC above 8": (can.SHORT_REMOTE_LEN, 12, can.UNMARKED_FD),
    "CAN FD of 9 bytes": (can.FD_LENGTH, 9, None),
    "TECMP: CAN FD of 11 bytes": (tecmp.FD_LENGTH, 11, None),
    "ASAM CMP: a length that contradicts the DLC": (asam_cmp.CAN_LENGTHS, 0x0308, None),
    "ASAM CMP: a length that contradicts the DLC of CAN FD": (asam_cmp.FD_LENGTHS, 0x0909, None),
    "TECMP: CAN without bytes": (tecmp.EMPTY, 2, None),
    "TECMP: CAN FD without bytes": (tecmp.EMPTY, 3, None),
    "TECMP: LIN without bytes": (tecmp.EMPTY, 4, None),
    "TECMP: FlexRay without bytes": (tecmp.EMPTY, 8, None),
    "TECMP: other data without bytes": (tecmp.EMPTY, 0x20, None),
    "ASAM CMP: other data": (asam_cmp.PAYLOAD, 7, None),
    "ASAM CMP: Ethernet": (asam_cmp.PAYLOAD, 8, None),
    "AVTP": (ethernet.ETHERTYPE, 0x22F0, None),
    "AVTP in UDP": (ethernet.UDP_PORT, 17220, None),
    "AVTP: other subtypes": (avtp.SUBTYPE, 0xFA, None),
    "ACF: CAN longer than it can be": (avtp.MESSAGE, 2 << 9 | 19, None),
    "ACF: a part of a CAN XL frame is one": (avtp.XL_PART, 0x1000, avtp.ACF_XL),
    "CAN-ETH": (ethernet.UDP_PORT, 11898, None),
    "MACsec": (ethernet.ETHERTYPE, 0x88E5, None),
    "MACsec without an SCI": (macsec.TAG, 0, macsec.SCI_TAG),
    "MACsec with an SCI": (macsec.TAG, 1, macsec.PLAIN_TAG),
    "MACsec without encryption": (macsec.PROTECTION, 0, None),
    "MACsec: changed data is clear": (macsec.PROTECTION, 1, macsec.SECURE_DATA),
    "gPTP": (ethernet.ETHERTYPE, 0x88F7, None),
    "PTP, event messages": (ethernet.UDP_PORT, 319, None),
    "PTP, general messages": (ethernet.UDP_PORT, 320, None),
    "ARP": (ethernet.ETHERTYPE, 0x0806, None),
    "ICMP": (ethernet.IP_PROTOCOL, 1, None),
    "ICMP for IPv6": (ethernet.IP_PROTOCOL, 58, None),
    "IGMP": (ethernet.IP_PROTOCOL, 2, None),
    "DHCP": (ethernet.UDP_PORT, 67, None),
    "DHCP for IPv6": (ethernet.UDP_PORT, 547, None),
    "a redundancy tag": (ethernet.ETHERTYPE, 0xF1C1, None),
    "LLDP": (ethernet.ETHERTYPE, 0x88CC, None),
    "DoIP over UDP": (ethernet.UDP_PORT, 13400, None),
    "DoIP over TCP": (ethernet.TCP_PORT, 13400, None),
    "DoIP in a stream": (doip.IN_STREAM, 0, None),
    "an announcement of DoIP": (doip.TYPE, 0x0004, None),
    "a diagnostic message of DoIP": (doip.TYPE, 0x8001, None),
    "an acknowledgment of DoIP": (doip.TYPE, 0x8002, None),
    "a DoIP message of another type": (doip.OTHER_TYPE, 0, None),
    "UDS": (doip.DIAGNOSTIC_MESSAGE, 0, None),
    "a UDS service with a sub-function": (uds.SERVICE, 0x3E, uds.PLAIN),
    "a UDS service with an identifier": (uds.SERVICE, 0x62, uds.PLAIN),
    "a UDS service without either": (uds.SERVICE, 0x34, None),
    "a UDS message of one byte": (uds.BYTES, 1, None),
    "a negative response": (uds.REFUSAL, 0x7F, uds.PLAIN),
    "a diagnostic message of HSFZ": (hsfz.CONTROL, 1, None),
    "a single frame of ISO-TP": (isotp.PCI, 0x0322, None),
    "a long single frame of ISO-TP": (isotp.CAN_FD_BYTES, 48, None),
    "an escaped length of ISO-TP": (isotp.PCI, 0x0028, None),
    "a first frame of ISO-TP": (isotp.PCI, 0x1014, None),
    "a consecutive frame of ISO-TP": (isotp.PCI, 0x215A, None),
    "a PTP message with a time": (ptp.MESSAGE_TYPE, 0x18, ptp.UNTIMED),
    "a response of PTP": (ptp.MESSAGE_TYPE, 0x09, ptp.UNTIMED),
    "a PTP message without a time": (ptp.MESSAGE_TYPE, 0x1C, None),
    "DLT over UDP": (ethernet.UDP_PORT, 3490, None),
    "DLT over TCP": (ethernet.TCP_PORT, 3490, None),
    "DLT in a stream": (dlt.IN_STREAM, 0, None),
    "DLT of version 2": (dlt.VERSION, 2, None),
    "DLT of a version that there is not": (dlt.VERSION, 7, None),
    "a serial header of DLT": (dlt.BEGINNING, dlt.SERIAL_WORD, None),
    "DLT in which only a session id follows": (dlt.PARTS, 8, dlt.ECU),
    "DLT in which only a time follows": (dlt.PARTS, 16, dlt.SESSION),
    "DLT in which only an extended header follows": (dlt.PARTS, 1, None),
    "a DLT message id": (dlt.PARTS, 2, dlt.LITTLE),
    "a verbose message of DLT": (dlt.MODE, 0, None),
    "SOME/IP on an offered port": (someip.ON_OFFERED_PORT, 0, None),
    "RTPS": (ethernet.UDP_PORT, 7400, None),
    "what begins like RTPS": (rtps.BEGINNING, 0, None),
    "RTPS on a port of the profile": (ethernet.UDP_PORT, 7650, None),
    "MQTT": (ethernet.TCP_PORT, 1883, None),
    "MQTT in a stream": (mqtt.IN_STREAM, 0, None),
    "SDP of V2GTP": (ethernet.UDP_PORT, 15118, None),
    "an SDP request": (v2g.TYPE, 0x9000, None),
    "an SDP response": (v2g.TYPE, 0x9001, None),
    "V2GTP of another type": (v2g.OTHER_TYPE, 0, None),
    "V2GTP in a stream": (v2g.IN_STREAM, 0, None),
    "HomePlug AV": (ethernet.ETHERTYPE, 0x88E1, None),
    "HomePlug AV without fragments": (homeplug.VENDOR, 1, None),
    "HomePlug AV with fragments": (homeplug.FORM, 0, None),
    "SLAC begins": (homeplug.TYPE, 0x6064, None),
    "SLAC without a signature": (homeplug.UNSIGNED, 0x6076, None),
    "SLAC with a signature": (homeplug.SIGNED, 0, None),
    "HomePlug AV of another type": (homeplug.OTHER_TYPE, 0, None),
    "PDUs in a stream": (pdu_transport.IN_STREAM, 0, None),
    "PDUs with short headers in a stream": (pdu_transport.SHORT_IN_STREAM, 0, None),
    "XCP in a stream": (xcp.IN_STREAM, 0, None),
    "an error of XCP": (xcp.PID, 0xFE, xcp.DATA),
    "measured values of XCP": (xcp.PID, 3, None),
    "a message to all of J1939": (j1939.CONTROL, 32, None),
    "a message to one of J1939": (j1939.CONTROL, 16, None),
    "an acknowledgment of J1939": (j1939.CONTROL, 19, None),
    "an abort of J1939": (j1939.CONTROL, 255, None),
    "an abort of J1939 by the receiver": (j1939.OTHER_END, 0, None),
    "a packet of J1939": (j1939.PACKET, 0, None),
    "a message of J1939": (j1939.MESSAGE, 0, None),
    "an SDO download with its data": (canopen.REQUEST, 0x2B, canopen.INDEXED_REQUEST),
    "an SDO upload with its data": (canopen.RESPONSE, 0x4F, canopen.INDEXED_RESPONSE),
    "an SDO upload without a size": (canopen.RESPONSE, 0x4E, canopen.EXPEDITED_RESPONSE),
    "an SDO request that begins a transfer": (canopen.REQUEST, 0x40, canopen.OTHER_REQUEST),
    "a segment of SDO": (canopen.REQUEST, 0x60, canopen.INDEXED_REQUEST),
    "a block transfer of SDO begins": (canopen.REQUEST, 0xC6, canopen.OTHER_REQUEST),
    "a block transfer of SDO ends": (canopen.REQUEST, 0xD5, canopen.INDEXED_REQUEST),
    "an SDO abort": (canopen.RESPONSE, 0x80, canopen.INDEXED_RESPONSE),
    "service discovery": (someip.SERVICE_DISCOVERY, 0, None),
    "hop-by-hop options": (ethernet.IP_PROTOCOL, 0, None),
    "destination options": (ethernet.IP_PROTOCOL, 60, None),
    "a family in the other byte order": (ethernet.ADDRESS_FAMILY, 2, None),
}

# those of which golden bytes tell every column
BUS_ROWS = (
    *(rows for rows in can.ROWS if rows.layer in (can.ERROR, can.XL)),
    *lin.ROWS,
    *flexray.ROWS,
    *caneth.ROWS,
    *(rows for rows in tecmp.ROWS if rows.table != "can_frames"),
    *asam_cmp.ROWS,
    *avtp.ROWS,
    *pdu_transport.ROWS,
    *doip.ROWS,
    *uds.ROWS,
    *ptp.ROWS,
    *dlt.ROWS,
    *macsec.ROWS,
    *v2g.ROWS,
    *homeplug.ROWS,
    *nm.ROWS,
    *xcp.ROWS,
    j1939.ROWS[0],  # whose columns the other ones have, too
    *canopen.ROWS,
)
SHARED = ("source", "direction")  # declared once for all kinds of CAN frames
CARRIED = {  # declared once for all layers that give rows to the table
    "doip_messages": ("src_port", "dst_port", "transport", "doip_version"),
    "dlt_messages": ("src_port", "dst_port", "transport"),
    "v2g_messages": ("src_port", "dst_port", "transport"),
    "homeplug_messages": ("fragment", "fragments", "security_type"),  # 0 without a signature
    "uds_messages": ("transport", "source_address", "target_address", "can_id"),
    "xcp_messages": ("transport", "src_port", "dst_port", "can_id", "counter"),
    "nm_messages": ("transport", "src_port", "dst_port", "can_id"),
    "j1939_messages": ("can_id",),
    "canopen_messages": ("can_id", "node_id", "bus_time_ns"),
}


def column_mutants(rows: Rows) -> Iterator[tuple[dict[str, str], Rows]]:
    """Rows in which one case of each column reads one bit further on, or has another constant, until each case had its turn.

    Yields the names of the mutants by column. Not of texts. Rows that find each other are changed in one column at a time,
    because one column decides about others.
    """
    columns: dict[str, list[tuple[str, Column]]] = {}
    for name, column in rows.columns.items():
        cases = column_cases(column) if not isinstance(column, FixedBytes) else ()  # type: ignore[arg-type]
        for i, case in enumerate(cases):
            shared = (*SHARED, *CARRIED.get(rows.table, ()))
            if name not in shared and case.term.place not in (PACKET, BODY) and case.kind is None:
                changed = (*cases[:i], _mutated_case(case), *cases[i + 1 :])
                columns.setdefault(name, []).append((f"{name}, case {i}", changed))
    if rows.pairing is not None:
        turns = [{name: mutant} for name, mutants in columns.items() for mutant in mutants]
    else:
        most = max(map(len, columns.values()), default=0)
        turns = [{name: mutants[i] for name, mutants in columns.items() if i < len(mutants)} for i in range(most)]
    for turn in turns:
        changed_columns = {name: column for name, (_, column) in turn.items()}
        mutant = dataclasses.replace(rows, columns={**rows.columns, **changed_columns})
        yield {name: label for name, (label, _) in turn.items()}, mutant


def _mutated_case(case: Case) -> Case:
    term = case.term
    if term.mul == 0 and case.names is not None:
        return dataclasses.replace(case, names={0: "another"})
    changes = {"add": 1 - term.add} if term.mul == 0 else {"shift": term.shift + 1}
    return dataclasses.replace(case, term=dataclasses.replace(term, **changes))
