"""One run of `ingest`: what an interrupt, a capture that fails and a capture that must be read again do to the others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from pcaplake.common.errors import Retryable
from pcaplake.ingest.captures.reference import ObjectRef, local_reference
from pcaplake.ingest.captures.source import LocalFile, Sources
from pcaplake.ingest.local_run import Ingest
from pcaplake.ingest.pipeline import Reader
from pcaplake.lake.lake import Lake
from pcaplake.lake.records import Capture
from pcaplake.parser import Profile
from tests.worker.fleets import can_capture


class WatchedReader(Reader):
    """A reader that calls `on_read` before it reads a capture."""

    on_read: Any = None

    def read(self, file: Any, capture: Capture, *given: Any, **named: Any) -> Any:
        type(self).on_read(capture)
        return super().read(file, capture, *given, **named)


def reader(on_read: Any = lambda capture: None) -> Reader:
    kind = type("Watched", (WatchedReader,), {"on_read": staticmethod(on_read)})
    watched: Reader = kind(profile=Profile(), decoder_version="1", now=lambda: 0.0)
    return watched


def captures(folder: Path, count: int) -> list[ObjectRef]:
    folder.mkdir()
    paths = [folder / f"{number:03}.pcap" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_bytes(can_capture(5, number))
    return [local_reference(path, explicit=True) for path in paths]


async def test_an_interrupt_does_not_hash_the_captures_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    identify_capture = LocalFile.identify_capture

    def count_and_identify(file: LocalFile) -> Capture:
        hashed.append(file.uri)
        return identify_capture(file)

    monkeypatch.setattr(LocalFile, "identify_capture", count_and_identify)
    work = Ingest(Sources(), reader(lambda capture: work.stop()), threads=1)
    async with await Lake.open(tmp_path / "lake") as lake:
        await work.run(lake, captures(tmp_path / "in", 60))
    assert 0 < len(hashed) < 10
    assert work.tally.captures < 10
    assert DeltaTable(tmp_path / "lake" / "captures").to_pyarrow_table().num_rows == work.tally.captures


async def test_rows_count_when_they_are_decoded_and_ignored_files_do_not(tmp_path: Path) -> None:
    """One window takes all captures, so no row is staged before the last capture is decoded."""
    refs = captures(tmp_path / "in", 3)
    (tmp_path / "in" / "notes.txt").write_text("no capture")
    refs.insert(0, local_reference(tmp_path / "in" / "notes.txt", explicit=False))
    seen: list[tuple[int, int]] = []
    work = Ingest(
        Sources(), reader(lambda capture: seen.append((work.tally.unstaged_rows, work.tally.total))), threads=1
    )
    async with await Lake.open(tmp_path / "lake") as lake:
        await work.run(lake, refs)
    assert seen == [(0, 3), (10, 3), (20, 3)]
    assert (work.tally.total, work.tally.unstaged_rows, work.tally.rows.total()) == (3, 0, 33)
    assert work.tally.ignored == [refs[0].uri]


@pytest.mark.slow
async def test_captures_lost_with_a_window_share_the_next_one(tmp_path: Path) -> None:
    refs = captures(tmp_path / "in", 30)
    path = Path(refs[15].uri.removeprefix("file://"))
    failures = [path, path]

    def grow(capture: Capture) -> None:
        if capture.uri == refs[15].uri and failures:
            with failures.pop().open("ab") as file:
                file.write(b"more")

    work = Ingest(Sources(), reader(grow), threads=1)
    async with await Lake.open(tmp_path / "lake") as lake:
        await work.run(lake, refs)
    assert (work.tally.captures, list(work.tally.failed)) == (29, [refs[15].uri])
    rows = DeltaTable(tmp_path / "lake" / "captures").to_pyarrow_table()["capture_id"].to_pylist()
    assert len(rows) == len(set(rows)) == 29
    assert len(DeltaTable(tmp_path / "lake" / "can_frames").file_uris()) < 8
    assert work.tally.read_bytes == work.tally.total_bytes


@pytest.mark.slow
async def test_a_capture_that_must_be_read_again_goes_first(tmp_path: Path) -> None:
    read: list[str] = []
    refs = captures(tmp_path / "in", 120)
    again = captures(tmp_path / "again", 1)[0]
    with LocalFile(again.uri) as file:
        returned = file.identify_capture()
    replays: list[asyncio.Task[None]] = []

    def note(capture: Capture) -> None:
        read.append(capture.uri)
        if len(read) == 5:
            loop.call_soon_threadsafe(lambda: replays.append(loop.create_task(work.source.replay_captures([returned]))))

    loop = asyncio.get_running_loop()
    work = Ingest(Sources(), reader(note), threads=1)
    async with await Lake.open(tmp_path / "lake") as lake:
        await work.run(lake, refs)
        await replays[0]
    assert read.index(again.uri) < 60
    assert work.tally.captures == len(refs) + 1


async def test_what_must_be_read_again_is_not_forgotten_when_the_run_ends(tmp_path: Path) -> None:
    ref = captures(tmp_path / "in", 1)[0]
    with LocalFile(ref.uri) as file:
        capture = file.identify_capture()
    work = Ingest(Sources(), reader(), threads=1)
    async with await Lake.open(tmp_path / "lake") as lake:
        await work.run(lake, [])
        with pytest.raises(Retryable, match="must be read again, but the run ends"):
            await work.source.replay_captures([capture])
        assert await lake.find_captures([capture.capture_id]) == {}
