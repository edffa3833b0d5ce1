"""A worker that takes more memory than its limit is killed by the kernel: its messages come again, and no row is lost."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from tests.parser import captures

from .release import Release

pytestmark = pytest.mark.slow
MB = 1 << 20
PACKETS, PACKET, CAPTURES = 24_000, 1200, 6  # of 29 MB each


def large(seed: int) -> bytes:
    """Ethernet packets of random bytes: much memory, few rows."""
    data = np.random.default_rng(seed).integers(0, 256, (PACKETS, 16 + PACKET), np.uint8)
    ethernet = bytes(12) + struct.pack(">H", 0x88B5)  # for experiments: nobody decodes it
    head = struct.pack("<IIII", captures.T0, 0, PACKET, PACKET) + ethernet
    data[:, : len(head)] = np.frombuffer(head, np.uint8)
    return captures.pcap_header(1) + data.tobytes()


def test_killed_for_its_memory_nothing_is_lost(release: Release) -> None:
    """The limit is too small for what the settings allow; with more of it all comes in."""
    stage, lab, namespace = release.stage, release.lab, release.namespace
    small = {"resources": {"limits": {"memory": "330Mi"}}}
    release.install(worker=small, settings={"max_inflight_bytes": f"{1024 * MB}", "raw": True})
    release.ready(1)
    for number in range(CAPTURES):
        stage.put(f"in/{number}.pcap", large(number))

    def killed() -> bool:
        states = [
            one["status"]["containerStatuses"][0] for one in namespace.pods() if "containerStatuses" in one["status"]
        ]
        ends = [one.get("lastState", {}).get("terminated", {}) for one in states]
        return any(end.get("reason") == "OOMKilled" and end["exitCode"] == 137 for end in ends)

    lab.until(killed, "nobody was killed")
    assert stage.left(), "a message was deleted before its capture was staged"
    release.upgrade(worker={"resources": {"limits": {"memory": "2Gi"}}})
    lab.until(lambda: len(stage.captures()) == CAPTURES and not stage.left(), "captures are not in the lake")
    assert set(stage.captures().values()) == {1}
    packets = stage.read("packets")
    keys = set(zip(packets["capture_id"].to_pylist(), packets["packet_no"].to_pylist(), strict=True))
    assert len(keys) == packets.num_rows == CAPTURES * PACKETS
