"""ARXML files that are wrong or unusual: what can be read is read, and the rest is listed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pcaplake.signals.database import Databases
from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.files import load_database
from tests.signals import frame_files
from tests.signals.arxml_files import classic_service, named, package, reference, tag, write_arxml
from tests.signals.can_arxml_files import at, can_file
from tests.signals.container_files import base, i_signal, mapped, pdu
from tests.signals.described_services import described_service


def one_signal(path: Path, *elements: str, properties: str = "") -> Path:
    """A file with one signal X of 16 bits."""
    return can_file(
        path, 1, at("One", 0), i_signal("X", 16, base("u") + properties), pdu("One", 2, mapped("X", 0)), *elements
    )


@pytest.mark.parametrize("encoding", ["iso-8859-1", "utf-16", "utf-8-sig"])
def test_other_encodings(tmp_path: Path, encoding: str) -> None:
    unit = named("UNIT", "Degree", tag("DISPLAY-NAME", "°C"))
    path = one_signal(tmp_path / "car.arxml", unit, properties=reference("UNIT-REF", "UNIT", "/P/Degree"))
    text = path.read_text(encoding="utf-8").replace('encoding="utf-8"', f'encoding="{encoding.removesuffix("-sig")}"')
    path.write_text(text, encoding=encoding)
    loaded = load_database(path)
    assert not loaded.lost
    assert loaded.messages[0].signals[0].scales[0].unit == "°C"


def test_names_that_autosar_forbids_are_read_and_not_listed(tmp_path: Path) -> None:
    unit = named("UNIT", "1Hz", tag("DISPLAY-NAME", "Hz"))
    path = one_signal(tmp_path / "car.arxml", unit, properties=reference("UNIT-REF", "UNIT", "/P/1Hz"))
    loaded = load_database(path)
    assert not loaded.lost
    assert loaded.messages[0].signals[0].scales[0].unit == "Hz"


@pytest.mark.parametrize("content", ["", "<AUTOSAR/>", package()[:300], "\0" * 10])
def test_a_file_that_is_not_arxml(tmp_path: Path, content: str) -> None:
    """The error says the path once, and what to do."""
    path = tmp_path / "car.arxml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DatabaseError, match="export it again from the program that wrote it") as caught:
        load_database(path)
    assert str(caught.value).count(str(path)) == 1


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        ("abc", "its HEADER-ID is 'abc': write a number"),
        (1 << 32, "its header id is 4294967296, and header ids have 32 bits"),
    ],
)
def test_a_wrong_header_id_costs_its_pdu_alone(tmp_path: Path, number: object, reason: str) -> None:
    path = tmp_path / "car.arxml"
    text = frame_files.arxml(frame_files.REPEATED)
    path.write_text(re.sub("<HEADER-ID>.*?<", f"<HEADER-ID>{number}<", text), encoding="utf-8")
    loaded = load_database(path)
    assert {one.kind for one in loaded.messages} == {"flexray"}
    assert reason in loaded.lost.values()


def test_a_wrong_id_of_a_service_costs_its_name_alone(tmp_path: Path) -> None:
    path = tmp_path / "car.arxml"
    text = package(*classic_service())
    path.write_text(re.sub("<SERVICE-IDENTIFIER>.*?<", "<SERVICE-IDENTIFIER>abc<", text), encoding="utf-8")
    loaded = load_database(path)
    assert len(list(loaded.services)) == 1
    assert "its SERVICE-IDENTIFIER is 'abc': write a number" in loaded.lost.values()


def test_a_frame_without_an_identifier(tmp_path: Path) -> None:
    path = one_signal(tmp_path / "car.arxml")
    path.write_text(re.sub("<IDENTIFIER>.*?</IDENTIFIER>", "", path.read_text(encoding="utf-8")), encoding="utf-8")
    assert list(load_database(path).lost.values()) == ["it has no IDENTIFIER: add one"]


def test_two_clusters_of_one_name_are_listed(tmp_path: Path) -> None:
    path = one_signal(tmp_path / "car.arxml")
    other = named("AR-PACKAGE", "Other", tag("ELEMENTS", named("ETHERNET-CLUSTER", "Can")))
    text = path.read_text(encoding="utf-8").replace("</AR-PACKAGES>", f"{other}</AR-PACKAGES>")
    path.write_text(text, encoding="utf-8")
    loaded = load_database(path, "Can")
    assert list(loaded.lost.values()) == [
        "2 clusters have this name: `car.arxml#Can` selects all of them, `car.arxml#/P/Can` or `car.arxml#/Other/Can` one"
    ]


def test_clusters_of_one_name_are_selected_by_their_paths(tmp_path: Path) -> None:
    """Each has a frame with the id 1: PDU One with X, or PDU Two with Y."""
    path = one_signal(tmp_path / "car.arxml", i_signal("Y", 8, base("u")), pdu("Two", 1, mapped("Y", 0)))
    text = path.read_text(encoding="utf-8")
    cluster = re.findall(r"<CAN-FRAME>.*</CAN-CLUSTER>", text)[0]
    other = named(
        "AR-PACKAGE", "Q", tag("ELEMENTS", cluster.replace("/P/One", "/P/Two").replace("/P/Frame", "/Q/Frame"))
    )
    path.write_text(text.replace("</AR-PACKAGES>", f"{other}</AR-PACKAGES>"), encoding="utf-8")
    with pytest.raises(
        DatabaseError, match=r"have the same id 0x1: .*`file\.arxml#/path/of/cluster` if several have one"
    ):
        Databases.from_file(path)
    (tmp_path / "buses.yaml").write_text(
        "databases: {a: 'car.arxml#/P/Can', b: 'car.arxml#/Q/Can'}\nbuses: {1: a, 2: b}\n"
    )
    databases = Databases.from_file(tmp_path / "buses.yaml")
    assert [(bus, [one.name for one in message.signals]) for bus, message in databases] == [("1", ["X"]), ("2", ["Y"])]
    with pytest.raises(DatabaseError, match=r"car\.arxml has no network '/X/Can'; it has Can"):
        load_database(path, "/X/Can")


def test_the_package_itself_is_the_base_of_references(tmp_path: Path) -> None:
    path = one_signal(tmp_path / "car.arxml")
    here = tag("SHORT-LABEL", "here") + tag("IS-DEFAULT", "true") + tag("BASE-IS-THIS-PACKAGE", "true")
    bases = tag("REFERENCE-BASES", tag("REFERENCE-BASE", here))
    text = path.read_text(encoding="utf-8").replace("<ELEMENTS>", f"{bases}<ELEMENTS>", 1).replace(">/P/u<", ">u<")
    path.write_text(text, encoding="utf-8")
    loaded = load_database(path)
    assert [one.name for one in loaded.messages[0].signals] == ["X"]
    assert not loaded.messages[0].unreadable


# -- computation methods ----------------------------------------------------------------------------------------------
TWICE = tag(
    "COMPU-RATIONAL-COEFFS", tag("COMPU-NUMERATOR", tag("V", 0) + tag("V", 2)) + tag("COMPU-DENOMINATOR", tag("V", 1))
)


def with_method(path: Path, category: str, *scales: str, direction: str = "COMPU-INTERNAL-TO-PHYS") -> Path:
    inside = tag(direction, tag("COMPU-SCALES", "".join(tag("COMPU-SCALE", scale) for scale in scales)))
    method = named("COMPU-METHOD", "Method", tag("CATEGORY", category), inside)
    return one_signal(path, method, properties=reference("COMPU-METHOD-REF", "COMPU-METHOD", "/P/Method"))


def limits(low: object, high: object) -> str:
    return tag("LOWER-LIMIT", low) + tag("UPPER-LIMIT", high)


@pytest.mark.parametrize(
    ("category", "scale", "direction", "reason"),
    [
        (
            "RAT_FUNC",
            TWICE,
            "COMPU-PHYS-TO-INTERNAL",
            "it says only COMPU-PHYS-TO-INTERNAL, and COMPU-INTERNAL-TO-PHYS is read",
        ),
        (
            "TAB_NOINTP",
            limits(1, 1) + tag("COMPU-CONST", tag("VF", 5.5)),
            "COMPU-INTERNAL-TO-PHYS",
            "one of its scales is a constant number, and only texts are read as constants",
        ),
        (
            "BITFIELD_TEXTTABLE",
            tag("MASK", 1) + limits(1, 1) + tag("COMPU-CONST", tag("VT", "on")),
            "COMPU-INTERNAL-TO-PHYS",
            "its texts are of single bits, and those of signals in frames are read of whole values only",
        ),
    ],
)
def test_what_a_method_says_and_is_not_read(
    tmp_path: Path, category: str, scale: str, direction: str, reason: str
) -> None:
    loaded = load_database(with_method(tmp_path / "car.arxml", category, scale, direction=direction))
    assert loaded.lost == {"car.arxml, /P/Method": reason}
    assert [(one.factor, one.unit) for one in loaded.messages[0].signals[0].scales] == [(1, None)]


def test_an_empty_text_is_no_linear_scale(tmp_path: Path) -> None:
    scales = [limits(1, 1) + tag("COMPU-CONST", tag("VT", text)) for text in ("on", "")]
    (signal,) = (
        load_database(with_method(tmp_path / "car.arxml", "TEXTTABLE", scales[0], scales[1].replace("1", "2")))
        .messages[0]
        .signals
    )
    assert signal.choices == ((1, "on"), (2, ""))
    assert (signal.minimum, signal.maximum) == (None, None)


def test_limits_of_scales_between_whole_numbers(tmp_path: Path) -> None:
    scales = [limits(0, 99.5) + TWICE, limits(99.5, 255) + TWICE.replace("2<", "3<")]
    (signal,) = load_database(with_method(tmp_path / "car.arxml", "SCALE_LINEAR", *scales)).messages[0].signals
    assert [(one.factor, one.low, one.high) for one in signal.scales] == [(2, 0, 99), (3, 100, 255)]


def test_services_beside_the_configuration_of_a_control_unit(tmp_path: Path) -> None:
    """The services are read, and that the messages are not is listed."""
    unit = named("ECUC-VALUE-COLLECTION", "Unit")
    path = tmp_path / "car.arxml"
    path.write_text(write_arxml([described_service(1)]).replace("<ELEMENTS>", f"<ELEMENTS>{unit}", 1), encoding="utf-8")
    loaded = load_database(path)
    assert loaded.services.messages
    assert loaded.lost["car.arxml, /P/Unit"] == (
        "the file describes services too: messages are read from a file of its own"
    )


MODULES = "ECUC-MODULE-CONFIGURATION-VALUES"


@pytest.mark.parametrize(
    ("named_modules", "reason"),
    [
        ([], "/P/Unit names 0 of them; export it with one, or give the system description"),
        (["/P/CanIf"], "/P/Unit names 0 of them"),
        (["/P/Com", "/Q/Com"], "/P/Unit names 2 of them"),
        (["/P/Com"], "its modules Com and CanIf are not as cantools expects them .*: export both, or give the system"),
    ],
)
def test_a_control_unit_without_messages(tmp_path: Path, named_modules: list[str], reason: str) -> None:
    values = "".join(
        tag(f"{MODULES}-REF-CONDITIONAL", reference(f"{MODULES}-REF", MODULES, one)) for one in named_modules
    )
    path = tmp_path / "car.arxml"
    path.write_text(package(named("ECUC-VALUE-COLLECTION", "Unit", tag("ECUC-VALUES", values))), encoding="utf-8")
    with pytest.raises(DatabaseError, match=f"car.arxml has .*the configuration of a control unit.*{reason}"):
        load_database(path)


def test_no_name_after_the_number_sign(tmp_path: Path) -> None:
    one_signal(tmp_path / "car.arxml")
    with pytest.raises(DatabaseError, match=r"`car.arxml#` names no network: write its name after `#`, or remove `#`"):
        Databases.from_mapping({"databases": {"car": "car.arxml#"}}, "databases.yaml", tmp_path)


# -- paths that are not unique ----------------------------------------------------------------------------------------
def test_two_elements_with_one_path_are_listed(tmp_path: Path) -> None:
    """Also in a second part of their package, which is nothing wrong by itself."""
    path = one_signal(tmp_path / "car.arxml", i_signal("X", 8, base("u")))
    part = named("AR-PACKAGE", "P", tag("ELEMENTS", i_signal("X", 4, base("u"))))
    path.write_text(path.read_text(encoding="utf-8").replace("</AR-PACKAGES>", f"{part}</AR-PACKAGES>"))
    loaded = load_database(path)
    assert [one.length for one in loaded.messages[0].signals] == [16]
    what = "and the first is read: give each a name of its own"
    assert loaded.lost == {"car.arxml, /P/X": f"3 elements have this path (I-SIGNAL, I-SIGNAL, I-SIGNAL), {what}"}


def test_two_kinds_of_elements_with_one_path(tmp_path: Path) -> None:
    """autosar-data refuses the file."""
    inside = tag("PHYSICAL-DIMENSION-REF", "/P/D", DEST="PHYSICAL-DIMENSION")
    path = one_signal(tmp_path / "car.arxml", named("UNIT", "X", inside), named("PHYSICAL-DIMENSION", "D"))
    loaded = load_database(path)
    assert [one.length for one in loaded.messages[0].signals] == [16]
    assert loaded.lost == {
        "car.arxml, line 2, /P/X": "I-SIGNAL has this path too: give each a name of its own; UNIT is left out"
    }


def test_a_package_in_two_parts_is_not_listed(tmp_path: Path) -> None:
    path = one_signal(tmp_path / "car.arxml")
    part = named("AR-PACKAGE", "P", tag("ELEMENTS", i_signal("Y", 4, base("u"))))
    path.write_text(path.read_text(encoding="utf-8").replace("</AR-PACKAGES>", f"{part}</AR-PACKAGES>"))
    assert not load_database(path).lost


def test_all_reasons_of_one_path_are_listed(tmp_path: Path) -> None:
    method = named("COMPU-METHOD", "Method", tag("CATEGORY", "TEXTTABLE"))
    scales = [limits(0, 9999) + tag("COMPU-CONST", tag("VT", text)) for text in ("on", "off", "on")]
    inside = tag("COMPU-INTERNAL-TO-PHYS", tag("COMPU-SCALES", "".join(tag("COMPU-SCALE", one) for one in scales)))
    method = named("COMPU-METHOD", "Method", tag("CATEGORY", "TEXTTABLE"), inside)
    path = one_signal(
        tmp_path / "car.arxml", method, properties=reference("COMPU-METHOD-REF", "COMPU-METHOD", "/P/Method")
    )
    many = "it stands for 10,000 values, and at most 1,024 are read"
    assert load_database(path).lost == {"car.arxml, /P/Method": f"text 'on': {many}; text 'off': {many}"}
