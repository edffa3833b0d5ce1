"""Routes: first match wins, unless it says `also`; what is wrong with them is told at once, all of it."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pcaplake.parser import Profile
from pcaplake.worker.config.routes import _KEYS, EXAMPLE, Routes, WrongRoutes

ALL = {"bucket": "*", "lake": "s3://lakes/all"}


def lakes_of(routes: Routes, uri: str) -> list[str]:
    return [route.lake.removeprefix("s3://lakes/") for route in routes.find_routes(uri)]


def wrong(*routes: Any, folder: Path | None = None) -> list[str]:
    with pytest.raises(WrongRoutes) as met:
        Routes.parse_routes(list(routes), folder=folder)
    return str(met.value).splitlines()


def test_first_match_wins_unless_it_says_also() -> None:
    routes = Routes.parse_routes(
        [
            {"bucket": "raw", "key": "a/*", "lake": "s3://lakes/a", "also": True},
            {"bucket": "raw", "key": "*.pcap", "lake": "s3://lakes/pcap"},
            {"bucket": "raw-*", "lake": "s3://lakes/others"},
            {"bucket": "raw", "key": "a/[0-9]?.gz", "lake": "s3://lakes/gz"},
        ]
    )
    assert lakes_of(routes, "s3://raw/a/1.pcap") == ["a", "pcap"]
    assert lakes_of(routes, "s3://raw/b/c/1.pcap") == ["pcap"]
    assert lakes_of(routes, "s3://raw/a/1x.gz") == ["a", "gz"]
    assert lakes_of(routes, "s3://raw/a/xx.gz") == ["a"]
    assert lakes_of(routes, "s3://raw/A/1.PCAP") == []
    assert lakes_of(routes, "s3://raw-2/anything at all/ü+%") == ["others"]
    assert lakes_of(routes, "s3://other/a/1.pcap") == []
    assert routes.lake_uris == ("s3://lakes/a", "s3://lakes/pcap", "s3://lakes/others", "s3://lakes/gz")


def test_a_capture_goes_to_a_lake_once_however_it_is_spelled() -> None:
    routes = Routes.parse_routes(
        [
            {"name": "one", "bucket": "raw", "key": "a/*", "lake": "s3://lakes/x", "also": True},
            {"name": "two", "bucket": "raw", "key": "*", "lake": "s3a://lakes/x/"},
        ]
    )
    assert routes.lake_uris == ("s3://lakes/x",)
    assert [route.name for route in routes.find_routes("s3://raw/a/1")] == ["one"]
    assert [route.name for route in routes.find_routes("s3://raw/b/1")] == ["two"]


def test_what_lies_in_a_lake_is_never_ingested() -> None:
    routes = Routes.parse_routes([{"bucket": "*", "key": "x/*", "lake": "s3a://raw/lake"}, {**ALL, "bucket": "*"}])
    assert routes.find_routes("s3://raw/lake/packets/date=2026-01-01/x.pcap") == ()
    assert routes.find_routes("s3://lakes/all/_pcaplake/lake.json") == ()
    assert lakes_of(routes, "s3://raw/lake2/x.pcap") == ["all"]
    assert lakes_of(routes, "s3://raw/lake") == ["all"]


letters = st.text("ab/*", max_size=4)


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.sampled_from(["r", "*", "s?"]), letters, st.integers(0, 3), st.booleans()), max_size=6),
    st.sampled_from(["r", "s1", "t"]),
    st.text("ab/", min_size=1, max_size=5),
)
def test_against_the_definition(given: list[tuple[str, str, int, bool]], bucket: str, key: str) -> None:
    raw = [
        {"bucket": one, "key": pattern, "lake": f"s3://lakes/{lake}", "also": also}
        for one, pattern, lake, also in given
        if pattern and not pattern.startswith("/")
    ]
    try:
        routes = Routes.parse_routes(raw)
    except WrongRoutes as error:
        assert "never reached" in str(error) or not raw  # noqa: PT017 -- the other half of the law
        return
    expected: list[str] = []
    for route in raw:
        if fnmatchcase(bucket, str(route["bucket"])) and fnmatchcase(key, str(route["key"])):
            if route["lake"] not in expected:
                expected.append(str(route["lake"]))
            if not route["also"]:
                break
    assert [route.lake for route in routes.find_routes(f"s3://{bucket}/{key}")] == expected


# -- profiles and vehicles --------------------------------------------------------------------------------------------
def test_profiles_and_vehicle_ids(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "car.yaml").write_text(
        "ports: {udp: {30501: someip}}\nvehicle_id: '/(?P<vehicle_id>[^/]+)/[^/]+$'\n"
    )
    (tmp_path / "routes.yaml").write_text(
        """
        routes:
          - {bucket: a, lake: s3://lakes/all, profile: profiles/car.yaml}
          - {bucket: b, lake: s3://lakes/all, profile: profiles/car.yaml, vehicle_id: test-bench-7}
          - bucket: c
            lake: s3://lakes/all
            vehicle_id_pattern: "c/(?P<vehicle_id>[0-9]+)-"
          - {bucket: d, lake: s3://lakes/all}
        """
    )
    routes = Routes.load(tmp_path / "routes.yaml")
    profiles = {bucket: routes.find_routes(f"s3://{bucket}/42-x/1.pcap")[0].profile for bucket in "abcd"}
    found = {bucket: profile.vehicle_id_of(f"s3://{bucket}/42-x/1.pcap") for bucket, profile in profiles.items()}
    assert found == {"a": "42-x", "b": "test-bench-7", "c": "42", "d": None}
    assert profiles["b"].udp_ports == profiles["a"].udp_ports == {30501: "someip"}
    assert profiles["d"] == Profile.default()
    assert len({profile.hash for profile in profiles.values()}) == 4
    assert profiles["b"].name == "car"


def test_a_hash_stays_what_it_was() -> None:
    """It stands in rows that were written before routes could name a vehicle."""
    assert Profile.default().hash == "f1df8b77abc4"


# -- what is wrong ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("route", "expected"),
    [
        ("raw", "must be a map"),
        ({**ALL, "bukcet": "x"}, "no key 'bukcet'; did you mean 'bucket'?"),
        ({**ALL, 7: "x"}, "no key 7"),
        ({"lake": "s3://lakes/all"}, "bucket is missing"),
        ({"bucket": "raw"}, "lake is missing"),
        ({**ALL, "bucket": ""}, "bucket is ''"),
        ({**ALL, "bucket": 123}, "bucket is 123; write a string, in quotes"),
        ({**ALL, "bucket": "s3://raw/a"}, "write only its name"),
        ({**ALL, "key": "/a/*"}, "do not start with /"),
        ({**ALL, "key": ["a"]}, "key is ['a']"),
        ({**ALL, "lake": "ftp://lakes/all"}, "no store for ftp://"),
        ({**ALL, "lake": "s3://"}, "'' is not a bucket"),
        ({**ALL, "also": "sometimes"}, "also is 'sometimes'; write true or false"),
        ({**ALL, "profile": "none.yaml"}, "cannot read the profile"),
        ({**ALL, "profile": "broken.yaml"}, "unknown protocol 'smeip'; did you mean 'someip'?"),
        ({**ALL, "vehicle_id": "a", "vehicle_id_pattern": "(?P<vehicle_id>a)"}, "keep one of them"),
        ({**ALL, "vehicle_id_pattern": "("}, "not a regular expression"),
        ({**ALL, "vehicle_id_pattern": "/([^/]+)/"}, "needs a group vehicle_id"),
        ({"bucket": "lakes", "key": "all/x*", "lake": "s3://lakes/all"}, "inside the lake s3://lakes/all"),
        ({"bucket": "lakes", "lake": "s3://lakes"}, "inside the lake s3://lakes"),
        ({"bucket": "*", "lake": "s3://lakes"}, "put the lake next to its captures, as s3://lakes/lake"),
        ({"bucket": "l*", "key": "all/x/*.pcap", "lake": "s3://lakes/all"}, "inside the lake s3://lakes/all"),
    ],
)
def test_a_wrong_route(route: Any, expected: str, tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("ports: {udp: {30501: smeip}}")
    (line,) = wrong(route, folder=tmp_path)
    assert line.startswith("route 1: ")
    assert expected in line


def test_everything_that_is_wrong_is_told() -> None:
    lines = wrong(
        {"bucket": "raw/x", "lake": "ftp://x"}, ALL, {"name": "b", "bucket": "b"}, {**ALL, "name": "c", "also": 1}
    )
    assert [line.partition(": ")[0] for line in lines] == ["route 1", "route 1", "route 3 (b)", "route 4 (c)"]


@pytest.mark.slow
def test_routes_that_are_wrong_together() -> None:
    (line,) = wrong(ALL, {**ALL, "bucket": "raw"})
    assert line.startswith("route 2: is never reached: route 1 takes everything")
    (line,) = wrong({**ALL, "bucket": "raw", "key": "a*"}, {**ALL, "bucket": "raw", "key": "a*"})
    assert "never reached" in line
    (line,) = wrong({**ALL, "name": "x", "also": True}, {**ALL, "name": "x"})
    assert line == "x: another route has the same name"
    (line,) = wrong({**ALL, "bucket": "a"}, {"bucket": "b", "lake": "s3://lakes/all/inner"})
    assert line.startswith("s3://lakes/all/inner: is inside the lake s3://lakes/all")
    assert len(Routes.parse_routes([{**ALL, "also": True}, {"bucket": "raw", "lake": "s3://lakes/allies"}]).routes) == 2


@pytest.mark.parametrize("raw", [None, [], {}, "text", 7])
def test_no_routes(raw: Any) -> None:
    with pytest.raises(WrongRoutes, match="at least one route"):
        Routes.parse_routes(raw)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("routes:\n  - {bucket: raw, key: *.pcap, lake: s3://l/a}", "patterns with \\* must be in quotes"),
        ("routes:\n  - {bucket: raw, bucket: other, lake: s3://l/a}", "bucket appears twice"),
        ("routes:\n  - {bucket: raw, [a]: other, lake: s3://l/a}", "a key must be a string"),
        ("- bucket: raw", "one key, `routes`"),
        ("routes: []\nlake: s3://l/a", "one key, `routes`"),
        ("", "one key, `routes`"),
        ("routes: {bucket: raw}", "at least one route"),
        ("[" * 5000, "is not YAML"),
        ("!!python/object/apply:os.system ['true']", "is not YAML"),
    ],
)
def test_files_that_cannot_be_used(text: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    path.write_text(text)
    with pytest.raises(WrongRoutes, match=expected):
        Routes.load(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(WrongRoutes, match="cannot read the routes"):
        Routes.load(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"routes: \xe9")
    with pytest.raises(WrongRoutes, match="cannot read the routes"):
        Routes.load(tmp_path / "latin.yaml")


def test_the_example_of_the_settings_page_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "a.yaml").write_text("ports: {udp: {30501: someip}}\n")
    (tmp_path / "routes.yaml").write_text(EXAMPLE)
    assert lakes_of(Routes.load(tmp_path / "routes.yaml"), "s3://fleet-raw/a/v1/1.pcap") == ["a"]
    assert set(yaml.safe_load(EXAMPLE)["routes"][0]) == set(_KEYS) - {"vehicle_id"}
