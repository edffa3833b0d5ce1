"""Decompresses a capture. The magic number determines the format, not the suffix of the file.

A truncated or damaged stream ends there, and `DecompressedStream.broken` says why. Zstandard and LZ4 are
decompressed block by block and gzip in small steps, so that all data before the damage is kept and memory is bounded by
the format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import zstandard

GZIP, ZSTD, LZ4 = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18"
SKIPPABLE = 0x184D2A50  # the first of 16 magic numbers of frames without data, the same in Zstandard and LZ4
_BROKEN = (EOFError, zstandard.ZstdError, RuntimeError)  # the last one: of lz4
_STEP = 1 << 18
# of the header of a gzip member: the compression method, and bits of the flags
GZIP_DEFLATE, GZIP_HEADER_CHECKSUM, GZIP_EXTRA, GZIP_NAME, GZIP_COMMENT, GZIP_RESERVED = b"\x08", 2, 4, 8, 16, 0xE0
RAW_DEFLATE = -15  # window bits of a stream without a header
LZ4_BLOCK = 4 << 20  # largest block in bytes, compressed or not
ZSTD_WINDOW = 128 << 20  # the largest window of a frame: that of `zstd -d` without --long or --memory


def _is_skippable_frame(magic: bytes) -> bool:
    return int.from_bytes(magic, "little") & ~0xF == SKIPPABLE


class LookaheadSource:
    """A binary stream with lookahead. The file only needs `read`."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.held, self.at = file, b"", 0  # held[at:] has been read ahead
        while len(self.held) < size and (part := file.read(size - len(self.held))):
            self.held += part

    def readinto(self, out: Any) -> int:
        if self.at < len(self.held) or not hasattr(self.file, "readinto"):
            data = self.take_lookahead() or self.file.read(len(out))
            n = min(len(data), len(out))
            out[:n] = data[:n]
            self.put_back(data[n:])
            return n
        return int(self.file.readinto(out) or 0)

    def take_lookahead(self) -> bytes:
        """Take all that has been read ahead."""
        taken, self.held, self.at = self.held[self.at :], b"", 0
        return taken

    def put_back(self, data: bytes) -> None:
        self.held, self.at = data, 0

    def has_more_bytes(self) -> bool:
        """Whether there is another byte. Reads ahead if needed."""
        if self.at == len(self.held):
            self.held, self.at = self.file.read(_STEP), 0
        return self.at < len(self.held)

    def take_exactly(self, size: int) -> bytes:
        """Take exactly `size` bytes. If there are fewer, raise `EOFError` and take none."""
        while len(self.held) - self.at < size:
            part = self.file.read(_STEP)
            if not part:
                raise EOFError("unexpected end of data")
            self.held, self.at = self.held[self.at :] + part, 0
        self.at += size
        return self.held[self.at - size : self.at]

    def take_unsigned_int(self, size: int) -> int:
        return int.from_bytes(self.take_exactly(size), "little")

    def take_next_magic(self) -> bytes:
        """Take the magic number of the next frame with data, after skippable frames; b"" at the end."""
        while self.has_more_bytes():
            head = self.take_exactly(4)
            if not _is_skippable_frame(head):
                return head
            left = self.take_unsigned_int(4)
            while left:
                left -= len(self.take_exactly(min(left, _STEP)))
        return b""

    def iterate_frames(self, magic: bytes) -> Iterator[None]:
        """Yield once for each frame with data, after its magic number."""
        while following := self.take_next_magic():
            if following != magic:
                raise EOFError("other bytes follow the last frame")
            yield

    def decompress_block(self, decompress: Callable[[bytes], bytes], head: bytes, size: int) -> Iterator[bytes]:
        """Decompress a block of `size` bytes; of a truncated block, the part that is stored uncompressed."""
        try:
            body = self.take_exactly(size)
        except EOFError:
            yield decompress(head + self.take_lookahead())
            raise
        yield decompress(head + body)


def _decompress_gzip(source: LookaheadSource) -> Iterator[bytes]:
    """gzip (RFC 1952): several members; zero bytes may follow. zlib-ng takes half of the time of zlib.

    The header and the trailer are read here, because zlib withholds data that it has decompressed if the trailer is wrong.
    """
    from zlib_ng import zlib_ng  # imported only for such captures

    damaged: type[Exception] = zlib_ng.error  # type: ignore[assignment]  # its stub declares an instance
    while source.has_more_bytes():
        data = source.take_lookahead().lstrip(b"\0")
        if not data:
            continue
        source.put_back(data)
        _skip_gzip_header(source)
        member, checksum, size = zlib_ng.decompressobj(RAW_DEFLATE), 0, 0
        while not member.eof:
            ended = not source.has_more_bytes()
            try:
                member, part = _inflate_chunk(member, source.take_lookahead(), _STEP, damaged)
            except damaged as error:
                raise EOFError(str(error)) from error
            source.put_back(member.unused_data if member.eof else member.unconsumed_tail)
            if ended and not part and not member.eof:
                raise EOFError("unexpected end of data")
            checksum, size = zlib_ng.crc32(part, checksum), size + len(part)
            yield part
        if source.take_unsigned_int(4) != checksum:
            raise EOFError("a wrong checksum")
        if source.take_unsigned_int(4) != size & 0xFFFFFFFF:
            raise EOFError("a wrong length")


def _skip_gzip_header(source: LookaheadSource) -> None:
    magic, method, flags = source.take_exactly(2), source.take_exactly(1), source.take_exactly(1)[0]
    if magic != GZIP or method != GZIP_DEFLATE or flags & GZIP_RESERVED:
        raise EOFError("other bytes follow the last member" if magic != GZIP else "an unknown method")
    source.take_exactly(6)  # time, flags of the compressor, operating system
    if flags & GZIP_EXTRA:
        source.take_exactly(source.take_unsigned_int(2))
    for text in (GZIP_NAME, GZIP_COMMENT):
        while flags & text and source.take_exactly(1) != b"\0":
            pass
    if flags & GZIP_HEADER_CHECKSUM:
        source.take_exactly(2)


def _inflate_chunk(member: Any, data: bytes, room: int, damaged: type[Exception]) -> tuple[Any, bytes]:
    """(member, next bytes): at most `room` bytes, fewer if the data after them is damaged. Raises `damaged` for the first."""
    before = member.copy()
    try:
        return member, member.decompress(data, room)
    except damaged:
        if room == 1:
            raise
    return _inflate_chunk(before, data, room // 2, damaged)


def _decompress_zstd(source: LookaheadSource) -> Iterator[bytes]:
    """Zstandard (RFC 8878): a block has at most 128 KB of data."""
    # shared by all frames: creating one takes as long as decompressing 50 small frames
    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW)
    for _ in source.iterate_frames(ZSTD):
        frame = decompressor.decompressobj()
        head = source.take_exactly(1)
        single, checksum = head[0] >> 5 & 1, head[0] >> 2 & 1
        head += source.take_exactly((1 - single) + (0, 1, 2, 4)[head[0] & 3] + (single, 2, 4, 8)[head[0] >> 6])
        yield frame.decompress(ZSTD + head)
        last = 0
        while not last:
            head = source.take_exactly(3)
            word = int.from_bytes(head, "little")
            last, repeated = word & 1, word >> 1 & 3 == 1
            yield from source.decompress_block(frame.decompress, head, 1 if repeated else word >> 3)
        if checksum:
            yield frame.decompress(source.take_exactly(4))


def _decompress_lz4(source: LookaheadSource) -> Iterator[bytes]:
    """LZ4 frame format 1.6: a block has at most 4 MB of data."""
    import lz4.frame  # as above

    for _ in source.iterate_frames(LZ4):
        frame = lz4.frame.LZ4FrameDecompressor()
        head = source.take_exactly(2)
        flags = head[0]
        head += source.take_exactly((flags >> 3 & 1) * 8 + (flags & 1) * 4 + 1)
        yield frame.decompress(LZ4 + head)
        most = 1 << 8 + (head[1] >> 4 & 7) * 2  # bytes of the data of a block

        def decompress(data: bytes, frame: Any = frame, most: int = most) -> bytes:
            # without a limit, lz4 withholds what exceeds the bytes that it is given until more come; they grow 255-fold at most
            return bytes(frame.decompress(data, min(most, 255 * len(data))))

        while size := source.take_unsigned_int(4):
            if size & 0x7FFFFFFF > LZ4_BLOCK:
                raise EOFError(f"a block of {size & 0x7FFFFFFF} bytes; the limit is {LZ4_BLOCK}")
            checked = (size & 0x7FFFFFFF) + (flags >> 4 & 1) * 4
            yield from source.decompress_block(decompress, size.to_bytes(4, "little"), checked)
        yield frame.decompress(bytes(4) + source.take_exactly((flags >> 2 & 1) * 4))


PACKINGS: dict[bytes, tuple[str, Callable[[LookaheadSource], Iterator[bytes]]]] = {
    GZIP: ("gzip", _decompress_gzip),
    ZSTD: ("zstd", _decompress_zstd),
    LZ4: ("lz4", _decompress_lz4),
}


class DecompressedStream:
    """The decompressed bytes of a file.

    compression   "gzip", "zstd", "lz4" or None
    broken        why the stream ended early, None if it did not
    """

    def __init__(self, file: BinaryIO) -> None:
        self.compression: str | None = None
        self.broken: str | None = None
        self._source = LookaheadSource(file, 4)
        self._parts: Iterator[bytes] | None = None
        self._part = memoryview(b"")
        skipped = _is_skippable_frame(self._source.held)
        if skipped:  # both zstd and LZ4 have them; the first frame with data decides
            self._skip_leading_frames()
        for magic, (name, unpack) in PACKINGS.items():
            if self._source.held.startswith(magic) and not (skipped and magic == GZIP):
                self.compression, self._parts = name, unpack(self._source)
        if skipped and self._parts is None:
            self._parts = iter(())
            self.broken = self.broken or "skippable frames without a frame of zstd or LZ4 after them"

    def _skip_leading_frames(self) -> None:
        """Skip the skippable frames at the start."""
        try:
            self._source.put_back(self._source.take_next_magic() + self._source.take_lookahead())
        except EOFError as error:
            self.broken = f"a skippable frame: {error}"

    def fill_buffer(self, out: memoryview) -> int:
        """Fill `out` and return the number of bytes, less than its length only at the end. Raises what `file.read` raises."""
        at = 0
        while at < len(out):
            n = self._source.readinto(out[at:]) if self._parts is None else self._fill_decompressed(out[at:])
            if not n:
                break
            at += n
        return at

    def _fill_decompressed(self, out: memoryview) -> int:
        assert self._parts is not None
        try:
            while not self._part:
                self._part = memoryview(next(self._parts))
        except StopIteration:
            return 0
        except _BROKEN as error:
            self.broken, self._parts = f"{self.compression}: {error}", iter(())
            return 0
        n = min(len(self._part), len(out))
        out[:n], self._part = self._part[:n], self._part[n:]
        return n
