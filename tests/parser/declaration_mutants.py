"""What protocols declare, declared otherwise: a capture of test_mutants.py must be decoded otherwise.

`CLAIMS`: a key leads to another layer, or to none. `column_mutants`: a column reads a bit beside the truth.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from pcaplake.parser.engine.layer import LINKTYPE, PACKET, Case, KeySpace, Layer, Rows, column_cases
from pcaplake.parser.protocols import can, caneth, ethernet, flexray, lin, macsec, someip, tecmp

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
    "CAN-ETH": (ethernet.UDP_PORT, 11898, None),
    "MACsec": (ethernet.ETHERTYPE, 0x88E5, None),
    "MACsec without encryption": (macsec.PROTECTION, 0, None),
    "MACsec: changed data is clear": (macsec.PROTECTION, 1, macsec.SECURE_DATA),
    "ARP": (ethernet.ETHERTYPE, 0x0806, None),
    "ICMP": (ethernet.IP_PROTOCOL, 1, None),
    "ICMP for IPv6": (ethernet.IP_PROTOCOL, 58, None),
    "IGMP": (ethernet.IP_PROTOCOL, 2, None),
    "DHCP": (ethernet.UDP_PORT, 67, None),
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
    *(rows for rows in tecmp.ROWS if rows.table in ("lin_frames", "flexray_frames")),
)
SHARED = ("source", "direction")  # declared once for all kinds of CAN frames


def column_mutants(rows: Rows) -> Iterator[tuple[str, Rows]]:
    """For each case of each column, rows in which it reads one bit further on, or has another constant. Not of texts."""
    for name, column in rows.columns.items():
        cases = column_cases(column)  # type: ignore[arg-type]
        for i, case in enumerate(cases):
            if name not in SHARED and case.term.place != PACKET and case.kind is None:
                changed = (*cases[:i], _mutated_case(case), *cases[i + 1 :])
                yield f"{name}, case {i}", dataclasses.replace(rows, columns={**rows.columns, name: changed})


def _mutated_case(case: Case) -> Case:
    term = case.term
    if term.mul == 0 and case.names is not None:
        return dataclasses.replace(case, names={0: "another"})
    changes = {"add": 1 - term.add} if term.mul == 0 else {"shift": term.shift + 1}
    return dataclasses.replace(case, term=dataclasses.replace(term, **changes))
