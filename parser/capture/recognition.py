"""Recognizes captures: by their first bytes, and files of a folder also by their names.

A folder does not say which of its files are captures. A file there counts as one if it should be one, so that a broken capture is
reported and not overlooked: its name has a capture's suffix, or its first bytes are those of a capture, of a tar archive
with captures, or of a compressed file that is damaged before its contents can be known. All other files are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

from pcaplake.parser.errors import CaptureError

from . import file_headers
from .compression import PACKINGS, DecompressedStream

MAGICS = (file_headers.SECTION_MAGIC, *file_headers.MAGICS)
_READABLE = "captures are pcap or pcapng, optionally compressed with gzip, zstd or lz4"
_CAPTURE_NAME = re.compile(
    r"[^.].*\.(pcap|pcapng|cap)"  # a name that begins with a dot is hidden, such as macOS's copy of attributes ._a.pcap
    r"(\.(gz|zst|zstd|lz4|bz2|xz|lzma|zip|7z|tar|tgz|tzst|tbz2?|txz))*",
    re.IGNORECASE | re.DOTALL,
)
_ARCHIVES = {  # first bytes -> what the file is, and what to do with it
    b"\xfd7zXZ\x00": "compressed with xz: decompress it",
    b"\x02\x21\x4c\x18": "compressed with lz4's legacy format (lz4 -l): decompress it, or compress it without -l",
    b"BZh": "compressed with bzip2: decompress it",
    b"PK\x03\x04": "a zip archive: unpack it",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive: unpack it",
    **dict.fromkeys(PACKINGS, "compressed twice: decompress it once"),
}
_TAR_BLOCK = 512
_TAR_BYTES = 64 << 10  # bytes of a tar archive in which captures are searched


def has_capture_suffix(name: str) -> bool:
    """Whether a file name, path or URI ends as those of captures do: `a.pcap`, `a.pcapng.zst`, `a.pcap.tar.gz`."""
    return _CAPTURE_NAME.fullmatch(name.rpartition("/")[2]) is not None


def is_capture(file: BinaryIO) -> bool:
    """Whether the first four bytes, after decompression, are those of pcap or pcapng. Advances the file."""
    return _read_up_to(DecompressedStream(file), 4) in MAGICS


def should_be_capture(file: BinaryIO, name: str) -> bool:
    """Whether a file that was found in a folder counts as a capture, intact or not. Advances the file."""
    if has_capture_suffix(name):
        return True
    stream = DecompressedStream(file)
    head = _read_up_to(stream, _TAR_BLOCK)
    if _is_tar(head):
        head += _read_up_to(stream, _TAR_BYTES - len(head))
        return any(has_capture_suffix(member) for member in _tar_members(head))
    return head[:4] in MAGICS or (len(head) < 4 and stream.broken is not None)


def reason_not_a_capture(head: bytes, stream: DecompressedStream) -> CaptureError:
    """Why a file is not a capture, from the first bytes of its stream. Reads more of them."""
    if len(head) < 4 and stream.broken is not None:
        return CaptureError("broken_compression", f"{stream.broken}; copy the file again")
    if not head:
        which = "file" if stream.compression is None else f"{stream.compression} data"
        return CaptureError("empty", f"the {which} has no bytes")
    if len(head) < 4 and any(magic.startswith(head) for magic in MAGICS):
        return CaptureError("truncated", f"it ends inside the magic number, which has 4 bytes: {head.hex()}")
    for magic, what in _ARCHIVES.items():
        if head.startswith(magic):
            return CaptureError("unknown_format", f"it is {what}; {_READABLE}")
    if _is_tar(head + _read_up_to(stream, _TAR_BLOCK - len(head))):
        return CaptureError("unknown_format", f"it is a tar archive: unpack it; {_READABLE}")
    return CaptureError("unknown_format", f"it starts with {head[:4].hex()}; {stream.broken or _READABLE}")


def _read_up_to(stream: DecompressedStream, size: int) -> bytes:
    head = bytearray(size)
    return bytes(head[: stream.fill_buffer(memoryview(head))])


def _is_tar(head: bytes) -> bool:
    return head[257:262] == b"ustar"


def _tar_members(head: bytes) -> Iterator[str]:
    """Names of the first members of a tar archive (POSIX.1-1988 `ustar`: name, size as octal digits at 124)."""
    at = 0
    while _is_tar(block := head[at : at + _TAR_BLOCK]):
        yield block[:100].partition(b"\0")[0].decode("utf-8", "replace")
        digits = block[124:136].strip(b" \0")
        size = int(digits, 8) if re.fullmatch(rb"[0-7]+", digits) else 0  # a size that is not a number gives no header
        at += _TAR_BLOCK + -(-size // _TAR_BLOCK) * _TAR_BLOCK
