"""Bytes of a capture, unpacked when they are packed: by magic, never by suffix. A packed stream that breaks just ends."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO

import lz4.frame
import zstandard

from .errors import CaptureError

GZIP, ZSTD, LZ4 = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18"
_BROKEN = (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError, RuntimeError)
_STEP = 1 << 20


class Peeked:
    """A binary stream whose first bytes were looked at; only `read` and `readinto` are needed of it."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.head = file, b""
        while len(self.head) < size and (part := file.read(size - len(self.head))):
            self.head += part

    def read(self, size: int = -1) -> bytes:
        if self.head:
            size = len(self.head) if size < 0 else size
            taken, self.head = self.head[:size], self.head[size:]
            return taken
        return self.file.read(size)

    def readinto(self, out: Any) -> int:
        if self.head or not hasattr(self.file, "readinto"):
            data = self.read(len(out))
            out[: len(data)] = data
            return len(data)
        return int(self.file.readinto(out) or 0)


def _gunzip(file: Any) -> Any:
    return gzip.GzipFile(fileobj=file, mode="rb")


def _unzstd(file: Any) -> Any:
    return zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)


class Stream:
    """The unpacked bytes. `compression` is None, "gzip", "zstd" or "lz4"; `broken` says why it ended early, if it did."""

    def __init__(self, file: BinaryIO) -> None:
        self.broken: str | None = None
        peeked = Peeked(file, 4)
        packed: Callable[[Peeked], Any] | None = None
        if peeked.head[:2] == GZIP:
            self.compression: str | None = "gzip"
            packed = _gunzip
        elif peeked.head == ZSTD:
            self.compression = "zstd"
            packed = _unzstd
        elif peeked.head == LZ4:
            self.compression = "lz4"
            packed = lz4.frame.LZ4FrameFile
        else:
            self.compression = None
        self.file = peeked if packed is None else packed(peeked)
        self.packed = packed is not None

    def fill(self, out: memoryview) -> int:
        """Fill `out` as far as there are bytes; less than its length only at the end."""
        at = 0
        while at < len(out):
            if not self.packed:
                n = self.file.readinto(out[at:])
            else:
                try:
                    data = self.file.read(min(_STEP, len(out) - at))
                except _BROKEN as error:
                    self.broken, data = f"{self.compression}: {error}", b""
                n = len(data)
                out[at : at + n] = data
            if not n:
                break
            at += n
        return at


def require(head: bytes) -> None:
    """`CaptureError` when nothing is there at all."""
    if not head:
        raise CaptureError("empty", "the file has no bytes")
