"""The examples of docs/api.md run and print what stands there; and what the public API refuses."""

from __future__ import annotations

import contextlib
import io
import re
import struct
from pathlib import Path

import pyarrow as pa
import pytest

import pcaplake.parser
from pcaplake.parser import TABLES, CaptureError, Profile, ProfileError, ReadOptions, is_capture, open_capture
from pcaplake.parser.capture.reader import DECODED
from tests.parser.captures import T0, Section, pcap

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
EXAMPLES = re.findall(
    r"^## ([^\n]+)\n(?:(?!^## ).)*?```python\n(.*?)```\n```text\n(.*?)```",
    PAGE.read_text(encoding="utf-8"),
    re.DOTALL | re.M,
)


def someip(method: int, payload: bytes) -> bytes:
    return struct.pack(">HHIHHBBBB", 0x1001, method, len(payload) + 8, 1, 1, 1, 1, 2, 0) + payload


def drive() -> bytes:
    """Two CAN buses with three frames a second each, one datagram with two SOME/IP messages, one cut frame."""
    s = Section()
    data = s.header() + s.interface(227, name="can0") + s.interface(227, name="can1") + s.interface(1, name="eth0")
    for i in range(6):
        frame = struct.pack(">I4B", 0x100 + i % 3, 4, 0, 0, 0) + bytes([i, 1, 2, 3])
        data += s.enhanced(frame, (T0 + i) * 10**6, interface=int(i % 3 == 2))
    body = someip(1, b"one") + someip(0x8002, b"two")
    udp = struct.pack(">HHHH", 40000, 30501, len(body) + 8, 0) + body
    ip = struct.pack(">BBHHHBBH8s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, bytes(8)) + udp
    return (
        data
        + s.enhanced(bytes(12) + b"\x08\x00" + ip, (T0 + 6) * 10**6, interface=2)
        + s.enhanced(b"abc", (T0 + 7) * 10**6, interface=2)
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "drive.pcapng").write_bytes(drive())
    (tmp_path / "profile.yaml").write_text("ports: {udp: {30501: someip}}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_example_is_run() -> None:
    assert len(EXAMPLES) == PAGE.read_text(encoding="utf-8").count("```python") == 10


@pytest.mark.slow
@pytest.mark.parametrize(("code", "printed"), [e[1:] for e in EXAMPLES], ids=[e[0] for e in EXAMPLES])
def test_an_example(code: str, printed: str, folder: Path) -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, str(PAGE), "exec"), {"__name__": "__main__"})
    assert out.getvalue() == printed


def test_what_is_public_is_documented() -> None:
    for name in pcaplake.parser.__all__:
        thing = getattr(pcaplake.parser, name)
        assert name == "TABLES" or (thing.__doc__ and len(thing.__doc__) > 30), name


def test_what_is_not_there_is_said(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"no table 'frames'.*can_frames"):
        open_capture("drive.pcapng", "frames")
    with pytest.raises(ValueError, match="no table 'captures'"):
        open_capture("drive.pcapng", "captures")
    with pytest.raises(ValueError, match=r"no column 'colour'.*can_id"):
        open_capture("drive.pcapng", "can_frames", columns=["colour"])
    with pytest.raises(ValueError, match="one table"):
        open_capture("drive.pcapng", columns=["can_id"])
    with open_capture("drive.pcapng") as capture, pytest.raises(ValueError, match="choose one table"):
        capture.read()
    with pytest.raises(ProfileError, match="nowhere"):
        open_capture("drive.pcapng", profile="nowhere.yaml")
    with pytest.raises(CaptureError, match="unknown_format"):
        open_capture("profile.yaml")


def test_a_capture_is_read_once(folder: Path) -> None:
    with open_capture("drive.pcapng", "can_frames") as capture:
        assert capture.summary is None
        assert capture.read().num_rows == 6
        with pytest.raises(ValueError, match="can be read once"):
            capture.read()


@pytest.mark.parametrize("table", DECODED)
def test_the_schema_is_the_table_s(table: str, folder: Path) -> None:
    with open_capture("drive.pcapng", table, raw=True) as capture:
        assert capture.read().schema == TABLES[table].schema
    wanted = [TABLES[table].columns[3], TABLES[table].columns[-1]]
    with open_capture("drive.pcapng", table, columns=wanted, start_ns=0) as capture:
        assert capture.read().schema.names == wanted


def test_an_empty_capture_has_the_schema() -> None:
    with open_capture(io.BytesIO(pcap([])), "can_frames") as capture:
        table = capture.read()
    assert (table.num_rows, table.schema) == (0, TABLES["can_frames"].schema)


def test_raw_bytes_are_asked_for(folder: Path) -> None:
    with open_capture("drive.pcapng", "packets") as capture:
        assert "raw" not in capture.read().schema.names
    with open_capture("drive.pcapng", "packets", raw=True) as capture:
        assert capture.read().column("raw").to_pylist()[-1] == b"abc"
    with open_capture("drive.pcapng", "packets", columns=["raw"]) as capture:
        assert capture.read().column("raw").to_pylist()[-1] == b"abc"


def test_the_keys_of_a_capture(folder: Path) -> None:
    profile = Profile.parse("vehicle_id: 'cars/(?P<vehicle_id>[^/]+)/'")
    data = drive()
    with open_capture(
        io.BytesIO(data),
        "can_frames",
        profile=profile,
        options=ReadOptions(uri="s3://b/cars/v7/d.pcapng", capture_id="c1"),
    ) as capture:
        table = capture.read()
    assert set(table.column("capture_id").to_pylist()) == {"c1"}
    assert set(table.column("vehicle_id").to_pylist()) == {"v7"}
    named = ReadOptions(uri="s3://b/cars/v7/d.pcapng", vehicle_id="v8")
    with open_capture(io.BytesIO(data), "can_frames", profile=profile, options=named) as capture:
        assert set(capture.read().column("vehicle_id").to_pylist()) == {"v8"}
    with (
        open_capture("drive.pcapng", "can_frames") as first,
        open_capture(folder / "drive.pcapng", "can_frames") as second,
    ):
        a, b = first.read(), second.read()
    assert a.column("capture_id").unique() == b.column("capture_id").unique()
    assert a.column("vehicle_id").null_count == a.num_rows


def test_small_batches_are_the_same_rows() -> None:
    data = pcap([struct.pack(">I4BI", i % 2048, 4, 0, 0, 0, i) for i in range(80_000)], 227)
    with open_capture(io.BytesIO(data), "can_frames") as capture:
        whole = capture.read()
    with open_capture(io.BytesIO(data), "can_frames", options=ReadOptions(batch_rows=1)) as capture:
        parts = [batch for _, batch in capture.batches()]
    assert len(parts) > 1
    assert pa.Table.from_batches([part.cast(whole.schema) for part in parts]).equals(whole)


def test_time_ranges_cut_at_their_ends(folder: Path) -> None:
    def times(**limits: int) -> list[int]:
        with open_capture("drive.pcapng", "can_frames", columns=["can_id", "ts_ns"], **limits) as capture:
            return [t // 10**9 - T0 for t in capture.read().column("ts_ns").to_pylist()]

    start = T0 * 10**9
    assert times(start_ns=start + 10**9) == [1, 2, 3, 4, 5]
    assert times(start_ns=start + 10**9 + 1) == [2, 3, 4, 5]
    assert times(end_ns=start + 2 * 10**9) == [0, 1]
    assert times(start_ns=start, end_ns=start) == []
    assert times() == [0, 1, 2, 3, 4, 5]


def test_is_capture() -> None:
    assert is_capture(io.BytesIO(drive()))
    assert is_capture(io.BytesIO(pcap([])))
    for other in (b"", b"\n", b"PK\3\4", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\n\r\r", b"x" * 40):
        assert not is_capture(io.BytesIO(other))
