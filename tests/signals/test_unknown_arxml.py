"""ARXML files with what no release of AUTOSAR has: it is left out by name, and everything else is read as before."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.files import load_database
from pcaplake.signals.loaded import LoadedDatabase
from pcaplake.signals.model import Message
from tests.signals import frame_files
from tests.signals.arxml_files import classic_service, package
from tests.signals.container_files import BIG, SHORT, arxml

KEYWORD = re.compile(r"<([A-Z0-9-]+)>([A-Z][A-Z0-9-]+)</\1>")
NEVER = "NOT-IN-AUTOSAR"


def texts() -> Iterator[str]:
    yield frame_files.arxml(frame_files.REPEATED)
    yield arxml(SHORT, BIG)
    yield package(*classic_service())


def loaded(path: Path, text: str) -> LoadedDatabase:
    path.write_text(text, encoding="utf-8")
    return load_database(path)


def all_messages(messages: tuple[Message, ...]) -> Iterator[Message]:
    for message in messages:
        yield from message.parts


@pytest.mark.slow
def test_an_unknown_element_anywhere_costs_itself(tmp_path: Path) -> None:
    tried = 0
    for text in texts():
        whole = loaded(tmp_path / "car.arxml", text)
        assert whole.messages or list(whole.services)
        for place in [found.end() for found in re.finditer(r"</[A-Z0-9-]+>(?=<)", text)]:
            unknown = f'\n<{NEVER} A="1>2"><SHORT-NAME>Q</SHORT-NAME><LENGTH>7</LENGTH><{NEVER}/></{NEVER}>'
            unknown = unknown if tried % 2 else f'<{NEVER} A="1>2"/>'
            if text.startswith("</AUTOSAR>", place):
                continue
            other = loaded(tmp_path / "car.arxml", text[:place] + unknown + text[place:])
            assert (other.messages, list(other.services)) == (whole.messages, list(whole.services))
            (reason,) = [one for one in other.lost.items() if one not in whole.lost.items()]
            assert reason[0].startswith("car.arxml, line ")
            assert re.fullmatch(rf"AUTOSAR has no element {NEVER} in [A-Z0-9-]+; {NEVER} is left out", reason[1])
            tried += 1
    assert tried > 300


@pytest.mark.slow
def test_an_unknown_keyword_never_gives_another_value(tmp_path: Path) -> None:
    """What it is about is left out, and listed by its path; all other signals are as before."""
    tried = 0
    for text in texts():
        whole = loaded(tmp_path / "car.arxml", text)
        known = {(one.name, each) for one in all_messages(whole.messages) for each in one.signals}
        for found in KEYWORD.finditer(text):
            if found[1] in ("SHORT-NAME", "CATEGORY", "VT", "BASE-TYPE-ENCODING", "DISPLAY-NAME"):
                continue  # texts
            other = loaded(tmp_path / "car.arxml", text[: found.start(2)] + NEVER + text[found.end(2) :])
            reasons = [
                reason for reason in other.lost.values() if f"{found[1]} is {NEVER}, which AUTOSAR does" in reason
            ]
            assert len(reasons) == 1, found[0]
            for message in all_messages(other.messages):
                for signal in message.signals:
                    assert (message.name, signal) in known or signal.parents, (found[0], signal)
            tried += 1
    assert tried > 20


def test_an_unknown_destination_of_a_reference(tmp_path: Path) -> None:
    """It is left out alone, because it is not read."""
    text = arxml(SHORT, BIG)
    whole = loaded(tmp_path / "car.arxml", text)
    other = loaded(tmp_path / "car.arxml", text.replace('DEST="CAN-FRAME"', f"DEST = '{NEVER}'", 1))
    assert other.messages == whole.messages
    assert any(f"FRAME-REF has DEST {NEVER}, which AUTOSAR does not have" in reason for reason in other.lost.values())


@pytest.mark.parametrize("encoding", ["iso-8859-1", "utf-16"])
def test_lines_and_characters_stay(tmp_path: Path, encoding: str) -> None:
    text = frame_files.arxml(frame_files.REPEATED).replace("<VT>reverse<", "<VT>rückwärts<")
    text = text.replace('encoding="utf-8"', f'encoding="{encoding}"').replace("><", ">\n<")
    text = text.replace("<ELEMENTS>", f"<ELEMENTS><{NEVER}>\n°\n</{NEVER}>", 1)
    text = text.replace("<LENGTH>16<", "<LENGTH>many<", 1)
    path = tmp_path / "car.arxml"
    path.write_text(text, encoding=encoding)
    found = load_database(path)
    line = next(number for number, one in enumerate(text.split("\n"), 1) if "many" in one)
    assert any(place == f"car.arxml, line {line}" for place in found.lost)
    labels = {label for one in found.messages for each in one.signals for _, label in each.choices}
    assert "rückwärts" in labels


def test_a_file_without_a_declaration(tmp_path: Path) -> None:
    text = arxml(SHORT, BIG)
    assert loaded(tmp_path / "car.arxml", text.partition("\n")[2]) == loaded(tmp_path / "car.arxml", text)


def test_an_unknown_element_in_a_file_that_is_not_xml(tmp_path: Path) -> None:
    text = arxml(SHORT, BIG).replace("<ELEMENTS>", f"<ELEMENTS><{NEVER}><A></B></{NEVER}>", 1)
    with pytest.raises(DatabaseError, match=r"cannot read .*car\.arxml: line 2: mismatched tag; export it again"):
        loaded(tmp_path / "car.arxml", text)
