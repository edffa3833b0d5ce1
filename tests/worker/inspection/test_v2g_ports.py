"""TCP ports that charging stations announce."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from pcaplake.worker.sample import frames
from tests.worker.inspection.inspected import ethernet, inspect_frames, udp


def sdp(kind: int, port: int, security: int = 0x10, transport: int = 0) -> bytes:
    return struct.pack(">HHI16sHBB", 0x01FE, kind, 20, bytes(range(16)), port, security, transport)


def ipv6(payload: bytes) -> bytes:
    datagram = frames.build_udp_datagram(15118, 50000, payload)
    return ethernet(0x86DD, frames.build_ipv6_packet(bytes(16), bytes(16), 17, datagram))


@pytest.mark.parametrize("carry", [ipv6, lambda payload: udp(15118, 50000, payload)])
def test_announced_ports_are_proposed(carry: Any) -> None:
    made = [carry(sdp(0x9001, port)) for port in (55556, 55555, 55555)]
    made += [carry(sdp(0x9000, 1)), carry(sdp(0x9001, 2)[:-4])]  # a request, and a response without its port
    made += [carry(sdp(0x9001, 3, security=0)), carry(sdp(0x9001, 4, transport=0x10))]  # what nothing decodes
    found = inspect_frames(made)["v2gtp_ports"]
    assert found["ports"] == [{"port": 55555, "responses": 2}, {"port": 55556, "responses": 1}]
    assert found["profile"] == "ports:\n  tcp:\n    55555: v2gtp\n    55556: v2gtp"
    rest = inspect_frames(made, profile=found["profile"])["v2gtp_ports"]
    assert (rest["ports"], rest["profile"]) == (found["ports"], None)


def test_no_charging_station() -> None:
    assert inspect_frames([udp(1, 15118, sdp(0x9000, 1))])["v2gtp_ports"] == {"ports": [], "profile": None}
