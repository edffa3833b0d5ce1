"""Packed captures: by magic, and whatever is cut or spoilt, all that can be unpacked before it is kept."""

from __future__ import annotations

import gzip
import io
import time
import zlib
from collections.abc import Callable, Iterator
from random import Random

import lz4.frame
import pytest
import zstandard

from pcaplake.parser import CaptureError, is_capture, open_capture
from pcaplake.parser.capture.compression import DecompressedStream
from tests.parser import frames
from tests.parser.captures import Section, pcap
from tests.parser.compare import difference, read

R = Random(8)
PLAIN = pcap([frames.ethernet(R) for _ in range(400)])
ALIKE = pcap([frames.ethernet(R)] * 400)  # shrinks much
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda data: gzip.compress(data, mtime=0),
    "zstd": zstandard.ZstdCompressor(write_checksum=True).compress,
    "lz4": lambda data: lz4.frame.compress(data, content_checksum=True),
}


def zstd_blocks(data: bytes) -> bytes:
    """A frame of many blocks, as a streaming writer makes it."""
    out = io.BytesIO()
    with zstandard.ZstdCompressor(write_checksum=True).stream_writer(out, closefd=False) as writer:
        for at in range(0, len(data), 2000):
            writer.write(data[at : at + 2000])
            writer.flush(zstandard.FLUSH_BLOCK)
    return out.getvalue()


def lz4_blocks(data: bytes) -> bytes:
    context = lz4.frame.LZ4FrameCompressor(block_size=lz4.frame.BLOCKSIZE_MAX64KB, auto_flush=True)
    parts = [data[at : at + 2000] for at in range(0, len(data), 2000)]
    return bytes(context.begin()) + b"".join(bytes(context.compress(part)) for part in parts) + bytes(context.flush())


MANY_BLOCKS = {"gzip": PACKERS["gzip"], "zstd": zstd_blocks, "lz4": lz4_blocks}


def unpack(packed: bytes) -> tuple[bytes, str | None]:
    stream = DecompressedStream(io.BytesIO(packed))
    out = bytearray(len(PLAIN) * 3)
    n = stream.fill_buffer(memoryview(out))
    return bytes(out[:n]), stream.broken


@pytest.mark.parametrize("kind", PACKERS)
def test_packed_is_as_plain(kind: str) -> None:
    plain, summary = read(PLAIN)
    rows, packed = read(PACKERS[kind](PLAIN))
    assert difference(plain, rows) is None
    assert (summary.compression, packed.compression) == (None, kind)
    assert packed.packets == 400
    assert not packed.truncated


@pytest.mark.parametrize("kind", PACKERS)
def test_packed_pcapng(kind: str) -> None:
    s = Section()
    data = s.header() + s.interface() + b"".join(s.enhanced(frames.ethernet(R)) for _ in range(50))
    assert read(PACKERS[kind](data))[0] == read(data)[0]


@pytest.mark.parametrize("kind", PACKERS)
def test_several_members_and_frames_are_one_capture(kind: str) -> None:
    pack = PACKERS[kind]
    packed = pack(PLAIN[:1000]) + pack(b"") + pack(PLAIN[1000:])
    assert unpack(packed) == (PLAIN, None)
    assert read(packed)[0] == read(PLAIN)[0]


@pytest.mark.parametrize("kind", PACKERS)
def test_every_cut_is_told_and_loses_nothing_before_it(kind: str) -> None:
    """As much is kept as an incremental decompressor gets out of the bytes that are there."""
    packed = MANY_BLOCKS[kind](PLAIN)
    before = -1
    for cut in (*range(5, 60), *range(60, len(packed) - 12, 997), *range(len(packed) - 12, len(packed))):
        data, broken = unpack(packed[:cut])
        assert broken, f"the cut after {cut} of {len(packed)} bytes is not told"
        assert PLAIN.startswith(data)
        assert len(data) >= before
        before = len(data)
        assert len(data) >= possible(kind, packed[:cut])
    assert unpack(packed) == (PLAIN, None)


def possible(kind: str, packed: bytes) -> int:
    if kind == "gzip":
        return len(zlib.decompressobj(31).decompress(packed))
    if kind == "zstd":
        return len(zstandard.ZstdDecompressor().decompressobj().decompress(packed))
    return len(lz4.frame.LZ4FrameDecompressor().decompress(packed))


@pytest.mark.parametrize("kind", ["zstd", "lz4"])
def test_a_block_is_given_when_it_is_whole(kind: str) -> None:
    """However much it grows: the decompressors of LZ4 withhold what exceeds the bytes that they are given."""
    whole = [len(unpack(packed)[0]) for packed in (MANY_BLOCKS[kind](ALIKE[: 2000 * n]) for n in range(1, 5))]
    packed = MANY_BLOCKS[kind](ALIKE)
    given = {len(unpack(packed[:cut])[0]) for cut in range(10, len(packed))}
    assert given >= {*whole}
    assert max(given) == len(ALIKE)


@pytest.mark.parametrize("kind", PACKERS)
def test_spoilt_bytes_are_told(kind: str) -> None:
    """A checksum or the format itself shows it; nothing else is raised, and no row comes twice."""
    packed = bytearray(MANY_BLOCKS[kind](PLAIN))
    r = Random(3)
    for _ in range(60):
        at = r.randrange(8, len(packed))
        spoilt = bytes(packed[:at]) + bytes([packed[at] ^ 1 << r.randrange(8)]) + bytes(packed[at + 1 :])
        data, broken = unpack(spoilt)
        assert broken or data == PLAIN or kind == "lz4"  # no checksum of the content here


@pytest.mark.parametrize("plain", [PLAIN, ALIKE], ids=["random", "alike"])
@pytest.mark.parametrize("kind", PACKERS)
def test_a_wrong_trailer_loses_nothing(kind: str, plain: bytes) -> None:
    """A checksum, and in gzip the length behind it, that do not fit or were cut: all bytes were there."""
    packed = PACKERS[kind](plain)
    for back in range(1, 9 if kind == "gzip" else 5):
        spoilt = bytearray(packed)
        spoilt[-back] ^= 0x10
        data, broken = unpack(bytes(spoilt))
        assert data == plain
        assert broken
        data, broken = unpack(packed[:-back])
        assert data == plain
        assert broken
        rows, summary = read(bytes(spoilt))
        assert (summary.packets, summary.faults["broken_compression"]) == (400, 1)
        assert [f["have"] for f in rows["faults"] if f["reason"] == "truncated"] == []


def test_every_field_of_a_gzip_header() -> None:
    body = gzip.compress(PLAIN, mtime=0)[10:]
    for flags in range(32):
        head = b"\x1f\x8b\x08" + bytes([flags]) + bytes(6)
        head += b"\5\0extra" * (flags >> 2 & 1) + b"a name\0" * (flags >> 3 & 1) + b"\0" * (flags >> 4 & 1)
        head += b"\1\2" * (flags >> 1 & 1)
        packed = gzip.compress(b"", mtime=0) + head + body
        assert unpack(packed) == (PLAIN, None)
        for cut in range(20, 20 + len(head)):
            assert unpack(packed[:cut]) == (b"", None if cut == 20 else "gzip: unexpected end of data")
    for head in (b"\x1f\x8b\x07\0", b"\x1f\x8b\x08\x20", b"\x1f\x8c\x08\0"):
        data, broken = unpack(gzip.compress(PLAIN) + head + bytes(6) + body)
        assert (data, bool(broken)) == (PLAIN, True)


@pytest.mark.parametrize("kind", PACKERS)
def test_a_cut_capture_says_so_once(kind: str) -> None:
    packed = MANY_BLOCKS[kind](PLAIN)
    rows, summary = read(packed[: len(packed) * 2 // 3])
    assert summary.truncated
    assert 100 < summary.packets < 400
    assert [f["reason"] for f in rows["faults"] if f["layer"] == "capture"] in (
        ["broken_compression"],
        ["truncated", "broken_compression"],
    )
    whole = read(PLAIN)[0]["packets"]
    assert rows["packets"] == whole[: summary.packets]


@pytest.mark.parametrize("kind", PACKERS)
def test_what_follows_the_packed_data(kind: str) -> None:
    """Zero padding behind the last frame (tapes, some loggers) is no news; other bytes are told, and lose nothing."""
    packed = PACKERS[kind](PLAIN)
    data, broken = unpack(packed + b"trailing bytes")
    assert data == PLAIN
    assert broken


@pytest.mark.parametrize("kind", PACKERS)
def test_packed_nonsense_is_no_capture(kind: str) -> None:
    for inside in (b"", b"x", b"nonsense" * 10):
        with pytest.raises(CaptureError):
            open_capture(io.BytesIO(PACKERS[kind](inside)))
    with pytest.raises(CaptureError):
        open_capture(io.BytesIO(PACKERS[kind](PLAIN)[:5]))


class Trickle:
    """A file object that reads as little as it may, and has nothing but `read`."""

    def __init__(self, data: bytes, sizes: Iterator[int]) -> None:
        self.file, self.sizes = io.BytesIO(data), sizes

    def read(self, size: int = -1) -> bytes:
        return self.file.read(min(size, next(self.sizes)) if size >= 0 else size)

    def close(self) -> None:
        self.file.close()


@pytest.mark.parametrize("kind", [None, *PACKERS])
def test_short_reads(kind: str | None) -> None:
    """Pipes and sockets give what they have."""
    packed = PLAIN if kind is None else PACKERS[kind](PLAIN)
    r = Random(2)
    stream = DecompressedStream(Trickle(packed, iter(lambda: r.choice((1, 2, 3, 500)), None)))  # type: ignore[arg-type]
    out = bytearray(len(PLAIN) + 100)
    n = stream.fill_buffer(memoryview(out))
    assert (bytes(out[:n]), stream.broken) == (PLAIN, None)


def test_an_error_of_the_file_is_not_swallowed() -> None:
    """A disk that fails is no capture that ends: what was read must not look like all there is."""

    class Failing(io.RawIOBase):
        def __init__(self, data: bytes) -> None:
            self.file = io.BytesIO(data)

        def readable(self) -> bool:
            return True

        def readinto(self, out: object) -> int:
            if self.file.tell() > 2000:
                raise OSError(5, "Input/output error")
            return self.file.readinto(memoryview(out)[:100])  # type: ignore[arg-type]

    for packed in (PLAIN, *(pack(PLAIN) for pack in PACKERS.values())):
        with pytest.raises(OSError, match="Input/output"):  # noqa: SIM117
            with open_capture(Failing(packed)) as capture:  # type: ignore[arg-type]
                list(capture.batches())


def skippable(data: bytes, kind: int = 0) -> bytes:
    """A frame that carries no data, as pzstd writes one before each of its frames (RFC 8878, 3.1.2)."""
    return (0x184D2A50 + kind).to_bytes(4, "little") + len(data).to_bytes(4, "little") + data


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["zstd", "lz4"])
def test_skippable_frames_come_first_or_anywhere(kind: str) -> None:
    """The first frame with data says what the format is; the frames may be empty, and longer than one read."""
    pack = PACKERS[kind]
    for number in range(16):
        assert unpack(skippable(b"size", number) + pack(PLAIN)) == (PLAIN, None)
    for data in (b"", b"x" * 1000, PLAIN, bytes(1 << 20)):
        first = skippable(data) + skippable(b"", 15)
        packed = first + pack(PLAIN[:999]) + skippable(data, 7) + pack(PLAIN[999:]) + first
        assert unpack(packed) == (PLAIN, None)
        rows, summary = read(packed)
        assert (rows, summary.compression) == (read(PLAIN)[0], kind)
        assert is_capture(io.BytesIO(packed))


def test_skippable_frames_and_nothing_that_can_be_unpacked() -> None:
    first = skippable(b"four")
    for after in (b"", PLAIN, PACKERS["gzip"](PLAIN), b"\x28\xb5", first[:3], first[:9]):
        with pytest.raises(CaptureError, match="skippable frame"):
            open_capture(io.BytesIO(first + after))
        assert not is_capture(io.BytesIO(first + after))
    for cut in range(4, len(first)):
        with pytest.raises(CaptureError, match="skippable frame"):
            open_capture(io.BytesIO(first[:cut]))
    mixed = first + PACKERS["zstd"](PLAIN) + PACKERS["lz4"](PLAIN)
    assert unpack(mixed) == (PLAIN, "zstd: other bytes follow the last frame")


@pytest.mark.slow
@pytest.mark.parametrize("kind", PACKERS)
def test_many_empty_frames_cost_little(kind: str) -> None:
    """The time grows with the packed bytes: no more than for as many bytes of blocks that hold one byte each."""
    empty = {
        "gzip": gzip.compress(b"", mtime=0),
        "zstd": b"\x28\xb5\x2f\xfd\x20\0\1\0\0",
        "lz4": lz4.frame.compress(b""),
    }
    one_byte = b"\x28\xb5\x2f\xfd\0\x58" + b"\x08\0\0a" * 75_000 + b"\1\0\0"

    def cost(packed: bytes) -> float:
        def once() -> float:
            before = time.process_time()
            DecompressedStream(io.BytesIO(packed)).fill_buffer(memoryview(bytearray(1 << 20)))
            return time.process_time() - before

        return min(once() for _ in range(3)) / len(packed)

    assert cost(empty[kind] * (300_000 // len(empty[kind]))) < 3 * cost(one_byte)
