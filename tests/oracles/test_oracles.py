"""The oracles on input whose meaning is known by hand."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.oracles import captures, conformance, tcpdump, tshark

pytestmark = pytest.mark.slow


def pcap(path: Path, link_type: int, *frames: str) -> Path:
    records = [
        struct.pack("<IIII", 1_790_000_000, 7, len(raw), len(raw) + 1) + raw for raw in map(bytes.fromhex, frames)
    ]
    path.write_bytes(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 262_144, link_type) + b"".join(records))
    return path


def test_tshark_reads_two_messages_of_a_datagram(tmp_path: Path) -> None:
    udp = (
        "7725 9c40 002b 0000"
        + "1234 8001 0000000a 0000 0001 01 02 02 00 aabb"
        + "1234 0002 00000009 0003 0004 01 02 80 05 cc"
    )
    ip = "45b8 003f 0001 4000 4011 0000 0a000001 0a000002"
    frame = "020000000001 020000000002 88a8 a0c8 8100 6005 0800" + ip + udp
    (packet,) = tshark.packets(pcap(tmp_path / "x.pcap", 1, frame))
    assert (packet["ts_ns"], packet["captured_len"], packet["original_len"]) == (1_790_000_000_000_000_007, 85, 86)
    assert (packet["eth_dst"], packet["eth_src"]) == ("02:00:00:00:00:01", "02:00:00:00:00:02")
    assert (packet["eth_type"], packet["vlan_ids"], packet["vlan_pcp"]) == (0x0800, [200, 5], 5)
    assert (packet["ip_src"], packet["ip_dst"], packet["ip_dscp"], packet["ip_ttl"]) == ("10.0.0.1", "10.0.0.2", 46, 64)
    assert (packet["ip_version"], packet["ip_proto"], packet["ip_fragment"]) == (4, 17, False)
    assert (packet["src_port"], packet["dst_port"], packet["malformed"]) == (30501, 40000, False)
    first, second = packet["someip"]
    assert first == {
        "service_id": 0x1234, "method_id": 0x8001, "length": 10, "client_id": 0, "session_id": 1, "protocol_version": 1,
        "interface_version": 2, "message_type": 2, "return_code": 0, "payload": b"\xaa\xbb",
    }  # fmt: skip
    assert (second["message_type"], second["return_code"], second["payload"]) == (0x80, 5, b"\xcc")


def test_tshark_reads_can(tmp_path: Path) -> None:
    classic, fd, error = (
        "92345678 02 000000 abcd",
        "00000123 0c 05 0000" + "11" * 12,
        "20000008 08 000000 0000040800000000",
    )
    packets = list(tshark.packets(pcap(tmp_path / "x.pcap", 227, classic, fd, error, "00000123 08")))
    one, two, three = (packet["can"][0] for packet in packets[:3])
    assert (one["can_id"], one["extended"], one["fd"], one["payload"]) == (0x12345678, True, False, b"\xab\xcd")
    assert (two["can_id"], two["fd"], two["brs"], two["esi"], two["payload"]) == (
        0x123,
        True,
        True,
        False,
        b"\x11" * 12,
    )
    assert (three["error"], three["error_class"], three["can_id"]) == (True, 8, None)
    assert [packet["malformed"] for packet in packets] == [False, False, False, True]


def test_tcpdump_lines() -> None:
    line = (
        "    1  2020-02-16 18:44:34.812094 IP 192.168.88.8.56001 > 192.168.88.8.30490: SOMEIP, service 1, event 2, len 8, "
        "client 8, session 5, pver 1, iver 1, msgtype REQUEST_NO_RETURN, retcode E_OK\n"
    )
    (message,) = tcpdump.someip_messages(line)
    assert (message["ts_ns"], message["src_port"], message["method_id"]) == (1_581_878_674_812_094_000, 56001, 0x8002)
    assert (message["message_type"], message["return_code"], message["is_event"]) == (1, 0, True)
    with pytest.raises(ValueError, match="not a line"):
        tcpdump.someip_messages(line.replace("SOMEIP", "UDP"))


def test_conformance_text_beside_blocks(tmp_path: Path) -> None:
    text = "Block counts:\n\tEPB: 1\n\tIDB: 1\n\tSHB: 1\n\tSPB: 1\n\nBlock sequence: SHB, IDB, SPB, EPB\n"
    (tmp_path / "x.txt").write_text(text, encoding="utf-8")
    expected = conformance.expected(tmp_path / "x.txt")
    assert (expected.sections, expected.interfaces, expected.timed) == (1, 1, [False, True])

    def block(kind: int, body: bytes) -> bytes:
        return struct.pack(">II", kind, 12 + len(body)) + body + struct.pack(">I", 12 + len(body))

    options = struct.pack(">HHBxxxHHqHH", 9, 1, 3, 14, 8, 10, 0, 0)  # milliseconds, ten seconds later
    data = block(0x0A0D0D0A, struct.pack(">IHHq", 0x1A2B3C4D, 1, 0, -1)) + block(
        1, struct.pack(">HHI", 1, 0, 2) + options
    )
    data += block(3, struct.pack(">I", 3) + b"ab\0\0") + block(6, struct.pack(">IIIII", 0, 1, 1, 1, 9) + b"a\0\0\0")
    (tmp_path / "x.pcapng").write_bytes(data)
    blocks = conformance.blocks(tmp_path / "x.pcapng")
    assert tuple(b.kind for b in blocks) == expected.blocks
    assert [(b.interface, b.ts_ns, b.captured_len, b.original_len) for b in blocks[2:]] == [
        ("0", None, 2, 3),
        ("0", (2**32 + 1) * 10**6 + 10 * 10**9, 1, 9),
    ]
    (tmp_path / "x.txt").write_text(text.replace("EPB: 1", "EPB: 2"), encoding="utf-8")
    with pytest.raises(ValueError, match="disagree"):
        conformance.expected(tmp_path / "x.txt")


def test_absent_captures_skip_but_not_in_ci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captures, "FOLDER", tmp_path)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no captures"):
        captures.require()
    monkeypatch.setenv("CI", "1")
    with pytest.raises(AssertionError, match="PCAPLAKE_CAPTURES"):
        captures.require()
