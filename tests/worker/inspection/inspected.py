"""Captures in memory, inspected."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable
from typing import Any

from pcaplake.parser import Profile
from pcaplake.worker.inspection.content import HashedFile
from pcaplake.worker.inspection.inspection import inspect_capture
from pcaplake.worker.sample import frames
from tests.parser import captures

MAC, SRC, DST = bytes(6), bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])


def inspect(data: bytes, profile: str = "") -> dict[str, Any]:
    """What the inspection of these bytes finds."""
    file = HashedFile(io.BytesIO(data), threading.Event(), lambda count: None)
    return inspect_capture(file, "memory:///x", Profile.parse(profile))


def inspect_frames(frames: Iterable[bytes], link_type: int = 1, profile: str = "") -> dict[str, Any]:
    return inspect(captures.pcap(frames, link_type), profile)


def ethernet(kind: int, payload: bytes, *, tags: int = 0) -> bytes:
    return frames.build_ethernet_frame(MAC, MAC, kind, payload, [(0x8100, n + 1) for n in range(tags)])


def ipv4(protocol: int, payload: bytes) -> bytes:
    return ethernet(0x0800, frames.build_ipv4_packet(SRC, DST, protocol, payload))


def udp(src_port: int, dst_port: int, payload: bytes) -> bytes:
    return ipv4(17, frames.build_udp_datagram(src_port, dst_port, payload))
