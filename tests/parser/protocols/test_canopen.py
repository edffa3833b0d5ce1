"""CANopen: identifiers of the predefined connection set, and the commands of SDO."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pcaplake.parser import Profile
from tests.oracles import tshark_fieldbus
from tests.parser import captures
from tests.parser.can_carriers import CARRIERS, DISSECTED
from tests.parser.compare import PROFILE, difference, read
from tests.parser.reference import Reference

ALL = Profile.parse("can: {protocols: {standard: canopen, extended: canopen}}")


def socketcan(can_id: int, data: bytes, *, extended: bool = False) -> bytes:
    return struct.pack(">I4B", can_id | extended << 31, len(data), 0, 0, 0) + data


def rows_of(frames: list[bytes], link_type: int = 227) -> list[dict[str, Any]]:
    return read(captures.pcap(frames, link_type), profile=ALL)[0].get("canopen_messages", [])


def test_every_identifier_of_the_predefined_connection_set() -> None:
    """CiA 301, table of the predefined connection set; CiA 305 for LSS. Identifiers between them have no function."""
    found = {row["can_id"]: (row["function"], row["node_id"]) for row in rows_of([
        socketcan(can_id, bytes((1, 5, 0, 0, 0, 0, 0, 0))) for can_id in range(0x800)
    ])}  # fmt: skip
    wanted: dict[int, tuple[str, int | None]] = {0: ("nmt", 5), 0x80: ("sync", None), 0x100: ("time", None)}
    wanted |= {0x7E4: ("lss_response", None), 0x7E5: ("lss_request", None)}
    for node in range(1, 128):
        wanted |= {0x80 + node: ("emcy", node), 0x700 + node: ("heartbeat", node)}
        wanted |= {0x580 + node: ("sdo_response", node), 0x600 + node: ("sdo_request", node)}
        for n in range(4):
            wanted |= {
                0x180 + 0x100 * n + node: (f"tpdo{n + 1}", node),
                0x200 + 0x100 * n + node: (f"rpdo{n + 1}", node),
            }
    assert found == wanted


def test_only_identifiers_of_11_bits() -> None:
    assert rows_of([socketcan(0x181, b"1", extended=True)]) == []


def random_frames(r: Random, count: int) -> Iterator[bytes]:
    nodes = 1, 2, 0x21, 127
    for _ in range(count):
        can_id = r.choice(
            (0, 0x80, 0x100, 0x7E4, 0x7E5, *(base + r.choice(nodes) for base in range(0x80, 0x780, 0x80)))
        )
        yield socketcan(can_id, r.randbytes(r.choice((8, 8, 8, 8, r.randrange(9)))))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_frames_equal_the_reference(seed: int) -> None:
    data = captures.pcap(list(random_frames(Random(seed), 400)), 227)
    for profile in (PROFILE, ALL):
        rows, _ = read(data, profile=profile)
        assert (unlike := difference(Reference(profile).read(data).rows, rows)) is None, unlike
    assert len(rows["canopen_messages"]) > 300


@pytest.mark.slow
@pytest.mark.parametrize(
    ("carrier", "seed"), [*(("SocketCAN", seed) for seed in range(3)), *((name, 3) for name in DISSECTED)]
)
def test_as_tshark_reads_it(tmp_path: Path, carrier: str, seed: int) -> None:
    """Identifiers, states, errors, and of SDO the commands, indices, values and abort codes."""
    r, path = Random(seed), tmp_path / "canopen.pcap"
    kinds = 0x80, *range(0x180, 0x580, 0x80), 0x580, 0x600, 0x700
    sent = [(base + r.randrange(1, 128), r.randbytes(8)) for base in (r.choice(kinds) for _ in range(400))]
    sent += [(r.choice((0x582, 0x602)), bytes((command,)) + r.randbytes(7)) for command in range(256)]
    sent += [(0, bytes((command, 9))) for command in (1, 2, 128, 129, 130)]
    link_type = 227 if carrier == "SocketCAN" else 1
    frames = [socketcan(*one) if carrier == "SocketCAN" else CARRIERS[carrier](*one, 7, "") for one in sent]
    path.write_bytes(captures.pcap(frames, link_type))
    theirs = tshark_fieldbus.canopen_messages(path)
    assert len(theirs) == len(frames)
    ours = rows_of(frames, link_type)
    unlike = [
        (one, {name: row[name] for name in one})
        for row, one in zip(ours, theirs, strict=True)
        if any(row[name] != value for name, value in one.items())
    ]
    assert unlike == []
