"""The engine against the one-packet reference, and against dpkt's own classes."""

from __future__ import annotations

import ipaddress
import struct
from collections import Counter
from random import Random
from typing import Any

import dpkt
import pytest

from pcaplake.parser import protocols
from pcaplake.parser.engine.layer import Layer, Term
from tests.parser import captures, frames, middleware_frames
from tests.parser.captures import T0, Section
from tests.parser.compare import PROFILE, difference, read
from tests.parser.reference import Reference
from tests.seeds import some_seeds

REFERENCE = Reference(PROFILE)


def frames_of(r: Random, link_type: int, count: int) -> list[bytes]:
    made = (frames.MAKERS[link_type](r) for _ in range(count))
    return [frames.spoil(r, frame) if r.random() < 0.6 else frame for frame in made]


def agree(data: bytes) -> dict[str, int]:
    """Asserts that engine and reference give the same rows; returns how often each fault came."""
    reading = REFERENCE.read(data)
    rows, summary = read(data)
    assert (unlike := difference(reading.rows, rows)) is None, unlike
    assert summary.packets == reading.packets
    assert summary.bytes == sum(row["captured_len"] for row in rows.get("packets", ()))
    times = [row["ts_ns"] for row in rows.get("packets", ()) if row["ts_ns"] is not None]
    assert (summary.first_ts_ns, summary.last_ts_ns) == ((min(times), max(times)) if times else (None, None))
    assert dict(summary.faults) == Counter(row["reason"] for row in rows.get("faults", ()))
    return dict(summary.faults)


@pytest.mark.slow
@pytest.mark.parametrize("link_type", frames.MAKERS)
def test_the_engine_equals_the_reference(link_type: int) -> None:
    r = Random(link_type)
    seen: Counter[str] = Counter()
    for order, magic in (("<", "us"), (">", "ns"), ("<", "modified"), (">", "modified")):
        seen.update(agree(captures.pcap(frames_of(r, link_type, 90), link_type, order=order, magic=magic)))
    assert seen["short_header"]
    assert seen["bad_value"] + seen["bad_length"] + seen["overrun"]


@pytest.mark.parametrize("seed", some_seeds(6))
def test_the_engine_equals_the_reference_in_pcapng(seed: int) -> None:
    """Both byte orders, several sections, late interfaces, all packet blocks, clocks, directions, FCS, snaplen."""
    r = Random(seed)
    agree(b"".join(section(r) for _ in range(3)))


def section(r: Random) -> bytes:
    s = Section(r.choice("<>"))
    blocks, kinds = [s.header()], []
    for _ in range(120):
        choice = r.random()
        if not kinds or choice < 0.05:
            kinds.append(r.choice(tuple(frames.MAKERS)))
            resolution = r.choice(
                (None, 0, 3, 6, 9, 10, 12, 18, 19, 27, 29, 127, 0x80, 0x80 | 10, 0x80 | 31, 0x80 | 32, 0x80 | 63, 0xFF)
            )
            offset = r.choice((None, None, 0, 1, -1, 3600, -(2**31), 2**32))
            name = r.choice((None, None, "can0", "", "eth\0", "bus-é"))
            blocks.append(
                s.interface(
                    kinds[-1],
                    name=name,
                    resolution=resolution,
                    offset=offset,
                    fcs=r.choice((None, 0, 4, 32)),
                    snaplen=r.choice((0, 0, 1, 16, 64, 65_535)),
                    more=r.choice((b"", b"", b"", s.option(3, bytes(8))[:-4])),
                )
            )
            continue
        if choice < 0.1:
            unknown = r.choice((4, 5, 10, 0xBAD, 0x40000BAD, 0x12345, 0x0A0D0A0D))
            blocks.append(s.block(unknown, r.randbytes(r.choice((0, 1, 4, 100)))))
            continue
        if choice < 0.15:
            blocks.append(s.statistics(r.randrange(len(kinds) + 1), received=1, dropped=r.getrandbits(64)))
            continue
        number = r.choice((0, 0, len(kinds) - 1, r.randrange(len(kinds)), len(kinds), 0xFFFF))
        (frame,) = frames_of(r, kinds[min(number, len(kinds) - 1)], 1)
        original = r.choice((None, None, len(frame) + r.choice((1, 2, 4, 5)), 0, frames.some(r, 32)))
        ticks = r.choice(
            (T0 * 10**6, T0 * 10**9, T0, T0 << 10, T0 << 32, 0, 1, 2**63 - 1, 2**64 - 1, r.getrandbits(64))
        )
        flags = r.choice((None, None, 1, 2, 3, 0x20, 0x81, 0x1E2, 0xFFFFFFFF))
        if choice < 0.25:
            blocks.append(s.simple(frame, original=original))
        elif choice < 0.4:
            drops = r.choice((0, 0, 3, 0xFFFF))
            options = dict(interface=number & 0xFFFF, original=original, flags=flags, drops=drops)
            blocks.append(s.obsolete(frame, ticks, **options))
        else:
            captured = r.choice((*[None] * 8, len(frame) + 1, len(frame) + 40, 0))
            lost = s.option(4, bytes(8)), s.option(4, r.randbytes(8)), s.option(4, b"\1") + s.option(4, bytes(range(8)))
            cut = s.option(1, b"hello") + s.option(2988, bytes(r.choice((1, 4, 5000))))[: r.choice((4, 4, 8))]
            more = r.choice((b"", b"", s.option(1, b"hello") + s.option(1, b"h\xe9"), *lost, s.option(2, b"\1"), cut))
            blocks.append(
                s.enhanced(frame, ticks, interface=number, original=original, captured=captured, flags=flags, more=more)
            )
    return b"".join(blocks)


@pytest.mark.parametrize("link_type", frames.MAKERS)
def test_every_cut_of_a_frame(link_type: int) -> None:
    """A frame cut after each of its bytes: what is there is read, what is missing is said."""
    r = Random(1000 + link_type)
    frame = max((frames.MAKERS[link_type](r) for _ in range(20)), key=lambda f: len(f) if len(f) < 300 else 0)
    assert agree(captures.pcap([frame[:n] for n in range(len(frame) + 1)], link_type))


@pytest.mark.slow
@pytest.mark.parametrize("link_type", [1, 227, 113])
def test_every_byte_at_its_boundaries(link_type: int) -> None:
    r = Random(2000 + link_type)
    spoiled = []
    for _ in range(2):
        frame = frames.MAKERS[link_type](r)
        for at in range(min(len(frame), 70)):
            spoiled += [frame[:at] + bytes([value]) + frame[at + 1 :] for value in (0, 1, 8, 64, 65, 127, 128, 255)]
    agree(captures.pcap(spoiled, link_type))


# -- dpkt -----------------------------------------------------------------------------------------------------------
def test_dpkt_reads_the_same_packets() -> None:
    """Ethernet, one VLAN tag, IPv4 with options or IPv6, UDP or TCP: the stacks that dpkt's own classes know."""
    r = Random(5)
    made = []
    while len(made) < 400:
        kind, body = r.choice(((0x0800, frames.ipv4(r)), (0x86DD, frames.ipv6(r))))
        if kind == 0x86DD and body[6] not in (6, 17):
            continue  # dpkt 1.9.8 fails on some orders of extension headers
        tag = struct.pack(">HH", 0x8100, frames.some(r, 16)) if r.random() < 0.4 else b""
        made.append(r.randbytes(12) + tag + struct.pack(">H", kind) + body)
    rows, _ = read(captures.pcap(made))
    compared: Counter[str] = Counter()
    for frame, row in zip(made, rows["packets"], strict=True):
        eth = dpkt.ethernet.Ethernet(frame)
        assert row["eth_src"] == eth.src.hex(":")
        assert row["eth_dst"] == eth.dst.hex(":")
        tags = getattr(eth, "vlan_tags", [])
        assert row["eth_type"] == (tags[-1].type if tags else eth.type)
        assert row["vlan_ids"] == ([tag.id for tag in tags] or None)
        assert row["vlan_pcp"] == (tags[0].pri if tags else None)
        ip = eth.data
        assert isinstance(ip, (dpkt.ip.IP, dpkt.ip6.IP6))
        six = isinstance(ip, dpkt.ip6.IP6)
        assert row["ip_version"] == (6 if six else 4)
        assert row["ip_src"] == str(ipaddress.ip_address(ip.src))
        assert row["ip_dst"] == str(ipaddress.ip_address(ip.dst))
        assert row["ip_ttl"] == (ip.hlim if six else ip.ttl)
        assert row["ip_dscp"] == (ip.fc if six else ip.tos) >> 2
        if not six:
            assert row["ip_proto"] == ip.p
            assert row["ip_fragment"] == bool(ip.mf or ip.offset)
        segment = ip.data
        if isinstance(segment, (dpkt.udp.UDP, dpkt.tcp.TCP)):
            assert (row["src_port"], row["dst_port"]) == (segment.sport, segment.dport)
        if isinstance(segment, dpkt.tcp.TCP):
            assert (row["tcp_seq"], row["tcp_ack"]) == (segment.seq, segment.ack)
            assert row["tcp_flags"] == segment._off_flags & 0xFFF
            assert row["l4_payload_len"] == len(segment.data)
        elif isinstance(segment, dpkt.udp.UDP) and not row["ip_fragment"] and segment.ulen:
            assert row["l4_payload_len"] == segment.ulen - 8 == len(segment.data)
        compared[type(segment).__name__] += 1
    assert min(compared["UDP"], compared["TCP"]) > 20


@pytest.mark.parametrize("layer", protocols.LAYERS, ids=lambda layer: layer.name)
def test_a_term_reads_what_dpkt_reads(layer: Layer) -> None:
    """The bit arithmetic of every declared field, on random headers."""
    r = Random(layer.name)
    order = layer.packet.__hdr_fmt__[0]
    for _ in range(20):
        data = r.randbytes(layer.least)
        header = layer.packet.__new__(layer.packet)
        dpkt.Packet.unpack(header, data)
        for name, code, _default in layer.packet.__hdr__:
            parts = (getattr(layer.packet, "__bit_fields__", None) or {}).get(name, ())
            if struct.calcsize(order + code) > 8:
                continue
            for part in (name, *(p for p, _ in parts if not p.startswith("_"))):
                expected = getattr(header, part)
                if isinstance(expected, bytes):
                    expected = int.from_bytes(expected, "big")
                assert evaluate(getattr(layer, part), data) == expected, part


def evaluate(term: Term, data: bytes) -> int:
    """The definition of a term, in Python's integers."""
    word = int.from_bytes(data[term.offset : term.offset + 8].ljust(8, b"\0"), "big" if term.big else "little")
    return (word >> term.shift & term.mask & (1 << 64) - 1) * term.mul + term.add


# -- one by one -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("magic", captures.MAGICS)
@pytest.mark.parametrize("order", "<>")
def test_the_largest_record_and_one_byte_more(order: str, magic: str) -> None:
    """262,144 bytes are a packet, more is a broken file: what stands before it is kept."""
    small = frames.ipv4(Random(1))
    for excess in (0, 1):
        big = bytes(262_144 + excess)
        rows, _ = read(captures.pcap([small, big, small], 228, order=order, magic=magic), chunk_bytes=1)
        assert [row["captured_len"] for row in rows["packets"]] == (
            [len(small)] if excess else [len(small), 262_144, len(small)]
        )
        assert [f["reason"] for f in rows.get("faults", []) if f["layer"] == "capture"] == (
            ["unreadable"] if excess else []
        )


@pytest.mark.slow
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("kind", ["enhanced", "obsolete", "simple"])
def test_the_largest_packet_of_a_block_and_one_byte_more(kind: str, order: str) -> None:
    """262,144 bytes of a packet are kept, whatever options follow; the block says where the next one is."""
    s = captures.Section(order)
    small, start = getattr(s, kind)(b"small"), s.header() + s.interface(228)
    options: list[dict[str, Any]] = [{}] if kind == "simple" else [{}, {"flags": 2}]
    if kind == "enhanced":
        options.append({"flags": 2, "more": s.option(1, bytes(65_000)) * 3})
    for more in options:
        for excess in (0, 1, 4, 200_000 if len(more) < 2 else 5):
            frame = Random(1).randbytes(262_144 + excess)
            data = start + small + getattr(s, kind)(frame, **more) + small
            rows, _ = read(data, chunk_bytes=1)
            assert [row["captured_len"] for row in rows["packets"]] == [5, 262_144, 5]
            assert [row["original_len"] for row in rows["packets"]] == [5, 262_144 + excess, 5]
            assert rows["packets"][1]["direction"] == ("out" if more else None)
            assert rows["packets"][1]["raw"] == frame[:262_144]
            long = [f for f in rows["faults"] if f["reason"] == "overrun" and f["layer"] != "ipv4"]
            assert [(f["packet_no"], f["need"], f["have"]) for f in long] == (
                [(2, 262_144 + excess, 262_144)] if excess else []
            )
            expected = Reference().read(data)
            assert (unlike := difference(expected.rows, rows)) is None, unlike


@pytest.mark.parametrize("order", "<>")
def test_the_largest_block_and_one_word_more(order: str) -> None:
    """524,288 bytes are a block with a packet, more is garbage: the block behind it is found."""
    s = captures.Section(order)
    start, small = s.header() + s.interface(228), s.enhanced(b"small")
    for excess in (0, 4):
        data = start + small + s.enhanced(bytes(524_288 - 32 + excess)) + small
        rows, summary = read(data, chunk_bytes=1)
        assert [row["captured_len"] for row in rows["packets"]] == ([5, 5] if excess else [5, 262_144, 5])
        assert [(x.offset, x.length) for x in summary.regions] == ([(len(start + small), 524_292)] if excess else [])


@pytest.mark.slow
def test_more_rows_than_a_morsel_and_a_batch() -> None:
    """Numbers, times and dense sub_no go on over the borders of morsels and batches."""
    r = Random(9)
    made = [captures.pcap_record(frames.ethernet(r), T0 + i) for i in range(9_500)]
    data = captures.pcap_header() + b"".join(made)
    rows, _ = read(data, batch_rows=1000)
    assert [row["packet_no"] for row in rows["packets"]] == list(range(1, 9_501))
    assert [row["ts_ns"] for row in rows["packets"]] == [(T0 + i) * 10**9 for i in range(9_500)]
    for table in ("someip_messages", "can_frames", "lin_frames", "someip_sd_entries", "faults"):
        counts: Counter[int] = Counter()
        assert len(rows[table]) > 100
        for row in rows[table]:
            assert row["sub_no"] == counts[row["packet_no"]], table
            counts[row["packet_no"]] += 1
        assert [row["packet_no"] for row in rows[table]] == sorted(row["packet_no"] for row in rows[table])


def test_more_texts_than_a_table_of_texts() -> None:
    """More than 1,024 distinct addresses in a batch: the table of known texts grows, and no row is lost or mixed up."""
    made = [bytes(6) + i.to_bytes(6, "big") + b"\x08\x06" for i in range(0, 70_000 * 5_000, 70_000)]
    rows, _ = read(captures.pcap(made))
    assert [row["eth_src"] for row in rows["packets"]] == [f[6:12].hex(":") for f in made]
    pairs = [ipaddress.IPv6Address((i * 0x9E3779B97F4A7C15F39CC0605CEDC835) & 2**128 - 1) for i in range(3_000)]
    six = [struct.pack(">IHBB", 6 << 28, 0, 59, 1) + p.packed + bytes(16) for p in pairs]
    rows, _ = read(captures.pcap(six, 229))
    assert [ipaddress.IPv6Address(row["ip_src"]) for row in rows["packets"]] == pairs


def test_more_texts_than_a_table_of_texts_in_rows_of_several_shapes() -> None:
    """The table grows in the middle of a shape, and rows of other shapes have no text."""
    s = Section("<")

    def ip6(number: int) -> bytes:
        return struct.pack(">IHBB", 6 << 28, 0, 59, 1) + number.to_bytes(16, "little") + bytes(16)

    made = []
    for i in range(4_500):
        mac = bytes(6) + (i * 70_000).to_bytes(6, "big")
        frame = (mac + b"\x08\x06", mac + b"\x86\xdd" + ip6(i * 70_000), bytes(14) + b"\x86\xdd" + ip6(i))[i % 3]
        made.append(s.enhanced(frame, interface=int(i % 3 == 2)))
    rows, _ = read(s.header() + s.interface(1) + s.interface(113) + b"".join(made), batch_rows=10_000)
    for i, row in enumerate(rows["packets"]):
        mac = None if i % 3 == 2 else (i * 70_000).to_bytes(6, "big").hex(":")
        number = (None, i * 70_000, i)[i % 3]
        address = None if number is None else ipaddress.IPv6Address(number.to_bytes(16, "little")).compressed
        assert (row["eth_src"], row["ip_src"]) == (mac, address), i


def test_values_that_are_read_in_advance_keep_nothing_of_a_morsel() -> None:
    """Messages of gPTP are matched with their requests by values of each morsel, and have columns that are no numbers."""
    r = Random(3)
    made = [bytes(12) + b"\x88\xf7" + middleware_frames.ptp(r) for _ in range(400)]
    whole, _ = read(captures.pcap(made))
    assert len(whole["gptp_messages"]) > 200
    parts, _ = read(captures.pcap(made), chunk=2000)  # each chunk is a morsel
    assert (unlike := difference(whole, parts)) is None, unlike
