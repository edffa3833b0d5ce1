"""Our rows beside independent readers': tshark on every real capture and on the samples, tcpdump, the conformance texts.

Where the readers differ on purpose, `_wanted` says so and why.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bench import mixes
from pcaplake.parser import Profile, Summary, open_capture
from pcaplake.worker import sample
from pcaplake.worker.sample import damage
from pcaplake.worker.sample.sources import INTERFACES
from tests.oracles import captures, conformance, tcpdump, tshark
from tests.parser import compare, frames, module_frames
from tests.parser.captures import pcap
from tests.parser.compare import decoded
from tests.parser.protocols.golden import GOLDEN

pytestmark = pytest.mark.slow


PORTS = (29180, 30501, 30502, 30510)
PROFILE = Profile.parse(
    "ports:" + "".join(f"\n  {l4}: {{{', '.join(f'{p}: someip' for p in PORTS)}}}" for l4 in ("udp", "tcp"))
)
DECODE_AS = ("udp.port==30490,someip", *(f"{l4}.port=={p},someip" for l4 in ("udp", "tcp") for p in PORTS))
LATEST_NS = 7_258_118_400 * 10**9  # 2200
RECORD = ("ts_ns", "captured_len", "original_len", "interface", "direction")
HEADERS = (
    *("eth_src", "eth_dst", "eth_type", "vlan_ids", "vlan_pcp", "ip_version", "ip_src", "ip_dst", "ip_proto", "ip_ttl"),
    *("ip_dscp", "ip_fragment", "src_port", "dst_port", "tcp_flags", "tcp_seq", "tcp_ack"),
)
TCP = ("tcp_flags", "tcp_seq", "tcp_ack")
LISTS = {"someip": "someip_messages", "sd": "someip_sd_entries"}
LISTS |= {"can": "can_frames", "lin": "lin_frames", "flexray": "flexray_frames"}
# protocols that carry no other, as tshark names them
NAMED = {name: name for name in ("arp", "icmp", "icmpv6", "igmp", "dhcp", "dhcpv6", "lldp", "eapol", "caneth")}
NAMED |= {"rtps": "rtps", "mqtt": "mqtt"}
NAMED |= {"mrp-mvrp": "mvrp", "mrp-msrp": "msrp", "homeplug-av": "homeplug_av"}
SAMPLED = set(LISTS.values())  # tables that a drive has
AVTP = 0x22F0
# the faults of real captures beyond those of frames that were cut by the snapshot length
FAULTS = {
    "dhcp_big_endian.pcapng": {"bad_time": 4},  # the year 150,000
    "doipPackets.pcapng": {"gap": 1},  # a byte behind a message; its packets are from several connections
    "SomeIpTp.pcapng": {"gap": 1},  # the first and the last segment of a long message
    "test009.pcapng": {"dropped": 1},  # as its packet says in epb_dropcount
}

Rows = dict[str, list[dict[str, Any]]]


def read(path: Path, profile: Profile = PROFILE) -> tuple[Rows, Summary]:
    with open_capture(path, profile=profile) as capture:
        rows = decoded(capture.batches())
    assert capture.summary is not None
    return rows, capture.summary


def _wanted(packet: dict[str, Any], summary: Summary, profile: Profile) -> dict[str, Any]:
    """What we want of a packet, from what tshark says of it."""
    wanted = dict(packet)
    if packet["ts_ns"] is not None and not 0 <= packet["ts_ns"] < LATEST_NS:
        wanted["ts_ns"] = None  # no table holds it; a fault says so
    if summary.format == "pcap":
        wanted["interface"] = None  # Wireshark numbers what a pcap file does not name
    if packet["eth_type"] == AVTP:
        wanted |= {"can": [], "lin": []}  # test_carriers.py compares them
        return wanted
    for frame in packet["can"] + packet["lin"] + packet["flexray"]:
        if "bus" in frame:
            frame["bus"] = profile.tecmp_buses.get(int(frame["bus"]), frame["bus"])
        elif profile.interface_buses:
            frame["bus"] = profile.interface_buses[packet["interface"]]
    return wanted


def differences(
    path: Path, rows: Rows, summary: Summary, profile: Profile, *, without: frozenset[int] = frozenset()
) -> list[str]:
    """Every field that differs from tshark's, but for the packets of the times `without`."""
    theirs = [
        packet for packet in tshark.packets(path, DECODE_AS) if packet["encapsulation"] is not None
    ]  # no custom blocks
    mine = rows.get("packets", [])
    by_packet: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for name, table in LISTS.items():
        for row in rows.get(table, []):
            if row.get("tp_complete"):
                continue  # Wireshark shows it with the last segment
            if row.get("source") in ("acf", "cmp"):
                continue
            by_packet.setdefault((name, row["packet_no"]), []).append(row)
    found = [] if len(mine) == len(theirs) else [f"{len(mine)} packets, tshark has {len(theirs)}"]
    for row, packet in zip(mine, theirs, strict=False):
        number, wanted = row["packet_no"], _wanted(packet, summary, profile)
        columns = list(RECORD)
        if summary.sections > 1:
            columns.remove("interface")  # Wireshark 4.0 takes the names of the first section for all
        if not packet["malformed"] and packet["ts_ns"] not in without:
            columns += HEADERS
        if packet["ip_fragment"]:  # Wireshark shows the ports with the last fragment, and we with the first
            columns = [column for column in columns if column not in ("src_port", "dst_port", *TCP)]
        found += [
            f"packet {number}: {column} is {row[column]!r}, tshark has {wanted[column]!r}"
            for column in columns
            if not _same(column, row[column], wanted[column])
        ]
        if packet["ts_ns"] in without:
            continue
        named = next((NAMED[name] for name in packet["protocols"] if name in NAMED), None)
        is_named = named is not None or row["protocol"] in NAMED.values()
        if row["protocol"] != named and is_named and not packet["malformed"]:
            found.append(f"packet {number}: protocol is {row['protocol']!r}, tshark has {named!r}")
        for name in LISTS:
            ours = by_packet.get((name, number), [])
            if len(ours) != len(wanted[name]):
                found.append(f"packet {number}: {len(ours)} rows of {LISTS[name]}, tshark has {len(wanted[name])}")
            for one, other in zip(ours, wanted[name], strict=False):
                unlike = {key: (one[key], value) for key, value in other.items() if not _same(key, one[key], value)}
                if unlike:
                    found.append(f"packet {number}: {LISTS[name]} (ours, tshark's) {unlike}")
    return found


def _same(column: str, ours: Any, theirs: Any) -> bool:
    if column == "interface" and ours is not None and theirs is not None:
        return str(ours).split() == str(theirs).split()  # XML turns a line break in a name into a blank
    if column == "payload" and theirs is None:
        return True  # Wireshark takes the data of an error frame apart
    if column == "eth_type" and theirs is None and ours is not None:
        return bool(ours < 0x0600)  # a length after a VLAN tag
    return bool(ours == theirs)


# -- real captures ------------------------------------------------------------------------------------------------
def test_the_captures_are_there() -> None:
    captures.require()
    assert len(captures.paths()) >= 60


@pytest.mark.parametrize("path", captures.paths(), ids=lambda path: path.name)
def test_as_tshark_reads_it(path: Path) -> None:
    rows, summary = read(path)
    assert differences(path, rows, summary, PROFILE) == []
    cut = {row["packet_no"] for row in rows.get("packets", []) if row["captured_len"] < row["original_len"]}
    unexplained = Counter(row["reason"] for row in rows.get("faults", []) if row["packet_no"] not in cut)
    assert unexplained == FAULTS.get(path.name, {})
    assert not summary.truncated


def test_compressed_captures_have_the_same_rows() -> None:
    folder = captures.require() / "lightpcapng"
    plain, gz, zst = (read(folder / f"caneth.pcapng{suffix}") for suffix in ("", ".gz", ".zst"))
    assert plain[0] == gz[0] == zst[0]
    assert [summary.compression for _, summary in (plain, gz, zst)] == [None, "gzip", "zstd"]


@pytest.mark.parametrize("name", ["someip1", "someip2"])
def test_as_tcpdump_reads_it(name: str) -> None:
    folder = captures.require() / "tcpdump"
    wanted = tcpdump.someip_messages((folder / f"{name}.out").read_text(encoding="utf-8"))
    found = read(folder / f"{name}.pcap")[0]["someip_messages"]
    assert [{key: row[key] for key in want} for want, row in zip(wanted, found, strict=True)] == wanted


@pytest.mark.parametrize(
    "path", [path for path in captures.paths() if path.with_suffix(".txt").exists()], ids=lambda path: path.stem
)
def test_conformance(path: Path) -> None:
    rows, summary = read(path)
    expected, blocks = conformance.expected(path.with_suffix(".txt")), conformance.blocks(path)
    assert tuple(block.kind for block in blocks) == expected.blocks
    assert (summary.sections, len(summary.interfaces)) == (expected.sections, expected.interfaces)
    packets = rows.get("packets", [])
    assert [row["ts_ns"] is not None for row in packets] == expected.timed
    names = ("interface", "link_type", "ts_ns", "captured_len", "original_len")
    wanted = [tuple(getattr(block, name) for name in names) for block in blocks if block.kind in conformance.PACKETS]
    assert [tuple(row[name] for name in names) for row in packets] == wanted
    assert [row["packet_no"] for row in packets] == list(range(1, len(wanted) + 1))


# -- frames made by the tests --------------------------------------------------------------------------------------
def tecmp_frame(r: Random) -> bytes:
    return r.randbytes(12) + b"\x99\xfe" + module_frames.tecmp(r, frames.ethernet, kinds=(2, 3, 4, 8), messages=(3,))


def bus_frames(link_type: int, seed: int, count: int) -> list[bytes]:
    """Frames without faults, without DLCs of 9 to 15, of which Wireshark 4.0 takes the CRC for data, and without entries of TECMP
    that have flags and no bytes, which it does not show.
    """
    r, found = Random(seed), list[bytes]()
    while len(found) < count:
        made = tecmp_frame(r) if link_type == 1 else frames.MAKERS[link_type](r)
        rows, summary = compare.read(pcap([made], link_type))
        is_long = (row["dlc"] > row["data_len"] for row in rows.get("can_frames", ()) if not row["fd"])
        is_empty = (row[name] is None for name in ("can_id", "lin_id") for row in rows.get(f"{name[:3]}_frames", ()))
        if not summary.faults and not any(is_long) and not any(is_empty):
            found.append(made)
    return found


@pytest.mark.parametrize("link_type", [1, 210, 212])
def test_made_bus_frames_as_tshark_reads_them(tmp_path: Path, link_type: int) -> None:
    path = tmp_path / "made.pcap"
    path.write_bytes(pcap(bus_frames(link_type, 7, 150), link_type))
    rows, summary = read(path)
    assert differences(path, rows, summary, PROFILE) == []


@pytest.mark.parametrize("link_type", [1, 210, 212])
def test_golden_bus_frames_as_tshark_reads_them(tmp_path: Path, link_type: int) -> None:
    tables = ("lin_frames", "flexray_frames")
    golden = [
        bytes.fromhex(case["frame"])
        for case in GOLDEN["good"]
        if case["link_type"] == link_type and any(table in case["rows"] for table in tables)
        if link_type != 1 or case["name"].startswith("TECMP")  # Wireshark 4.0 does not know the others
        if "of length 0" not in case["name"]  # nor does it show these
    ]
    path = tmp_path / "golden.pcap"
    path.write_bytes(pcap(golden, link_type))
    rows, summary = read(path)
    assert differences(path, rows, summary, PROFILE) == []


def test_golden_ppi_as_tshark_reads_it(tmp_path: Path) -> None:
    (golden,) = [case for case in GOLDEN["good"] if case["name"].startswith("PPI: SOME/IP-SD")]
    path = tmp_path / "golden.pcap"
    path.write_bytes(pcap([bytes.fromhex(golden["frame"])], 192))
    rows, summary = read(path)
    assert differences(path, rows, summary, PROFILE) == []


def test_golden_names_as_tshark_gives_them(tmp_path: Path) -> None:
    names = set(NAMED.values())
    golden = [case for case in GOLDEN["good"] if case["rows"].get("packets", [{}])[0].get("protocol") in names]
    golden = [
        case
        for case in golden
        if not case["name"].endswith("of the profile")  # which is another one
        and "10BASE-T1S" not in case["name"]  # which tshark 4.0.17 does not decode
    ]
    for link_type in {case["link_type"] for case in golden}:
        path = tmp_path / f"golden{link_type}.pcap"
        cases = [case for case in golden if case["link_type"] == link_type]
        path.write_bytes(pcap([bytes.fromhex(case["frame"]) for case in cases], link_type))
        rows, summary = read(path)
        assert differences(path, rows, summary, PROFILE) == []
        assert [row["protocol"] for row in rows["packets"]] == [
            case["rows"]["packets"][0]["protocol"] for case in cases
        ]


# -- samples ------------------------------------------------------------------------------------------------------
SECONDS = 1.0


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], Profile]:
    *paths, profile = sample.write_sample_captures(tmp_path_factory.mktemp("drive"), "drive", SECONDS)
    return paths, Profile.load(profile)


def damaged(recording: int) -> dict[int, str]:
    """Kind of damage by time (as the interface's clock tells it), of the recordings 0 to 3."""
    begin, end = list(pairwise(sample.recording_boundaries(SECONDS)))[recording]
    units = [10 ** (9 - interface.resolution) for interface in INTERFACES]
    times = [
        packet.time_ns // units[packet.interface] * units[packet.interface]
        for packet in damage.damaged_packets(begin, end)
    ]
    return dict(zip(times, damage.DAMAGED, strict=True))


@pytest.mark.parametrize("number", range(8))
def test_a_drive_as_tshark_reads_it(drive: tuple[list[Path], Profile], number: int) -> None:
    paths, profile = drive
    rows, summary = read(paths[number], profile)
    kinds = damaged(number % 4)
    assert differences(paths[number], rows, summary, profile, without=frozenset(kinds)) == []
    assert summary.truncated == (number == 3)
    assert {name for name, count in summary.rows.items() if count} >= {"packets", "faults", *SAMPLED}


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("packets", "ts_ns", 1), ("packets", "vlan_ids", [1]), ("packets", "tcp_ack", -1), ("packets", "interface", "x"),
        ("someip_messages", "session_id", -1), ("someip_messages", "payload", b"x"), ("can_frames", "can_id", -1),
        ("can_frames", "bus", "x"), ("lin_frames", "checksum", -1), ("someip_sd_entries", "endpoints", []),
    ],
)  # fmt: skip
def test_one_wrong_value_is_found(drive: tuple[list[Path], Profile], table: str, column: str, value: Any) -> None:
    paths, profile = drive
    rows, summary = read(paths[2], profile)
    times = {row["packet_no"]: row["ts_ns"] for row in rows["packets"]}
    row = next(row for row in rows[table] if row[column] != value and times[row["packet_no"]] not in damaged(2))
    row[column] = value
    (found,) = differences(paths[2], rows, summary, profile, without=frozenset(damaged(2)))
    assert f"packet {row['packet_no']}:" in found
    assert column in found


REASONS = {
    "an Ethernet frame of 9 bytes": "short_header",
    "cut within the VLAN tag": "short_header",
    "cut within the IPv4 header": "short_header",
    "cut within the SOME/IP payload": "overrun",
    "IPv4 total length beyond the frame": "overrun",
    "IPv4 total length below its header": "bad_length",
    "UDP length beyond the packet": "overrun",
    "SOME/IP length beyond the datagram": "overrun",
    "SOME/IP length below its header": "bad_value",
    "SD entries beyond the message": "overrun",
    "TECMP cut within its header": "short_header",
    "TECMP entry beyond the frame": "overrun",
    "CAN cut within its header": "short_header",
    "CAN with fewer bytes than its length": "overrun",
    "CAN with more than the 11 bits of its identifier": "bad_value",
    "CAN with 65 bytes": "bad_value",
}


@pytest.mark.parametrize("number", range(8))
def test_every_damaged_packet_has_its_fault_and_no_other(drive: tuple[list[Path], Profile], number: int) -> None:
    paths, profile = drive
    kinds, first = damaged(number % 4), {}
    for fault in read(paths[number], profile)[0]["faults"]:
        # the cut tail of the last recording, and a message of J1939 whose pieces are in two recordings
        if fault["layer"] != "capture" and (fault["layer"], fault["reason"]) != ("j1939_tp", "gap"):
            first.setdefault(kinds.get(fault["ts_ns"], f"undamaged packet {fault['packet_no']}"), fault["reason"])
    assert first == REASONS


@pytest.mark.parametrize("mix", ["a", "b", "c"])
def test_a_mix_as_tshark_reads_it(tmp_path: Path, mix: str) -> None:
    path, profile = mixes.write_captures(tmp_path, mix, 0.1)
    rows, summary = read(path, Profile.load(profile))
    assert len(rows["packets"]) > 800
    assert "faults" not in rows
    assert differences(path, rows, summary, PROFILE) == []
