"""Captures that ask for much time: each kind repeats what costs most for its bytes.

`python -m tests.fuzz.slow [BYTES]` reads one capture of each kind and prints its CPU seconds per MB.
"""

from __future__ import annotations

import io
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping

import lz4.frame

from tests.fuzz.bombs import _CAN, _SECTION, T0, _block, _discovery, _option, _packet, _pcap

Make = Callable[[int], bytes]  # of about so many bytes
_PLAIN = _block(1, struct.pack("<HHI", 227, 0, 0))


def _filled(unit: bytes, head: bytes = b"") -> Make:
    return lambda size: head + unit * max(1, (size - len(head)) // len(unit))


def _packets(frame: bytes, link_type: int = 1) -> Make:
    head, record = _pcap(link_type, iter([(T0, frame)]))
    return _filled(record, head)


# -- packings: frames of nothing, blocks of one byte of a pcap capture ------------------------------------------------
def _packings() -> Iterator[tuple[str, Make]]:
    capture = b"".join(_pcap(1, iter(())))
    yield "zstd_frames", _filled(b"\x28\xb5\x2f\xfd\x20\0\1\0\0")
    yield "zstd_skippable_frames", _filled(struct.pack("<II", 0x184D2A50, 0), b"\x28\xb5\x2f\xfd\x20\0\1\0\0")
    yield "zstd_blocks", _filled(b"\x08\0\0\0", b"\x28\xb5\x2f\xfd\0\x58\xc0\0\0" + capture)
    yield "gzip_members", _filled(bytes.fromhex("1f8b08000000000002ff03000000000000000000"))
    yield "lz4_frames", _filled(lz4.frame.compress(b""))
    head = bytes(lz4.frame.LZ4FrameCompressor().begin())
    yield "lz4_blocks", _filled(b"\1\0\0\x80\0", head + b"\x18\0\0\x80" + capture)


# -- pcapng: blocks that are taken one by one, and garbage between them ------------------------------------------------
def _blocks() -> Iterator[tuple[str, Make]]:
    start, named = _SECTION + _PLAIN, struct.pack("<HHI", 227, 0, 0)
    yield "sections", _filled(_SECTION)
    yield "sections_with_interfaces", _filled(_SECTION + _PLAIN * 10)
    yield "sections_with_packets", _filled(_SECTION + _PLAIN + _packet(0))
    yield "interfaces", _filled(_PLAIN, _SECTION)
    yield "interface_options", _filled(_block(1, named + _option(5, b"") * 3_000), _SECTION)
    yield "interface_names", _filled(_block(1, named + _option(2, b"abc") * 1_500), _SECTION)
    yield "interface_statistics", _filled(_block(5, struct.pack("<III", 0, 0, 0) + _option(4, bytes(8))), start)
    yield "packet_comments", _filled(_packet(0, more=_option(1, b"a")), start)
    yield "packet_drops", _filled(_packet(0, more=_option(4, b"\1" + bytes(7))), start)
    yield "packet_options", _filled(_packet(0, more=_option(5, b"") * 3_000), start)
    yield "garbage_between_blocks", _filled(_block(10, b"") + b"a", start)
    yield "garbage_between_packets", _filled(_packet(0, b"") + b"abcd", start)
    yield "closing_lengths", _filled(struct.pack("<III", 10, 12, 13) + _block(10, b""), start)
    for size in (12, 24, 28):  # in the other byte order, but they do not say so, or are too short
        section = struct.pack(">II", 0x0A0D0D0A, size) + struct.pack("<I", 0x1A2B3C4D).ljust(size - 12, b"\0")
        yield f"sections_of_{size}_bytes", _filled(section[: size - 4] + struct.pack(">I", size), start + b"a")
    yield "unknown_interfaces", _filled(_block(3, bytes(4)), _SECTION)


# -- pcap: what stands between packets and is none ----------------------------------------------------------------------
def _files() -> Iterator[tuple[str, Make]]:
    head, record = _pcap(227, iter([(T0, b"")]))
    yield "joined_files", _filled(head)
    yield "joined_files_with_packets", _filled(head + record)
    yield "files_of_both_formats", _filled(head + record + _SECTION + _PLAIN)
    yield "headers_of_pcap_in_garbage", _filled(head, _SECTION + b"a")
    yield "headers_of_pcapng_in_garbage", _filled(_SECTION[:-4] + bytes(4), head + record[:-4] + b"\xff" * 4)
    yield "zeros_between_packets", _filled(bytes(16) + record, head)
    older = head[:6] + b"\3" + head[7:]  # lengths may be swapped
    yield "zeros_between_packets_of_version_2.3", _filled(bytes(16) + record, older)
    yield "zeros", _filled(bytes(16), head)


# -- packets: chains and nests ----------------------------------------------------------------------------------------
def _ip4(protocol: int) -> bytes:
    return struct.pack(">BBHHHBBH8s", 0x45, 0, 0, 0, 0, 1, protocol, 0, bytes(8))


def _udp(body: bytes) -> bytes:
    return bytes(12) + b"\x08\0" + _ip4(17) + struct.pack(">HHHH", 30490, 30490, 0, 0) + body


def _tecmp(data_type: int, entries: bytes) -> bytes:
    return bytes(12) + b"\x99\xfe" + struct.pack(">HHBBHHH", 1, 1, 3, 3, data_type, 0, 0) + entries


def _nests() -> Iterator[tuple[str, Make]]:
    yield "empty_packets", _packets(b"")
    yield "short_packets", _packets(b"\1", 227)
    yield "vlan_in_vlan", _packets(bytes(12) + b"\x81\0\0\1" * 30 + b"\x08\0")
    yield "vlan_in_vlan_too_deep", _packets(bytes(12) + b"\x81\0\0\1" * 10_000)
    yield "ip_in_ip", _packets(bytes(12) + b"\x08\0" + _ip4(4) * 30 + _ip4(59))
    yield "ip_in_ip_too_deep", _packets(bytes(12) + b"\x08\0" + _ip4(4) * 3_000)
    extensions = bytes(12) + b"\x86\xdd" + struct.pack(">IHBB", 6 << 28, 0, 0, 64) + bytes(32)
    yield "extensions_in_extensions", _packets(extensions + bytes(8) * 30)
    yield "tecmp_entries", _packets(_tecmp(2, struct.pack(">IQHHIB", 1, 1, 5, 0, 5, 99) * 3_000))
    yield "lin_entries", _packets(_tecmp(4, struct.pack(">IQHHBB", 7, 1, 2, 0, 1, 0) * 3_000))
    yield "someip_messages", _packets(_udp(struct.pack(">IIHHBBBB", 1, 8, 0, 0, 1, 1, 0, 0) * 4_000))


# -- service discovery ------------------------------------------------------------------------------------------------
def _discoveries() -> Iterator[tuple[str, Make]]:
    def messages(options: bytes, entries: int, runs: Callable[[int], bytes], times: int = 1) -> Make:
        return _packets(_udp(_discovery(options, entries, runs)[42:] * times))

    one, all_of_them = bytes([0, 0, 0x10]), bytes([0, 15, 0xFF])
    endpoints = b"".join(struct.pack(">HBB4sBBH", 9, 4, 0, i.to_bytes(4, "big"), 0, 17, i) for i in range(270))
    items = b"".join(b"\2" + bytes([a, b]) for a in range(1, 128) for b in range(1, 128))
    configuration = struct.pack(">HBB", len(items) + 1, 1, 0) + items
    yield "discovery_messages", messages(b"", 1, lambda i: bytes(3), 1_000)
    yield "discovery_of_17_entries", messages(b"", 17, lambda i: bytes(3), 150)
    yield "discovery_options", messages(b"\0\1\1\0" * 15_000, 1, lambda i: one)
    yield "discovery_endpoints", messages(endpoints[: 30 * 12], 3_700, lambda i: all_of_them)
    yield "discovery_endpoints_unlike", messages(endpoints, 3_700, lambda i: bytes([i % 240, i // 240 * 16, 0xFF]))
    yield "discovery_configuration", messages(configuration, 10, lambda i: one)
    yield "discovery_configurations", messages(configuration, 700, lambda i: bytes([0, i % 256, 0x10]))


# -- messages in pieces: orders in which they come --------------------------------------------------------------------
_HINT = b"\x02\xfd\x80\x01\xff\xff\xff\xff"  # resembles a header of DoIP
ORDERS: Mapping[str, Callable[[int], list[int]]] = {
    "in_order": lambda n: list(range(n)),
    "reversed": lambda n: list(range(n - 1, -1, -1)),
    "inside_out": lambda n: [n // 2 + (i // 2 if i % 2 else -i // 2) for i in range(n)],
    "alternating_ends": lambda n: [i // 2 if i % 2 else n - 1 - i // 2 for i in range(n)],
    "with_holes": lambda n: [*range(0, n, 2), *range(1, n, 2)],
}


def _tcp(sequence: int, body: bytes) -> bytes:
    head = struct.pack(">HHIIHHHH", 40_000, 13_400, sequence & 0xFFFFFFFF, 1, 0x5018, 0xFFFF, 0, 0)
    return bytes(12) + b"\x08\0" + _ip4(6) + head + body


def _fragment(number: int, body: bytes, most: int) -> bytes:
    """Of datagrams of at most `most` fragments, which do not end."""
    word = 0x2000 | number % most * len(body) // 8
    head = struct.pack(">BBHHHBBH8s", 0x45, 0, 20 + len(body), number // most, word, 1, 17, 0, bytes(8))
    return bytes(12) + b"\x08\0" + head + body


def _tp_segment(number: int, body: bytes) -> bytes:
    segment = struct.pack(">I", number * len(body) | 1) + body
    return _udp(struct.pack(">IIHHBBBB", 1, len(segment) + 8, 0, 1, 1, 1, 0x22, 0) + segment)


def _cmp_segment(number: int, body: bytes) -> bytes:
    kind = 1 if number % 100 == 0 else 2
    head = struct.pack(">BBHBBHQIHH", 1, 0, 1, 1, 1, number & 0xFFFF, 1, 1, kind << 10 | 8, len(body))
    return bytes(12) + b"\x99\xfe" + head + body


def _in_pieces(piece: Callable[[int], bytes], order: Callable[[int], list[int]]) -> Make:
    def make(size: int) -> bytes:
        frames = (piece(number) for number in order(max(2, size // (16 + len(piece(0))))))
        return b"".join(_pcap(1, ((T0, frame) for frame in frames)))

    return make


def _behind_a_hole(size: int) -> bytes:
    """Most bytes are behind a hole, and single bytes come in front of them, one before the other."""
    first, behind = size // 350, [_HINT * 180] * (size * 3 // 4 // (70 + 1440))
    frames = [_tcp(first + 1440 * i, body) for i, body in enumerate(behind)]
    frames += [_tcp(first - 1 - i, b"x") for i in range(size // 4 // 71)]
    return b"".join(_pcap(1, ((T0, frame) for frame in frames)))


def _offers(size: int) -> bytes:
    """Offers of port after port, in small messages."""
    frames = []
    for port in range(1024, 1024 + min(size // 118, 1020)):
        option = struct.pack(">HBB4sBBH", 9, 4, 0, bytes(4), 0, 17, port)
        frames.append(_udp(_discovery(option, 1, lambda i: bytes([0, 0, 0x10]))[42:]))
    body = b"".join(_pcap(1, ((T0, frame) for frame in frames)))
    plain = [*_pcap(1, iter([(T0, bytes(14))]))][1]
    return body + plain * ((size - len(body)) // len(plain))


def _messages_in_pieces() -> Iterator[tuple[str, Make]]:
    pieces: Mapping[str, Callable[[int], bytes]] = {
        "tcp": lambda i: _tcp(1000 * i, _HINT * 125),
        "tcp_bytes": lambda i: _tcp(i, b"x"),
        "fragments": lambda i: _fragment(i, bytes(8), 8190),
        "tp_segments": lambda i: _tp_segment(i, bytes(16)),
        "cmp_segments": lambda i: _cmp_segment(i, bytes(8)),
    }
    for name, piece in pieces.items():
        for order, numbers in ORDERS.items():
            yield f"{name}_{order}", _in_pieces(piece, numbers)
    yield "tcp_bytes_behind_a_hole", _behind_a_hole
    yield "offers_of_ports", _offers


KINDS: Mapping[str, Make] = dict(
    (*_packings(), *_blocks(), *_files(), *_nests(), *_discoveries(), *_messages_in_pieces())
)
ORDINARY: Make = _packets(_CAN, 227)


def seconds(data: bytes) -> float:
    """The CPU time of one reading into Arrow; of bytes that are no capture, of the attempt."""
    from pcaplake.parser import CaptureError, open_capture

    before = time.process_time()
    try:
        with open_capture(io.BytesIO(data)) as capture:
            for _ in capture.batches():
                pass
    except CaptureError:
        pass
    return time.process_time() - before


def main() -> None:
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    for make in KINDS.values():
        seconds(make(1000))
    for name, make in {"ordinary": ORDINARY, **KINDS}.items():
        data = make(size)
        print(f"{name:32} {1e6 * min(seconds(data) for _ in range(2)) / len(data):7.2f} s/MB", flush=True)


if __name__ == "__main__":
    main()
