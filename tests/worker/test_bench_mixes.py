"""The mixes of the benchmarks, and what `tools.traffic` says of them."""

from __future__ import annotations

import random
import struct
import subprocess
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import dpkt
import numpy as np
import pyarrow.compute as pc
import pytest

import pcaplake
from bench import mixes
from bench.mixes import noise
from bench.mixes.senders import Number, Sender
from pcaplake.parser.profile import Profile
from pcaplake.worker.sample import MIX_START_NS
from tests.oracles import tshark
from tools import traffic

Record = tuple[int, bytes]


def records(path: Path, data: bytes | None = None) -> Iterator[Record]:
    """(ns, frame) of a pcap file, or of the enhanced packet blocks of a pcapng file with nanoseconds."""
    data = path.read_bytes() if data is None else data
    at = 0 if path.suffix == ".pcapng" else 24
    while at < len(data):
        if path.suffix == ".pcapng":
            kind, length = struct.unpack_from("<II", data, at)
            if kind == 6:
                _, high, low, captured, _ = struct.unpack_from("<IIIII", data, at + 8)
                yield high << 32 | low, data[at + 28 : at + 28 + captured]
            at += length
        else:
            seconds, micros, captured, _ = struct.unpack_from("<IIII", data, at)
            yield seconds * 10**9 + micros * 1000, data[at + 16 : at + 16 + captured]
            at += 16 + captured


def tecmp_times(frame: bytes) -> Iterator[int]:
    at = 26
    while at < len(frame):
        time_ns, length = struct.unpack_from(">QH", frame, at + 4)
        yield time_ns
        at += 16 + length


def one(tmp_path: Path, mix: str, seconds: float) -> Path:
    path, _ = mixes.write_captures(tmp_path, mix, seconds)
    return path


@pytest.mark.parametrize("mix", mixes.MIXES)
def test_the_same_arguments_give_the_same_bytes_and_vehicles_differ(tmp_path: Path, mix: str) -> None:
    made = {}
    for name, seed in (("one", 3), ("two", 3), ("three", 4)):
        *captures, path = mixes.write_captures(tmp_path / name, mix, 0.05, 2, seed=seed)
        profile = Profile.load(path)
        assert profile.udp_ports[30501] == "someip"
        assert profile.vehicle_id_of(captures[-1].as_uri()) == "vehicle-002"
        made[name] = [capture.read_bytes() for capture in captures]
    assert made["one"] == made["two"]
    assert len({*made["one"], *made["three"]}) == 2 * len(made["one"])


# -- mixes --------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_mix_a(tmp_path: Path) -> None:
    path = one(tmp_path, "a", 2)
    found = list(records(path))
    assert 18_500 < len(found) < 21_500
    assert 49.5 < path.stat().st_size / len(found) < 53.5
    fd = [frame for _, frame in found if frame[5] & 4]
    assert 0.18 < len(fd) / len(found) < 0.22
    assert all(len(frame) == 8 + frame[4] and frame[4] <= (64 if frame[5] & 4 else 8) for _, frame in found)
    with path.open("rb") as file:
        assert len(list(dpkt.pcapng.Reader(file))) == len(found)
    listed = subprocess.run(
        ["tshark", "-r", path, "-T", "fields", "-e", "frame.interface_name"], capture_output=True, check=True
    )
    share = Counter(listed.stdout.decode().split())
    assert share.keys() == {"can0", "can1", "can2", "can3"}
    assert min(share.values()) > 0.22 * len(found)


@pytest.mark.slow
def test_mix_b(tmp_path: Path) -> None:
    path = one(tmp_path, "b", 2)
    messages, tagged, count = 0, 0, 0
    with path.open("rb") as file:
        for _, data in dpkt.pcap.Reader(file):
            ethernet = dpkt.ethernet.Ethernet(data)
            count += 1
            tagged += hasattr(ethernet, "vlan_tags")
            assert ethernet.data.data.dport == 30501
            assert dpkt.in_cksum(data[14 + 4 * hasattr(ethernet, "vlan_tags") :][:20]) == 0
            body = ethernet.data.data.data
            while body:
                length = 8 + int.from_bytes(body[4:8], "big")
                assert length <= len(body)
                messages, body = messages + 1, body[length:]
    assert 18_500 < count < 21_500
    assert 0.73 < tagged / count < 0.77
    assert 2.62 < messages / count < 2.80
    assert 156 < path.stat().st_size / count < 166


@pytest.mark.slow
def test_mix_c(tmp_path: Path) -> None:
    path = one(tmp_path, "c", 0.4)
    protocols: Counter[str] = Counter()
    bus_frames = 0
    for packet in tshark.packets(path):
        assert not packet["malformed"]
        entries = len(packet["can"]) + len(packet["lin"])
        bus_frames += entries
        kinds = [name for name in ("tecmp", "someip", "tcp", "ptp", "arp") if name in packet["protocols"]]
        assert (1 <= entries <= 16) == (kinds == ["tecmp"])
        protocols[kinds[0] if kinds else "udp"] += 1
        assert all(0 < packet["ts_ns"] - f["bus_time_ns"] < 1_000_000 for f in packet["can"] + packet["lin"])
    count = protocols.total()
    assert 3_600 < count < 4_400
    wanted = {"tecmp": 0.45, "someip": 0.30, "udp": 0.05, "tcp": 0.12, "ptp": 0.05, "arp": 0.03}
    assert protocols.keys() == wanted.keys()
    assert all(abs(protocols[name] / count - share) < 0.02 for name, share in wanted.items())
    assert 7.8 < bus_frames / protocols["tecmp"] < 8.6
    assert 230 < path.stat().st_size / count < 246


@pytest.mark.slow
@pytest.mark.parametrize("mix", ["a", "b", "c"])
def test_seconds_scale_and_the_beginning_stays(tmp_path: Path, mix: str) -> None:
    short, long = (one(tmp_path / str(s), mix, s).read_bytes() for s in (0.25, 1.0))
    assert long.startswith(short)
    assert 3.5 < len(long) / len(short) < 4.5
    path = tmp_path / f"x{'.pcapng' if mix == 'a' else '.pcap'}"
    times = [time_ns for time_ns, _ in records(path, long)]
    assert 0 < times[0] - MIX_START_NS < 3_000_000
    assert 0 < MIX_START_NS + 10**9 - times[-1] < 3_000_000


def noise_of(tmp_path: Path, seconds: float) -> list[Path]:
    *captures, _ = mixes.write_captures(tmp_path, "noise", seconds)
    return captures


@pytest.mark.slow
def test_noise_has_the_shapes_of_the_mixes(tmp_path: Path) -> None:
    captures = noise_of(tmp_path, 0.3)
    assert [path.name for path in captures] == [
        "2026-09-21-noise-a.pcapng",
        "2026-09-21-noise-b.pcap",
        "2026-09-21-noise-c.pcap",
    ]
    for path, mix in zip(captures, "abc", strict=True):
        regular = list(records(one(tmp_path / mix, mix, 0.3)))
        noisy = list(records(path))
        assert abs(len(noisy) / len(regular) - 1) < 0.1
        sizes = [sum(len(frame) for _, frame in found) / len(found) for found in (noisy, regular)]
        assert abs(sizes[0] / sizes[1] - 1) < 0.1
        assert len({frame for _, frame in noisy}) > 0.95 * len(noisy) - 0.1 * len(noisy) * (mix == "c")  # gPTP and ARP


@pytest.mark.slow
def test_a_repeated_block_of_noise_has_running_clocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [list(records(path)) for path in noise_of(tmp_path / "whole", 0.3)]
    monkeypatch.setattr(noise, "BLOCK_PACKETS", 700)
    grown = [list(records(path)) for path in noise_of(tmp_path / "grown", 0.3)]
    for before, after, mix in zip(whole, grown, "abc", strict=True):
        assert after[:700] == before[:700]
        assert len(after) > 2500
        assert all(a < b for (a, _), (b, _) in pairwise(after))
        step = after[700][0] - after[0][0]
        for (early, one_frame), (late, other) in zip(after, after[700:], strict=False):
            assert late - early == step
            if mix == "c" and one_frame[12:14] == b"\x99\xfe":
                assert [t + step for t in tecmp_times(one_frame)] == list(tecmp_times(other))
            else:
                assert one_frame == other


# -- traffic as real vehicles send it ---------------------------------------------------------------------------------
@pytest.mark.slow
def test_can_payloads_are_like_those_of_real_vehicles(tmp_path: Path) -> None:
    """The means of the recordings are those of `payloads.py`; a vehicle differs from them as the recordings do."""
    found = []
    for seed in range(3):
        path = mixes.write_captures(tmp_path / str(seed), "a", 8, seed=seed)[0]
        with pcaplake.open_capture(path, "can_frames") as capture:
            rows = capture.read()
        classic = rows.filter(pc.invert(rows["fd"]))  # as in the recordings
        key = traffic.MESSAGES["can_frames"]
        found.append(traffic.describe_messages(traffic.payloads_of_messages(classic, key)))
    mean = {name: sum(figures[name] for figures in found) / len(found) for name in found[0]}
    for name, low, high in (
        ("different payloads / payloads", 0.10, 0.25),  # 0.14; 0.01 to 0.44
        ("equal to the last one", 0.18, 0.34),  # 0.25; 0.05 to 0.93
        ("where it differs: bytes", 1.8, 2.8),  # 2.3; 1.0 to 2.8
        ("where it differs: bits", 5.0, 7.5),  # 6.2; 2.0 to 7.5
        ("bytes: constant", 0.40, 0.60),  # 0.47
        ("bytes: rare", 0.12, 0.28),  # 0.19
        ("bytes: counter", 0.06, 0.14),  # 0.10
        ("bytes: step", 0.05, 0.13),  # 0.09
        ("bytes: jump", 0.06, 0.18),  # 0.13
        ("bytes: noise", 0.0, 0.04),  # 0.02
    ):
        assert low <= mean[name] <= high, (name, mean)


@pytest.mark.slow
def test_payloads_of_other_protocols_are_of_the_same_kind(tmp_path: Path) -> None:
    """CAN and LIN behind TECMP, and SOME/IP: each identifier has one sender, and few of its bytes change."""
    path = one(tmp_path, "c", 8)
    found = traffic.measure_capture(path, path.parents[1] / "profile.yaml")
    assert found.keys() == {"can_frames", "lin_frames", "someip_messages"}
    for table, mean in found.items():
        assert mean["messages"] > 50, table
        assert mean["different payloads / payloads"] < 0.45, table
        assert 0.1 < mean["equal to the last one"] < 0.5, table
        assert mean["where it differs: bytes"] < 0.4 * mean["bytes a payload"], table
        assert 0.35 < mean["bytes: constant"] < 0.65, table
        assert 0.03 < mean["bytes: counter"] < 0.2, table
        assert mean["bytes: noise"] < 0.05, table


@pytest.mark.parametrize("name", ["nothing.pcap", "text.pcap"])
def test_what_is_no_capture_is_named(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.pcap").write_text("no capture, but a text that is long enough")
    monkeypatch.setattr("sys.argv", ["traffic", str(tmp_path / name)])
    with pytest.raises(SystemExit) as exit_code:
        traffic.main()
    assert exit_code.value.code == 1
    assert name in capsys.readouterr().err


def test_sessions_of_someip_are_never_0(tmp_path: Path) -> None:
    sender = Sender(
        frame=bytes(4), unit=0, period_ns=1, wire_ns=1, numbers=[Number(at=0, width=2, value=65534, lowest=1)]
    )
    drawn = [sender.draw_frames(random.Random(1), np.arange(2))[:, :2].tobytes().hex() for _ in range(2)]
    assert drawn == ["fffeffff", "00010002"]


@pytest.mark.slow
def test_can_messages_have_fixed_periods(tmp_path: Path) -> None:
    """In steps of 10 ms to 1 s, and late by tenths of a millisecond; the recorder's clock has microseconds."""
    path = one(tmp_path, "a", 4)
    sent: dict[tuple[int, int], list[int]] = {}
    with pcaplake.open_capture(path, "can_frames") as capture:
        rows = capture.read()
    for interface, can_id, time_ns in zip(
        *(rows[name].to_pylist() for name in ("interface", "can_id", "ts_ns")), strict=True
    ):
        assert time_ns % 1000 == 0
        sent.setdefault((interface, can_id), []).append(time_ns)
    assert len(sent) > 150
    periods: Counter[int] = Counter()
    for times in sent.values():
        if len(times) > 3:
            period = (times[-1] - times[0]) / (len(times) - 1) / 1e6
            nearest = min((10, 20, 50, 100, 500, 1000), key=lambda ms: abs(ms - period))
            periods[nearest] += 1
            assert all(abs(b - a - nearest * 10**6) < 3 * 10**6 for a, b in pairwise(times))
    assert periods.keys() >= {10, 20, 50, 100, 500}


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (np.full(200, 7), "constant"),
        (np.where(np.arange(200) == 100, 1, 0), "rare"),
        (np.arange(200) % 256, "counter"),
        (np.arange(200) % 16 | 0x50, "counter"),
        (np.arange(200) % 15 << 4, "counter"),
        (100 + np.arange(200) // 3 % 7, "step"),
        (np.array([3, 90, 200, 90] * 50), "jump"),
        (np.arange(200) ** 2 * 37 % 251, "noise"),
    ],
)
def test_bytes_are_classified(values: np.ndarray[Any, Any], kind: str) -> None:
    assert traffic.classify_byte(values.astype(np.uint8)) == kind


def test_the_table_of_known_payloads() -> None:
    sent = [[b"\x00\x01", b"\x00\x01", b"\x00\x03", b"\xff\x03"], [b"\x05"] * 4]
    found = traffic.describe_messages(sent)
    assert found["messages"] == 2
    assert found["payloads"] == 8
    assert found["bytes a payload"] == 1.5
    assert found["different payloads / payloads"] == 4 / 8
    assert found["equal to the last one"] == 4 / 6
    assert found["where it differs: bytes"] == 1
    assert found["where it differs: bits"] == (1 + 8) / 2
    assert found["bytes: constant"] == 4 / 12
