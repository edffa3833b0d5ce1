"""ARXML files of one CAN frame."""

from __future__ import annotations

from pathlib import Path

from tests.signals.arxml_files import named, package, reference, tag


def can_file(path: Path, identifier: object, placed: str, *elements: str) -> Path:
    """A file with one CAN frame."""
    sent = reference("FRAME-REF", "CAN-FRAME", "/P/Frame")
    sent += tag("CAN-ADDRESSING-MODE", "STANDARD") + tag("IDENTIFIER", identifier)
    channel = tag("FRAME-TRIGGERINGS", named("CAN-FRAME-TRIGGERING", "T", sent))
    inside = tag("CAN-CLUSTER-CONDITIONAL", tag("PHYSICAL-CHANNELS", named("CAN-PHYSICAL-CHANNEL", "C", channel)))
    path.write_text(
        package(
            named("CAN-FRAME", "Frame", tag("FRAME-LENGTH", 8), tag("PDU-TO-FRAME-MAPPINGS", placed)),
            named("CAN-CLUSTER", "Can", tag("CAN-CLUSTER-VARIANTS", inside)),
            named("SW-BASE-TYPE", "u", tag("BASE-TYPE-SIZE", 16) + tag("BASE-TYPE-ENCODING", "NONE")),
            *elements,
        ),
        encoding="utf-8",
    )
    return path


def at(pdu_name: str, position: int) -> str:
    inside = tag("PACKING-BYTE-ORDER", "MOST-SIGNIFICANT-BYTE-LAST") + reference(
        "PDU-REF", "I-SIGNAL-I-PDU", f"/P/{pdu_name}"
    )
    return named("PDU-TO-FRAME-MAPPING", f"m{pdu_name}", inside, tag("START-POSITION", position))
