"""Lakes and captures in each other's folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pcaplake.common.runtime import Runtime
from pcaplake.ingest.captures.discovery import NotThere, counts_by_name, find_captures
from pcaplake.ingest.captures.source import Sources
from pcaplake.ingest.local_run import Ingest
from pcaplake.ingest.pipeline import Reader
from pcaplake.lake.lake import Lake
from pcaplake.parser import Profile
from tests.worker import lakes
from tests.worker.fleets import can_capture


def test_captures_inside_the_lake_are_not_passed_over_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.pcap").write_bytes(can_capture(3))
    code, _, err = lakes.run(capsys, "ingest", tmp_path, "--lake", tmp_path)
    assert code == 2
    assert "all files are inside the folder of the lake" in err
    assert not (tmp_path / "_pcaplake").exists()


@pytest.mark.slow
def test_tables_of_a_lake_among_the_captures_are_not_searched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Captures beside them are read, whichever lake it is."""
    drive = tmp_path / "drive"
    drive.mkdir()
    (drive / "a.pcap").write_bytes(can_capture(3))
    for lake in (drive / "lake", tmp_path / "other"):
        code, out, _ = lakes.run(capsys, "ingest", drive, "--lake", lake, "--json")
        result = json.loads(out)
        assert (code, result["captures"], result["ignored"]) == (0, 1, 0)
    (drive / "lake" / "b.pcap").write_bytes(can_capture(3, 1))
    (drive / "lake" / "packets" / "c.pcap").write_bytes(can_capture(3, 2))
    code, out, _ = lakes.run(capsys, "ingest", drive, "--lake", tmp_path / "other", "--json")
    result = json.loads(out)
    assert (code, result["captures"], result["already_ingested"], result["ignored"]) == (0, 1, 1, 0)


@pytest.mark.slow
def test_a_new_lake_inside_a_lake_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.pcap").write_bytes(can_capture(3))
    outer, inner = tmp_path / "lake", tmp_path / "lake" / "packets" / "inner"
    assert lakes.run(capsys, "ingest", tmp_path / "a.pcap", "--lake", outer)[0] == 0
    code, _, err = lakes.run(capsys, "ingest", tmp_path / "a.pcap", "--lake", inner)
    assert code == 2
    assert f"{outer} is a lake: name a place outside it" in err
    assert not inner.exists()
    assert lakes.run(capsys, "ingest", tmp_path / "a.pcap", "--lake", tmp_path / "made before")[0] == 0
    shutil.move(tmp_path / "made before", inner)
    assert lakes.run(capsys, "ingest", tmp_path / "a.pcap", "--lake", inner)[0] == 0, "one that is there is used"


def test_a_broken_link_that_is_named_like_a_capture_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drive = tmp_path / "drive"
    drive.mkdir()
    (drive / "a.pcap").write_bytes(can_capture(3))
    (drive / "gone.pcap").symlink_to(tmp_path / "missing")
    (drive / "loop.pcap").symlink_to(drive / "loop.pcap")
    (drive / "note").symlink_to(tmp_path / "missing")
    code, out, err = lakes.run(capsys, "ingest", drive, "--lake", tmp_path / "lake", "--json")
    result = json.loads(out)
    assert (code, result["captures"], result["not_read"], result["ignored"]) == (3, 1, 2, 1)
    assert sorted(Path(uri).name for uri in result["not_read_files"]) == ["gone.pcap", "loop.pcap"]
    assert "gone.pcap" in err


@pytest.mark.parametrize("name", ["up", "up/*", "up/*.pcap", "up/**/*.pcap", "up/*/*.pcap", "*/*.pcap"])
async def test_links_out_of_the_named_folder_are_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Whether a folder or a glob is named. The folder of a glob is the one before its first wildcard."""
    for folder in ("up/in", "up/other", "out"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.pcap").touch()
    (tmp_path / "up" / "a.pcap").touch()
    for link, target in {"up/in/b.pcap": "out/a.pcap", "up/c.pcap": "out/a.pcap", "up/folder": "out"}.items():
        (tmp_path / link).symlink_to(tmp_path / target)
    (tmp_path / "up" / "around.pcap").symlink_to(tmp_path / "up" / "other" / "a.pcap")
    monkeypatch.chdir(tmp_path)

    async def found(**options: bool) -> set[str]:
        refs = await find_captures([name], Sources(), **options)
        return {ref.uri.removeprefix(f"file://{tmp_path}/") for ref in refs}

    inside, everything = await found(), await found(follow_links=True)
    assert any(uri.startswith("up/") for uri in inside)
    assert everything == inside | {"out/a.pcap"}
    assert ("out/a.pcap" in inside) == (name == "*/*.pcap"), "the named folder is the one around all of them"


async def test_what_is_left_out_is_named_and_a_link_that_is_named_is_followed(tmp_path: Path) -> None:
    (tmp_path / "up").mkdir()
    (tmp_path / "secret").write_bytes(b"secret")
    link = tmp_path / "up" / "a.pcap"
    link.symlink_to(tmp_path / "secret")
    for name in (tmp_path / "up", tmp_path / "up" / "*.pcap", tmp_path / "up" / "**"):
        with pytest.raises(NotThere, match=r"only links that lead out of .*/up; follow them with --follow-links"):
            await find_captures([str(name)], Sources())
    (tmp_path / "up" / "b.pcap").touch()
    skipped: list[str] = []
    refs = await find_captures([str(tmp_path / "up")], Sources(), skipped=skipped.append)
    assert [ref.uri for ref in refs] == [f"file://{tmp_path}/up/b.pcap"]
    assert skipped == [f"file://{link}"]
    (named,) = await find_captures([str(link)], Sources())
    assert named.uri == f"file://{tmp_path}/secret"


async def test_a_link_counts_as_a_capture_by_its_own_name_too(tmp_path: Path) -> None:
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "blob").write_bytes(b"damaged")
    (tmp_path / "up" / "a.pcap").symlink_to(tmp_path / "up" / "blob")
    refs = await find_captures([str(tmp_path / "up")], Sources())
    assert [(ref.uri, counts_by_name(ref)) for ref in refs] == [(f"file://{tmp_path}/up/blob", True)]


async def test_only_captures_count_in_the_progress(tmp_path: Path) -> None:
    """A file that is named otherwise counts when its first bytes are those of a capture."""
    (tmp_path / "in").mkdir()
    for name, body in (("a.pcap", can_capture(3)), ("profile.yaml", b"name: x\n"), ("raw", can_capture(3, 1))):
        (tmp_path / "in" / name).write_bytes(body)
    refs = await find_captures([str(tmp_path / "in")], Sources())
    work = Ingest(Sources(), Reader(profile=Profile.default(), decoder_version="1", now=lambda: 0.0), threads=1)
    totals = list[int]()
    step = Runtime(step=lambda name: totals.append(work.tally.total))
    async with await Lake.open(tmp_path / "lake", runtime=step) as lake:
        await work.run(lake, refs)
    assert (len(refs), totals[0], work.tally.total, work.tally.captures) == (3, 1, 2, 2)
