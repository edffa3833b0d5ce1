"""Services of ARXML files: random ones survive being written and read, and equal those of FIBEX and of Wireshark's tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from pcaplake.signals import load_database
from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.fibex.reader import read_fibex
from pcaplake.signals.fibex.services import services_of as fibex_services_of
from pcaplake.signals.model import Scale
from pcaplake.signals.someip.description import (
    NOTIFICATION,
    Array,
    BaseType,
    Dimension,
    EndToEnd,
    Services,
    String,
    Struct,
    Type,
    Union,
)
from pcaplake.signals.someip.wireshark import load_wireshark_tables
from tests.signals.arxml_files import classic_service, data_properties, named, package, reference, tag, write_arxml
from tests.signals.described_services import Service, comparable, messages_of, services
from tests.signals.fibex_files import write_fibex
from tests.signals.someip.wireshark_tables import TableWriter


@pytest.mark.slow
@given(service=services(adaptive=True))
@settings(max_examples=150, deadline=None)
def test_what_is_written_is_read(service: Service, tmp_path_factory: pytest.TempPathFactory) -> None:
    path: Path = tmp_path_factory.getbasetemp() / "car.arxml"
    path.write_text(write_arxml([service]), encoding="utf-8")
    found = read_services(path)
    assert dict(found.lost) == {}
    assert found.service_names == {service.id: service.name}
    assert [comparable(one) for one in found] == sorted(
        map(comparable, messages_of(service, "")), key=lambda message: message.key
    )


@pytest.mark.slow
@given(service=services(adaptive=True, plain=True))
@settings(max_examples=100, deadline=None)
def test_three_formats_give_equal_descriptions(service: Service, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder: Path = tmp_path_factory.mktemp("three")
    truth = [message for message in messages_of(service, "") if message.parameters.members]
    (folder / "car.xml").write_text(write_fibex([service]), encoding="utf-8")
    (folder / "car.arxml").write_text(write_arxml([service]), encoding="utf-8")
    described = [fibex_services_of(read_fibex(folder / "car.xml")), read_services(folder / "car.arxml")]
    if truth:
        TableWriter().write(folder / "tables", truth)
        described.append(load_wireshark_tables(folder / "tables"))
    expected = {message.key: comparable(message) for message in truth}
    for services_of_one in described:
        unused = {"no message that is read uses this type"}  # the writer of tables has one such type
        assert set(services_of_one.lost.values()) <= unused
        found = {message.key: comparable(message) for message in services_of_one if message.parameters.members}
        assert found == expected


def read_services(path: Path) -> Services:
    loaded = load_database(path)
    assert not loaded.messages
    return replace(loaded.services, lost=loaded.lost)


def load(tmp_path: Path, *elements: str) -> Services:
    (tmp_path / "car.arxml").write_text(package(*elements), encoding="utf-8")
    return read_services(tmp_path / "car.arxml")


def typed(name: str, category: str, *inside: str) -> str:
    return named("STD-CPP-IMPLEMENTATION-DATA-TYPE", name, tag("CATEGORY", category), *inside)


def arguments(*paths: str) -> str:
    types = (reference("TEMPLATE-TYPE-REF", "STD-CPP-IMPLEMENTATION-DATA-TYPE", f"/P/{path}") for path in paths)
    return tag("TEMPLATE-ARGUMENTS", "".join(tag("CPP-TEMPLATE-ARGUMENT", one) for one in types))


def cpp_member(name: str, path: str, more: str = "") -> str:
    referred = tag("TYPE-REFERENCE", reference("TYPE-REFERENCE-REF", "STD-CPP-IMPLEMENTATION-DATA-TYPE", f"/P/{path}"))
    return named("CPP-IMPLEMENTATION-DATA-TYPE-ELEMENT", name, tag("CATEGORY", "TYPE_REFERENCE"), more, referred)


def event_of(kind: str, path: str, *mapped: str) -> list[str]:
    """A service with one event of the type `path`."""
    prototype = named("VARIABLE-DATA-PROTOTYPE", "State", reference("TYPE-TREF", kind, path))
    interface = named("SERVICE-INTERFACE", "Car", tag("EVENTS", prototype))
    inside = reference("EVENT-REF", "VARIABLE-DATA-PROTOTYPE", "/P/Car/State") + tag("EVENT-ID", 0x8001)
    deployment = named(
        "SOMEIP-SERVICE-INTERFACE-DEPLOYMENT",
        "CarSomeip",
        tag("EVENT-DEPLOYMENTS", named("SOMEIP-EVENT-DEPLOYMENT", "StateSomeip", inside)),
        reference("SERVICE-INTERFACE-REF", "SERVICE-INTERFACE", "/P/Car"),
        tag("SERVICE-INTERFACE-ID", 0x1234),
        tag("SERVICE-INTERFACE-VERSION", tag("MAJOR-VERSION", 2)),
    )
    return [interface, deployment, *mapped]


CPP = "STD-CPP-IMPLEMENTATION-DATA-TYPE"
PLAIN = [typed(name, "VALUE") for name in ("uint8_t", "int16_t", "float")]


def state(services: Services) -> Type:
    (message,) = services
    (member,) = message.parameters.members
    assert (message.name, message.key, member.name) == ("Car.State", (0x1234, 0x8001, NOTIFICATION, 2), "State")
    return member.type


def test_types_of_cpp(tmp_path: Path) -> None:
    members = [
        cpp_member("speed", "float"),
        cpp_member("list", "List"),
        cpp_member("three", "Three"),
        cpp_member("name", "Name"),
        cpp_member("choice", "Choice"),
        cpp_member("map", "Map"),
        cpp_member("alias", "Alias"),
    ]
    found = load(
        tmp_path,
        *PLAIN,
        typed("List", "VECTOR", arguments("int16_t")),
        typed("Three", "ARRAY", tag("ARRAY-SIZE", 3), arguments("uint8_t")),
        typed("Name", "STRING"),
        typed("Choice", "VARIANT", arguments("uint8_t", "float", "uint8_t")),
        typed("Map", "ASSOCIATIVE_MAP", arguments("uint8_t", "Name")),
        typed("Alias", "TYPE_REFERENCE", reference("TYPE-REFERENCE-REF", CPP, "/P/int16_t")),
        typed("Car1", "STRUCTURE", tag("SUB-ELEMENTS", "".join(members))),
        *event_of(CPP, "/P/Car1"),
    )
    assert not found.lost
    struct = state(found)
    assert isinstance(struct, Struct)
    types = {member.name: member.type for member in struct.members}
    s16 = BaseType(name="int16_t", coding="sint", bits=16)
    u8 = BaseType(name="uint8_t", coding="uint", bits=8)
    assert types["speed"] == BaseType(name="float", coding="float", bits=32)
    assert types["list"] == Array(name="List", element=s16, dimensions=(Dimension(length_bits=32),))
    assert types["three"] == Array(name="Three", element=u8, dimensions=(Dimension(minimum=3, maximum=3),))
    text = String(name="Name", encoding="utf-8", length_bits=32)
    assert types["name"] == text
    choice = types["choice"]
    assert isinstance(choice, Union)
    assert [(each.selector, each.name) for each in choice.variants] == [
        (1, "uint8_t_1"),
        (2, "float"),
        (3, "uint8_t_3"),
    ]
    pairs = types["map"]
    assert isinstance(pairs, Array)
    assert isinstance(pairs.element, Struct)
    assert [member.type for member in pairs.element.members] == [u8, text]
    assert types["alias"] == s16


def test_application_types_give_the_meaning(tmp_path: Path) -> None:
    """The implementation says the bytes; the application type factor, unit and limits."""
    coefficients = tag("COMPU-NUMERATOR", tag("V", -40) + tag("V", 1)) + tag("COMPU-DENOMINATOR", tag("V", 2))
    scale = tag("COMPU-SCALE", tag("COMPU-RATIONAL-COEFFS", coefficients))
    method = named(
        "COMPU-METHOD",
        "Half",
        tag("CATEGORY", "LINEAR"),
        reference("UNIT-REF", "UNIT", "/P/degC"),
        tag("COMPU-INTERNAL-TO-PHYS", tag("COMPU-SCALES", scale)),
    )
    limits = tag("INTERNAL-CONSTRS", tag("LOWER-LIMIT", 0) + tag("UPPER-LIMIT", 200))
    meaning = data_properties(
        reference("COMPU-METHOD-REF", "COMPU-METHOD", "/P/Half")
        + reference("DATA-CONSTR-REF", "DATA-CONSTR", "/P/To200")
    )
    element = named(
        "IMPLEMENTATION-DATA-TYPE-ELEMENT",
        "t",
        tag("CATEGORY", "VALUE"),
        data_properties(reference("BASE-TYPE-REF", "SW-BASE-TYPE", "/P/u8")),
    )
    pairs = (("Temperature", "Record"), ("Celsius", "Byte"))
    maps = "".join(
        tag(
            "DATA-TYPE-MAP",
            reference("APPLICATION-DATA-TYPE-REF", "APPLICATION-RECORD-DATA-TYPE", f"/P/{application}")
            + reference("IMPLEMENTATION-DATA-TYPE-REF", "IMPLEMENTATION-DATA-TYPE", f"/P/{implementation}"),
        )
        for application, implementation in pairs
    )
    found = load(
        tmp_path,
        named("UNIT", "degC", tag("DISPLAY-NAME", "°C")),
        method,
        named("DATA-CONSTR", "To200", tag("DATA-CONSTR-RULES", tag("DATA-CONSTR-RULE", limits))),
        named("SW-BASE-TYPE", "u8", tag("BASE-TYPE-SIZE", 8) + tag("BASE-TYPE-ENCODING", "NONE")),
        named("IMPLEMENTATION-DATA-TYPE", "Record", tag("CATEGORY", "STRUCTURE"), tag("SUB-ELEMENTS", element)),
        named("APPLICATION-PRIMITIVE-DATA-TYPE", "Celsius", tag("CATEGORY", "VALUE"), meaning),
        named(
            "APPLICATION-RECORD-DATA-TYPE",
            "Temperature",
            tag("CATEGORY", "STRUCTURE"),
            tag(
                "ELEMENTS",
                named(
                    "APPLICATION-RECORD-ELEMENT",
                    "t",
                    reference("TYPE-TREF", "APPLICATION-PRIMITIVE-DATA-TYPE", "/P/Celsius"),
                ),
            ),
        ),
        named("DATA-TYPE-MAPPING-SET", "Maps", tag("DATA-TYPE-MAPS", maps)),
        *event_of("APPLICATION-RECORD-DATA-TYPE", "/P/Temperature"),
    )
    assert not found.lost
    struct = state(found)
    assert isinstance(struct, Struct)
    (member,) = struct.members
    scaled = Scale(factor=0.5, offset=-20, unit="°C")
    assert member.type == BaseType(name="t", coding="uint", bits=8, scale=scaled, maximum=80)


def test_one_member_may_have_sizes_of_its_own(tmp_path: Path) -> None:
    own = named("AP-SOMEIP-TRANSFORMATION-PROPS", "Short", tag("SIZE-OF-STRING-LENGTH-FIELD", 1))
    about = (
        reference("ROOT-DATA-PROTOTYPE-REF", "VARIABLE-DATA-PROTOTYPE", "/P/Car/State"),
        reference("TARGET-DATA-PROTOTYPE-REF", "CPP-IMPLEMENTATION-DATA-TYPE-ELEMENT", "/P/Car1/b"),
    )
    override = named(
        "SOMEIP-DATA-PROTOTYPE-TRANSFORMATION-PROPS",
        "Own",
        tag(
            "DATA-PROTOTYPES",
            tag("DATA-PROTOTYPE-IN-SERVICE-INTERFACE-REF", tag("ELEMENT-IN-IMPL-DATATYPE", "".join(about))),
        ),
        reference("SOMEIP-TRANSFORMATION-PROPS-REF", "AP-SOMEIP-TRANSFORMATION-PROPS", "/P/Set/Short"),
    )
    found = load(
        tmp_path,
        typed("Name", "STRING"),
        typed("Car1", "STRUCTURE", tag("SUB-ELEMENTS", cpp_member("a", "Name") + cpp_member("b", "Name"))),
        named("TRANSFORMATION-PROPS-SET", "Set", tag("TRANSFORMATION-PROPSS", own)),
        override,
        *event_of(CPP, "/P/Car1"),
    )
    struct = state(found)
    assert isinstance(struct, Struct)
    assert [one.type.length_bits for one in struct.members if isinstance(one.type, String)] == [32, 8]


LOST = {
    "no such type": ([], "/P/Nothing", "refers to /P/Nothing, which is not in the file"),
    "contains itself": ([typed("T", "VECTOR", arguments("T"))], "/P/T", "/P/T contains itself"),
    "odd category": ([typed("T", "QUEUE")], "/P/T", "/P/T has the category QUEUE, which is not read"),
    "no size": ([typed("T", "VALUE")], "/P/T", "T has no BASE-TYPE-REF, so its size is unknown"),
    "optional without a tag": (
        [typed("T", "STRUCTURE", tag("SUB-ELEMENTS", cpp_member("a", "uint8_t", tag("IS-OPTIONAL", "true"))))],
        "/P/T",
        "/P/T/a is optional and has no data id",
    ),
}


@pytest.mark.parametrize(("types", "path", "reason"), LOST.values(), ids=LOST)
def test_what_is_not_read_is_listed(tmp_path: Path, types: list[str], path: str, reason: str) -> None:
    found = load(tmp_path, *PLAIN, *types, *event_of(CPP, path))
    assert not found.messages
    assert [why for place, why in found.lost.items() if "/P/CarSomeip/StateSomeip" in place and reason in why]


REFUSED = {
    "not XML": ("SERVICE Car", "bad file header"),
    "cut off": (package(*PLAIN)[:-200], "line 2: Incomplete data"),
}


@pytest.mark.parametrize(("text", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_file_that_is_not_arxml(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "car.arxml").write_text(text, encoding="utf-8")
    with pytest.raises(DatabaseError, match=reason) as refused:
        read_services(tmp_path / "car.arxml")
    assert "car.arxml" in str(refused.value)
    assert "export it again" in str(refused.value)


def test_the_classic_platform(tmp_path: Path) -> None:
    """Header id, PDU, signal, transformers with end-to-end protection, data element."""
    found = load(tmp_path, *classic_service())
    assert not found.lost
    (message,) = found
    assert (message.name, message.key) == ("Doors.State", (0x1234, 0x8001, NOTIFICATION, 3))
    assert message.e2e == EndToEnd(profile=4, offset=0, data_ids=(77,), covers_header=True)
    (member,) = message.parameters.members
    assert member.type == BaseType(name="Level", coding="sint", bits=16, big_endian=False)
