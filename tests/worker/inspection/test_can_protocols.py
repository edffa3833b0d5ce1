"""Captures with J1939 and CANopen on CAN identifiers that no profile names."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from pcaplake.parser import Profile
from tests.worker.inspection.inspected import inspect_frames

GROUPS = [(0x80000000 | ident, bytes(8)) for ident in (0x0CF00400, 0x18FEF100, 0x18FEEE00)]
NODES = [(0x721, b"\x05"), (0x1A1, b"12"), (0x621, bytes(8)), (0x123, bytes(8))]


def found(frames: list[tuple[int, bytes]], profile: str = "") -> dict[str, Any]:
    made = [struct.pack(">IB3x", word, len(data)) + data for word, data in frames]
    facts: dict[str, Any] = inspect_frames(made, 227, profile)["can_protocols"]
    return facts


def test_what_looks_like_them_is_proposed() -> None:
    facts = found([*GROUPS, *NODES] * 4)
    assert facts["frames"] == {"j1939": 12, "canopen": 12}
    lines = "can:\n  protocols:\n    extended: j1939\n    0x1A1: canopen\n    0x621: canopen\n    0x721: canopen"
    assert facts["profile"] == lines
    assert len(Profile.parse(lines).can_protocols) == 4


@pytest.mark.parametrize(
    ("profile", "frames"),
    [
        ("can: {protocols: {extended: j1939}}", {"j1939": 0, "canopen": 12}),
        ("can: {protocols: {0x0CF00000-0x18FFFFFF: j1939}}", {"j1939": 0, "canopen": 12}),
        ("can: {protocols: {0x700-0x77F: canopen, 0x621: nm}}", {"j1939": 12, "canopen": 4}),
        ("can: {protocols: {standard: canopen}}", {"j1939": 12, "canopen": 0}),
    ],
)
def test_what_the_profile_names_is_not_proposed_again(profile: str, frames: dict[str, int]) -> None:
    assert found([*GROUPS, *NODES] * 4, profile)["frames"] == frames


@pytest.mark.parametrize("frames", [[], GROUPS[:2] * 9, NODES[1:] * 9, NODES[:1] * 2])
def test_other_traffic_looks_like_neither(frames: list[tuple[int, bytes]]) -> None:
    assert found(frames) == {"frames": {"j1939": 0, "canopen": 0}, "profile": None}
