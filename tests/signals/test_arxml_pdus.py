"""PDUs of ARXML that seldom occur: one name several times, update bits, PDUs in PDUs, missing parts."""

from __future__ import annotations

from pathlib import Path

from pcaplake.signals.files import load_database
from pcaplake.signals.model import Message
from tests.signals.arxml_files import named, reference, tag
from tests.signals.container_files import base, i_signal, mapped, pdu
from tests.signals.test_large_arxml import at, can_file

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
