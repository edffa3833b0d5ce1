"""`pcaplake profile`: the proposals and comparisons that docs/profile.md shows, exit codes, and what is said of mistakes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pcaplake.parser import Profile
from pcaplake.worker import sample
from tests.parser.captures import pcap
from tests.worker import lakes
from tests.worker.inspection.inspected import udp
from tests.worker.inspection.proposed import MESSAGE, can, diagnostics

Capsys = pytest.CaptureFixture[str]
PAGE = (Path(__file__).resolve().parents[3] / "docs" / "profile.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("\n## Propose a profile, and check it\n")[2].partition("\n## ")[0]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The captures of the page, without the profile that comes with them."""
    *_, profile = sample.write_sample_captures(tmp_path_factory.mktemp("sample") / "out", "drive", 5, 1)
    profile.unlink()
    return profile.parent


def plain(text: str) -> list[str]:
    """The lines that are not empty, with single spaces."""
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def shown(kind: str) -> str:
    return re.findall(rf"```{kind}\n(.*?)```", SECTION, re.DOTALL)[0]


@pytest.mark.slow
def test_the_page_shows_what_is_proposed(out: Path, capsys: Capsys) -> None:
    code, text, err = lakes.run(capsys, "profile", "init", out)
    assert (code, err) == (0, "")
    assert plain(text) == plain(shown("yaml"))
    profile = Profile.parse(text)
    assert profile.udp_ports == {30501: "someip"}
    assert [(channel.request, channel.response) for channel in profile.isotp] == [(0x7E0, 0x7E8)]


@pytest.mark.slow
def test_the_page_shows_what_the_proposal_changes(out: Path, tmp_path: Path, capsys: Capsys) -> None:
    profile = tmp_path / "vehicle.yaml"
    profile.write_text(lakes.run(capsys, "profile", "init", out)[1])
    code, text, err = lakes.run(capsys, "profile", "check", profile, out)
    assert (code, err) == (0, "")
    *lines, rest = plain(shown("text"))
    assert rest == "..."
    found = plain(re.sub(r"vehicle@\w+", "vehicle@HASH", text))
    assert {re.sub(r"vehicle@\w+", "vehicle@HASH", line) for line in lines} <= set(found)
    assert any(line.startswith("UDP port 30501 before service discovery offered it 78,568 0") for line in found)


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    path = tmp_path / "a.pcap"
    path.write_bytes(pcap([udp(50_000, 30501, MESSAGE)] * 5))
    return path


def test_rows_and_bytes_with_and_without(capture: Path, tmp_path: Path, capsys: Capsys) -> None:
    profile = tmp_path / "car.yaml"
    profile.write_text("ports: {udp: {30501: someip}}\nvehicle_id: '/(?P<vehicle_id>[^/]+)/a[.]pcap'")
    code, out, _ = lakes.run(capsys, "profile", "check", profile, capture, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["profile"].startswith("car@")
    assert (found["captures"], found["vehicle_ids"]) == (1, {tmp_path.name: 1})
    assert found["rows"]["someip_messages"] == {"without": 0, "with": 5}
    assert found["rows"]["packets"] == {"without": 5, "with": 5}
    reason = "UDP port 30501 (looks like SOME/IP, needs a profile)"
    assert found["undecoded"] == {reason: {"without": 5 * len(MESSAGE), "with": 0}}
    assert found["faults"] == {}


def test_a_profile_that_changes_nothing(capture: Path, tmp_path: Path, capsys: Capsys) -> None:
    profile = tmp_path / "car.yaml"
    profile.write_text("ports: {udp: {1000: someip}}")
    code, out, _ = lakes.run(capsys, "profile", "check", profile, capture)
    assert code == 0
    assert "The profile changes no rows of these captures." in out


def test_files_that_are_no_captures_do_not_stop_it(capture: Path, capsys: Capsys) -> None:
    broken = capture.with_name("b.pcap")
    broken.write_bytes(b"\xd4\xc3\xb2\xa1 broken")
    code, out, err = lakes.run(capsys, "profile", "init", capture, broken)
    assert code == 1
    assert "b.pcap is not a capture" in err
    assert Profile.parse(out).udp_ports == {30501: "someip"}
    assert "from 1 capture." in out


def test_identifiers_in_the_other_byte_order_are_read_again(tmp_path: Path, capsys: Capsys) -> None:
    """In the wrong order, no identifier says what it carries."""
    right = can(*diagnostics(0x7E0, 0x7E8, 20))
    swapped, at = bytearray(right), 24
    while at < len(right):
        swapped[at + 16 : at + 20] = right[at + 16 : at + 20][::-1]
        at += 16 + int.from_bytes(right[at + 8 : at + 12], "little")
    path = tmp_path / "a.pcap"
    path.write_bytes(swapped)
    code, out, _ = lakes.run(capsys, "profile", "init", path)
    assert code == 0
    profile = Profile.parse(out)
    assert profile.can_identifiers == "little-endian"
    assert [(channel.request, channel.response) for channel in profile.isotp] == [(0x7E0, 0x7E8)]


WRONG = {
    "an action that is not there": (("chek", "a", "b"), "write `pcaplake profile init CAPTURES...`"),
    "no captures": (("check", "a.yaml"), "name captures after the profile"),
    "a profile that is not there": (("check", "a.yaml", "."), "give the path of a file"),
    "YAML as JSON": (("init", ".", "--json"), "init prints a profile"),
    "captures that are not there": (("init", "nowhere.pcap"), "nowhere.pcap"),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_named_with_what_to_write(
    name: str, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, words = WRONG[name]
    code, out, err = lakes.run(capsys, "profile", *arguments)
    assert (code, out) == (2, "")
    assert words in err


def test_standard_input_is_read_once(capture: Path, tmp_path: Path, capsys: Capsys) -> None:
    profile = tmp_path / "car.yaml"
    profile.write_text("")
    code, _, err = lakes.run(capsys, "profile", "check", profile, "-")
    assert code == 2
    assert "write it to a file" in err
