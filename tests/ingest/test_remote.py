"""Captures in an S3 whose keys are what nobody expects of a name, and those that are in the lake in several contents."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest

from tests.drives import Drive
from tests.worker import lakes
from tests.worker.small_s3 import small_s3

ODD = ("in/a//b.pcap", "in/tab\t.pcap", "in/line\n.pcap", "in/../up.pcap", "in/./here.pcap", "in//lead.pcap", "in/end/")


PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
SECTION = PAGE.read_text(encoding="utf-8").split("## Equal and changed captures")[1]
SEE = re.findall(r"```sql\n(.*?)```", SECTION, re.DOTALL)[0]


def options(given: dict[str, str]) -> list[str]:
    return [part for name, value in given.items() for part in ("--storage-option", f"{name}={value}")]


@pytest.mark.slow
def test_folder_markers_are_ignored(drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with small_s3() as s3:
        s3.objects = {"in/": b"", "in/x/": b"", "in/x/a.pcap": drive.captures[0].read_bytes(), "in/none.pcap": b""}
        given = ("--lake", tmp_path / "lake", "--json", *options(s3.options))
        for name, expected in (
            ("s3://raw/in/", (1, 2, 0, 2)),
            ("s3://raw/in", (1, 0, 2, 2)),
            ("s3://raw/in/*", (1, 0, 2, 0)),
        ):
            code, out, err = lakes.run(capsys, "ingest", name, *given)
            result = lakes.json.loads(out.splitlines()[-1])
            assert (code, *(result[one] for one in ("captures", "already_ingested", "ignored"))) == expected, err


@pytest.mark.slow
def test_odd_keys_are_read_beside_all_others(drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is another object than the one that obstore would take it for."""
    data = drive.captures[0].read_bytes()
    with small_s3() as s3:
        plain = ("in/a/b.pcap", "in/z.pcap", "in/end", "in/lead.pcap")
        s3.objects = {key: data + bytes(number) for number, key in enumerate((*plain, *ODD))}
        given = ("--lake", tmp_path / "lake", "--json", *options(s3.options))
        code, out, err = lakes.run(capsys, "ingest", "s3://raw/in/", *given)
        assert code == 0, err
        assert lakes.json.loads(out.splitlines()[-1])["captures"] == len(s3.objects)
        found = pl.read_delta(f"{tmp_path}/lake/captures").select("uri", "object_size").rows()
        assert sorted(found) == sorted((f"s3://raw/{key}", len(one)) for key, one in s3.objects.items())
        for name in ("s3://raw/in/a//b.pcap", "s3://raw/in/a//", "s3://raw/in/*\t.pcap"):
            code, out, err = lakes.run(capsys, "ingest", name, *given)
            assert (code, lakes.json.loads(out.splitlines()[-1])["already_ingested"]) == (0, 1), err


@pytest.mark.slow
def test_an_object_that_cannot_be_read_costs_itself_only(
    drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_s3() as s3:
        s3.objects = {f"in/{name}": drive.captures[0].read_bytes() + name.encode() for name in ("a", "b//c", "d")}
        s3.refused = {"in/b//c"}
        given = ("--lake", tmp_path / "lake", "--json", *options(s3.options))
        code, out, err = lakes.run(capsys, "ingest", "s3://raw/in/", *given)
        assert (code, lakes.json.loads(out.splitlines()[-1])["captures"]) == (3, 2)
        assert "not read: s3://raw/in/b//c: " in err


def contents(lake: Path) -> list[tuple[str, list[str], bool]]:
    """What the query of docs/troubleshooting.md finds."""
    with lakes.contextlib.closing(lakes.connect()) as connection:
        connection.sql(f"CREATE TEMP VIEW captures AS FROM delta_scan('{lake}/captures')")
        return connection.sql(SEE).fetchall()


@pytest.mark.slow
def test_a_capture_that_grew_is_told_found_and_replaced(
    drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grows, lake = tmp_path / "grows.pcapng", tmp_path / "lake"
    data = drive.captures[0].read_bytes()
    grows.write_bytes(data[: len(data) // 2])
    given = ("--lake", lake, "--profile", drive.profile, "--json")
    code, out, err = lakes.run(capsys, "ingest", grows, *given)
    assert (code, lakes.json.loads(out.splitlines()[-1])["changed"], contents(lake)) == (0, 0, []), err
    before = lakes.by_polars(lake)
    grows.write_bytes(data)
    code, out, err = lakes.run(capsys, "ingest", grows, *given)
    result = lakes.json.loads(out.splitlines()[-1])
    assert (code, result["captures"], result["changed"]) == (0, 1, 1)
    said = " ".join(err.split())
    assert "1 capture changed since the last ingest: both contents are in the lake" in said
    assert f"changed: file://{grows}" in err
    assert lakes.by_polars(lake) == {name: before[name] + count for name, count in result["rows"].items()}
    ((uri, ids, equal),) = contents(lake)
    assert (uri, len(ids), equal) == (f"file://{grows}", 2, False)
    code, out, err = lakes.run(capsys, "ingest", grows, "--replace-changed", *given)
    again = lakes.json.loads(out.splitlines()[-1])
    assert (code, again["already_ingested"], again["changed"], again["replaced"]) == (0, 1, 0, 1), err
    assert contents(lake) == []
    lakes.check(lake, result["rows"], capsys)


@pytest.mark.slow
def test_an_object_that_was_copied_onto_itself_is_told_and_found(
    drive: Drive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_s3() as s3:
        s3.objects = {"in/a": drive.captures[0].read_bytes(), "in/b": drive.captures[1].read_bytes()}
        given = ("--lake", tmp_path / "lake", "--json", *options(s3.options))
        assert lakes.run(capsys, "ingest", "s3://raw/in/", *given)[0] == 0
        s3.copies = {"in/a": 1}
        code, out, err = lakes.run(capsys, "ingest", "s3://raw/in/", *given)
        result = lakes.json.loads(out.splitlines()[-1])
        assert (code, result["captures"], result["already_ingested"], result["changed"]) == (0, 1, 1, 1), err
        assert [(uri, len(ids), equal) for uri, ids, equal in contents(tmp_path / "lake")] == [
            ("s3://raw/in/a", 2, True)
        ]
        code, out, err = lakes.run(capsys, "ingest", "s3://raw/in/", "--replace-changed", *given)
        assert (code, lakes.json.loads(out.splitlines()[-1])["replaced"], contents(tmp_path / "lake")) == (0, 1, []), (
            err
        )
