"""FIBEX 4 service interfaces: random services survive being written and read; damaged files say where and what to do."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.fibex.reader import read_fibex
from pcaplake.signals.fibex.services import services_of
from pcaplake.signals.model import Scale
from pcaplake.signals.someip.description import Array, BaseType, Dimension, Services, String, Struct, Type, Union
from tests.signals.described_services import Service, comparable, messages_of, services
from tests.signals.fibex_files import write_fibex


@pytest.mark.slow
@given(service=services())
@settings(max_examples=200, deadline=None)
def test_what_is_written_is_read(service: Service, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "car.xml"
    path.write_text(write_fibex([service]), encoding="utf-8")
    found = services_of(read_fibex(path))
    assert dict(found.lost) == {}
    assert found.service_names == {service.id: service.name}
    assert [comparable(one) for one in found] == sorted(
        map(comparable, messages_of(service, "")), key=lambda message: message.key
    )


HEAD = '<FIBEX xmlns:ho="ho" xmlns:xsi="xsi"><ELEMENTS>'
CODINGS = """
<CODING ID="c8"><SHORT-NAME>c8</SHORT-NAME><ho:CODED-TYPE ho:BASE-DATA-TYPE="A_UINT8" CATEGORY="STANDARD-LENGTH-TYPE"/></CODING>
<CODING ID="c16"><SHORT-NAME>c16</SHORT-NAME><ho:CODED-TYPE ho:BASE-DATA-TYPE="A_INT16" CATEGORY="STANDARD-LENGTH-TYPE"/></CODING>
<CODING ID="cs"><SHORT-NAME>cs</SHORT-NAME>
  <ho:CODED-TYPE ho:BASE-DATA-TYPE="A_UNICODE2STRING" CATEGORY="LEADING-LENGTH-INFO-TYPE" ENCODING="UTF-8"/></CODING>
<CODING ID="cb"><SHORT-NAME>cb</SHORT-NAME><ho:CODED-TYPE ho:BASE-DATA-TYPE="A_BYTEFIELD" CATEGORY="STANDARD-LENGTH-TYPE">
  <ho:BIT-LENGTH>32</ho:BIT-LENGTH></ho:CODED-TYPE></CODING>
<DATATYPE ID="u8" xsi:type="fx:COMMON-DATATYPE-TYPE"><SHORT-NAME>u8</SHORT-NAME><CODING-REF ID-REF="c8"/></DATATYPE>
<DATATYPE ID="s16" xsi:type="fx:COMMON-DATATYPE-TYPE"><SHORT-NAME>s16</SHORT-NAME><CODING-REF ID-REF="c16"/></DATATYPE>
<DATATYPE ID="text" xsi:type="fx:COMMON-DATATYPE-TYPE"><SHORT-NAME>text</SHORT-NAME><CODING-REF ID-REF="cs"/></DATATYPE>
<DATATYPE ID="raw" xsi:type="fx:COMMON-DATATYPE-TYPE"><SHORT-NAME>raw</SHORT-NAME><CODING-REF ID-REF="cb"/></DATATYPE>
"""


def event(*members: str, number: int = 0x8001, more: str = "") -> str:
    parameters = "".join(f"<INPUT-PARAMETER>{member}</INPUT-PARAMETER>" for member in members)
    return (
        f"<EVENT><SHORT-NAME>E{number}</SHORT-NAME><METHOD-IDENTIFIER>{number}</METHOD-IDENTIFIER>{more}"
        f"<INPUT-PARAMETERS>{parameters}</INPUT-PARAMETERS></EVENT>"
    )


def member(name: str, datatype: str, more: str = "") -> str:
    return f'<SHORT-NAME>{name}</SHORT-NAME><DATATYPE-REF ID-REF="{datatype}"/>{more}'


def complex_type(name: str, kind: str, *members: str) -> str:
    inside = "".join(f"<MEMBER>{one}</MEMBER>" for one in members)
    return (
        f'<DATATYPE ID="{name}" xsi:type="fx:COMPLEX-DATATYPE-TYPE"><SHORT-NAME>{name}</SHORT-NAME>'
        f"<COMPLEX-DATATYPE-CLASS>{kind}</COMPLEX-DATATYPE-CLASS><MEMBERS>{inside}</MEMBERS></DATATYPE>"
    )


def array(least: int, most: int | None, **sizes: object) -> str:
    maximum = "" if most is None else f"<MAXIMUM-SIZE>{most}</MAXIMUM-SIZE>"
    return (
        f"<ARRAY-DECLARATION><ARRAY-DIMENSION><DIMENSION>1</DIMENSION><MINIMUM-SIZE>{least}</MINIMUM-SIZE>{maximum}"
        f"</ARRAY-DIMENSION></ARRAY-DECLARATION>{utilization(**sizes)}"
    )


def utilization(**sizes: object) -> str:
    said = "".join(f"<{name.replace('_', '-')}>{size}</{name.replace('_', '-')}>" for name, size in sizes.items())
    return f"<UTILIZATION><SERIALIZATION-ATTRIBUTES>{said}</SERIALIZATION-ATTRIBUTES></UTILIZATION>" if said else ""


def fibex(*parts: str) -> str:
    events = "".join(part for part in parts if part.startswith("<EVENT>"))
    others = "".join(part for part in parts if not part.startswith("<EVENT>"))
    interface = f"<SHORT-NAME>S</SHORT-NAME><SERVICE-IDENTIFIER>0x1234</SERVICE-IDENTIFIER><EVENTS>{events}</EVENTS>"
    return f"{HEAD}<SERVICE-INTERFACE ID='s'>{interface}</SERVICE-INTERFACE>{CODINGS}{others}</ELEMENTS></FIBEX>"


def load(tmp_path: Path, text: str) -> Services:
    (tmp_path / "car.xml").write_text(text, encoding="utf-8")
    return services_of(read_fibex(tmp_path / "car.xml"))


def parameters(services: Services) -> dict[str, Type]:
    (message,) = services
    return {one.name: one.type for one in message.parameters.members}


def test_sizes_that_a_file_does_not_say_are_those_of_the_standard(tmp_path: Path) -> None:
    pair = complex_type("pair", "STRUCTURE", member("a", "u8"), member("b", "s16"))
    choice = complex_type("choice", "UNION", member("x", "u8", "<INDEX>7</INDEX>"))
    uses = [
        member("many", "u8", array(0, None)),
        member("three", "s16", array(3, 3)),
        member("text", "text"),
        member("pair", "pair"),
        member("choice", "choice"),
        member("raw", "raw"),
    ]
    positions = [f"{use}<POSITION>{place}</POSITION>" for place, use in enumerate(uses)]
    found = load(tmp_path, fibex(event(*reversed(positions)), pair, choice))
    assert not found.lost
    types = parameters(found)
    assert list(types) == ["many", "three", "text", "pair", "choice", "raw"]
    many, three, text, struct, union, raw = types.values()
    u8 = BaseType(name="u8", coding="uint", bits=8)
    assert many == Array(name="many", element=u8, dimensions=(Dimension(length_bits=32),))
    assert isinstance(three, Array)
    assert three.dimensions == (Dimension(minimum=3, maximum=3),)
    assert text == String(name="text", encoding="utf-8", length_bits=32)
    assert isinstance(struct, Struct)
    assert (struct.length_bits, struct.fixed_bytes) == (0, 3)
    assert isinstance(union, Union)
    assert (union.length_bits, union.selector_bits, union.variants[0].selector) == (32, 32, 7)
    assert isinstance(raw, Array)
    assert raw.fixed_bytes == 4


def test_sizes_are_passed_on(tmp_path: Path) -> None:
    """With PASS-ON-TO-SUBELEMENTS all of them; else only that of arrays, because a struct has no use for it itself."""
    inner = complex_type("inner", "STRUCTURE", member("t", "text"), member("l", "u8", array(0, 9)))
    own = complex_type("own", "STRUCTURE", member("l", "u8", array(0, 9, ARRAY_LENGTH_FIELD_SIZE=16)))
    sizes = {"LENGTH_FIELD_SIZE": 8, "ARRAY_LENGTH_FIELD_SIZE": 8}
    found = load(
        tmp_path,
        fibex(
            event(
                member("on", "inner", utilization(**sizes, PASS_ON_TO_SUBELEMENTS="true")),
                member("off", "inner", utilization(**sizes)),
                member("own", "own", utilization(**sizes, PASS_ON_TO_SUBELEMENTS="true")),
            ),
            inner,
            own,
        ),
    )
    types = parameters(found)
    lengths = {}
    for name, one in types.items():
        assert isinstance(one, Struct)
        for each in one.members:
            inside = each.type
            lengths[name, each.name] = (
                inside.length_bits if isinstance(inside, String) else inside.dimensions[0].length_bits
            )
    assert lengths == {("on", "t"): 8, ("on", "l"): 8, ("off", "t"): 32, ("off", "l"): 8, ("own", "l"): 16}


def test_typedefs_stand_for_their_member(tmp_path: Path) -> None:
    list_of = complex_type("list", "TYPEDEF", member("of", "s16", array(2, 2)))
    alias = complex_type("alias", "TYPEDEF", member("of", "list"))
    (one,) = parameters(load(tmp_path, fibex(event(member("x", "alias")), list_of, alias))).values()
    assert isinstance(one, Array)
    assert one.fixed_bytes == 4


SCALED = """<CODING ID="cx"><SHORT-NAME>cx</SHORT-NAME><ho:CODED-TYPE ho:BASE-DATA-TYPE="A_UINT8"/><COMPU-METHODS><COMPU-METHOD>
<COMPU-INTERNAL-TO-PHYS><COMPU-SCALES>{}</COMPU-SCALES></COMPU-INTERNAL-TO-PHYS></COMPU-METHOD></COMPU-METHODS></CODING>
<DATATYPE ID="x" xsi:type="fx:COMMON-DATATYPE-TYPE"><SHORT-NAME>x</SHORT-NAME><CODING-REF ID-REF="cx"/></DATATYPE>"""
LIMITS = "<LOWER-LIMIT>{}</LOWER-LIMIT><UPPER-LIMIT INTERVAL-TYPE='OPEN'>{}</UPPER-LIMIT>"


def linear(offset: float, factor: float) -> str:
    return (
        f"<COMPU-RATIONAL-COEFFS><COMPU-NUMERATOR><V>{offset}</V><V>{factor}</V></COMPU-NUMERATOR><COMPU-DENOMINATOR><V>2</V>"
        "</COMPU-DENOMINATOR></COMPU-RATIONAL-COEFFS>"
    )


def test_factors_and_texts_of_a_coding(tmp_path: Path) -> None:
    text = "<COMPU-SCALE>" + LIMITS.format(250, 253) + "<COMPU-CONST><VT>error</VT></COMPU-CONST></COMPU-SCALE>"
    coding = SCALED.format(f"<COMPU-SCALE>{linear(-80, 1)}</COMPU-SCALE>{text}")
    (one,) = parameters(load(tmp_path, fibex(event(member("x", "x")), coding))).values()
    assert isinstance(one, BaseType)
    assert one.scale == Scale(factor=0.5, offset=-40)
    assert one.labels == ((250, "error"), (251, "error"), (252, "error"))


LOST = {
    "formula": (SCALED.format("<COMPU-SCALE><COMPU-GENERIC-MATH/></COMPU-SCALE>"), "x", "is a formula", 1),
    "two factors": (
        SCALED.format(f"<COMPU-SCALE>{linear(0, 1)}</COMPU-SCALE><COMPU-SCALE>{linear(0, 3)}</COMPU-SCALE>"),
        "x",
        "several linear scales",
        1,
    ),
    "text for everything": (
        SCALED.format("<COMPU-SCALE>" + LIMITS.format(0, 5000) + "<COMPU-CONST><VT>t</VT></COMPU-CONST></COMPU-SCALE>"),
        "x",
        "stands for 5,000 values",
        1,
    ),
    "no such type": ("", "nothing", "its data type nothing is not in the file", 0),
    "contains itself": (complex_type("x", "STRUCTURE", member("a", "x")), "x", "contains itself", 0),
    "no selector": (complex_type("x", "UNION", member("a", "u8")), "x", "has no INDEX", 0),
    "odd class": (complex_type("x", "BAG", member("a", "u8")), "x", "class BAG are not read", 0),
    "optional without a tag": (
        complex_type("x", "STRUCTURE", member("a", "u8", "<MANDATORY>false</MANDATORY>")),
        "x",
        "a are optional: give them a DATA-ID",
        0,
    ),
    "bits": ("", 'u8"/><UTILIZATION><BIT-LENGTH>12</BIT-LENGTH></UTILIZATION><X a="', "it has 12 bits", 0),
    "no number": (
        complex_type("x", "STRUCTURE", member("a", "u8", "<POSITION>first</POSITION>")),
        "x",
        "its POSITION is 'first': write a number",
        0,
    ),
    "unknown element": ("", 'u8"/><SECRET/><X a="', "SECRET in INPUT-PARAMETER: it is not read", 1),
}


@pytest.mark.parametrize(("more", "datatype", "reason", "messages"), LOST.values(), ids=LOST)
def test_what_is_not_read_is_listed(tmp_path: Path, more: str, datatype: str, reason: str, messages: int) -> None:
    """And costs no other message."""
    found = load(tmp_path, fibex(event(member("x", datatype)), event(member("y", "u8"), number=0x8002), more))
    assert any(reason in f"{place}: {why}" for place, why in found.lost.items()), found.lost
    assert all(place.startswith("car.xml, line ") for place in found.lost)
    assert len(found.messages) == messages + 1
    assert found.method_names[0x1234, 0x8001] == "E32769"


def test_two_services_with_one_id(tmp_path: Path) -> None:
    text = fibex(event(member("x", "u8")), event(member("x", "s16")))
    found = load(tmp_path, text)
    assert len(found.messages) == 1
    assert any("has the same service, method and type" in why for why in found.lost.values())


REFUSED = {
    "cut off": (fibex(event(member("x", "u8")))[:-40], "unclosed token, inside <DATATYPE> of line"),
    "not XML": ("service S {}", "syntax error"),
    "bad tag": (
        fibex(event(member("x", "u8")).replace("</EVENT>", "</EVEN>")),
        "mismatched tag, inside <EVENT> of line 1",
    ),
    "entities": ('<!DOCTYPE x [<!ENTITY a "b"><!ENTITY c "&a;&a;&a;">]><FIBEX>&c;</FIBEX>', "declares the entity 'a'"),
    "deep": ("<A>" * 5000 + "</A>" * 5000, "nested more than 256 deep"),
    "empty": ("", "no element found"),
}


@pytest.mark.parametrize(("text", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_file_that_is_not_xml(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(DatabaseError, match=r"cannot read .*car\.xml: line \d") as refused:
        load(tmp_path, text)
    assert reason in str(refused.value)


@pytest.mark.slow
@given(service=services(), data=st.data())
@settings(max_examples=100, deadline=None)
def test_damaged_files_never_crash(
    service: Service, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = write_fibex([service])
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 60)))
        text = text[:start] + data.draw(st.sampled_from(["", "-1", "99999999999999999999", "x", "1e308"])) + text[end:]
    path = tmp_path_factory.getbasetemp() / "damaged.xml"
    path.write_text(text, encoding="utf-8")
    with contextlib.suppress(DatabaseError):
        services_of(read_fibex(path))
