from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pcaplake.parser import profile_yaml
from pcaplake.parser.errors import ProfileError
from pcaplake.parser.profile import CanIdentifiers, IsoTpChannel, Profile

DOCS = Path(__file__).resolve().parents[2] / "docs"


def documented() -> str:
    return re.findall(r"```yaml\n(.*?)```", (DOCS / "profile.md").read_text(encoding="utf-8"), re.DOTALL)[0]


def test_the_documented_example_is_read() -> None:
    profile = Profile.parse(documented())
    assert profile.udp_ports == {30501: "someip", 30502: "someip", 30510: "nm", 5555: "xcp", 60000: "pdu"}
    assert [(ids.first, ids.extended, ids.protocol) for ids in profile.can_protocols] == [
        (0x510, False, "nm"),
        (0x7F4, False, "xcp_master"),
        (0x7F5, False, "xcp_slave"),
        (0x18FFAA00, True, "nm"),
        (0x18E00000, True, "j1939"),
        (0x1CE00000, True, "j1939"),
        (0x582, False, "canopen"),
        (0x602, False, "canopen"),
    ]
    assert profile.service_discovery
    assert profile.tcp_ports == {5555: "xcp", 6801: "hsfz", 55555: "v2gtp"}
    assert [channel.request for channel in profile.isotp] == [0x7E0, 0x7DF, 0x6F1, -1]
    assert profile.interface_buses == {"can0": "powertrain", "can1": "chassis", "0": "body"}
    assert profile.tecmp_buses == {16: "powertrain", 17: "chassis"}
    assert (profile.cmp_buses, profile.acf_buses) == ({1: "powertrain"}, {1: "powertrain"})
    assert profile.pdu_names == {0x1234: "Speed"}
    assert profile.can_identifiers == "little-endian"
    assert profile.vehicle_id_of("file:///data/fleet/WDB-0042/2026-09-21-1.pcapng") == "WDB-0042"
    assert profile.vehicle_id_of("nothing") is None


def test_service_discovery_can_be_turned_off() -> None:
    """The hash of a profile that does not say so is that of earlier versions."""
    off = Profile.parse("ports: {service_discovery: off}")
    assert not off.service_discovery
    assert off.hash != Profile.default().hash == Profile.parse("ports: {service_discovery: on}").hash


@pytest.mark.parametrize(
    "text", ["", "\n# only a comment\n", "{}", "ports:\nbuses: {}\nvehicle_id:\n", "ports: {udp: }"]
)
def test_nothing_said_is_the_default(text: str) -> None:
    assert Profile.parse(text, name="default") == Profile.default()


def test_the_file_gives_the_name(tmp_path: Path) -> None:
    path = tmp_path / "truck.yaml"
    path.write_text("ports: {udp: {30501: someip}}", encoding="utf-8")
    profile = Profile.load(path)
    assert profile.name == "truck"
    assert str(profile) == f"truck@{profile.hash}"


WRONG = [
    ("port: {}", 1, ["no key 'port'", "did you mean 'ports'"]),
    ("ports:\n  udp:\n    30501: someip\nspeed: 3", 4, ["no key 'speed'", "buses, can, pdus, ports, vehicle_id"]),
    ("can:\n  identifiers: little", 2, ["can.identifiers is 'little'", "did you mean 'little-endian'"]),
    ("can:\n  identifiers: 1", 2, ["can.identifiers must be a string"]),
    ("can: little-endian", 1, ["can must be a map"]),
    ("can:\n  byte_order: x", 2, ["can has no key 'byte_order'", "identifiers"]),
    ("ports:\n  sctp: {}", 2, ["no key 'sctp'", "service_discovery, tcp, udp"]),
    ("ports:\n  service_discovery: 1", 2, ["ports.service_discovery must be true or false", "a number (1)"]),
    ("ports:\n  udp:\n    1883: mqtt", 3, ["unknown protocol 'mqtt'"]),
    ("ports:\n  tcp:\n    7400: rtps", 3, ["unknown protocol 'rtps'"]),
    ("ports:\n  udp:\n    30501: sumip", 3, ["unknown protocol 'sumip'", "did you mean 'someip'"]),
    ("ports:\n  udp:\n    30501: 7", 3, ["must be a string", "a number (7)", "quotes"]),
    ("ports:\n  udp:\n    65536: someip", 3, ["65536 is too high for a key of ports.udp", "0 to 65535"]),
    ("ports:\n  tcp:\n    -1: someip", 3, ["-1 is too low for a key of ports.tcp", "0 to 65535"]),
    ("ports:\n  udp:\n    http: someip", 3, ["0 to 65535", "http"]),
    ("ports:\n  udp:\n    1:30: someip", 3, ["0 to 65535"]),
    ("ports:\n  udp:\n    1.5: someip", 3, ["0 to 65535"]),
    ("ports:\n  udp:\n    - 30501", 3, ["ports.udp must be a map", "a list"]),
    ("ports:\n  udp: 30501", 2, ["ports.udp must be a map", "a number (30501)"]),
    ("ports:\n  udp:\n    30501: someip\n    30501: someip", 4, ["30501 twice", "line 3"]),
    ("ports:\n  udp:\n    30501: someip\n    0x7725: someip", 4, ["0x7725 twice", "line 3"]),
    ("ports: {}\n\nports: {}", 3, ["ports twice", "line 1"]),
    ("ports:\n  udp:\n    [1, 2]: someip", 3, ["plain word or number", "a list"]),
    ("can:\n  isotp: 0x7E0", 2, ["can.isotp must be a list", "a number (0x7E0)"]),
    ("can:\n  isotp:\n  - 0x7E0", 3, ["an entry of can.isotp must be a map"]),
    ("can:\n  isotp:\n  - response: 0x7E8", 3, ["normal addressing needs `request`"]),
    ("can:\n  isotp:\n  - {request: 1, tester: 1}", 3, ["normal addressing has no tester"]),
    ("can:\n  isotp:\n  - {addressing: normal_fixed}", 3, ["normal_fixed addressing needs `tester`"]),
    (
        "can:\n  isotp:\n  - {addressing: mixed_fixed, tester: 1, request: 2}",
        3,
        ["mixed_fixed addressing has no request"],
    ),
    (
        "can:\n  isotp:\n  - {addressing: normal_fixed, tester: 256}",
        3,
        ["256 is too high for can.isotp.tester: 0 to 255"],
    ),
    ("can:\n  isotp:\n  - {request: 0x20000000}", 3, ["too high for can.isotp.request"]),
    (
        "can:\n  isotp:\n  - {request: 1, addressing: extend}",
        3,
        ["unknown addressing 'extend'", "did you mean 'extended'"],
    ),
    ("can:\n  isotp:\n  - {request: 1, bus: can0}", 3, ["an entry of can.isotp has no key 'bus'"]),
    ("can:\n  protocols: nm", 2, ["can.protocols must be a map"]),
    ("can:\n  protocols:\n    0x500: nmm", 3, ["unknown protocol 'nmm'", "did you mean 'nm'"]),
    ("can:\n  protocols:\n    0x500: someip", 3, ["unknown protocol 'someip'"]),
    ("can:\n  protocols:\n    0x20000000: nm", 3, ["too high for a key of can.protocols"]),
    ("can:\n  protocols:\n    all: nm", 3, ["must be an identifier, a range such as 0x500-0x57F", "(all)"]),
    ("can:\n  protocols:\n    0x500-: nm", 3, ["must be an identifier, a range"]),
    ("can:\n  protocols:\n    0x57F-0x500: nm", 3, ["0x57F-0x500 in can.protocols is not a range"]),
    ("can:\n  protocols:\n    0x7FF-0x800: nm", 3, ["of 11 bits (up to 0x7FF) or of 29"]),
    ("can:\n  protocols:\n    0x500: nm\n    1280: nm", 4, ["1280 twice"]),
    ("can:\n  protocols:\n    0x500: nm\n    0x500-0x500: nm", 4, ["0x500-0x500 twice (first in line 3)"]),
    ("can:\n  protocols:\n    0x500-0x57F: nm\n    0x570-0x5FF: nm", 4, ["two ranges may overlap only if"]),
    ("- ports", 1, ["the profile must be a map", "a list"]),
    ("buses:\n  interfaces:\n    can0:", 3, ["buses.interfaces.can0 must be a string", "nothing"]),
    ("buses:\n  interfaces:\n    can0: on", 3, ["boolean", "'on'"]),
    ("buses:\n  interfaces:\n    can0: ''", 3, ["is empty"]),
    ("buses:\n  tecmp:\n    can0: chassis", 3, ["0 to 4294967295"]),
    (
        "can:\n  protocols:\n    0x500-0x5FF: nm\n    0x510-0x51F: nm\n    0x51F-0x520: nm",
        5,
        ["twice (first in line 4)"],
    ),
    ('buses:\n  interfaces:\n    can0: "\\ud83d"', 3, ["'\\ud83d' has half a character"]),
    ('buses:\n  interfaces:\n    "\\ude97\\ud83d": a', 3, ["has half a character"]),
    ('pdus: {1: "a\\udc80"}', 1, ["has half a character"]),
    ("vehicle_id: '('", 1, ["not a regular expression"]),
    ("vehicle_id: '" + "(" * 20_000 + "'", 1, ["not a regular expression"]),
    ("vehicle_id: 'a{99999999999999999999}'", 1, ["not a regular expression"]),
    ("ports: {}\nvehicle_id: '/([^/]+)/'", 2, ["(?P<vehicle_id>"]),
    ("vehicle_id: [a]", 1, ["must be a string"]),
    ("ports:\n\tudp: {}", 2, ["not YAML"]),
    ("a: b\n---\nc: d", 2, ["not YAML"]),
    ("ports: {}\nbuses: \x00", 2, ["does not allow"]),
    ("ports: *nowhere", 1, ["not YAML"]),
]


@pytest.mark.parametrize(("text", "line", "words"), WRONG)
def test_an_error_says_what_where_and_what_instead(text: str, line: int, words: list[str]) -> None:
    with pytest.raises(ProfileError) as caught:
        Profile.parse(text)
    assert caught.value.line == line
    assert str(caught.value).startswith(f"line {line}: ")
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_protocols_can_be_handed_in() -> None:
    assert Profile.parse("ports: {tcp: {13400: doip}}", protocols={"doip"}).tcp_ports == {13400: "doip"}


@pytest.mark.slow
def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="cannot read the profile"):
        Profile.load(tmp_path / "absent.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"vehicle_id: \xe9")
    with pytest.raises(ProfileError, match="UTF-8"):
        Profile.load(tmp_path / "latin.yaml")
    (tmp_path / "deep.yaml").write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(ProfileError, match="too deeply"):
        Profile.load(tmp_path / "deep.yaml")


def test_the_hash_is_of_the_meaning() -> None:
    one = Profile.parse("ports: {udp: {1: someip, 2: someip}} # a comment", name="one")
    same = Profile.parse("ports:\n  udp:\n    2: someip\n    0x1: someip", name="same")
    other = Profile.parse("ports: {tcp: {1: someip, 2: someip}}", name="one")
    assert one.hash == same.hash != other.hash
    assert Profile.default().hash not in (one.hash, other.hash)
    assert re.fullmatch("[0-9a-f]{12}", one.hash)


def test_identifiers_of_isotp() -> None:
    text = "can: {isotp: [{request: 0x7E0, response: 2024}, {request: 0x7DF}, {addressing: mixed_fixed, tester: 0xF1}]}"
    profile = Profile.parse(text)
    assert profile.isotp == (
        IsoTpChannel(request=0x7E0, response=0x7E8),
        IsoTpChannel(request=0x7DF),
        IsoTpChannel(addressing="mixed_fixed", tester=0xF1),
    )
    order = "can: {isotp: [{request: 0x7DF}, {addressing: mixed_fixed, tester: 241}, {request: 2016, response: 2024}]}"
    assert Profile.parse(order).hash == profile.hash != Profile.default().hash


def test_identifiers_of_protocols() -> None:
    text = "can: {protocols: {0x500-0x57F: nm, 1296: nm_no_node, 0x800-0x8ff: nm, extended: nm_node_first}}"
    profile = Profile.parse(text)
    assert profile.can_protocols == (
        CanIdentifiers(first=0x500, last=0x57F, extended=False, protocol="nm"),
        CanIdentifiers(first=0x510, last=0x510, extended=False, protocol="nm_no_node"),
        CanIdentifiers(first=0x800, last=0x8FF, extended=True, protocol="nm"),
        CanIdentifiers(first=0, last=0x1FFFFFFF, extended=True, protocol="nm_node_first"),
    )
    order = "can: {protocols: {extended: nm_node_first, 0x800-0x8ff: nm, 0x510: nm_no_node, 0x500-0x57F: nm}}"
    assert Profile.parse(order).hash == profile.hash != Profile.default().hash


def test_an_empty_vehicle_id_is_none() -> None:
    assert Profile.parse("vehicle_id: 'x(?P<vehicle_id>[0-9]*)'").vehicle_id_of("x") is None
    assert Profile.parse("vehicle_id: '(?P<vehicle_id>[0-9]+)?x'").vehicle_id_of("x") is None


@given(st.text(max_size=200))
def test_any_text_is_a_profile_or_a_profile_error(text: str) -> None:
    line: int | None = 1
    try:
        Profile.parse(text)
    except ProfileError as error:
        line = error.line
    assert line is None or 1 <= line <= len(re.split("\r\n|[\r\n\x85\u2028\u2029]", text)) + 1


@pytest.mark.slow
@given(
    st.dictionaries(st.integers(0, 65535), st.just("someip")),
    st.dictionaries(st.integers(0, 2**32 - 1), st.sampled_from(["powertrain", "chassis"])),
)
def test_ports_and_modules_come_back(ports: dict[int, str], modules: dict[int, str]) -> None:
    lines = ["ports:", "  udp:", *(f"    {k}: {v}" for k, v in ports.items())]
    lines += ["buses:", "  tecmp:", *(f"    {k}: {v}" for k, v in modules.items())]
    profile = Profile.parse("\n".join(lines))
    assert (profile.udp_ports, profile.tecmp_buses) == (ports, modules)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f"), min_size=1, max_size=20))
def test_names_escaped_as_in_json_come_back(name: str) -> None:
    """Also those of characters above U+FFFF, which JSON escapes as pairs."""
    profile = Profile.parse(f"buses: {{interfaces: {{{json.dumps(name)}: {json.dumps(name)}}}}}")
    assert profile.interface_buses == {name: name}


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted), max_size=6))
def test_ranges_that_overlap_in_part_are_refused(ranges: list[list[int]]) -> None:
    """The plain rule, one pair after the other."""

    def is_wrong(one: list[int], other: list[int]) -> bool:
        (a, b), (c, d) = sorted((one, other), key=lambda r: (r[0], -r[1]))
        return one == other or a < c <= b < d

    text = "".join(f"    {first}-{last}: nm\n" for first, last in ranges)
    wrong = any(is_wrong(one, other) for i, one in enumerate(ranges) for other in ranges[:i])
    try:
        found = Profile.parse(f"can:\n  protocols:\n{text}").can_protocols
    except ProfileError:
        assert wrong
    else:
        assert not wrong
        assert [[ids.first, ids.last] for ids in found] == ranges


def test_the_time_for_many_ranges_is_not_quadratic() -> None:
    steps = [0]

    def count(*_: object) -> None:
        steps[0] += 1

    found = []
    for n in (250, 1000):
        marks = [yaml.Mark("", 0, line, 0, None, 0) for line in range(n)]
        keys = [((True, 2 * i, 2 * i + 1), yaml.ScalarNode("", str(i), mark, mark)) for i, mark in enumerate(marks)]
        steps[0] = 0
        sys.setprofile(count)
        try:
            profile_yaml._require_nested(keys, "can.protocols")
        finally:
            sys.setprofile(None)
        found.append(steps[0])
    assert found[1] < 6 * found[0]


def test_the_content_decides_whether_a_capture_was_read_with_a_profile() -> None:
    profile = Profile.parse("ports: {udp: {30501: someip}}", name="truck")
    same = Profile.parse("ports: {udp: {30501: someip}}  # the same", name="renamed")
    other = Profile.parse("ports: {udp: {30502: someip}}", name="truck")
    assert profile.is_recorded_as(str(same))
    assert not profile.is_recorded_as(str(other))
    assert not profile.is_recorded_as(None)


def test_names_of_modules_and_pdus_change_the_hash() -> None:
    texts = ("{}", "buses: {tecmp: {1: a}}", "buses: {cmp: {1: a}}", "buses: {acf: {1: a}}", "pdus: {1: a}")
    assert len({Profile.parse(text).hash for text in texts}) == len(texts)


def test_only_no_profile_at_all_loses_a_recorded_one() -> None:
    truck, none = Profile.parse("ports: {udp: {30501: someip}}", name="truck"), Profile.default()
    assert none.loses_names_of(str(truck))
    assert not none.loses_names_of(str(none))
    assert not none.loses_names_of(None)
    assert not Profile.parse("ports: {udp: {30502: someip}}").loses_names_of(str(truck))
