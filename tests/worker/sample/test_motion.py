"""The moving vehicle of a drive: its database decodes what its messages say, and its values are those of a vehicle."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest

from pcaplake import read_signals
from pcaplake.parser import open_capture
from pcaplake.worker import sample
from pcaplake.worker.sample import motion
from pcaplake.worker.sample.files import Packet
from tools import traffic

SECONDS = 3.0


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return sample.write_sample_captures(tmp_path_factory.mktemp("motion"), "drive", SECONDS, vehicles=1)


def test_the_database_decodes_the_drive(drive: list[Path]) -> None:
    folder = drive[-1].parent
    rows = read_signals(drive[0], folder / "vehicle.dbc", profile=folder / "profile.yaml")
    assert set(rows["signal"].to_pylist()) == {
        line.split()[1] for line in motion.DBC.splitlines() if line[:4] == " SG_"
    }
    assert all(rows["valid"].to_pylist())


def test_no_other_message_has_these_ids(drive: list[Path]) -> None:
    """Payloads with a wrong checksum are of somebody else."""
    wanted = {motion.SPEED_ID: 20, motion.ENGINE_ID: 10, motion.STEERING_ID: 10}
    with open_capture(drive[0], "can_frames", profile=drive[-1]) as capture:
        rows = capture.read()
    sent = dict.fromkeys(wanted, 0)
    for can_id, source, payload in zip(
        *(rows[name].to_pylist() for name in ("can_id", "source", "payload")), strict=True
    ):
        if can_id in wanted and source == "socketcan":
            sent[can_id] += 1
            factors = range(3, 17, 2)
            assert (
                payload[7]
                == (sum(f * byte for f, byte in zip(factors, payload[:7], strict=False)) * 0x9E37 >> 7) & 0xFF
            )
    for can_id, cycle_ms in wanted.items():
        assert sent[can_id] == pytest.approx(0.4 * SECONDS * 1000 / cycle_ms, abs=2)


def test_speed_is_continuous_and_returns() -> None:
    length = sum(seconds for _, _, seconds in motion._phases())
    speeds = [motion.speed_at(step / 100)[0] for step in range(round(length * 100) + 1)]
    assert all(abs(b - a) <= motion.BRAKING / 100 + 1e-9 for a, b in pairwise(speeds))
    assert (min(speeds), max(speeds)) == (pytest.approx(0, abs=1e-9), pytest.approx(100))
    assert motion.speed_at(length + 4.0) == motion.speed_at(4.0)


def test_bytes_are_of_the_kinds_that_real_messages_have() -> None:
    """A counter, a checksum that looks random, bytes that move in small steps, and unused ones."""

    def payloads(number: int) -> list[bytes]:
        source = motion.motion_message(random.Random(1), 0, number)
        return [payload_of(next(source)) for _ in range(4000)]

    found = traffic.describe_messages([payloads(number) for number in range(3)])
    assert found["bytes: constant"] + found["bytes: rare"] > 0.3
    assert found["bytes: counter"] == pytest.approx(3 / 24)


def payload_of(packet: Packet) -> bytes:
    return bytes(packet.data[8:])
