"""Writes an ARXML file like the system description of a vehicle, of any size, one domain after the other.

A domain has a CAN cluster, every third one also FlexRay and Ethernet with SOME/IP, and an ECU. Each signal has what exporters
write around it: UUID, long name, description in two languages, ports and triggerings. As much again is of no use to pcaplake:
software components, constants and special data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

FRAMES: Final = 30
"""Of each cluster; one PDU each."""
SIGNALS: Final = 8
"""Of each PDU."""
_HEAD: Final = (
    '<?xml version="1.0" encoding="utf-8"?>\n<AUTOSAR xmlns="http://autosar.org/schema/r4.0" '
    'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" '
    'xsi:schemaLocation="http://autosar.org/schema/r4.0 AUTOSAR_00049.xsd">\n<AR-PACKAGES>\n'
)


@dataclass(slots=True, kw_only=True)
class WrittenFile:
    """`read`: bytes of the packages that hold what pcaplake reads; `can`, `flexray`, `ethernet`: names of clusters."""

    size: int = 0
    read: int = 0
    can: int = 0
    flexray: int = 0
    ethernet: int = 0


def write_description(path: Path, megabytes: float) -> WrittenFile:
    """Write domains until the file has so many megabytes."""
    written = WrittenFile()
    with path.open("w", encoding="utf-8", newline="\n") as file:
        written.size += file.write(_HEAD)
        shared = _package("Shared", *_shared())
        written.read += file.write(shared)
        number = 0
        while written.size + written.read < megabytes * 1e6:
            for text, is_read in _domain(number, written):
                count = file.write(text)
                if is_read:
                    written.read += count
                else:
                    written.size += count
            number += 1
        written.size += written.read + file.write("</AR-PACKAGES>\n</AUTOSAR>\n")
    return written


def _domain(number: int, written: WrittenFile) -> Iterator[tuple[str, bool]]:
    """Packages of a domain, and whether something in them is read."""
    yield _package(f"Can{number}", *_bus(f"Can{number}", "CAN", number)), True
    written.can += 1
    if number % 3 == 0:
        yield _package(f"Flex{number}", *_bus(f"Flex{number}", "FLEXRAY", number)), True
        yield _package(f"Eth{number}", *_ethernet(f"Eth{number}", number)), True
        yield _package(f"Service{number}", *_service(f"Service{number}", number)), True
        written.flexray += 1
        written.ethernet += 1
    yield _package(f"Ecu{number}", _ecu(f"Ecu{number}", f"Can{number}")), False
    yield _package(f"Software{number}", *(_component(f"Component{each}", number) for each in range(40))), False


def _shared() -> Iterator[str]:
    for bits in (8, 16, 32):
        for encoding, name in (("NONE", "u"), ("2C", "s")):
            inside = _tag("BASE-TYPE-SIZE", bits) + _tag("BASE-TYPE-ENCODING", encoding)
            yield _named("SW-BASE-TYPE", f"{name}{bits}", inside)
    for unit in ("km/h", "rpm", "V", "degC"):
        yield _named("UNIT", f"Unit_{unit.replace('/', '')}", _tag("DISPLAY-NAME", unit))


# -- CAN and FlexRay ----------------------------------------------------------------------------------------------------
def _bus(name: str, kind: str, number: int) -> Iterator[str]:
    """A cluster with its frames, PDUs, signals and computation methods."""
    triggerings, pdu_triggerings, signal_triggerings = "", "", ""
    for place in range(FRAMES):
        frame, pdu = f"{name}_Frame{place}", f"{name}_Pdu{place}"
        signals = [f"{pdu}_Signal{n}" for n in range(SIGNALS)]
        mapped = _named(
            "PDU-TO-FRAME-MAPPING",
            "Mapping",
            _tag("PACKING-BYTE-ORDER", "MOST-SIGNIFICANT-BYTE-LAST"),
            _refer("PDU-REF", "I-SIGNAL-I-PDU", f"/{name}/{pdu}"),
            _tag("START-POSITION", 0),
        )
        yield _named(
            f"{kind}-FRAME", frame, _tag("FRAME-LENGTH", SIGNALS), _tag("PDU-TO-FRAME-MAPPINGS", mapped), notes=True
        )
        yield from _pdu(name, pdu, signals)
        triggerings += _triggering(kind, name, frame, pdu, number, place)
        pdu_triggerings += _named(
            "PDU-TRIGGERING",
            f"PT_{pdu}",
            _ports(name, pdu, "I-PDU"),
            _refer("I-PDU-REF", "I-SIGNAL-I-PDU", f"/{name}/{pdu}"),
        )
        for signal in signals:
            signal_triggerings += _named(
                "I-SIGNAL-TRIGGERING",
                f"ST_{signal}",
                _ports(name, signal, "I-SIGNAL"),
                _refer("I-SIGNAL-REF", "I-SIGNAL", f"/{name}/{signal}"),
            )
    channel = _named(
        f"{kind}-PHYSICAL-CHANNEL",
        "Channel",
        _tag("FRAME-TRIGGERINGS", triggerings),
        _tag("I-SIGNAL-TRIGGERINGS", signal_triggerings),
        _tag("PDU-TRIGGERINGS", pdu_triggerings),
        _tag("CHANNEL-NAME", "CHANNEL-A") if kind == "FLEXRAY" else "",
    )
    yield _cluster(kind, name, channel)


def _cluster(kind: str, name: str, channel: str) -> str:
    conditional = _tag(f"{kind}-CLUSTER-CONDITIONAL", _tag("PHYSICAL-CHANNELS", channel))
    return _named(f"{kind}-CLUSTER", name, _tag(f"{kind}-CLUSTER-VARIANTS", conditional), notes=True)


def _triggering(kind: str, bus: str, frame: str, pdu: str, number: int, place: int) -> str:
    sent = _ports(bus, frame, "FRAME")
    sent += _refer("FRAME-REF", f"{kind}-FRAME", f"/{bus}/{frame}")
    pdus = _refer("PDU-TRIGGERING-REF", "PDU-TRIGGERING", f"/{bus}/{bus}/Channel/PT_{pdu}")
    sent += _tag("PDU-TRIGGERINGS", _tag("PDU-TRIGGERING-REF-CONDITIONAL", pdus))
    if kind == "CAN":
        sent += _tag("CAN-ADDRESSING-MODE", "STANDARD") + _tag("IDENTIFIER", 0x100 + place)
    else:
        cycle = _tag("BASE-CYCLE", place % 4) + _tag("CYCLE-REPETITION", "CYCLE-REPETITION-4")
        timing = _tag("COMMUNICATION-CYCLE", _tag("CYCLE-REPETITION", cycle)) + _tag("SLOT-ID", 1 + place)
        sent += _tag("ABSOLUTELY-SCHEDULED-TIMINGS", _tag("FLEXRAY-ABSOLUTELY-SCHEDULED-TIMING", timing))
    return _named(f"{kind}-FRAME-TRIGGERING", f"FT_{frame}", sent)


def _ports(bus: str, name: str, kind: str) -> str:
    ecu = bus.replace("Can", "Ecu").replace("Flex", "Ecu").replace("Eth", "Ecu")
    refs = "".join(
        _refer(f"{kind}-PORT-REF", f"{kind}-PORT", f"/{ecu}/{ecu}/Connector_{bus}/Port_{name}_{way}")
        for way in ("In", "Out")
    )
    return _tag(f"{kind}-PORT-REFS", refs)


def _pdu(bus: str, pdu: str, signals: list[str]) -> Iterator[str]:
    mappings = ""
    for place, signal in enumerate(signals):
        yield from _signal(bus, signal, place)
        mappings += _named(
            "I-SIGNAL-TO-I-PDU-MAPPING",
            f"Map_{signal}",
            _refer("I-SIGNAL-REF", "I-SIGNAL", f"/{bus}/{signal}"),
            _tag("PACKING-BYTE-ORDER", "MOST-SIGNIFICANT-BYTE-LAST"),
            _tag("START-POSITION", 8 * place),
            _tag("TRANSFER-PROPERTY", "PENDING"),
        )
    cyclic = _tag("CYCLIC-TIMING", _tag("TIME-PERIOD", _tag("VALUE", 0.02)))
    timing = _tag("TRANSMISSION-MODE-DECLARATION", _tag("TRANSMISSION-MODE-TRUE-TIMING", cyclic))
    yield _named(
        "I-SIGNAL-I-PDU",
        pdu,
        _tag("LENGTH", len(signals)),
        _tag("I-PDU-TIMING-SPECIFICATIONS", _tag("I-PDU-TIMING", timing)),
        _tag("I-SIGNAL-TO-PDU-MAPPINGS", mappings),
        _tag("UNUSED-BIT-PATTERN", 0),
        notes=True,
    )


def _signal(bus: str, signal: str, place: int) -> Iterator[str]:
    representation = _properties("NETWORK-REPRESENTATION-PROPS", _refer("BASE-TYPE-REF", "SW-BASE-TYPE", "/Shared/u8"))
    yield _named(
        "I-SIGNAL",
        signal,
        _tag("INIT-VALUE", _tag("NUMERICAL-VALUE-SPECIFICATION", _tag("VALUE", 0))),
        _tag("LENGTH", 8),
        representation,
        _refer("SYSTEM-SIGNAL-REF", "SYSTEM-SIGNAL", f"/{bus}/S_{signal}"),
        notes=True,
    )
    physical = _refer("COMPU-METHOD-REF", "COMPU-METHOD", f"/{bus}/C_{signal}")
    yield _named("SYSTEM-SIGNAL", f"S_{signal}", _properties("PHYSICAL-PROPS", physical), notes=True)
    if place % 4:
        numerator = _tag("COMPU-NUMERATOR", _tag("V", -40) + _tag("V", 0.5))
        coefficients = _tag("COMPU-RATIONAL-COEFFS", numerator + _tag("COMPU-DENOMINATOR", _tag("V", 1)))
        category, scales = "LINEAR", _tag("COMPU-SCALE", _limits(0, 250) + coefficients)
    else:
        category = "TEXTTABLE"
        scales = "".join(
            _tag("COMPU-SCALE", _limits(raw, raw) + _tag("COMPU-CONST", _tag("VT", f"{signal}_State{raw}")))
            for raw in range(6)
        )
    unit = _refer("UNIT-REF", "UNIT", "/Shared/Unit_kmh")
    converted = _tag("COMPU-INTERNAL-TO-PHYS", _tag("COMPU-SCALES", scales))
    yield _named("COMPU-METHOD", f"C_{signal}", _tag("CATEGORY", category), unit, converted, notes=True)


def _limits(low: int, high: int) -> str:
    closed = {"INTERVAL-TYPE": "CLOSED"}
    return _tag("LOWER-LIMIT", low, **closed) + _tag("UPPER-LIMIT", high, **closed)


# -- Ethernet and SOME/IP ---------------------------------------------------------------------------------------------
def _ethernet(name: str, number: int) -> Iterator[str]:
    """PDU transport of PDUs that are like those of a CAN cluster."""
    identifiers = triggerings = ""
    for place in range(FRAMES):
        pdu = f"{name}_Pdu{place}"
        yield from _pdu(name, pdu, [f"{pdu}_Signal{n}" for n in range(SIGNALS)])
        reference = _refer("I-PDU-REF", "I-SIGNAL-I-PDU", f"/{name}/{pdu}")
        triggerings += _named("PDU-TRIGGERING", f"PT_{pdu}", _ports(name, pdu, "I-PDU"), reference)
        path = f"/{name}/{name}/Channel/PT_{pdu}"
        identifier = _tag("HEADER-ID", number << 8 | place) + _refer("PDU-TRIGGERING-REF", "PDU-TRIGGERING", path)
        identifiers += _tag("SOCKET-CONNECTION-IPDU-IDENTIFIER", identifier)
    bundle = _named("SOCKET-CONNECTION-BUNDLE", "Bundle", _tag("PDUS", identifiers))
    configuration = _tag("SO-AD-CONFIG", _tag("CONNECTION-BUNDLES", bundle))
    channel = _named("ETHERNET-PHYSICAL-CHANNEL", "Channel", _tag("PDU-TRIGGERINGS", triggerings), configuration)
    yield _cluster("ETHERNET", name, channel)


def _service(name: str, number: int) -> Iterator[str]:
    """A service of the adaptive platform with events of structs."""
    events = deployments = ""
    for place in range(10):
        members = "".join(
            _named(
                "IMPLEMENTATION-DATA-TYPE-ELEMENT",
                f"member{n}",
                _tag("CATEGORY", "VALUE"),
                _properties("SW-DATA-DEF-PROPS", _refer("BASE-TYPE-REF", "SW-BASE-TYPE", "/Shared/u16")),
            )
            for n in range(6)
        )
        structure = _tag("CATEGORY", "STRUCTURE") + _tag("SUB-ELEMENTS", members)
        yield _named("IMPLEMENTATION-DATA-TYPE", f"Type{place}", structure, notes=True)
        typed = _refer("TYPE-TREF", "IMPLEMENTATION-DATA-TYPE", f"/{name}/Type{place}")
        events += _named("VARIABLE-DATA-PROTOTYPE", f"Event{place}", typed, notes=True)
        event = _refer("EVENT-REF", "VARIABLE-DATA-PROTOTYPE", f"/{name}/Interface{number}/Event{place}")
        deployments += _named("SOMEIP-EVENT-DEPLOYMENT", f"D{place}", event, _tag("EVENT-ID", 0x8001 + place))
    yield _named("SERVICE-INTERFACE", f"Interface{number}", _tag("EVENTS", events), notes=True)
    yield _named(
        "SOMEIP-SERVICE-INTERFACE-DEPLOYMENT",
        "Deployment",
        _tag("EVENT-DEPLOYMENTS", deployments),
        _refer("SERVICE-INTERFACE-REF", "SERVICE-INTERFACE", f"/{name}/Interface{number}"),
        _tag("SERVICE-INTERFACE-ID", 1 + number),
        _tag("SERVICE-INTERFACE-VERSION", _tag("MAJOR-VERSION", 1) + _tag("MINOR-VERSION", 0)),
    )


# -- what is not read -------------------------------------------------------------------------------------------------
def _ecu(ecu: str, bus: str) -> str:
    ports = "".join(
        _named(f"{kind}-PORT", f"Port_{bus}_{what}{place}_{way}", _tag("COMMUNICATION-DIRECTION", way.upper()))
        for kind, what in (("FRAME", "Frame"), ("I-PDU", "Pdu"))
        for place in range(FRAMES)
        for way in ("In", "Out")
    )
    connector = _named("CAN-COMMUNICATION-CONNECTOR", f"Connector_{bus}", _tag("ECU-COMM-PORT-INSTANCES", ports))
    return _named("ECU-INSTANCE", ecu, _tag("CONNECTORS", connector), notes=True)


def _component(name: str, number: int) -> str:
    """A software component with ports and runnables."""
    package = f"/Software{number}"
    ports = "".join(
        _named(
            "R-PORT-PROTOTYPE",
            f"Port{n}",
            _refer("REQUIRED-INTERFACE-TREF", "SENDER-RECEIVER-INTERFACE", f"{package}/Interface{n}"),
            notes=True,
        )
        for n in range(12)
    )
    accesses = "".join(
        _named(
            "VARIABLE-ACCESS",
            f"Access{n}",
            _tag(
                "ACCESSED-VARIABLE",
                _tag(
                    "AUTOSAR-VARIABLE-IREF",
                    _refer("PORT-PROTOTYPE-REF", "R-PORT-PROTOTYPE", f"{package}/{name}/Port{n}")
                    + _refer("TARGET-DATA-PROTOTYPE-REF", "VARIABLE-DATA-PROTOTYPE", f"{package}/Interface{n}/Value"),
                ),
            ),
        )
        for n in range(12)
    )
    runnables = "".join(
        _named("RUNNABLE-ENTITY", f"Run{n}", _tag("DATA-RECEIVE-POINT-BY-ARGUMENTS", accesses), notes=True)
        for n in range(3)
    )
    behavior = _named("SWC-INTERNAL-BEHAVIOR", "Behavior", _tag("RUNNABLES", runnables))
    inside = _tag("PORTS", ports) + _tag("INTERNAL-BEHAVIORS", behavior)
    return _named("APPLICATION-SW-COMPONENT-TYPE", name, inside, notes=True)


# -- XML --------------------------------------------------------------------------------------------------------------
def _tag(name: str, inside: object, **attributes: str) -> str:
    said = "".join(f' {key}="{value}"' for key, value in attributes.items())
    text = str(inside)
    return f"<{name}{said}>\n{text}</{name}>\n" if text.startswith("<") else f"<{name}{said}>{escape(text)}</{name}>\n"


def _named(name: str, text: str, *inside: str, notes: bool = False) -> str:
    """A named element. `notes`: with a long name, a description and special data."""
    more = ""
    if notes:
        said = "".join(_tag("L-2", f"Description of {text} for the documents", L=one) for one in ("EN", "DE"))
        data = _tag("SDGS", _tag("SDG", _tag("SD", f"{text}.source", GID="Path"), GID="Exporter"))
        more = _tag("LONG-NAME", _tag("L-4", text, L="EN")) + _tag("DESC", said) + _tag("ADMIN-DATA", data)
    unique = {"UUID": f"{hash_of(text):032x}"} if notes else {}
    return _tag(name, _tag("SHORT-NAME", text) + more + "".join(inside), **unique)


def hash_of(text: str) -> int:
    """A number that is the same in each process."""
    return int.from_bytes(text.encode()[-16:], "big")


def _refer(name: str, kind: str, path: str) -> str:
    return _tag(name, path, DEST=kind)


def _properties(name: str, inside: str) -> str:
    return _tag(name, _tag("SW-DATA-DEF-PROPS-VARIANTS", _tag("SW-DATA-DEF-PROPS-CONDITIONAL", inside)))


def _package(name: str, *elements: str) -> str:
    return _tag("AR-PACKAGE", _tag("SHORT-NAME", name) + _tag("ELEMENTS", "".join(elements)))
