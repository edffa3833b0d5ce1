"""LIN, J1939 and TTCAN clusters of ARXML, and identifiers of CAN frame triggerings: values by hand from the rules of each bus."""

from __future__ import annotations

from pathlib import Path

import pytest

from pcaplake import read_signals
from pcaplake.signals.files import load_database
from tests.signals.arxml_files import named, package, reference, tag
from tests.signals.bus_captures import can_frame, capture, lin_frame
from tests.signals.can_arxml_files import at
from tests.signals.container_files import base, i_signal, mapped, pdu

EXTENDED = 1 << 31
EIGHTH = tag(
    "COMPU-INTERNAL-TO-PHYS",
    tag(
        "COMPU-SCALES",
        tag(
            "COMPU-SCALE",
            tag(
                "COMPU-RATIONAL-COEFFS",
                tag("COMPU-NUMERATOR", tag("V", 0) + tag("V", 1)) + tag("COMPU-DENOMINATOR", tag("V", 8)),
            ),
        ),
    ),
)


def file_of(path: Path, kind: str, *triggerings: str) -> Path:
    """A file with the frames Engine (Speed: bytes 3 and 4, 1/8 rpm) and Door (Position: 12 bits from bit 4 on; Lock: byte 2)."""
    channel = {"LIN-CLUSTER": "LIN", "TTCAN-CLUSTER": "TTCAN"}.get(kind, "CAN")
    frame = "LIN-UNCONDITIONAL-FRAME" if channel == "LIN" else "CAN-FRAME"
    channels = named(f"{channel}-PHYSICAL-CHANNEL", "C", tag("FRAME-TRIGGERINGS", "".join(triggerings)))
    inside = tag(f"{kind}-CONDITIONAL", tag("PHYSICAL-CHANNELS", channels))
    speed = base("u") + reference("COMPU-METHOD-REF", "COMPU-METHOD", "/P/Eighth")
    path.write_text(
        package(
            named(kind, "Bus", tag(f"{kind}-VARIANTS", inside)),
            *(
                named(frame, name, tag("FRAME-LENGTH", 8) + tag("PDU-TO-FRAME-MAPPINGS", at(f"{name}Pdu", 0)))
                for name in ("Engine", "Door")
            ),
            named("SW-BASE-TYPE", "u", tag("BASE-TYPE-SIZE", 16) + tag("BASE-TYPE-ENCODING", "NONE")),
            named("COMPU-METHOD", "Eighth", tag("CATEGORY", "LINEAR"), EIGHTH),
            *(i_signal("Speed", 16, speed), i_signal("Position", 12, base("u")), i_signal("Lock", 8, base("u"))),
            pdu("EnginePdu", 8, mapped("Speed", 24)),
            pdu("DoorPdu", 3, mapped("Position", 4), mapped("Lock", 16)),
            named("LIN-EVENT-TRIGGERED-FRAME", "Event", tag("FRAME-LENGTH", 8)),
        ),
        encoding="utf-8",
    )
    return path


def sent(kind: str, frame: str, frame_kind: str, identifier: int, *inside: str) -> str:
    return named(
        kind, f"T{frame}", reference("FRAME-REF", frame_kind, f"/P/{frame}"), *inside, tag("IDENTIFIER", identifier)
    )


def extended(frame: str, identifier: int, *inside: str) -> str:
    return named(
        "CAN-FRAME-TRIGGERING",
        f"T{frame}",
        reference("FRAME-REF", "CAN-FRAME", f"/P/{frame}"),
        tag("CAN-ADDRESSING-MODE", "EXTENDED"),
        tag("IDENTIFIER", identifier),
        *inside,
    )


IDENTIFIERS = tag("RX-IDENTIFIER-RANGE", tag("LOWER-CAN-ID", 1) + tag("UPPER-CAN-ID", 9))
BROADCAST, ADDRESSED = 0x0CF00400, 0x0CEF1100  # PGN 0xF004, and 0xEF00 to the receiver 0x11


def values(tmp_path: Path, database: Path, *frames: tuple[str, bytes]) -> list[tuple[str, float]]:
    (tmp_path / "drive.pcapng").write_bytes(capture((at, *one) for at, one in enumerate(frames)))
    found = read_signals(tmp_path / "drive.pcapng", database)
    return [
        (row["signal"], row["value"])
        for row in found.sort_by([("ts_ns", "ascending"), ("signal", "ascending")]).to_pylist()
    ]


def test_lin(tmp_path: Path) -> None:
    """0xC5, 0x2B: the word 0x2BC5, from bit 4 on 0x2BC = 700."""
    triggerings = [
        sent("LIN-FRAME-TRIGGERING", "Door", "LIN-UNCONDITIONAL-FRAME", 0x21),
        sent("LIN-FRAME-TRIGGERING", "Event", "LIN-EVENT-TRIGGERED-FRAME", 0x22),
        sent("LIN-FRAME-TRIGGERING", "Engine", "LIN-UNCONDITIONAL-FRAME", 64),
    ]
    path = file_of(tmp_path / "car.arxml", "LIN-CLUSTER", *triggerings)
    loaded = load_database(path, "Bus")
    assert [(one.kind, one.id, one.name) for one in loaded.messages] == [("lin", 0x21, "Door")]
    assert loaded.skipped == {"no signals": 1}
    assert loaded.lost == {"car.arxml, /P/Bus/C/TEngine": "its identifier is 64, and identifiers have 6 bits"}
    frames = [("lin", lin_frame(0x21, bytes([0xC5, 0x2B, 0x7F, 0x80]))), ("lin", lin_frame(0x20, bytes(4)))]
    assert values(tmp_path, path, *frames) == [("Lock", 127), ("Position", 700)]


@pytest.mark.parametrize(
    ("mask", "matching"),
    [("", [0x0CF00400, 0x18F00400]), (tag("RX-MASK", 0x03FFFF00), [0x0CF00400, 0x18F00400, 0x18F00401])],
)
def test_j1939(tmp_path: Path, mask: str, matching: list[int]) -> None:
    """PGN 0xF004, of one sender or of all: 0x2EE0 / 8 = 1500 rpm. The priority does not count."""
    path = file_of(tmp_path / "car.arxml", "J-1939-CLUSTER", extended("Engine", 0x0CF00400, mask))
    assert not load_database(path).lost
    payload = bytes([0xFF, 0xFF, 0xFF, 0xE0, 0x2E, 0xFF, 0xFF, 0xFF])
    frames = [("1", can_frame(one | EXTENDED, payload)) for one in (0x0CF00400, 0x18F00400, 0x18F00401, 0x18F00500)]
    assert values(tmp_path, path, *frames) == [("Speed", 1500.0)] * len(matching)


def test_ttcan_and_standard_identifiers_of_j1939(tmp_path: Path) -> None:
    for kind in ("TTCAN-CLUSTER", "J-1939-CLUSTER"):
        triggering = sent("CAN-FRAME-TRIGGERING", "Engine", "CAN-FRAME", 0x123, tag("CAN-ADDRESSING-MODE", "STANDARD"))
        path = file_of(tmp_path / "car.arxml", kind, triggering)
        (message,) = load_database(path, "Bus").messages
        assert (message.kind, message.id, message.extended, message.j1939) == ("can", 0x123, False, False)
        frames = [
            ("1", can_frame(0x123, bytes([0, 0, 0, 8, 0, 0, 0, 0]))),
            ("1", can_frame(0x123 | EXTENDED, bytes(8))),
        ]
        assert values(tmp_path, path, *frames) == [("Speed", 1.0)]


@pytest.mark.parametrize(
    ("kind", "identifier", "more", "what"),
    [
        ("CAN-CLUSTER", 1, IDENTIFIERS, "RX-IDENTIFIER-RANGE"),
        ("CAN-CLUSTER", 1, tag("RX-MASK", 0x1FFFFF00), "RX-MASK"),
        ("CAN-CLUSTER", 1, tag("RX-MASK", 0x1FFFFFFF), None),
        ("J-1939-CLUSTER", BROADCAST, IDENTIFIERS, "RX-IDENTIFIER-RANGE"),
        ("J-1939-CLUSTER", BROADCAST, tag("RX-MASK", 0x03FFFFFF), None),  # whatever the priority
        ("J-1939-CLUSTER", BROADCAST, tag("RX-MASK", 0x03FFFF0F), "RX-MASK"),  # of some senders
        ("J-1939-CLUSTER", BROADCAST, tag("RX-MASK", 0x03FF0000), "RX-MASK"),  # of several groups
        ("J-1939-CLUSTER", ADDRESSED, tag("RX-MASK", 0x03FF0000), None),  # whoever receives it
    ],
)
def test_frames_with_several_identifiers_are_listed(
    tmp_path: Path, kind: str, identifier: int, more: str, what: str | None
) -> None:
    path = file_of(tmp_path / "car.arxml", kind, extended("Engine", identifier, more))
    reasons = [] if what is None else [f"of its {what}, only frames with its IDENTIFIER are read"]
    loaded = load_database(path)
    assert (len(loaded.messages), list(loaded.lost.values())) == (1, reasons)


def test_transport_of_j1939_is_listed(tmp_path: Path) -> None:
    path = file_of(tmp_path / "car.arxml", "J-1939-CLUSTER", extended("Engine", 0x0CF00400))
    text = path.read_text(encoding="utf-8").replace("<ELEMENTS>", f"<ELEMENTS>{named('J-1939-TP-CONFIG', 'Tp')}", 1)
    path.write_text(text, encoding="utf-8")
    assert load_database(path).lost == {"car.arxml, /P/Tp": "it is a J-1939-TP-CONFIG, which is not read"}
