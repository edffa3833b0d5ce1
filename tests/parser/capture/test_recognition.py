"""Which files of a folder count as captures, and what is said of those that cannot be read."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import zipfile

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pcaplake.parser import CaptureError, open_capture
from pcaplake.parser.capture.recognition import has_capture_suffix, should_be_capture
from tests.parser.captures import pcap

CAPTURE = pcap([])
READABLE = "captures are pcap or pcapng, optionally compressed with gzip, zstd or lz4"


def tar(*names: str, size: int = 3, **options: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", **options) as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            if name.endswith("/"):
                member.type = tarfile.DIRTYPE
                archive.addfile(member)
            else:
                member.size = size
                archive.addfile(member, io.BytesIO(b"x" * size))
    return out.getvalue()


def zipped() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a.pcap", CAPTURE)
    return out.getvalue()


@pytest.mark.parametrize(
    "name",
    [
        "a.pcap",
        "s3://b/in/A.PCAPNG",
        "/in/a.cap",
        "a.b.pcap.gz",
        "a.pcapng.tar.xz",
        "a.pcap.tgz",
        "a\n.pcap",
        "a.pcap.7z",
    ],
)
def test_names_of_captures(name: str) -> None:
    assert has_capture_suffix(name)
    assert should_be_capture(io.BytesIO(b""), name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "pcap",
        ".pcap",
        "._a.pcap",
        "a.pcap.md5",
        "a.pcap.part",
        "a.pcap/notes.txt",
        "logs.tar.gz",
        "a.pcaps",
        "a.pcap/",
    ],
)
def test_names_of_other_files(name: str) -> None:
    assert not has_capture_suffix(name)
    assert not should_be_capture(io.BytesIO(b"no capture"), name)
    assert should_be_capture(io.BytesIO(CAPTURE), name)


@pytest.mark.parametrize(
    ("content", "counts"),
    [
        (gzip.compress(tar("logs/", "logs/boot.log", "logs/a.pcap")), True),
        (zstandard.compress(tar("drive.pcapng", size=100_000)), True),
        (tar("a" * 120 + ".log", "b.pcap", format=tarfile.PAX_FORMAT), True),
        (gzip.compress(tar("logs/", "logs/boot.log", "logs/a.pcap.md5")), False),
        (tar("firmware.bin", "late.pcap", size=100_000), False),
        (bz2.compress(b"logs"), False),
        (lzma.compress(b"logs"), False),
        (zipped(), False),
        (gzip.compress(b"abc"), False),
        (gzip.compress(b""), False),
        (gzip.compress(CAPTURE)[:11], True),
        (zstandard.compress(CAPTURE)[:8], True),
        (lz4.frame.compress(CAPTURE)[:8], True),
        (b"\xd4\xc3\xb2", False),
    ],
)
def test_first_bytes_without_a_name(content: bytes, counts: bool) -> None:
    """Unrelated archives are no captures; a compressed file that ends before its contents are known may be one."""
    assert should_be_capture(io.BytesIO(content), "unnamed") == counts


@given(st.lists(st.binary(max_size=12), max_size=4))
def test_sizes_in_a_tar_archive_are_not_trusted(sizes: list[bytes]) -> None:
    blocks = [b"boot.log".ljust(124, b"\0") + size.ljust(133, b"\0") + b"ustar".ljust(255, b"\0") for size in sizes]
    assert not should_be_capture(io.BytesIO(b"".join(blocks)), "unnamed")
    assert not should_be_capture(
        io.BytesIO(tar("boot.log")[:124] + b"-7777777777\0" + tar("boot.log")[136:]), "unnamed"
    )


@pytest.mark.parametrize(
    ("content", "reason", "detail"),
    [
        (b"", "empty", "the file has no bytes"),
        (zstandard.compress(b""), "empty", "the zstd data has no bytes"),
        (CAPTURE[:3], "truncated", "it ends inside the magic number, which has 4 bytes: d4c3b2"),
        (gzip.compress(CAPTURE)[:11], "broken_compression", "gzip: unexpected end of data; copy the file again"),
        (lzma.compress(CAPTURE), "unknown_format", f"it is compressed with xz: decompress it; {READABLE}"),
        (
            b"\x02\x21\x4c\x18" + struct.pack("<I", 30) + bytes(30),
            "unknown_format",
            f"it is compressed with lz4's legacy format (lz4 -l): decompress it, or compress it without -l; {READABLE}",
        ),
        (bz2.compress(CAPTURE), "unknown_format", f"it is compressed with bzip2: decompress it; {READABLE}"),
        (
            gzip.compress(gzip.compress(CAPTURE)),
            "unknown_format",
            f"it is compressed twice: decompress it once; {READABLE}",
        ),
        (gzip.compress(tar("a.pcap")), "unknown_format", f"it is a tar archive: unpack it; {READABLE}"),
        (zipped(), "unknown_format", f"it is a zip archive: unpack it; {READABLE}"),
        (b"7z\xbc\xaf\x27\x1c" + bytes(26), "unknown_format", f"it is a 7z archive: unpack it; {READABLE}"),
        (b"no capture", "unknown_format", f"it starts with 6e6f2063; {READABLE}"),
    ],
)
def test_the_error_says_what_to_do(content: bytes, reason: str, detail: str) -> None:
    with pytest.raises(CaptureError) as error:
        open_capture(io.BytesIO(content))
    assert (error.value.reason, error.value.detail) == (reason, detail)
