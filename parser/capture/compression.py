"""Bytes of a capture, unpacked when they are packed: by magic, never by suffix.

A packed stream that is cut or spoilt just ends, and `broken` says why. Zstandard and LZ4 are unpacked block by block and
gzip in small steps, so that nothing good before the break is lost and no block grows beyond its format's limit.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import lz4.frame
import zstandard

from .errors import CaptureError

GZIP, ZSTD, LZ4 = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18"
SKIPPABLE = 0x184D2A50  # the first of 16 magics of frames that carry no data, in both formats
_BROKEN = (EOFError, zlib.error, zstandard.ZstdError, RuntimeError)
_STEP = 1 << 18


class Source:
    """A binary stream whose first bytes were looked at; only `read` is needed of it."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.held, self.at = file, b"", 0  # held[at:] is not taken yet
        while len(self.held) < size and (part := file.read(size - len(self.held))):
            self.held += part

    def readinto(self, out: Any) -> int:
        if self.at < len(self.held) or not hasattr(self.file, "readinto"):
            data = self.rest() or self.file.read(len(out))
            n = min(len(data), len(out))
            out[:n] = data[:n]
            self.put_back(data[n:])
            return n
        return int(self.file.readinto(out) or 0)

    def rest(self) -> bytes:
        """What is held, taken."""
        taken, self.held, self.at = self.held[self.at :], b"", 0
        return taken

    def put_back(self, data: bytes) -> None:
        self.held, self.at = data, 0

    def more(self) -> bool:
        """Whether there is another byte; it is held then."""
        if self.at == len(self.held):
            self.held, self.at = self.file.read(_STEP), 0
        return self.at < len(self.held)

    def take(self, size: int) -> bytes:
        """Exactly so many bytes; or EOFError, and what is there stays held."""
        while len(self.held) - self.at < size:
            part = self.file.read(_STEP)
            if not part:
                raise EOFError("it ends early")
            self.held, self.at = self.held[self.at :] + part, 0
        self.at += size
        return self.held[self.at - size : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def frames(self, magic: bytes) -> Iterator[None]:
        """Once for each frame, its magic taken; skippable frames are skipped."""
        while self.more():
            head = self.take(4)
            if int.from_bytes(head, "little") & ~0xF == SKIPPABLE:
                left = self.number(4)
                while left:
                    left -= len(self.take(min(left, _STEP)))
            elif head == magic:
                yield
            else:
                raise EOFError("other bytes follow it")

    def block(self, frame: Any, head: bytes, size: int) -> Iterator[bytes]:
        """What a block of so many bytes unpacks to; of a cut one what was stored and not packed."""
        try:
            body = self.take(size)
        except EOFError:
            yield frame.decompress(head + self.rest())
            raise
        yield frame.decompress(head + body)


def _gunzip(source: Source) -> Iterator[bytes]:
    """RFC 1952: members one after the other, zero bytes may follow."""
    while source.more():
        data = source.rest().lstrip(b"\0")
        if not data:
            continue
        source.put_back(data)
        member = zlib.decompressobj(31)
        while not member.eof:
            ended = not source.more()
            member, part = _inflate(member, source.rest(), _STEP)
            source.put_back(member.unused_data if member.eof else member.unconsumed_tail)
            if ended and not part and not member.eof:
                raise EOFError("it ends early")
            yield part


def _inflate(member: Any, data: bytes, room: int) -> tuple[Any, bytes]:
    """The next bytes, at most `room`; fewer when only so many are good."""
    before = member.copy()
    try:
        return member, member.decompress(data, room)
    except zlib.error:
        if room == 1:
            raise
    return _inflate(before, data, room // 2)


def _unzstd(source: Source) -> Iterator[bytes]:
    """RFC 8878: a block unpacks to 128 KB at most."""
    for _ in source.frames(ZSTD):
        frame = zstandard.ZstdDecompressor().decompressobj()
        head = source.take(1)
        single, checksum = head[0] >> 5 & 1, head[0] >> 2 & 1
        head += source.take((1 - single) + (0, 1, 2, 4)[head[0] & 3] + (single, 2, 4, 8)[head[0] >> 6])
        yield frame.decompress(ZSTD + head)
        last = 0
        while not last:
            head = source.take(3)
            word = int.from_bytes(head, "little")
            last, repeated = word & 1, word >> 1 & 3 == 1
            yield from source.block(frame, head, 1 if repeated else word >> 3)
        if checksum:
            yield frame.decompress(source.take(4))


def _unlz4(source: Source) -> Iterator[bytes]:
    """The LZ4 frame format 1.6: a block unpacks to 4 MB at most."""
    for _ in source.frames(LZ4):
        frame = lz4.frame.LZ4FrameDecompressor()
        head = source.take(2)
        flags = head[0]
        head += source.take((flags >> 3 & 1) * 8 + (flags & 1) * 4 + 1)
        yield frame.decompress(LZ4 + head)
        while size := source.number(4):
            yield from source.block(frame, size.to_bytes(4, "little"), (size & 0x7FFFFFFF) + (flags >> 4 & 1) * 4)
        yield frame.decompress(bytes(4) + source.take((flags >> 2 & 1) * 4))


PACKINGS: dict[bytes, tuple[str, Callable[[Source], Iterator[bytes]]]] = {
    GZIP: ("gzip", _gunzip),
    ZSTD: ("zstd", _unzstd),
    LZ4: ("lz4", _unlz4),
}


class Stream:
    """The unpacked bytes. `compression` is None, "gzip", "zstd" or "lz4"; `broken` says why it ended early, if it did."""

    def __init__(self, file: BinaryIO) -> None:
        self.compression: str | None = None
        self.broken: str | None = None
        self._source = Source(file, 4)
        self._parts: Iterator[bytes] | None = None
        self._part = memoryview(b"")
        for magic, (name, unpack) in PACKINGS.items():
            if self._source.held.startswith(magic):
                self.compression, self._parts = name, unpack(self._source)

    def fill(self, out: memoryview) -> int:
        """Fill `out` as far as there are bytes; less than its length only at the end. Raises what the file raises."""
        at = 0
        while at < len(out):
            n = self._source.readinto(out[at:]) if self._parts is None else self._unpacked(out[at:])
            if not n:
                break
            at += n
        return at

    def _unpacked(self, out: memoryview) -> int:
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


def require(head: bytes) -> None:
    """`CaptureError` when nothing is there at all."""
    if not head:
        raise CaptureError("empty", "the file has no bytes")
