"""Small captures that ask for much memory: one generator for each kind.

`python -m tests.fuzz.bombs NAME` reads one as a worker does, into a merge window over a folder, and prints how many bytes
the process had at most beyond those at its start.
"""

from __future__ import annotations

import gzip
import io
import resource
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import lz4.frame
import zstandard

DAY = 86_400
T0 = 1_790_000_000


def _pcap(link_type: int, frames: Iterator[tuple[int, bytes]]) -> Iterator[bytes]:
    """(seconds, frame) of each packet."""
    yield struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262_144, link_type)
    for seconds, frame in frames:
        yield struct.pack("<IIII", seconds, 0, len(frame), len(frame)) + frame


def _gzip(parts: Iterator[bytes]) -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=9, mtime=0) as file:
        for part in parts:
            file.write(part)
    return out.getvalue()


def _block(kind: int, body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    return struct.pack("<II", kind, 12 + len(body)) + body + struct.pack("<I", 12 + len(body))


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4)


_SECTION = _block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
_CAN = struct.pack(">I4B", 5, 8, 0, 0, 0) + bytes(8)


def _interface(name: bytes) -> bytes:
    return _block(1, struct.pack("<HHI", 227, 0, 0) + _option(2, name))


def _packet(interface: int, frame: bytes = _CAN, more: bytes = b"") -> bytes:
    head = struct.pack("<IIIII", interface, T0 * 10**6 >> 32, T0 * 10**6 & 0xFFFFFFFF, len(frame), len(frame))
    return _block(6, head + frame + bytes(-len(frame) % 4) + more)


# -- service discovery: every entry refers to all options ---------------------------------------------------------------
def _discovery(options: bytes, entries: int, runs: Callable[[int], bytes]) -> bytes:
    listed = b"".join(b"\1" + runs(i) + struct.pack(">HHII", 1, 1, 1 << 24 | 3, 0) for i in range(entries))
    body = struct.pack(">II", 0xC0 << 24, len(listed)) + listed + struct.pack(">I", len(options)) + options
    message = struct.pack(">IIHHBBBB", 0xFFFF8100, len(body) + 8, 0, 1, 1, 1, 2, 0) + body
    udp = struct.pack(">HHHH", 30490, 30490, len(message) + 8, 0) + message
    ip = struct.pack(">BBHHHBBH8s", 0x45, 0, len(udp) + 20, 0, 0, 1, 17, 0, bytes(8)) + udp
    return bytes(12) + b"\x08\x00" + ip


def endpoints() -> bytes:
    """3,000 entries a message, each with 30 endpoints."""
    options = b"".join(struct.pack(">HBB4sBBH", 9, 4, 0, bytes([10, 0, 0, i]), 0, 17, i) for i in range(30))
    frame = _discovery(options, 3000, lambda i: bytes([0, 15, 0xFF]))
    return _gzip(_pcap(1, repeat((T0, frame), 40)))


def configurations() -> bytes:
    """2,000 entries a message, each with 32 KB of configuration."""
    items = b"".join(bytes([200]) + f"{i:03}=".encode() + bytes(196) for i in range(160))
    options = struct.pack(">HBB", len(items) + 1, 1, 0) + items
    frame = _discovery(options, 2000, lambda i: bytes([0, 0, 0x10 | i % 16]))
    return _gzip(_pcap(1, repeat((T0, frame), 20)))


def unlike_options() -> bytes:
    """Messages of options that no other message has: nothing is worth remembering."""

    def frames() -> Iterator[tuple[int, bytes]]:
        for n in range(1000):
            items = b"".join(b"\x07" + f"{i:03x}=".encode() + n.to_bytes(3, "big") for i in range(600))
            options = struct.pack(">HBB", len(items) + 1, 1, 0) + items
            yield T0, _discovery(options, 4, lambda i: bytes([0, 0, 0x10]))

    return _gzip(_pcap(1, frames()))


# -- names --------------------------------------------------------------------------------------------------------------
def interface_names() -> bytes:
    """20,000 interfaces whose names have 2,000 bytes; one packet of each."""

    def blocks() -> Iterator[bytes]:
        yield _SECTION
        for n in range(20_000):
            yield _interface(f"{n:05}".encode() * 400)
            yield _packet(n)

    return _gzip(blocks())


def one_long_name() -> bytes:
    """An interface's name of 60,000 bytes in the rows of 200,000 packets, each with a fault."""

    def blocks() -> Iterator[bytes]:
        yield _SECTION + _interface(b"n" * 60_000)
        yield from repeat(_packet(0, _CAN[:9]), 200_000)

    return _gzip(blocks())


def sections() -> bytes:
    """80,000 interfaces, ten in each section."""

    def blocks() -> Iterator[bytes]:
        yield from repeat(_SECTION + _interface(b"can0") * 10 + _packet(3), 8_000)

    return _gzip(blocks())


def comments() -> bytes:
    """Options behind every packet: comments of 60,000 bytes."""
    return _gzip(iter([_SECTION + _interface(b"can0"), *repeat(_packet(0, more=_option(1, bytes(60_000))), 2000)]))


# -- dates, faults, payloads ----------------------------------------------------------------------------------------------
def dates() -> bytes:
    """Nine partitions and more, packet by packet in turn, in every table."""
    udp = struct.pack(">HHHH", 30490, 30490, 0, 0) + struct.pack(">IIHHBBBB", 1, 8, 0, 1, 1, 1, 2, 0) * 20
    frame = bytes(12) + b"\x08\x00" + struct.pack(">BBHHHBBH8s", 0x45, 0, 0, 0, 0, 1, 17, 0, bytes(8)) + udp
    return _gzip(_pcap(1, ((T0 + n % 12 * DAY, frame) for n in range(60_000))))


def faults() -> bytes:
    """A fault for every packet."""
    return _gzip(_pcap(227, repeat((T0, b"\1"), 600_000)))


def payloads() -> bytes:
    """Zero bytes in packets as large as they can be."""
    return _gzip(_pcap(147, repeat((T0, bytes(262_000)), 800)))


# -- packings -------------------------------------------------------------------------------------------------------------
def zstd_window() -> bytes:
    """A frame that asks for 2 GB before its first byte."""
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=31, enable_ldm=False)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return packer.compress(payloads_unpacked()) + packer.flush()


def zstd_size() -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(payloads_unpacked())


def lz4_size() -> bytes:
    return lz4.frame.compress(payloads_unpacked()[: 100 << 20])


def lz4_block() -> bytes:
    """A block that says it has 2 GB, and 300 MB of it."""
    whole = lz4.frame.compress(bytes(100))  # 15 bytes of header: the size of the content is in it
    return whole[:15] + (0x7FFFFFFF).to_bytes(4, "little") + bytes(300 << 20)


def payloads_unpacked() -> bytes:
    return b"".join(_pcap(147, repeat((T0, bytes(262_000)), 800)))


BOMBS: dict[str, Callable[[], bytes]] = {
    one.__name__: one
    for one in (
        endpoints,
        configurations,
        unlike_options,
        interface_names,
        one_long_name,
        sections,
        comments,
        dates,
        faults,
        payloads,
        zstd_window,
        zstd_size,
        lz4_size,
        lz4_block,
    )
}


# -- reading one ----------------------------------------------------------------------------------------------------------
def read(path: Path, folder: Path) -> dict[str, Any]:
    """As a worker reads it: rows by table, bytes of Parquet, the most memory beyond that at the start."""
    from pcaplake.ingest.pipeline import Reader
    from pcaplake.lake.config import LakeConfig
    from pcaplake.lake.records import Capture
    from pcaplake.lake.staging.window import Window
    from pcaplake.lake.store.store import Store
    from pcaplake.parser import TABLES, Profile, Summary

    reader = Reader(profile=Profile.default(), decoder_version="test", now=lambda: float(T0))
    schemas = {name: spec.schema for name, spec in TABLES.items()}

    def one(file: Any, name: str) -> dict[str, Any]:
        window = Window(
            Store.open(folder / name), schemas, lake_config=LakeConfig(), generation=1, decoder_version="test"
        )
        capture = Capture(capture_id=name, uri=f"file:///{name}", etag="1", size=path.stat().st_size)
        result = reader.read(file, capture, window)
        rows = window.rows_by_table
        stage = window.close()
        assert stage is not None
        size = sum(add.size for adds in stage.adds.values() for add in adds)
        return {"rows": rows, "bytes": size, "faults": dict(result.faults) if isinstance(result, Summary) else None}

    one(io.BytesIO(b"".join(_pcap(227, repeat((T0, _CAN), 100)))), "warm")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with path.open("rb", buffering=0) as file:
        found = one(file, "bomb")
    return {**found, "memory": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024}


def main() -> None:
    import json

    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(read(Path(sys.argv[1]), Path(folder))))


if __name__ == "__main__":
    main()
