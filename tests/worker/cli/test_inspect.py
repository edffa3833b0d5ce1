"""`pcaplake inspect`: what it reads, what it shows, exit codes."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pcaplake.ingest.captures.source import LocalFile
from pcaplake.parser import Profile
from pcaplake.worker import sample
from pcaplake.worker.cli.inspect_report import WIDTH
from pcaplake.worker.inspection.names import LINK_TYPES
from pcaplake.worker.sample import frames
from tests.drives import Drive
from tests.oracles import captures as real
from tests.parser.captures import T0, Section, pcap, pcap_header, pcap_record
from tests.signals import container_files
from tests.signals.container_files import LITTLE, SHORT
from tests.worker import lakes
from tests.worker.inspection.inspected import udp
from tests.worker.small_s3 import small_s3

Capsys = pytest.CaptureFixture[str]
CAN = frames.build_socketcan_frame(0x123, b"12345678")
MESSAGE = frames.build_someip_message(0x1234, 0x8001, b"payload")


def objects(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two captures, one that is damaged, and a note."""
    path = tmp_path / "drives"
    (path / "deep").mkdir(parents=True)
    (path / "a.pcap").write_bytes(pcap([CAN] * 3, 227))
    (path / "deep" / "b.pcap").write_bytes(pcap([udp(1, 2, b"12345")]))
    (path / "c.pcap").write_bytes(b"\xd4\xc3\xb2\xa1 broken")
    (path / "note.txt").write_text("rain")
    return path


@contextmanager
def standard_input(data: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Standard input is a pipe into which the bytes are written in small pieces."""
    reading, writing = os.pipe()

    def write() -> None:
        with open(writing, "wb", buffering=0) as pipe:
            for at in range(0, len(data), 1000):
                pipe.write(data[at : at + 1000])

    thread = threading.Thread(target=write)
    thread.start()
    try:
        with open(reading, "rb", buffering=0) as pipe:
            monkeypatch.setattr("sys.stdin", pipe)
            yield
    finally:
        thread.join()


def test_one_capture(drive: Drive, capsys: Capsys) -> None:
    packed = next(path for path in drive.captures if path.suffix == ".gz")
    code, out, err = lakes.run(capsys, "inspect", packed, "--profile", drive.profile, "--json")
    assert (code, err) == (0, "")
    (facts,) = objects(out)
    assert (facts["format"], facts["compression"], facts["truncated"]) == ("pcapng", "gzip", False)
    assert facts["size"] == packed.stat().st_size
    assert sum(one["packets"] for one in facts["protocols"].values()) == facts["packets"] > 0
    assert sum(one["bytes"] for one in facts["protocols"].values()) == facts["bytes"]
    assert [one["name"] for one in facts["interfaces"]] == [
        "can0",
        "can1",
        "can2",
        "eth0",
        "tecmp0",
        "flexray0",
        "can3",
    ]
    assert sum(one["packets"] for one in facts["interfaces"]) == facts["packets"]
    assert sum(one["bytes"] for one in facts["interfaces"]) == facts["bytes"]
    assert facts["interfaces"][0]["link_type_name"] == "LINKTYPE_CAN_SOCKETCAN"
    assert (facts["link_types"], facts["encapsulations"]) == ([1, 210, 227], ["Ethernet", "FlexRay", "SocketCAN"])
    assert facts["first_ts"] < facts["last_ts"]
    assert facts["first_ts"].endswith("Z")
    assert facts["seconds"] == pytest.approx((facts["last_ts_ns"] - facts["first_ts_ns"]) / 1e9)
    assert facts["section_headers"][0]["application"] == "pcaplake sample"
    code, out, _ = lakes.run(capsys, "inspect", packed, "--profile", drive.profile)
    assert code == 0
    for text in ("pcapng, gzip", "can0", "SocketCAN", "someip", "short_header", f"{facts['packets']:,} packets"):
        assert text in out
    assert f"undecoded: {facts['undecoded']['bytes']:,} bytes" in out


def test_pdus_in_containers_are_marked(tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "car.arxml").write_text(container_files.arxml(SHORT, LITTLE, length=64), encoding="utf-8")
    sent = frames.build_socketcan_frame(container_files.CAN_ID, container_files.box(SHORT, LITTLE))
    (tmp_path / "drive.pcap").write_bytes(pcap([sent], 227))
    _, out, _ = lakes.run(capsys, "inspect", tmp_path / "drive.pcap", "--databases", tmp_path / "car.arxml")
    assert re.search(r"^CanFrame +-", out, re.MULTILINE)
    assert re.search(r"^Speed in CanFrame +-", out, re.MULTILINE)
    assert re.search(r"^Wheels in CanFrame +-", out, re.MULTILINE)


def test_messages_that_the_databases_know(drive: Drive, capsys: Capsys) -> None:
    options = ("--profile", drive.profile, "--databases", drive.folder / "vehicle.dbc")
    capture = drive.captures[0]
    code, out, _ = lakes.run(capsys, "inspect", capture, *options, "--json")
    found = objects(out)[0]["signal_databases"]
    assert code == 0
    assert found["known_frames"] == sum(one["frames"] for one in found["messages"]) > 10
    assert {one["kind"] for one in (*found["messages"], *found["unknown_ids"])} == {"can"}  # a DBC describes no others
    code, out, _ = lakes.run(capsys, "inspect", capture, *options)
    assert code == 0
    frames = found["known_frames"] + found["unknown_frames"]
    assert f"signal databases: they know {found['known_frames']:,} of {frames:,} frames" in out
    for one in found["messages"]:
        digits = 8 if one["extended"] else 3
        row = rf"{one['message']} +{one['bus']} +0x{one['id']:0{digits}x} +{one['frames']:,} "
        assert re.search(row, out), row


def test_what_of_the_databases_is_not_read(tmp_path: Path, capsys: Capsys) -> None:
    lines = ['BO_ 291 Frame: 8 ECU\n SG_ Broken : 0|8@1- (1,0) [0|0] "" ECU', "SIG_VALTYPE_ 291 Broken : 1;"]
    (tmp_path / "car.dbc").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "drive.pcap").write_bytes(pcap([CAN], 227))
    _, out, _ = lakes.run(capsys, "inspect", tmp_path / "drive.pcap", "--databases", tmp_path / "car.dbc")
    reason = "it is a float of 8 bits, and floats have 16, 32 or 64"
    assert f"unreadable: Frame.Broken: {reason}" in out
    _, out, _ = lakes.run(capsys, "inspect", tmp_path / "drive.pcap", "--databases", tmp_path / "car.dbc", "--json")
    assert objects(out)[0]["signal_databases"]["unreadable"] == {"Frame.Broken": reason}


def test_a_file_that_is_not_a_capture(drive: Drive, capsys: Capsys) -> None:
    code, out, err = lakes.run(capsys, "inspect", drive.profile)
    assert (code, out) == (1, "")
    assert "not a capture (unknown_format)" in err
    code, out, err = lakes.run(capsys, "inspect", drive.profile, "--json")
    assert (code, json.loads(out)["error"], err.count("\n")) == (1, "unknown_format", 1)


def test_files_and_folders(folder: Path, capsys: Capsys) -> None:
    """Damaged captures are reported and cost nobody else; what is no capture is ignored in a folder only."""
    code, out, err = lakes.run(capsys, "inspect", folder / "note.txt", folder, "--json")
    found = {one["uri"].rpartition("/")[2]: one for one in objects(out)}
    assert (code, list(found)) == (1, ["note.txt", "a.pcap", "c.pcap", "b.pcap"])
    assert (found["note.txt"]["error"], found["c.pcap"]["error"]) == ("unknown_format", "truncated")
    assert (found["a.pcap"]["packets"], found["b.pcap"]["packets"]) == (3, 1)
    assert err.count("is not a capture") == 2
    code, out, err = lakes.run(capsys, "inspect", folder)
    assert (code, err.count("\n")) == (1, 1)
    assert out.endswith("2 captures, 1 not a capture, 1 ignored; 4 packets, 95 bytes, 5 of them undecoded\n")
    assert out.index("a.pcap") < out.index("b.pcap")
    code, out, _ = lakes.run(capsys, "inspect", folder / "a.pcap", folder / "deep")
    assert (code, out.splitlines()[-1]) == (0, "2 captures; 4 packets, 95 bytes, 5 of them undecoded")


def test_what_cannot_be_read_is_reported_and_the_others_are_shown(folder: Path, capsys: Capsys) -> None:
    code, out, err = lakes.run(capsys, "inspect", "/dev/null", folder / "c.pcap", folder / "a.pcap", "--json")
    null, _, good = objects(out)
    assert (code, null["error"], good["packets"]) == (3, "not_read", 3)
    assert "is not a regular file" in null["detail"]
    assert "/dev/null cannot be read" in err


def test_a_folder_without_captures(tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "note.txt").write_text("rain")
    code, out, err = lakes.run(capsys, "inspect", tmp_path)
    assert (code, out) == (2, "")
    assert "no captures, because no file has the name" in err


def test_standard_input(folder: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pcap([CAN] * 5000, 227)
    with standard_input(data, monkeypatch):
        code, out, err = lakes.run(capsys, "inspect", "-", folder / "a.pcap", "--json")
    assert (code, err) == (0, "")
    piped, file = objects(out)
    assert (piped["uri"], piped["capture_id"], piped["packets"], piped["size"]) == ("-", None, 5000, len(data))
    assert file["packets"] == 3
    with standard_input(b"no capture", monkeypatch):
        code, out, err = lakes.run(capsys, "inspect", "-")
    assert (code, out) == (1, "")
    assert "standard input is not a capture (unknown_format)" in err


def test_standard_input_that_is_a_terminal(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    code, out, err = lakes.run(capsys, "inspect", "-")
    assert (code, out) == (2, "")
    assert "pipe a capture into it" in err


@pytest.mark.slow
def test_objects_in_a_store(folder: Path, capsys: Capsys) -> None:
    with small_s3() as s3:
        s3.objects = {"in/a.pcap": (folder / "a.pcap").read_bytes(), "in/note": b"rain", "in/no.pcap": b""}
        s3.objects["in/secret.pcap"] = b"secret"
        s3.refused = {"in/secret.pcap"}
        options = [part for name, value in s3.options.items() for part in ("--storage-option", f"{name}={value}")]
        code, out, err = lakes.run(capsys, "inspect", "s3://raw/in/", *options, "--json")
        good, empty, refused = objects(out)
        assert (empty["uri"], empty["error"]) == ("s3://raw/in/no.pcap", "empty")
        assert (code, good["packets"], good["etag"]) == (3, 3, s3.etag("in/a.pcap"))
        assert (refused["uri"], refused["error"]) == ("s3://raw/in/secret.pcap", "not_read")
        assert "s3://raw/in/secret.pcap cannot be read" in err


def test_the_id_is_that_of_ingest(folder: Path, capsys: Capsys) -> None:
    """Also if the end of the file is not read, because a record is impossible."""
    path = folder / "a.pcap"
    path.write_bytes(path.read_bytes() + pcap_record(b"", captured=1 << 30) + bytes(100_000))
    _, out, _ = lakes.run(capsys, "inspect", path, "--json")
    (found,) = objects(out)
    with LocalFile(f"file://{path}") as file:
        capture = file.identify_capture()
    assert (found["uri"], found["capture_id"], found["etag"]) == (capture.uri, capture.capture_id, capture.etag)
    assert (found["hashes"]["blake3"], found["size"]) == (capture.etag, capture.size)


def test_interfaces_times_and_origin(tmp_path: Path, capsys: Capsys) -> None:
    section = Section()
    said = (
        section.option(3, b"QNX 7")
        + section.option(4, b"logger 2.1")
        + section.option(2, b"ECU")
        + section.option(1, b"a drive")
    )
    data = section.header(options=said) + section.interface(227, name="can0") * 2 + section.interface(name="quiet")
    ticks = T0 * 1_000_000
    for at, interface in ((0, 0), (1_000_000, 1), (500_000, 0), (2_000_000, 0), (1_999_999, 1)):
        data += section.enhanced(CAN, ticks + at, interface=interface, original=32)
    path = tmp_path / "x.pcapng"
    path.write_bytes(data)
    _, out, _ = lakes.run(capsys, "inspect", path, "--json")
    (found,) = objects(out)
    first, second, quiet = found["interfaces"]
    assert (first["packets"], first["bytes"], first["seconds"]) == (3, 48, 2.0)
    assert (first["packets_per_second"], first["bits_per_second"]) == (1.5, 3 * 32 * 8 / 2)
    assert (second["packets"], second["seconds"]) == (2, 0.999999)
    assert (quiet["packets"], quiet["seconds"], quiet["packets_per_second"]) == (0, None, None)
    assert found["time_order"] == {"in_order": False, "earlier_packets": 2, "largest_step_back_ns": 500_000_000}
    assert (found["seconds"], found["packets_per_second"], found["bits_per_second"]) == (2.0, 2.5, 640.0)
    assert (found["bytes"], found["original_bytes"], found["cut_packets"]) == (80, 160, 5)
    _, out, _ = lakes.run(capsys, "inspect", path)
    for text in ("logger 2.1", "QNX 7", "ECU", "a drive", "no, 2 earlier than the packet before, by up to 500 ms"):
        assert text in out


def test_a_capture_in_order_and_one_without_packets(folder: Path, tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "empty.pcap").write_bytes(pcap_header(227))
    _, out, _ = lakes.run(capsys, "inspect", folder / "a.pcap", tmp_path / "empty.pcap", "--json")
    ordered, empty = objects(out)
    assert ordered["time_order"]["in_order"]
    (interface,) = ordered["interfaces"]  # of a pcap file
    assert (interface["packets"], interface["bytes"], interface["seconds"]) == (3, 48, 0.002)
    assert (empty["packets"], empty["first_ts"], empty["seconds"], empty["packets_per_second"]) == (0, None, None, None)
    _, out, _ = lakes.run(capsys, "inspect", tmp_path / "empty.pcap")
    assert "SocketCAN (LINKTYPE_CAN_SOCKETCAN)" in out


def test_lines_for_the_profile_can_be_pasted(tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "x.pcap").write_bytes(pcap([udp(50_000, 30501, MESSAGE)] * 3))
    _, out, _ = lakes.run(capsys, "inspect", tmp_path / "x.pcap")
    shown = out.split("add to the profile (--profile):\n")[1].split("\n\n")[0]
    lines = "\n".join(line.removeprefix("    ") for line in shown.splitlines())
    assert Profile.parse(lines).udp_ports == {30501: "someip"}
    (tmp_path / "profile.yaml").write_text(lines)
    _, out, _ = lakes.run(capsys, "inspect", tmp_path / "x.pcap", "--profile", tmp_path / "profile.yaml")
    assert "add to the profile" not in out


def test_a_block_fits_into_80_columns(tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """With long names and comments, many interfaces and reasons; only the path may be longer."""
    section = Section()
    said = section.option(1, b"word " * 200 + b"x" * 200) + section.option(4, b"y" * 300) + section.option(3, b"z" * 90)
    data = section.header(options=said) + section.interface(279, name="v" * 256)
    data += b"".join(section.interface(127, name=f"wlan{n} {'é' * 40}") for n in range(70))
    for n in range(70):
        data += section.enhanced(bytes(100), (T0 + 9999 * n) * 1_000_000 - n, interface=n, original=4_000_000_000)
    many = pcap([udp(1, port, bytes(100)) for port in range(20_000, 20_040)])
    for name, content in (("a", data), ("b", many)):
        (tmp_path / name).write_bytes(content)
    _, out, _ = lakes.run(capsys, "inspect", tmp_path / "a", tmp_path / "b")
    long = [line for line in out.splitlines() if len(line.rstrip()) > WIDTH and not line.startswith("/")]
    assert not long
    assert "... and 51 more interfaces with fewer packets; --json shows all" in out
    assert "... and 28 more reasons with fewer bytes; --json shows all" in out


@pytest.mark.slow
def test_the_page_shows_what_the_command_shows(tmp_path: Path, capsys: Capsys) -> None:
    """Every number; the path, and so the capture_id, are another one."""
    page = (Path(__file__).parents[3] / "docs" / "inspect.md").read_text(encoding="utf-8")
    example = re.findall(r"```text\n(.*?)```", page, re.DOTALL)[0]
    first, *_ = sample.write_sample_captures(tmp_path / "out", "drive", 5, 1)
    _, out, _ = lakes.run(capsys, "inspect", first)

    def lines(text: str) -> list[str]:
        found = [line.rstrip() for line in text.strip().splitlines()]
        return [re.sub(r"capture_id   \w+", "capture_id   HASH", line) for line in found[1:]]

    assert first.name == Path(example.splitlines()[0]).name
    assert lines(example) == lines(out)


@pytest.mark.slow
def test_as_capinfos_says(drive: Drive, capsys: Capsys) -> None:
    """Every real capture that both read, and a drive."""
    compared = 0
    real.require()
    for path in [*real.paths(), *drive.captures]:
        theirs = capinfos(path)
        _, out, _ = lakes.run(capsys, "inspect", path, "--json")
        (mine,) = objects(out)
        if (
            not theirs
            or "error" in mine
            or mine["faults"].keys() & {"truncated", "unreadable", "bad_time", "bad_value"}
        ):
            continue
        compared += 1
        assert mine["hashes"]["sha256"] == theirs["SHA256"], path
        assert mine["packets"] == int(theirs["Number of packets"]), path
        assert mine["original_bytes"] == int(theirs["Data size (bytes)"]), path
        assert mine["size"] == int(theirs["File size (bytes)"]), path
        if mine["sections"] == 1 and theirs["Capture duration (seconds)"] != "n/a":
            assert mine["seconds"] == pytest.approx(float(theirs["Capture duration (seconds)"]), abs=1e-9), path
            assert mine["time_order"]["in_order"] == (theirs["Strict time order"] == "True"), path
            if mine["seconds"] > 0.1:  # capinfos computes rates of short captures from rounded times
                ours = [mine["packets_per_second"], mine["bits_per_second"]]
                rates = [
                    float(theirs[f"{name}"])
                    for name in ("Average packet rate (packets/sec)", "Data bit rate (bits/sec)")
                ]
                assert ours == pytest.approx(rates, rel=0.01, abs=0.01), path
    assert compared > 30


def capinfos(path: Path) -> dict[str, str]:
    """One row of capinfos's table, empty if it cannot read the file."""
    arguments = ["capinfos", "-T", "-M", "-t", "-c", "-s", "-d", "-u", "-i", "-x", "-H", "-o", "-E", str(path)]
    shown = subprocess.run(arguments, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    lines = shown.stdout.splitlines()
    return dict(zip(lines[0].split("\t"), lines[1].split("\t"), strict=False)) if len(lines) == 2 else {}


@pytest.mark.slow
def test_link_types_are_called_as_capinfos_calls_them(tmp_path: Path, capsys: Capsys) -> None:
    for number, (_, description) in LINK_TYPES.items():
        path = tmp_path / "x.pcap"
        path.write_bytes(pcap([b"abcd"], number))
        shown = subprocess.run(["capinfos", "-E", path], capture_output=True, text=True, check=True).stdout
        assert shown.split("File encapsulation:")[1].split("\n")[0].strip() == description, number
