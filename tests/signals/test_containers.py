"""AUTOSAR containers with headers: equal to cantools on its own file, and by hand from the rules of the standard."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import cantools
import numpy as np
import pyarrow as pa
import pytest

from pcaplake.parser.schemas import TABLES
from pcaplake.signals import Databases, load_database
from pcaplake.signals.catalog import build_catalog
from pcaplake.signals.containers import ContainerCounts, find_contained
from pcaplake.signals.database import Network
from pcaplake.signals.frames import FrameDecoder
from pcaplake.signals.model import Container, Kind
from pcaplake.signals.tables import INPUT, SOURCES
from tests.signals.cantools_files import fetch
from tests.signals.container_files import (
    BIG,
    CAN_ID,
    IDS,
    LITTLE,
    LONG,
    PDU_ID,
    SHORT,
    SLOT,
    arxml,
    box,
    header,
    number,
)
from tests.signals.frame_mutants import MUTANTS

FORMS = [(SHORT, BIG), (SHORT, LITTLE), (LONG, BIG), (LONG, LITTLE)]


def frames(kind: Kind, *rows: dict[str, Any]) -> pa.RecordBatch:
    schema = TABLES[SOURCES[kind]].schema
    usual = {"capture_id": "c", "sub_no": 0, "ts_ns": 5, "source": "x", "bus": None}
    usual |= {"extended": False, "rtr": False, "null_frame": False, "errors": 0, "channel": "A", "cycle": 1}
    ids = {"can": {"can_id": CAN_ID}, "flexray": {"frame_id": SLOT}, "pdu": {"pdu_id": PDU_ID}}
    fields = [schema.field(name).with_nullable(True) for name in INPUT[kind]]
    made = [usual | ids[kind] | {"packet_no": n} | row for n, row in enumerate(rows)]
    return pa.RecordBatch.from_pylist(made, pa.schema(fields))


def load(tmp_path: Path, kind: str, order: str, **changes: Any) -> Databases:
    (tmp_path / "car.arxml").write_text(arxml(kind, order, **changes), encoding="utf-8")
    return Databases.from_file(tmp_path / "car.arxml")


def decode(decoder: FrameDecoder, kind: Kind, *payloads: bytes) -> list[tuple[Any, ...]]:
    rows = decoder.decode_signals(kind, frames(kind, *({"payload": one} for one in payloads))).to_pylist()
    names = ("packet_no", "contained_no", "message", "signal", "value")
    return sorted((tuple(row[name] for name in names) for row in rows), key=repr)


EXPECTED = [
    (0, "Speed", "Value", 0x1234),
    (1, "Wheels", "Left", 0x1234),  # most significant byte first
    (1, "Wheels", "Right", 0x5678),
    (2, "Speed", "Value", 1),
]


@pytest.mark.parametrize(("kind", "order"), FORMS)
def test_by_hand(tmp_path: Path, kind: str, order: str) -> None:
    """In CAN, in FlexRay behind a PDU and an update bit, and in PDU transport."""
    databases = load(tmp_path, kind, order, length=64)
    assert not databases.unreadable_declarations
    assert not databases.skipped
    decoder = FrameDecoder(databases)
    payload = box(kind, order)
    assert decode(decoder, "can", payload) == [(0, *row) for row in EXPECTED]
    assert decode(decoder, "pdu", payload) == [(0, *row) for row in EXPECTED]
    found = decode(decoder, "flexray", b"\x04\x07\x08" + payload, b"\x00\x07\x08" + payload)
    assert [row for row in found if row[1] is not None] == [(0, *row) for row in EXPECTED]
    plain = [(n, None, "FlexFrame", name, value) for n in (0, 1) for name, value in (("Plain", 0x0807),)]
    assert [row for row in found if row[3] == "Plain"] == plain
    assert decoder.counts == ContainerCounts()


def test_a_container_without_headers_in_a_can_frame(tmp_path: Path) -> None:
    text = arxml(SHORT, BIG).replace("SHORT-HEADER</HEADER-TYPE>", "NO-HEADER</HEADER-TYPE>")
    for name, offset in (("Speed", 1), ("Wheels", 4)):
        said = f"<HEADER-ID-SHORT-HEADER>{IDS[name]}</HEADER-ID-SHORT-HEADER>"
        assert said in text
        text = text.replace(said, f"<OFFSET>{offset}</OFFSET>")
    (tmp_path / "car.arxml").write_text(text, encoding="utf-8")
    found = decode(FrameDecoder(Databases.from_file(tmp_path / "car.arxml")), "can", bytes(range(8)))
    assert found == [
        (0, None, "CanFrame", "Left", 0x0405),
        (0, None, "CanFrame", "Right", 0x0706),
        (0, None, "CanFrame", "Value", 0x0201),
    ]


@pytest.mark.parametrize(("kind", "order"), FORMS)
def test_what_is_cut_off_or_unknown_is_counted(tmp_path: Path, kind: str, order: str) -> None:
    decoder = FrameDecoder(load(tmp_path, kind, order, length=64))
    wheels = header("Wheels", 4, kind, order) + b"\x12\x34\x78\x56"
    unknown = number(0x55, kind, order) + header("Speed", 2, kind, order)[len(number(0, kind, order)) :] + b"\x01\x02"
    too_long = header("Wheels", 255, kind, order) + b"\x12\x34\x78"
    payloads = [
        wheels[:-1],  # one byte is missing: `Left` fits
        unknown + wheels,
        too_long,  # a length beyond the end: it ends there
        wheels + wheels[: len(number(0, kind, order))],  # a header that is cut off is nothing
        b"",
    ]
    found = decode(decoder, "can", *payloads)
    assert found == [
        (0, 0, "Wheels", "Left", 0x1234),
        (1, 1, "Wheels", "Left", 0x1234),
        (1, 1, "Wheels", "Right", 0x5678),
        (2, 0, "Wheels", "Left", 0x1234),
        (3, 0, "Wheels", "Left", 0x1234),
        (3, 0, "Wheels", "Right", 0x5678),
    ]
    assert decoder.counts.cut_off == {"Box": 2}
    assert decoder.counts.unknown == {("Box", 0x55): 1}


def test_the_length_of_the_container_ends_it(tmp_path: Path) -> None:
    """What is behind it in a FlexRay frame belongs to no PDU."""
    decoder = FrameDecoder(load(tmp_path, SHORT, BIG, length=6))
    speed = header("Speed", 2, SHORT, BIG) + b"\x34\x12"
    assert [row[-1] for row in decode(decoder, "flexray", b"\x04\x07\x08" + speed + speed) if row[1] is not None] == [
        0x1234
    ]


@pytest.mark.parametrize("seed", range(3))
def test_as_a_loop_over_bytes(seed: int) -> None:
    check_random_containers(seed)


@pytest.mark.parametrize("name", [name for name in MUTANTS if "frame" not in name])
def test_without_a_rule(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises(AssertionError):
        check_random_containers(0)


def check_random_containers(seed: int) -> None:
    """Random bytes and random headers, most of them wrong: the same PDUs as one frame after the other."""
    r = random.Random(seed)
    long, big = bool(seed % 2), bool(seed % 3)
    order = "big" if big else "little"
    container = Container(
        name="c", start=r.randrange(3), length=r.choice((0, 40)), long_header=long, big_endian=big, contained=()
    )
    id_bytes, size_bytes = (4, 4) if long else (3, 1)
    payloads = []
    for _ in range(200):
        data = r.randbytes(r.randrange(4))
        while r.random() < 0.8:
            size = r.choice((0, 1, 5, 255, (1 << 8 * size_bytes) - 1))
            data += r.choice((0, 1, 2, 1 << 8 * id_bytes - 1)).to_bytes(id_bytes, order)
            data += size.to_bytes(size_bytes, order) + r.randbytes(min(size, 9))
        payloads.append(data)
    expected, cut = Counter[tuple[int, ...]](), 0
    for row, data in enumerate(payloads):
        end = len(data) if not container.length else min(len(data), container.start + container.length)
        at, place = container.start, 0
        while at + id_bytes + size_bytes <= end:
            header_id = int.from_bytes(data[at : at + id_bytes], order)
            size = int.from_bytes(data[at + id_bytes : at + id_bytes + size_bytes], order)
            at += id_bytes + size_bytes
            if header_id == 0:
                break
            cut += at + size > end
            expected[header_id, row, at, min(size, end - at), place] += 1
            at, place = at + size, place + 1
    joined = np.frombuffer(b"".join(payloads) or b"\0", np.uint8)
    lengths = np.array([len(one) for one in payloads], np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    known = Container(
        **{name: getattr(container, name) for name in container.__slots__} | {"contained": ((1, None), (2, None))}
    )  # type: ignore[arg-type]
    counts = ContainerCounts()
    found = Counter[tuple[int, ...]]()
    for header_id, pdus in find_contained(known, joined, offsets, lengths, counts):
        for row, offset, length, place in zip(pdus.rows, pdus.offsets, pdus.lengths, pdus.places, strict=True):
            found[header_id, int(row), int(offset - offsets[row]), int(length), int(place)] += 1
    assert found == Counter({key: number for key, number in expected.items() if key[0] in (1, 2)})
    assert sum(counts.unknown.values()) == sum(expected.values()) - sum(found.values())
    assert counts.cut_off["c"] == cut > 20


def test_as_cantools() -> None:
    folder = fetch()
    if isinstance(folder, str):
        pytest.skip(folder)
    path = folder / "arxml" / "system-4.2.arxml"
    theirs = cantools.database.load_file(path)
    (message,) = [one for one in theirs.messages if one.is_container]
    r = random.Random(5)
    payloads, expected = [], Counter[tuple[Any, ...]]()
    while len(payloads) < 100:
        data, contained = b"", [r.choice(message.contained_messages) for _ in range(4)]
        for one in contained:
            data += one.header_id.to_bytes(3, "big") + bytes([one.length]) + r.randbytes(one.length)
        if len(data) > message.length:
            continue
        for one, values in message.decode_container(data, decode_choices=False):
            if isinstance(values, dict):  # it refuses unknown values of multiplexers
                expected.update((len(payloads), one.name, name, repr(float(value))) for name, value in values.items())
        payloads.append(data)
    databases = Databases.from_file(path)
    rows = [{"can_id": message.frame_id, "payload": data} for data in payloads]
    found = FrameDecoder(databases).decode_signals("can", frames("can", *rows)).to_pylist()
    values = Counter((row["packet_no"], row["message"], row["signal"], repr(row["value"])) for row in found)
    assert not expected - values
    refused = {name for _, name, *_ in values - expected}
    assert refused <= {"multiplexed_message"}
    assert expected.total() > 500
    keys = [(row["packet_no"], row["contained_no"], row["message"], row["signal"]) for row in found]
    assert len(set(keys)) == len(keys)


def test_what_the_file_says_wrongly_is_listed(tmp_path: Path) -> None:
    for kind, ids, reason in (
        (LONG, {"Speed": 0, "Wheels": 1}, "ids have 32 bits"),
        (LONG, {"Speed": 1 << 32, "Wheels": 1}, "ids have 32 bits"),
        (LONG, {"Speed": 1, "Wheels": 1}, "has the same header id 0x1"),
        (SHORT, {"Speed": 1 << 24, "Wheels": 1}, "ids have 24 bits"),
    ):
        lost = load(tmp_path, kind, BIG, ids=ids).unreadable_declarations
        assert any(reason in why for why in lost.values()), lost


def test_a_container_may_have_any_length_or_place(tmp_path: Path) -> None:
    for length in (0, 3, 1 << 100, -5):
        decoder = FrameDecoder(load(tmp_path, LONG, BIG, length=length))
        found = decode(decoder, "flexray", b"\x04\x07\x08" + box(LONG, BIG))
        assert len([row for row in found if row[1] is not None]) == (4 if length in (0, 1 << 100) else 0)
    for start in (1 << 100, -8):
        text = arxml(LONG, BIG).replace("<START-POSITION>24<", f"<START-POSITION>{start}<")
        (tmp_path / "car.arxml").write_text(text, encoding="utf-8")
        found = decode(FrameDecoder(Databases.from_file(tmp_path / "car.arxml")), "flexray", bytes(9) + box(LONG, BIG))
        assert not [row for row in found if row[1] is not None]


def test_one_network_has_its_containers(tmp_path: Path) -> None:
    for kind, order in FORMS:
        load(tmp_path, kind, order)
        loaded = load_database(tmp_path / "car.arxml", "Can")
        assert [len(one.containers[0].contained) for one in loaded.messages] == [2]
        assert Network.from_messages(loaded.messages, "here").find_message("can", CAN_ID, False)


def test_the_catalog_has_the_signals_of_contained_messages(tmp_path: Path) -> None:
    rows = build_catalog(load(tmp_path, LONG, LITTLE))
    found = {(row["message"], row["signal"], row["can_id"], row["slot_id"], row["pdu_id"]) for row in rows}
    for ids in ((CAN_ID, None, None), (None, SLOT, None), (None, None, PDU_ID)):
        assert {("Speed", "Value", *ids), ("Wheels", "Left", *ids), ("Wheels", "Right", *ids)} <= found
