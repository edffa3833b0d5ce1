"""PDUs of ARXML that seldom occur: one name several times, update bits, PDUs in PDUs, missing parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from pcaplake.signals.files import load_database
from pcaplake.signals.model import Message
from tests.signals.arxml_files import named, reference, tag
from tests.signals.can_arxml_files import at, can_file
from tests.signals.container_files import base, i_signal, mapped, pdu

X = i_signal("X", 8, base("u"))


def updated(name: str, start: int, bit: int) -> str:
    return mapped(name, start).replace("</I-SIGNAL-TO", tag("UPDATE-INDICATION-BIT-POSITION", bit) + "</I-SIGNAL-TO")


def multiplexed(name: str, *alternatives: tuple[int, str]) -> str:
    """With a selector in byte 0."""
    parts = "".join(
        tag(
            "DYNAMIC-PART-ALTERNATIVE",
            reference("I-PDU-REF", "I-SIGNAL-I-PDU", f"/P/{part}") + tag("SELECTOR-FIELD-CODE", code),
        )
        for code, part in alternatives
    )
    dynamic = tag("DYNAMIC-PARTS", tag("DYNAMIC-PART", tag("DYNAMIC-PART-ALTERNATIVES", parts)))
    selector = tag("SELECTOR-FIELD-LENGTH", 8) + tag("SELECTOR-FIELD-START-POSITION", 0)
    return named("MULTIPLEXED-I-PDU", name, tag("LENGTH", 8), dynamic, selector)


def conditions(message: Message) -> set[tuple[str, int, tuple[tuple[int, int], ...]]]:
    """Name and start of each signal, and (start, value) of what it depends on."""
    return {
        (
            one.name,
            one.start,
            tuple((message.signals[parent.signal].start, min(parent.ids)) for parent in one.parents),
        )
        for one in message.signals
    }


def test_update_bits_of_one_signal_in_two_pdus(tmp_path: Path) -> None:
    elements = [X, pdu("One", 2, updated("X", 0, 8)), pdu("Two", 2, updated("X", 0, 8))]
    (message,) = load_database(can_file(tmp_path / "car.arxml", 1, at("One", 0) + at("Two", 16), *elements)).messages
    assert not message.unreadable
    assert conditions(message) == {
        ("One.X", 0, ((8, 1),)),
        ("One.X_UpdateBit", 8, ()),
        ("Two.X", 16, ((24, 1),)),
        ("Two.X_UpdateBit", 24, ()),
    }


def test_a_signal_has_the_name_of_an_update_bit(tmp_path: Path) -> None:
    elements = [X, i_signal("X_UpdateBit", 8, base("u")), pdu("One", 4, updated("X", 0, 8), mapped("X_UpdateBit", 16))]
    (message,) = load_database(can_file(tmp_path / "car.arxml", 1, at("One", 0), *elements)).messages
    assert conditions(message) == {("X", 0, ((8, 1),)), ("X_UpdateBit_", 8, ()), ("X_UpdateBit", 16, ())}


def test_update_bits_of_one_signal_in_two_alternatives(tmp_path: Path) -> None:
    elements = [X, pdu("One", 4, updated("X", 8, 16)), pdu("Two", 4, updated("X", 8, 17))]
    elements.append(multiplexed("Mux", (1, "One"), (2, "Two")))
    (message,) = load_database(can_file(tmp_path / "car.arxml", 1, at("Mux", 0), *elements)).messages
    assert conditions(message) == {
        ("Frame_selector1", 0, ()),
        ("X", 8, ((16, 1), (0, 1))),
        ("X", 8, ((17, 1), (0, 2))),
        ("X_UpdateBit", 16, ((0, 1),)),
        ("X_UpdateBit", 17, ((0, 2),)),
    }


def test_pdus_in_pdus_without_end(tmp_path: Path) -> None:
    """Each holds the next one twice: 2 ** 14 selectors and more are refused, quickly, and so is a chain of thousands."""
    chain = [multiplexed(f"M{n}", (1, f"M{n + 1}"), (2, f"M{n + 1}")) for n in range(4000)]
    elements = [X, *chain[:15], pdu("M15", 2, mapped("X", 8))]
    loaded = load_database(can_file(tmp_path / "car.arxml", 1, at("M0", 0), *elements))
    assert list(loaded.lost.values()) == ["the PDU /P/M1 has 32,767 signals, and at most 16,384 are read"]
    loaded = load_database(can_file(tmp_path / "car.arxml", 1, at("M0", 0), *chain))
    assert list(loaded.lost.values()) == ["the PDU /P/M16 is inside more than 16 others"]


def test_one_name_in_all_alternatives(tmp_path: Path) -> None:
    """The check which signals exclude each other is not quadratic."""
    elements = [X]
    elements += [multiplexed(f"M{n}", (1, f"M{n + 1}"), (2, f"M{n + 1}")) for n in range(10)]
    elements.append(pdu("M10", 2, mapped("X", 8)))
    (message,) = load_database(can_file(tmp_path / "car.arxml", 1, at("M0", 0), *elements)).messages
    assert [one.name for one in message.signals].count("X") == 1 << 10


def test_one_name_in_two_pdus_of_a_container_without_headers(tmp_path: Path) -> None:
    inside = [pdu(name, 2, mapped("X", 0)) for name in ("One", "Two")]
    placed = [tag("CONTAINED-I-PDU-PROPS", tag("OFFSET", offset)) + "<I-SIGNAL-TO-PDU" for offset in (0, 2)]
    inside = [text.replace("<I-SIGNAL-TO-PDU", more, 1) for text, more in zip(inside, placed, strict=True)]
    loaded = load_database(container(tmp_path, "NO-HEADER", X, *inside))
    assert conditions(loaded.messages[0]) == {("One.X", 0, ()), ("Two.X", 16, ())}
    lost = load_database(container(tmp_path, "NO-HEADER", X, inside[0], pdu("Two", 2, mapped("X", 0)))).lost
    assert list(lost.values()) == ["/P/Two in Box has no OFFSET: add one"]


def test_a_container_holds_what_is_not_in_the_file(tmp_path: Path) -> None:
    assert set(load_database(container(tmp_path, "SHORT-HEADER")).lost.values()) == {
        "this PDU of /P/Box is not in the file"
    }


def container(tmp_path: Path, header: str, *elements: str) -> Path:
    """A file with a container `Box` of the PDUs One and Two."""
    names = ("One", "Two")
    refs = [reference("CONTAINED-PDU-TRIGGERING-REF", "PDU-TRIGGERING", f"/P/Can/C/T{name}") for name in names]
    contained = tag("CONTAINED-PDU-TRIGGERING-REFS", "".join(refs))
    box = named("CONTAINER-I-PDU", "Box", tag("LENGTH", 8), contained, tag("HEADER-TYPE", header))
    return triggered(can_file(tmp_path / "car.arxml", 1, at("Box", 0), box, *elements), *names)


def triggered(path: Path, *names: str) -> Path:
    """The file with triggerings of these PDUs."""
    triggerings = "".join(
        named("PDU-TRIGGERING", f"T{name}", reference("I-PDU-REF", "I-SIGNAL-I-PDU", f"/P/{name}")) for name in names
    )
    text = path.read_text(encoding="utf-8")
    end = "</FRAME-TRIGGERINGS>"
    path.write_text(text.replace(end, end + tag("PDU-TRIGGERINGS", triggerings)), encoding="utf-8")
    return path


def test_a_pdu_is_twice_in_a_frame(tmp_path: Path) -> None:
    placed = at("One", 0) + at("One", 16).replace("mOne", "again")
    loaded = load_database(can_file(tmp_path / "car.arxml", 1, placed, X, pdu("One", 2, mapped("X", 0))))
    assert conditions(loaded.messages[0]) == {("X", 0, ())}
    assert loaded.lost == {
        "car.arxml, /P/Frame/again": "its PDU One is in the frame twice: the first is read",
    }


def secured(tmp_path: Path, *, length: str = tag("LENGTH", 2), payload: str = "TOne", more: str = "") -> Path:
    inside = reference("PAYLOAD-REF", "PDU-TRIGGERING", f"/P/Can/C/{payload}") + more
    one = pdu("One", 2, mapped("X", 0)).replace(tag("LENGTH", 2), length)
    elements = [X, one, named("SECURED-I-PDU", "Secured", tag("LENGTH", 8), inside)]
    return triggered(can_file(tmp_path / "car.arxml", 1, at("Secured", 0), *elements), "One")


@pytest.mark.parametrize(
    ("changes", "signals", "reason"),
    [
        ({"length": ""}, ["X"], "One has no LENGTH, so the places of what follows are unknown"),
        ({"payload": "TTwo"}, [], "PAYLOAD-REF of /P/Secured refers to /P/Can/C/TTwo, which is not in the file"),
        (
            {"more": tag("USE-AS-CRYPTOGRAPHIC-I-PDU", "true")},
            [],
            "the secured PDU /P/Secured has USE-AS-CRYPTOGRAPHIC-I-PDU true, and only false is read",
        ),
        (
            {"more": tag("USE-SECURED-PDU-HEADER", "SECURED-PDU-HEADER-08-BIT")},
            [],
            "the secured PDU /P/Secured has USE-SECURED-PDU-HEADER SECURED-PDU-HEADER-08-BIT, and only NO-HEADER is read",
        ),
    ],
    ids=["no length", "no payload", "without the payload", "with a header"],
)
def test_a_secured_pdu_whose_layout_is_unknown(
    tmp_path: Path, changes: dict[str, str], signals: list[str], reason: str
) -> None:
    loaded = load_database(secured(tmp_path, **changes))
    assert [one.name for message in loaded.messages for one in message.signals] == signals
    assert list(loaded.lost.values()) == [reason]


def test_the_update_bit_of_a_signal_group(tmp_path: Path) -> None:
    group = named("I-SIGNAL-GROUP", "Group", tag("I-SIGNAL-REFS", reference("I-SIGNAL-REF", "I-SIGNAL", "/P/X")))
    inside = reference("I-SIGNAL-GROUP-REF", "I-SIGNAL-GROUP", "/P/Group") + tag("UPDATE-INDICATION-BIT-POSITION", 9)
    elements = [X, i_signal("Y", 8, base("u")), group]
    elements.append(pdu("One", 3, mapped("X", 0), mapped("Y", 16), named("I-SIGNAL-TO-I-PDU-MAPPING", "g", inside)))
    (message,) = load_database(can_file(tmp_path / "car.arxml", 1, at("One", 0), *elements)).messages
    assert conditions(message) == {("X", 0, ((9, 1),)), ("X_UpdateBit", 9, ()), ("Y", 16, ())}


@pytest.mark.parametrize(
    ("right", "wrong", "reason"),
    [
        (">/P/X<", ">/P/Z<", "I-SIGNAL-REF of /P/One/mX refers to /P/Z, which is not in the file"),
        ("<LENGTH>8</LENGTH>", "<LENGTH>x</LENGTH>", "its LENGTH is 'x': write a number"),
        (
            "<START-POSITION>0</START-POSITION></I-SIGNAL",
            "</I-SIGNAL",
            "/P/One/mX has no START-POSITION: add one",
        ),
    ],
)
def test_a_wrong_signal_costs_no_other(tmp_path: Path, right: str, wrong: str, reason: str) -> None:
    elements = [X, i_signal("Y", 7, base("u")), pdu("One", 3, mapped("X", 0), mapped("Y", 16))]
    path = can_file(tmp_path / "car.arxml", 1, at("One", 0), *elements)
    path.write_text(path.read_text(encoding="utf-8").replace(right, wrong, 1), encoding="utf-8")
    loaded = load_database(path)
    assert [one.name for one in loaded.messages[0].signals] == ["Y"]
    assert reason in [*loaded.lost.values(), *(one.reason for one in loaded.messages[0].unreadable)]


@pytest.mark.parametrize("kind", ["COMPU-METHOD", "DATA-CONSTR"])
def test_what_gives_a_signal_its_meaning_is_not_in_the_file(tmp_path: Path, kind: str) -> None:
    elements = [
        i_signal("X", 8, base("u") + reference(f"{kind}-REF", kind, "/P/Nowhere")),
        pdu("One", 2, mapped("X", 0)),
    ]
    loaded = load_database(can_file(tmp_path / "car.arxml", 1, at("One", 0), *elements))
    assert list(loaded.lost) == ["car.arxml, /P/Nowhere"]


def test_what_transformers_write_into_a_frame_is_listed(tmp_path: Path) -> None:
    """Also in the parts of another PDU; the plain signals beside it are read."""
    written = X.replace("<SHORT-NAME>X<", "<SHORT-NAME>Written<").replace(
        "</I-SIGNAL>",
        tag(
            "DATA-TRANSFORMATIONS",
            tag(
                "DATA-TRANSFORMATION-REF-CONDITIONAL",
                reference("DATA-TRANSFORMATION-REF", "DATA-TRANSFORMATION", "/P/Set/SomeIp"),
            ),
        )
        + "</I-SIGNAL>",
    )
    elements = [X, written, pdu("Mixed", 2, mapped("X", 0), mapped("Written", 8)), multiplexed("Mux", (1, "Mixed"))]
    loaded = load_database(can_file(tmp_path / "car.arxml", 1, at("Mixed", 0) + at("Mux", 16), *elements))
    assert "X" in {one.name for one in loaded.messages[0].signals}
    said = "what SOME/IP transformers write into CAN and FlexRay frames is not read"
    assert loaded.lost == {f"car.arxml, /P/{name}": said for name in ("Mixed", "Mux")}


def test_an_alternative_without_a_code_is_listed(tmp_path: Path) -> None:
    elements = [
        X,
        pdu("One", 2, mapped("X", 8)),
        pdu("Two", 2, mapped("X", 16)),
        multiplexed("Mux", (1, "One"), (2, "Two")),
    ]
    elements[-1] = elements[-1].replace(tag("SELECTOR-FIELD-CODE", 2), "")
    loaded = load_database(can_file(tmp_path / "car.arxml", 1, at("Mux", 0), *elements))
    assert loaded.lost == {"car.arxml, /P/Two": "as an alternative of Mux it has no SELECTOR-FIELD-CODE: add one"}
    assert [(one.name, one.start) for one in loaded.messages[0].signals] == [("Frame_selector1", 0), ("X", 8)]
