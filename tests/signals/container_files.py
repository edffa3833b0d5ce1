"""ARXML files of containers with headers: in a CAN frame, in a FlexRay frame behind another PDU, and in PDU transport."""

from __future__ import annotations

from tests.signals.arxml_files import named, package, reference, tag
from tests.signals.frame_files import REPEATED, base, i_signal, mapped, pdu

SHORT, LONG = "SHORT-HEADER", "LONG-HEADER"
BIG, LITTLE = "MOST-SIGNIFICANT-BYTE-FIRST", "MOST-SIGNIFICANT-BYTE-LAST"
CAN_ID, SLOT, PDU_ID = 0x123, 7, 0x77
IDS = {"Speed": 0x0A0B0C, "Wheels": 0x010203}  # header ids


def header(name: str, size: int, kind: str, order: str) -> bytes:
    """The header of a contained PDU of `size` bytes."""
    return number(IDS[name], kind, order) + size.to_bytes(
        1 if kind == SHORT else 4, "big" if order == BIG else "little"
    )


def number(header_id: int, kind: str, order: str) -> bytes:
    return header_id.to_bytes(3 if kind == SHORT else 4, "big" if order == BIG else "little")


def arxml(kind: str, order: str, *, length: int = 32, ids: dict[str, int] = IDS) -> str:
    contained = [
        pdu("Speed", 2, mapped("Value", 0)).replace(
            "<I-SIGNAL-TO-PDU-MAPPINGS>", _props(kind, ids["Speed"]) + "<I-SIGNAL-TO-PDU-MAPPINGS>"
        ),
        pdu("Wheels", 4, mapped("Left", 7, "FIRST"), mapped("Right", 16)).replace(
            "<I-SIGNAL-TO-PDU-MAPPINGS>", _props(kind, ids["Wheels"]) + "<I-SIGNAL-TO-PDU-MAPPINGS>"
        ),
    ]
    refs = "".join(
        reference("CONTAINED-PDU-TRIGGERING-REF", "PDU-TRIGGERING", f"/P/Can/C/T{name}") for name in ("Speed", "Wheels")
    )
    container = named(
        "CONTAINER-I-PDU",
        "Box",
        tag("LENGTH", length),
        tag("CONTAINED-PDU-TRIGGERING-REFS", refs),
        tag("HEADER-TYPE", kind),
    )
    triggerings = "".join(
        named("PDU-TRIGGERING", f"T{name}", reference("I-PDU-REF", pdu_kind, f"/P/{name}"))
        for name, pdu_kind in (("Speed", "I-SIGNAL-I-PDU"), ("Wheels", "I-SIGNAL-I-PDU"), ("Box", "CONTAINER-I-PDU"))
    )
    return package(
        named("SYSTEM", "System", tag("CONTAINER-I-PDU-HEADER-BYTE-ORDER", order)),
        named("SW-BASE-TYPE", "u", tag("BASE-TYPE-SIZE", 16) + tag("BASE-TYPE-ENCODING", "NONE")),
        *(i_signal(name, 16, base("u")) for name in ("Value", "Left", "Right", "Plain")),
        *contained,
        pdu("Before", 2, mapped("Plain", 0)),
        container,
        named("CAN-FRAME", "CanFrame", tag("FRAME-LENGTH", 64), _placed(("Box", "CONTAINER-I-PDU", 0, ""))),
        named(
            "FLEXRAY-FRAME",
            "FlexFrame",
            tag("FRAME-LENGTH", 64),
            _placed(
                ("Before", "I-SIGNAL-I-PDU", 8, ""),
                ("Box", "CONTAINER-I-PDU", 24, tag("UPDATE-INDICATION-BIT-POSITION", 2)),
            ),
        ),
        _can_cluster(triggerings),
        _flexray_cluster(),
        _ethernet_cluster(),
    )


def _props(kind: str, header_id: int) -> str:
    return tag("CONTAINED-I-PDU-PROPS", tag(f"HEADER-ID-{kind}", header_id))


def _placed(*pdus: tuple[str, str, int, str]) -> str:
    return tag(
        "PDU-TO-FRAME-MAPPINGS",
        "".join(
            named(
                "PDU-TO-FRAME-MAPPING",
                f"m{name}",
                tag("PACKING-BYTE-ORDER", "MOST-SIGNIFICANT-BYTE-LAST"),
                reference("PDU-REF", kind, f"/P/{name}"),
                tag("START-POSITION", start),
                more,
            )
            for name, kind, start, more in pdus
        ),
    )


def _can_cluster(triggerings: str) -> str:
    sent = named(
        "CAN-FRAME-TRIGGERING",
        "F",
        reference("FRAME-REF", "CAN-FRAME", "/P/CanFrame"),
        tag("CAN-ADDRESSING-MODE", "STANDARD"),
        tag("IDENTIFIER", CAN_ID),
    )
    channel = named("CAN-PHYSICAL-CHANNEL", "C", tag("FRAME-TRIGGERINGS", sent), tag("PDU-TRIGGERINGS", triggerings))
    conditional = tag("CAN-CLUSTER-CONDITIONAL", tag("PHYSICAL-CHANNELS", channel))
    return named("CAN-CLUSTER", "Can", tag("CAN-CLUSTER-VARIANTS", conditional))


def _flexray_cluster() -> str:
    timing = tag("COMMUNICATION-CYCLE", REPEATED) + tag("SLOT-ID", SLOT)
    sent = named(
        "FLEXRAY-FRAME-TRIGGERING",
        "t",
        reference("FRAME-REF", "FLEXRAY-FRAME", "/P/FlexFrame"),
        tag("ABSOLUTELY-SCHEDULED-TIMINGS", tag("FLEXRAY-ABSOLUTELY-SCHEDULED-TIMING", timing)),
    )
    channel = named("FLEXRAY-PHYSICAL-CHANNEL", "A", tag("FRAME-TRIGGERINGS", sent), tag("CHANNEL-NAME", "CHANNEL-A"))
    conditional = tag("FLEXRAY-CLUSTER-CONDITIONAL", tag("PHYSICAL-CHANNELS", channel))
    return named("FLEXRAY-CLUSTER", "Flex", tag("FLEXRAY-CLUSTER-VARIANTS", conditional))


def _ethernet_cluster() -> str:
    identifier = tag("HEADER-ID", PDU_ID) + reference("PDU-TRIGGERING-REF", "PDU-TRIGGERING", "/P/Can/C/TBox")
    bundle = named("SOCKET-CONNECTION-BUNDLE", "b", tag("PDUS", tag("SOCKET-CONNECTION-IPDU-IDENTIFIER", identifier)))
    configuration = tag("SO-AD-CONFIG", tag("CONNECTION-BUNDLES", bundle))
    channel = named("ETHERNET-PHYSICAL-CHANNEL", "E", configuration)
    conditional = tag("ETHERNET-CLUSTER-CONDITIONAL", tag("PHYSICAL-CHANNELS", channel))
    return named("ETHERNET-CLUSTER", "Ethernet", tag("ETHERNET-CLUSTER-VARIANTS", conditional))


def box(kind: str, order: str) -> bytes:
    """Three PDUs, one of them twice; then an id that nobody knows, padding, and what is after padding."""
    return (
        header("Speed", 2, kind, order)
        + b"\x34\x12"
        + header("Wheels", 4, kind, order)
        + b"\x12\x34\x78\x56"
        + header("Speed", 2, kind, order)
        + b"\x01\x00"
        + bytes(4 if kind == SHORT else 8)
        + header("Speed", 2, kind, order)
        + b"\xff\xff"
    )
