from __future__ import annotations

import gzip
import io
import math
import struct
import subprocess
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import dpkt
import pytest
import zstandard

from pcaplake.parser import TABLES, open_capture
from pcaplake.parser.capture.reader import NOT_DECODED
from pcaplake.parser.profile import Profile
from pcaplake.worker import sample
from pcaplake.worker.sample import damage, frames
from pcaplake.worker.sample.databases import NAMES
from pcaplake.worker.sample.sources import INTERFACES
from tests.oracles import tshark


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def one(tmp_path: Path, mix: str, seconds: float) -> Path:
    path, _ = sample.write_sample_captures(tmp_path, mix, seconds)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("mix", sample.MIXES)
def test_the_same_arguments_give_the_same_bytes(tmp_path: Path, mix: str) -> None:
    made = [
        sample.write_sample_captures(tmp_path / name, mix, 0.1, seed=seed)
        for name, seed in (("one", 3), ("two", 3), ("three", 4))
    ]
    first, second, third = (contents(tmp_path / name) for name in ("one", "two", "three"))
    assert first == second
    assert first.keys() == third.keys()
    captures = [name for name in first if name.startswith("vehicle-")]
    assert all(first[name] != third[name] for name in captures)
    assert [str(path.relative_to(tmp_path / "one")) for path in made[0]] == [
        *captures_in_order(captures),
        "profile.yaml",
    ]


def captures_in_order(names: list[str]) -> list[str]:
    return sorted(names)


@pytest.mark.parametrize(("mix", "vehicles"), [("charging", 3), ("drive", 1)])
def test_vehicles_differ(tmp_path: Path, mix: str, vehicles: int) -> None:
    sample.write_sample_captures(tmp_path, mix, 0.05, vehicles=vehicles)
    found = contents(tmp_path)
    others = {"profile.yaml", *(NAMES if mix == "drive" else ())}
    assert {name.split("/")[0] for name in found} == {f"vehicle-{n:03d}" for n in range(1, vehicles + 1)} | others
    assert len(set(found.values())) == len(found)


@pytest.mark.parametrize(
    ("mix", "seconds", "vehicles"),
    [("a", 1, 1), *(("charging", seconds, 1) for seconds in (0, -1, math.nan, math.inf)), ("charging", 1, 0)],
)
def test_arguments_without_sense(tmp_path: Path, mix: str, seconds: float, vehicles: int) -> None:
    with pytest.raises(ValueError, match="choose"):
        sample.write_sample_captures(tmp_path, mix, seconds, vehicles)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mix", sample.MIXES)
def test_progress_ends_with_one(tmp_path: Path, mix: str) -> None:
    shares: list[float] = []
    sample.write_sample_captures(tmp_path, mix, 0.05, vehicles=2, progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    assert min(shares) >= 0


# -- the drive ----------------------------------------------------------------------------------------------------
SECONDS = 3.0
EVERYBODY = "ff:ff:ff:ff:ff:ff"


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return sample.write_sample_captures(tmp_path_factory.mktemp("drive"), "drive", SECONDS)


@pytest.fixture(scope="module")
def seen(drive: list[Path]) -> list[list[dict[str, Any]]]:
    """What tshark sees in the four recordings of the first vehicle."""
    return [list(tshark.packets(path)) for path in drive[:4]]


def damaged_times(recording: int) -> set[int]:
    begin, end = list(pairwise(sample.recording_boundaries(SECONDS)))[recording]
    units = [10 ** (9 - interface.resolution) for interface in INTERFACES]
    return {p.time_ns // units[p.interface] * units[p.interface] for p in damage.damaged_packets(begin, end)}


def test_the_files_of_a_drive(drive: list[Path]) -> None:
    names = [f"{path.parent.name}/{path.name}" for path in drive[:-1]]
    files = ["2026-09-21-1.pcapng", "2026-09-21-2.pcapng", "2026-09-22-3.pcapng", "2026-09-22-4.pcapng"]
    wanted = [f"{vehicle}/{name}" for vehicle in ("vehicle-001", "vehicle-002") for name in files]
    assert [name.removesuffix(".gz").removesuffix(".zst") for name in names] == wanted
    assert [Path(name).suffix for name in names if Path(name).suffix != ".pcapng"] == [".gz", ".zst"]
    packed = drive[6].read_bytes()
    assert zstandard.ZstdDecompressor().decompressobj().decompress(packed)[:4] == b"\x0a\x0d\x0d\x0a"
    assert gzip.decompress(drive[2].read_bytes())[:4] == b"\x0a\x0d\x0d\x0a"


@pytest.mark.slow
def test_every_table_has_rows_of_a_drive(tmp_path: Path) -> None:
    *captures, path = sample.write_sample_captures(tmp_path, "drive", 2.0, vehicles=1)
    rows: Counter[str] = Counter()
    sources: set[tuple[str, str]] = set()
    for capture in captures:
        with open_capture(capture, profile=Profile.load(path)) as opened:
            for name, batch in opened.batches():
                rows[name] += batch.num_rows
                if "source" in batch.schema.names:
                    sources |= {(name, source) for source in batch["source"].to_pylist()}
    charging = {"v2g_messages", "homeplug_messages"}  # of the mix `charging`
    assert set(TABLES) - set(rows) == {*NOT_DECODED, *charging}
    assert {source for name, source in sources if name == "can_frames"} == {"socketcan", "tecmp", "cmp", "acf"}
    assert {source for name, source in sources if name == "lin_frames"} == {"tecmp", "cmp"}


@pytest.mark.slow
def test_a_car_charges(tmp_path: Path) -> None:
    path = one(tmp_path, "charging", 45)
    rows: dict[str, list[dict[str, Any]]] = {}
    with open_capture(path, profile=Profile.load(tmp_path / "profile.yaml")) as opened:
        for name, batch in opened.batches():
            rows.setdefault(name, []).extend(batch.to_pylist())
    assert set(rows) == {"packets", "v2g_messages", "homeplug_messages"}
    sessions, tls = 3, [False, True, False]
    assert Counter(row["message"] for row in rows["homeplug_messages"]) == {
        **dict.fromkeys(("CM_MNBC_SOUND.IND", "CM_ATTEN_PROFILE.IND"), 10 * sessions),
        "CM_START_ATTEN_CHAR.IND": 3 * sessions,
        **{f"CM_{name}.{mode}": sessions for name in ("SLAC_PARM", "SLAC_MATCH", "SET_KEY") for mode in ("REQ", "CNF")},
        **{f"CM_ATTEN_CHAR.{mode}": sessions for mode in ("IND", "RSP")},
    }
    assert len({row["run_id"] for row in rows["homeplug_messages"] if row["message"] == "CM_SLAC_PARM.REQ"}) == sessions
    discovery = [row["tls"] for row in rows["v2g_messages"] if row["payload_type"] == 0x9001]
    assert discovery == tls
    exi = [row["payload"] for row in rows["v2g_messages"] if row["payload_type"] == 0x8001]
    assert len(exi) > 300
    assert {payload[0] for payload in exi} == {0x80}
    wrong = "_ws.malformed or tcp.checksum.status == 0 or udp.checksum.status == 0 or tcp.analysis.retransmission"
    preferences = ["-o", "tcp.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"]
    done = subprocess.run(["tshark", "-r", path, *preferences, "-Y", wrong], capture_output=True, check=True)
    assert not done.stdout


def test_the_profile_reads_them(tmp_path: Path) -> None:
    *captures, path = sample.write_sample_captures(tmp_path, "drive", 0.02)
    profile = Profile.load(path)
    assert profile.udp_ports[30501] == "someip"
    assert profile.vehicle_id_of(captures[-1].as_uri()) == captures[-1].parent.name
    assert {i.name for i in INTERFACES} >= set(profile.interface_buses) == {"can0", "can1", "can2", "can3", "flexray0"}
    assert set(profile.tecmp_buses) == {16, 17, 18}


@pytest.mark.slow
def test_the_second_recording_crosses_midnight(seen: list[list[dict[str, Any]]]) -> None:
    times = [[packet["ts_ns"] for packet in recording] for recording in seen]
    assert max(times[0]) < sample.MIDNIGHT_NS
    assert min(times[1]) < sample.MIDNIGHT_NS <= max(times[1])
    assert min(times[2]) > sample.MIDNIGHT_NS
    assert all(max(early) < min(late) + 1000 for early, late in pairwise(times))
    assert max(times[3]) - min(times[0]) == pytest.approx(SECONDS * 1e9, rel=0.05)


def test_only_the_damaged_packets_are_malformed(seen: list[list[dict[str, Any]]]) -> None:
    for n, recording in enumerate(seen):
        damaged = damaged_times(n)
        assert len(damaged) == len(damage.DAMAGED)
        assert damaged <= {packet["ts_ns"] for packet in recording}
        # Wireshark 4.0 takes ASAM CMP, which a module sends to everybody, for TECMP
        readable = [packet for packet in recording if (packet["eth_type"], packet["eth_dst"]) != (0x99FE, EVERYBODY)]
        malformed = {packet["ts_ns"] for packet in readable if packet["malformed"] and not packet["ip_fragment"]}
        assert malformed <= damaged
        assert len(malformed) >= 8


def test_everything_is_in_a_drive(seen: list[list[dict[str, Any]]]) -> None:
    packets = [packet for recording in seen for packet in recording]
    interfaces = Counter(packet["interface"] for packet in packets)
    assert set(interfaces) == {interface.name for interface in INTERFACES}
    assert {packet["direction"] for packet in packets} == {"in", "out"}
    protocols = Counter(name for packet in packets for name in set(packet["protocols"]))
    for name in [
        "someip",
        "someipsd",
        "tecmp",
        "tcp",
        "udp",
        "arp",
        "macsec",
        "ptp",
        "vlan",
        "ieee8021ad",
        "ip",
        "ipv6",
    ]:
        assert protocols[name] >= 3, name
    can = [frame for packet in packets for frame in packet["can"]]
    kinds = Counter((f["fd"], f["error"], f["extended"], f["rtr"], "bus" in f) for f in can)
    assert {True, False} == {fd for fd, *_ in kinds} == {error for _, error, *_ in kinds} == {bus for *_, bus in kinds}
    assert any(f["rtr"] for f in can)
    assert any(f["extended"] for f in can)
    lin = [frame for packet in packets for frame in packet["lin"]]
    assert {len(frame["payload"]) for frame in lin} >= {0, 2}
    assert all(frame["parity"] == frames.lin_protected_id(frame["lin_id"]) >> 6 for frame in lin)
    messages = [message for packet in packets for message in packet["someip"]]
    assert {message["message_type"] for message in messages} >= {0x00, 0x01, 0x02, 0x22, 0x80, 0x81}
    assert max(len(packet["someip"]) for packet in packets) == 4
    fragments = Counter(packet["ip_version"] for packet in packets if packet["ip_fragment"])
    assert fragments[4] >= 6
    assert fragments[6] >= 6
    assert {tuple(p["vlan_ids"] or ()) for p in packets if p["ip_version"]} >= {(), (10,), (200, 20)}


def test_service_discovery_says_everything(seen: list[list[dict[str, Any]]]) -> None:
    entries = [entry for recording in seen for packet in recording for entry in packet["sd"]]
    assert {entry["entry_type"] for entry in entries} >= {
        "FindService", "OfferService", "StopOfferService", "SubscribeEventgroup",
        "StopSubscribeEventgroup", "SubscribeEventgroupAck", "SubscribeEventgroupNack",
    }  # fmt: skip
    endpoints = [e for entry in entries for e in entry["endpoints"] or ()]
    assert {(e["kind"], ":" in e["address"]) for e in endpoints} == {
        (k, v) for k in ("endpoint", "multicast") for v in (True, False)
    }
    assert {e["transport"] for e in endpoints} == {"udp", "tcp"}
    assert [("hostname", "camera"), ("protocol", "1.1")] in [entry["configuration"] for entry in entries]


def test_can_messages_are_cyclic_and_many_count(seen: list[list[dict[str, Any]]]) -> None:
    by_id: dict[int, list[tuple[int, bytes]]] = {}
    for packet in seen[0]:
        for frame in packet["can"]:
            diagnostic = frame["can_id"] in (0x7E0, 0x7E8, 0x7DF)  # these are not cyclic
            if packet["interface"] == "can0" and not packet["malformed"] and not frame["error"] and not diagnostic:
                by_id.setdefault(frame["can_id"], []).append((packet["ts_ns"], frame["payload"]))
    cycles, counting = set(), 0
    for sent in by_id.values():
        if len(sent) > 10:
            gaps = [b[0] - a[0] for a, b in pairwise(sent)]
            cycle = min((10, 20, 50, 100, 1000), key=lambda ms: abs(ms * 10**6 - sum(gaps) / len(gaps)))
            cycles.add(cycle)
            assert all(abs(gap - cycle * 10**6) < 0.05 * cycle * 10**6 for gap in gaps)
            payloads = [payload for _, payload in sent]
            counting += any(
                all((b[at] - a[at]) % 16 == 1 for a, b in pairwise(payloads)) for at in range(len(payloads[0]))
            )
    assert cycles >= {10, 20, 50, 100}
    assert counting > len(by_id) / 4


@pytest.mark.parametrize("port", [50000, 13400])
def test_a_tcp_connection_adds_up(seen: list[list[dict[str, Any]]], port: int) -> None:
    segments = [
        packet
        for recording in seen
        for packet in recording
        if packet["tcp_seq"] is not None and port in (packet["src_port"], packet["dst_port"])
    ]
    assert [packet["tcp_flags"] for packet in segments[:4]] == [0x02, 0x12, 0x10, 0x18]
    after: dict[str, int] = {}
    for packet in segments:
        assert after.setdefault(packet["ip_src"], packet["tcp_seq"]) == packet["tcp_seq"]
        length = packet["captured_len"] - 18 - 20 - 20
        after[packet["ip_src"]] = (packet["tcp_seq"] + length + (packet["tcp_flags"] >> 1 & 1)) % 2**32


@pytest.mark.slow
def test_the_last_recording_is_cut_off(drive: list[Path]) -> None:
    said = [
        subprocess.run(["tshark", "-r", path, "-c", "1000000"], capture_output=True, check=False).stderr
        for path in drive[:-1]
    ]
    assert [b"cut short" in text for text in said] == [False] * 3 + [True] + [False] * 4
    with pytest.raises(dpkt.NeedData):
        list(dpkt.pcapng.Reader(io.BytesIO(drive[3].read_bytes())))


def test_a_drive_scales(tmp_path: Path, drive: list[Path]) -> None:
    short = sample.write_sample_captures(tmp_path, "drive", SECONDS / 3, vehicles=1)
    assert 2.3 < drive[0].stat().st_size / short[0].stat().st_size < 3.7


def test_frames_beside_dpkt() -> None:
    """Checksums and lengths as dpkt computes them itself."""
    src, dst = bytes((10, 0, 0, 1)), bytes((10, 0, 0, 2))
    for protocol, body in (
        (frames.UDP, frames.build_udp_datagram(1, 2, b"abc")),
        (frames.TCP, frames.build_tcp_packet(src, dst, (1, 2), 3, 4, 0x18, b"abc")),
    ):
        mine = frames.build_ipv4_packet(src, dst, protocol, body, identification=7)
        theirs = dpkt.ip.IP(mine)
        theirs.sum = 0
        if protocol == frames.TCP:
            theirs.data.sum = 0
            assert bytes(theirs) == mine
        else:
            assert bytes(theirs)[:20] == mine[:20]
    six = bytes(15) + b"\x01", bytes(15) + b"\x02"
    datagram = dpkt.ip6.IP6(
        frames.build_ipv6_packet(*six, frames.UDP, frames.build_udp_ipv6_packet(*six, 5, 6, b"abc"))
    )
    assert dpkt.dpkt.in_cksum(b"".join(six) + struct.pack(">II", 11, 17) + bytes(datagram.data)) == 0


def test_diagnostics_have_requests_and_responses(drive: list[Path]) -> None:
    with open_capture(drive[0], "uds_messages", profile=drive[0].parents[1] / "profile.yaml") as capture:
        rows = capture.read().to_pylist()
    assert {row["transport"] for row in rows} == {"doip", "isotp"}
    responses = [row for row in rows if row["is_response"]]
    assert sum(row["request_packet_no"] is None for row in responses) <= 2, "a recording may begin between the two"
    assert {row["negative_code"] for row in responses} >= {None, 0x78, 0x31}
    assert all(row["latency_us"] is None or 0 < row["latency_us"] < 500_000 for row in responses)
