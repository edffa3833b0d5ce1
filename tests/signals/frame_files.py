"""FIBEX and ARXML files of one FlexRay frame and of PDUs, and a payload of that frame.

The frame of slot 7 holds a PDU at byte 2. Its bytes are chosen so that each rule of the standards gives another number.
"""

from __future__ import annotations

from pathlib import Path

from pcaplake.signals import Databases
from tests.signals.arxml_files import data_properties, named, package, reference, tag

BYTES = bytes([0b0000_0101, 0x11, 0x34, 0x12, 0xAB, 0xCD, 0x9C, 0x02, 0xFE, 0x40])
"""Byte 0: update bits 0 and 2; bytes 2 and 3: 0x1234 little endian; 4 and 5: 0xABCD big endian; 6: two nibbles; 7: selector."""


# -- FIBEX ------------------------------------------------------------------------------------------------------------
def fibex(**changes: str) -> str:
    text = {
        "policy": "SAWTOOTH",
        "torque": "23",
        "cycles": "<BASE-CYCLE>1</BASE-CYCLE><CYCLE-REPETITION>4</CYCLE-REPETITION>",
    } | changes
    codings = "".join(
        f'<CODING ID="{name}"><SHORT-NAME>{name}</SHORT-NAME><CODED-TYPE BASE-DATA-TYPE="{base}"><BIT-LENGTH>'
        f"{bits}</BIT-LENGTH></CODED-TYPE><COMPU-METHODS><COMPU-METHOD>{more}</COMPU-METHOD></COMPU-METHODS></CODING>"
        for name, base, bits, more in (
            (
                "half",
                "A_UINT16",
                16,
                '<UNIT-REF ID-REF="kmh"/><COMPU-INTERNAL-TO-PHYS><COMPU-SCALES><COMPU-SCALE>'
                "<COMPU-RATIONAL-COEFFS><COMPU-NUMERATOR><V>-20</V><V>1</V></COMPU-NUMERATOR><COMPU-DENOMINATOR><V>2"
                "</V></COMPU-DENOMINATOR></COMPU-RATIONAL-COEFFS>"
                "</COMPU-SCALE></COMPU-SCALES></COMPU-INTERNAL-TO-PHYS>",
            ),
            ("signed", "A_INT16", 16, ""),
            (
                "gear",
                "A_UINT8",
                4,
                "<COMPU-INTERNAL-TO-PHYS><COMPU-SCALES><COMPU-SCALE><LOWER-LIMIT>12</LOWER-LIMIT>"
                "<UPPER-LIMIT>12</UPPER-LIMIT><COMPU-CONST><VT>reverse</VT></COMPU-CONST></COMPU-SCALE></COMPU-SCALES>"
                "</COMPU-INTERNAL-TO-PHYS>",
            ),
            ("byte", "A_UINT8", 8, ""),
        )
    )
    signals = "".join(
        f'<SIGNAL ID="s{name}"><SHORT-NAME>{name}</SHORT-NAME><CODING-REF ID-REF="{coding}"/></SIGNAL>'
        for name, coding in (
            ("Speed", "half"),
            ("Torque", "signed"),
            ("Gear", "gear"),
            ("First", "byte"),
            ("Second", "byte"),
        )
    )
    instance = (
        "<SIGNAL-INSTANCE><BIT-POSITION>{}</BIT-POSITION><IS-HIGH-LOW-BYTE-ORDER>{}</IS-HIGH-LOW-BYTE-ORDER>"
        '<SIGNAL-REF ID-REF="s{}"/></SIGNAL-INSTANCE>'
    )
    body = "".join(
        instance.format(*each)
        for each in ((0, "false", "Speed"), (text["torque"], "true", "Torque"), (32, "false", "Gear"))
    )
    layouts = "".join(
        f'<PDU ID="p{name}"><SHORT-NAME>{name}Layout</SHORT-NAME><BYTE-LENGTH>1</BYTE-LENGTH><SIGNAL-INSTANCES>'
        f"{instance.format(0, 'false', name)}</SIGNAL-INSTANCES></PDU>"
        for name in ("First", "Second")
    )
    switched = "".join(
        f'<SWITCHED-PDU-INSTANCE><SWITCH-CODE>{code}</SWITCH-CODE><PDU-REF ID-REF="p{name}"/></SWITCHED-PDU-INSTANCE>'
        for code, name in ((1, "First"), (2, "Second"))
    )
    multiplexer = (
        "<MULTIPLEXER><SWITCH><SHORT-NAME>Select</SHORT-NAME><BIT-POSITION>0</BIT-POSITION><BIT-LENGTH>8</BIT-LENGTH>"
        "</SWITCH>"
        "<DYNAMIC-PART><SEGMENT-POSITIONS><SEGMENT-POSITION><BIT-POSITION>8</BIT-POSITION><BIT-LENGTH>8</BIT-LENGTH>"
        f"</SEGMENT-POSITION></SEGMENT-POSITIONS><SWITCHED-PDU-INSTANCES>{switched}</SWITCHED-PDU-INSTANCES></DYNAMIC-PART>"
        "</MULTIPLEXER>"
    )
    pdus = (
        f'<PDU ID="pBody"><SHORT-NAME>Body</SHORT-NAME><BYTE-LENGTH>5</BYTE-LENGTH><SIGNAL-INSTANCES>{body}'
        f"</SIGNAL-INSTANCES>"
        "</PDU>"
        f'<PDU ID="pMux"><SHORT-NAME>Mux</SHORT-NAME><BYTE-LENGTH>2</BYTE-LENGTH>{multiplexer}</PDU>{layouts}'
    )
    frame = (
        '<FRAME ID="f"><SHORT-NAME>Chassis</SHORT-NAME><BYTE-LENGTH>10</BYTE-LENGTH><PDU-INSTANCES><PDU-INSTANCE>'
        '<PDU-REF ID-REF="pBody"/><BIT-POSITION>16</BIT-POSITION><PDU-UPDATE-BIT-POSITION>2</PDU-UPDATE-BIT-POSITION>'
        "</PDU-INSTANCE><PDU-INSTANCE>"
        '<PDU-REF ID-REF="pMux"/><BIT-POSITION>56</BIT-POSITION></PDU-INSTANCE></PDU-INSTANCES></FRAME>'
    )
    channel = (
        '<CHANNEL ID="c"><SHORT-NAME>c</SHORT-NAME><flexray:FLEXRAY-CHANNEL-NAME>A</flexray:FLEXRAY-CHANNEL-NAME>'
        "<FRAME-TRIGGERINGS>"
        '<FRAME-TRIGGERING><FRAME-REF ID-REF="f"/><TIMINGS><ABSOLUTELY-SCHEDULED-TIMING><SLOT-ID>7</SLOT-ID>'
        f"{text['cycles']}</ABSOLUTELY-SCHEDULED-TIMING></TIMINGS></FRAME-TRIGGERING></FRAME-TRIGGERINGS></CHANNEL>"
    )
    return (
        '<FIBEX xmlns:flexray="f"><ELEMENTS><CLUSTERS><CLUSTER ID="k"><BIT-COUNTING-POLICY>'
        f"{text['policy']}</BIT-COUNTING-POLICY></CLUSTER></CLUSTERS>{channel}{pdus}{frame}{signals}</ELEMENTS>"
        f"<PROCESSING-INFORMATION>"
        f'<UNIT ID="kmh"><SHORT-NAME>kmh</SHORT-NAME><DISPLAY-NAME>km/h</DISPLAY-NAME></UNIT>{codings}'
        f"</PROCESSING-INFORMATION></FIBEX>"
    )


# -- ARXML ------------------------------------------------------------------------------------------------------------
def i_signal(name: str, length: int, properties: str) -> str:
    representation = data_properties(properties).replace("SW-DATA-DEF-PROPS>", "NETWORK-REPRESENTATION-PROPS>", 1)
    representation = representation[: representation.rindex("</")] + "</NETWORK-REPRESENTATION-PROPS>"
    return named("I-SIGNAL", name, tag("LENGTH", length), representation)


def mapped(name: str, start: int, order: str = "LAST") -> str:
    said = reference("I-SIGNAL-REF", "I-SIGNAL", f"/P/{name}")
    said += tag("PACKING-BYTE-ORDER", f"MOST-SIGNIFICANT-BYTE-{order}") + tag("START-POSITION", start)
    return named("I-SIGNAL-TO-I-PDU-MAPPING", f"m{name}", said)


def pdu(name: str, length: int, *mappings: str) -> str:
    return named("I-SIGNAL-I-PDU", name, tag("LENGTH", length), tag("I-SIGNAL-TO-PDU-MAPPINGS", "".join(mappings)))


def base(name: str) -> str:
    return reference("BASE-TYPE-REF", "SW-BASE-TYPE", f"/P/{name}")


def method(name: str, category: str, scale: str, unit: str = "") -> str:
    inside = tag("COMPU-INTERNAL-TO-PHYS", tag("COMPU-SCALES", tag("COMPU-SCALE", scale)))
    return named("COMPU-METHOD", name, tag("CATEGORY", category), unit, inside)


def arxml(cycles: str) -> str:
    halves = tag("COMPU-NUMERATOR", tag("V", -20) + tag("V", 1)) + tag("COMPU-DENOMINATOR", tag("V", 2))
    reverse = tag("LOWER-LIMIT", 12) + tag("UPPER-LIMIT", 12) + tag("COMPU-CONST", tag("VT", "reverse"))
    alternatives = "".join(
        tag(
            "DYNAMIC-PART-ALTERNATIVE",
            reference("I-PDU-REF", "I-SIGNAL-I-PDU", f"/P/{name}Layout") + tag("SELECTOR-FIELD-CODE", code),
        )
        for code, name in ((1, "First"), (2, "Second"))
    )
    placed = "".join(
        named(
            "PDU-TO-FRAME-MAPPING",
            f"m{name}",
            tag("PACKING-BYTE-ORDER", "MOST-SIGNIFICANT-BYTE-LAST"),
            reference("PDU-REF", kind, f"/P/{name}"),
            tag("START-POSITION", start),
            more,
        )
        for name, kind, start, more in (
            ("Body", "I-SIGNAL-I-PDU", 16, tag("UPDATE-INDICATION-BIT-POSITION", 2)),
            ("Mux", "MULTIPLEXED-I-PDU", 56, ""),
        )
    )
    timing = tag("COMMUNICATION-CYCLE", cycles) + tag("SLOT-ID", 7)
    triggering = named(
        "FLEXRAY-FRAME-TRIGGERING",
        "t",
        reference("FRAME-REF", "FLEXRAY-FRAME", "/P/Chassis"),
        tag("ABSOLUTELY-SCHEDULED-TIMINGS", tag("FLEXRAY-ABSOLUTELY-SCHEDULED-TIMING", timing)),
    )
    channel = named(
        "FLEXRAY-PHYSICAL-CHANNEL", "A", tag("FRAME-TRIGGERINGS", triggering), tag("CHANNEL-NAME", "CHANNEL-A")
    )
    variants = tag("FLEXRAY-CLUSTER-VARIANTS", tag("FLEXRAY-CLUSTER-CONDITIONAL", tag("PHYSICAL-CHANNELS", channel)))
    identifier = tag("HEADER-ID", 0x77) + reference("PDU-TRIGGERING-REF", "PDU-TRIGGERING", "/P/Ethernet/E/Trigger")
    bundle = named("SOCKET-CONNECTION-BUNDLE", "b", tag("PDUS", tag("SOCKET-CONNECTION-IPDU-IDENTIFIER", identifier)))
    sent = named("PDU-TRIGGERING", "Trigger", reference("I-PDU-REF", "I-SIGNAL-I-PDU", "/P/Body"))
    ethernet = named(
        "ETHERNET-PHYSICAL-CHANNEL",
        "E",
        tag("PDU-TRIGGERINGS", sent),
        tag("SO-AD-CONFIG", tag("CONNECTION-BUNDLES", bundle)),
    )
    conditional = tag("ETHERNET-CLUSTER-CONDITIONAL", tag("PHYSICAL-CHANNELS", ethernet))
    return package(
        named("UNIT", "kmh", tag("DISPLAY-NAME", "km/h")),
        named("SW-BASE-TYPE", "u", tag("BASE-TYPE-SIZE", 16) + tag("BASE-TYPE-ENCODING", "NONE")),
        named("SW-BASE-TYPE", "s", tag("BASE-TYPE-SIZE", 16) + tag("BASE-TYPE-ENCODING", "2C")),
        method("Half", "LINEAR", tag("COMPU-RATIONAL-COEFFS", halves), reference("UNIT-REF", "UNIT", "/P/kmh")),
        method("Gears", "TEXTTABLE", reverse),
        i_signal("Speed", 16, base("u") + reference("COMPU-METHOD-REF", "COMPU-METHOD", "/P/Half")),
        i_signal("Torque", 16, base("s")),
        i_signal("Gear", 4, base("u") + reference("COMPU-METHOD-REF", "COMPU-METHOD", "/P/Gears")),
        i_signal("First", 8, base("u")),
        i_signal("Second", 8, base("u")),
        pdu("Body", 5, mapped("Speed", 0), mapped("Torque", 23, "FIRST"), mapped("Gear", 32)),
        pdu("FirstLayout", 2, mapped("First", 8)),
        pdu("SecondLayout", 2, mapped("Second", 8)),
        named(
            "MULTIPLEXED-I-PDU",
            "Mux",
            tag("LENGTH", 2),
            tag("DYNAMIC-PARTS", tag("DYNAMIC-PART", tag("DYNAMIC-PART-ALTERNATIVES", alternatives))),
            tag("SELECTOR-FIELD-BYTE-ORDER", "MOST-SIGNIFICANT-BYTE-LAST"),
            tag("SELECTOR-FIELD-LENGTH", 8),
            tag("SELECTOR-FIELD-START-POSITION", 0),
        ),
        named("FLEXRAY-FRAME", "Chassis", tag("FRAME-LENGTH", 10), tag("PDU-TO-FRAME-MAPPINGS", placed)),
        named("FLEXRAY-CLUSTER", "Flex", variants),
        named("ETHERNET-CLUSTER", "Ethernet", tag("ETHERNET-CLUSTER-VARIANTS", conditional)),
    )


REPEATED = tag("CYCLE-REPETITION", tag("BASE-CYCLE", 1) + tag("CYCLE-REPETITION", "CYCLE-REPETITION-4"))
ONCE = tag("CYCLE-COUNTER", tag("CYCLE-COUNTER", 5))


def write(tmp_path: Path, form: str, cycles: str = "") -> Databases:
    if form == "arxml":
        (tmp_path / "car.arxml").write_text(arxml(cycles or REPEATED), encoding="utf-8")
        return Databases.from_file(tmp_path / "car.arxml")
    (tmp_path / "car.xml").write_text(fibex(**({"cycles": cycles} if cycles else {})), encoding="utf-8")
    return Databases.from_file(tmp_path / "car.xml")
