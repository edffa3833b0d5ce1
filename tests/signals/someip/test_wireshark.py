"""Wireshark's tables say the same as the description they were written from, and tshark finds the same values with them."""

from __future__ import annotations

import math
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.someip.description import BaseType, PayloadMessage
from pcaplake.signals.someip.wireshark import load_wireshark_tables
from tests.oracles.tshark_someip import Field, read_payloads, write_capture
from tests.signals.someip.generator import draw_payloads
from tests.signals.someip.payload_values import by_reference, decode_all
from tests.signals.someip.payload_writer import Writer
from tests.signals.someip.wireshark_tables import TableWriter

MESSAGES = 25


def draw(seed: int, count: int, folder: Path, *, typedefs: bool = False) -> list[tuple[PayloadMessage, list[Any]]]:
    """Messages with payloads, whose tables are in `folder`; the messages are those that were read from there."""
    rng = random.Random(seed)
    drawn = [draw_payloads(rng, number, 4, plain=True) for number in range(count)]
    TableWriter(typedefs=typedefs).write(folder, [message for message, _ in drawn])
    services = load_wireshark_tables(folder)
    assert {
        place for place, reason in services.lost.items() if reason != "no message that is read uses this type"
    } == set()
    return [(services.messages[message.key], payloads) for message, payloads in drawn]


@pytest.mark.parametrize("typedefs", [False, True])
def test_tables_are_read(tmp_path: Path, typedefs: bool) -> None:
    for message, payloads in draw(1, MESSAGES, tmp_path, typedefs=typedefs):
        contents = [content for content, _ in payloads]
        for (content, writer), found in zip(payloads, decode_all(message, contents), strict=True):
            assert found == by_reference(message, content)
            assert found[0].keys() == writer.truth.keys()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
@pytest.mark.parametrize("seed", range(3))
def test_tshark_finds_the_same_values(tmp_path: Path, seed: int) -> None:
    drawn = draw(seed, MESSAGES, tmp_path)
    capture = tmp_path / "drawn.pcap"
    write_capture(
        capture,
        [
            (message.service_id, message.method_id, message.message_type, message.interface_version or 0, content)
            for message, payloads in drawn
            for content, _ in payloads
        ],
    )
    packets = iter(read_payloads(capture, tmp_path))
    compared = 0
    for message, payloads in drawn:
        values = decode_all(message, [content for content, _ in payloads])
        for (content, writer), (found, _) in zip(payloads, values, strict=True):
            compared += compare(writer, found, next(packets), content)
    assert compared > 10 * MESSAGES


def compare(writer: Writer, found: dict[str, tuple[Any, ...]], fields: dict[int, Field], content: bytes) -> int:
    """Compare the values of a payload; the number of values."""
    expected: dict[int, tuple[BaseType | None, Any, str | None]] = {}
    for path, (_, number, label, _, numbers) in found.items():
        type_, end = writer.types[path], writer.ends[path]
        base = type_ if isinstance(type_, BaseType) else None
        if numbers is not None:
            assert base is not None
            for place, one in enumerate(numbers, 1):
                expected[writer.places[path] + place * base.least_bytes] = (base, one, dict(base.labels).get(one))
        else:
            raw = found[path][0]
            exact = raw % (1 << 64) if base is not None and base.coding == "uint" else raw
            number = number if base is not None and base.coding == "float" else exact
            expected[end] = (base, number, label)
    assert fields.keys() == expected.keys(), content
    for end, (base, number, label) in expected.items():
        field = fields[end]
        if number is None:
            assert field.name.partition("]: ")[2] == label
        elif base is not None and base.coding == "float":
            assert math.isclose(float(field.value), number, rel_tol=1e-5 if base.bits == 32 else 1e-14, abs_tol=1e-30)
        else:
            shown = int(field.value, 0)
            assert number == (float(shown) if isinstance(number, float) else shown)  # the numbers of lists are floats
            if base is not None and label is not None:
                assert field.name.endswith(f"({label})")
    return len(expected)


def test_what_is_not_read_is_listed(tmp_path: Path) -> None:
    draw(3, 3, tmp_path)
    with (tmp_path / "SOMEIP_parameter_list").open("a", encoding="utf-8") as file:
        file.write('"2000","0001","1","2","FALSE","1","0","x","4","abcdef","f"\n"2000","1"\n"2001\n')
        file.write('"2002","0001","x","2","FALSE","1","0","x","1","1","f"\n')
        file.write('"2003","0001","1","2","FALSE","2","0","x","1","1","f"\n')
    (tmp_path / "SOMEIP_client_identifiers").write_text('"1000","0001","me"\n', encoding="utf-8")
    (tmp_path / "SOMEIP_unheard_of").write_text("", encoding="utf-8")
    lost = load_wireshark_tables(tmp_path).lost
    texts = {place.split(" (")[0].split(", line")[0]: reason for place, reason in lost.items()}
    assert texts["SOMEIP_unheard_of"] == "it is not a table that is read"
    assert "client" in texts["SOMEIP_client_identifiers"]
    assert "SOMEIP_parameter_structs has no id abcdef: add it" in texts["0x2000.0x0001"]
    assert "it has the positions [0], of 2" in texts["0x2003.0x0001"]
    reasons = [reason for place, reason in lost.items() if place.startswith("SOMEIP_parameter_list, line")]
    assert any("2 columns, and 11 are expected" in reason for reason in reasons)
    assert any("a quote is missing" in reason for reason in reasons)
    assert any("version is 'x'" in reason for reason in reasons)


def test_a_type_that_contains_itself_is_lost(tmp_path: Path) -> None:
    draw(3, 2, tmp_path)
    with (tmp_path / "SOMEIP_parameter_list").open("a", encoding="utf-8") as file:
        file.write('"2000","0001","1","2","FALSE","1","0","x","4","abcdef","f"\n')
    with (tmp_path / "SOMEIP_parameter_structs").open("a", encoding="utf-8") as file:
        file.write('"abcdef","round","0","0","FALSE","1","0","x","4","abcdef","g"\n')
    lost = load_wireshark_tables(tmp_path).lost
    assert any("contains itself" in reason for reason in lost.values())


def test_a_folder_without_readable_messages_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match="has no file SOMEIP_parameter_list"):
        load_wireshark_tables(tmp_path)
    (tmp_path / "SOMEIP_parameter_list").write_text('"1"\n', encoding="utf-8")
    with pytest.raises(DatabaseError, match=r"no message that can be read .*it has 1 columns"):
        load_wireshark_tables(tmp_path)


def test_bitfields_and_escapes(tmp_path: Path) -> None:
    (tmp_path / "SOMEIP_parameter_list").write_text(
        '"1","2","1","2","FALSE","1","0","flags \\x22a\\x22","8","1","f"\n', encoding="utf-8"
    )
    (tmp_path / "SOMEIP_parameter_bitfields").write_text(
        '"1","BF","8","2","0","low","b.low"\n"1","BF","8","2","7","high","b.high"\n', encoding="utf-8"
    )
    (message,) = load_wireshark_tables(tmp_path)
    ((found, flags),) = decode_all(message, [b"\x81"])
    assert flags == 0
    assert {path: value[0] for path, value in found.items()} == {'flags "a".low': 1, 'flags "a".high': 1}
