"""Which content each object has now: contents come, go and come back, files get old times, and runs die."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from deltalake import DeltaTable

from pcaplake.worker.cli.delete import delete_older_contents
from pcaplake.worker.config.settings import Settings
from tests.worker import lakes
from tests.worker.adapters.faults import crash_at_step
from tests.worker.fleets import can_capture

DAY = 86_400
KILLS = (
    "before stage.4 captures",
    "after stage.5",
    "before stage.4 sightings",
    "after commit.3b",
    "after commit.4 sightings",
    "after commit.5",
)
DELETE_KILLS = ("before swap", "after swap record", "after swap can_frames", "after swap sightings")


def current_captures(lake: Path) -> dict[str, tuple[str, int]]:
    """name of the file -> eTag of its current content, and how many frames the lake has of it."""
    with contextlib.closing(lakes.connect()) as database:
        for table in ("captures", "sightings", "can_frames"):
            database.sql(f"CREATE VIEW {table} AS SELECT * FROM delta_scan('{lake}/{table}')")
        database.sql(f"CREATE VIEW current_captures AS {lakes.current_captures_view()}")
        rows = database.sql(
            "SELECT uri, etag, (SELECT count(*) FROM can_frames f WHERE f.capture_id = c.capture_id) FROM current_captures c"
        ).fetchall()
    return {Path(uri).name: (etag, frames) for uri, etag, frames in rows}


def _delete(lake: str, kill: str) -> None:
    settings, step = Settings.load(lake=lake), crash_at_step(kill) if kill else lambda name: None
    plan = asyncio.run(delete_older_contents(settings, ()))
    asyncio.run(delete_older_contents(settings, (), agreed=plan, step=step))
    os._exit(0)


class Folder:
    """Files whose contents change, and the lake that follows them."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        self.rng = rng
        self.path, self.lake, self.log = path / "in", path / "lake", path / "log"
        self.path.mkdir()
        self.frames = dict[str, int]()  # by name: the number tells the contents of a file apart

    def upload(self, name: str, frames: int) -> None:
        """A content with an old time, a new one, or that of a moment ago."""
        file = self.path / name
        file.write_bytes(can_capture(frames))
        if self.rng.random() < 0.5:
            at = file.stat().st_mtime + self.rng.choice((-DAY, DAY, 0))
            os.utime(file, (at, at))
        self.frames[name] = frames

    def change(self) -> None:
        for name in self.rng.sample(("a.pcap", "b.pcap"), self.rng.randint(1, 2)):
            self.upload(name, self.rng.choice((1, 2, 3)))

    def ingest(self, **given: Any) -> int:
        return lakes.ingest([self.path], self.lake, self.log, threads=1, **given)[0]

    def delete(self, kill: str = "") -> int:
        """`delete --older-contents`, which may die at a step -> its exit code."""
        process = lakes.PROCESSES.Process(target=_delete, args=(str(self.lake), kill))
        process.start()
        process.join(120)
        assert process.exitcode is not None, "it hangs"
        return process.exitcode

    def expected(self) -> dict[str, tuple[str, int]]:
        return {
            name: (blake3((self.path / name).read_bytes()).hexdigest(length=16), frames)
            for name, frames in self.frames.items()
        }

    def check(self, where: str) -> None:
        assert current_captures(self.lake) == self.expected(), f"{where}: {self.log.read_text()}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_the_lake_says_which_content_each_file_has(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Folder(tmp_path, random.Random(seed))
    for name in ("a.pcap", "b.pcap"):
        folder.upload(name, 1)
    assert folder.ingest() == 0, folder.log.read_text()
    for step in range(8):
        where = f"seed {seed}, step {step}"
        folder.change()
        if folder.rng.random() < 0.4:
            code = folder.ingest(kill=folder.rng.choice(KILLS), replace_changed=folder.rng.random() < 0.3)
            assert code in (0, -signal.SIGKILL), folder.log.read_text()
            if folder.rng.random() < 0.5:
                folder.change()
        replaces = folder.rng.random() < 0.3
        assert folder.ingest(replace_changed=replaces) == 0, f"{where}: {folder.log.read_text()}"
        folder.check(where)
        if folder.rng.random() < 0.3:
            assert folder.delete(folder.rng.choice(("", *DELETE_KILLS))) in (0, -signal.SIGKILL), where
            assert folder.delete() == 0, where
            folder.check(where)
            replaces = True
        if replaces:
            assert lakes.by_deltalake(folder.lake)["captures"] == 2, where
    code, out, _ = lakes.run(capsys, "doctor", "--lake", folder.lake)
    assert code == 0, out
    lakes.check(folder.lake, lakes.by_polars(folder.lake), capsys)


def test_the_doctor_finds_a_content_that_came_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Folder(tmp_path, random.Random(0))
    for frames in (1, 2):
        folder.upload("a.pcap", frames)
        assert folder.ingest() == 0, folder.log.read_text()
    code, out, _ = lakes.run(capsys, "doctor", "--lake", folder.lake)
    assert (code, "1 object of the lake with several contents" in out) == (0, True), out
    folder.upload("a.pcap", 1)
    code, out, _ = lakes.run(capsys, "doctor", "--lake", folder.lake)
    assert (code, "have an older one again" in out) == (1, True), out
    assert folder.ingest() == 0
    assert lakes.run(capsys, "doctor", "--lake", folder.lake)[0] == 0
    rows = lakes.by_polars(folder.lake)
    assert folder.ingest() == 0
    assert lakes.by_polars(folder.lake) == rows, "nothing is recorded twice"


def test_older_contents_are_deleted_and_come_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Folder(tmp_path, random.Random(0))
    for frames in (1, 2, 1):
        folder.upload("a.pcap", frames)
        assert folder.ingest() == 0, folder.log.read_text()
    options = ("delete", "--older-contents", "--lake", folder.lake)
    code, _, err = lakes.run(capsys, *options)
    assert (code, "1 older content of 1 capture with 5 rows" in err, "--yes" in err) == (2, True, True), err
    code, _, err = lakes.run(capsys, *options, tmp_path / "elsewhere", "--yes")
    assert (code, "no capture has an older content" in err) == (0, True), err
    code, out, err = lakes.run(capsys, *options, folder.path, "--yes", "--json")
    assert (code, json.loads(out)["captures"], json.loads(out)["rows"]) == (0, 1, 5), err
    folder.check("after the deletion")
    assert lakes.by_polars(folder.lake)["can_frames"] == 1
    code, out, _ = lakes.run(capsys, "doctor", "--lake", folder.lake)
    assert code == 0, out
    folder.upload("a.pcap", 2)
    assert folder.ingest() == 0, folder.log.read_text()
    folder.check("the content that was deleted comes back")
    (folder.path / "a.pcap").write_bytes(b"no capture any more")
    assert folder.ingest() == 1
    before = lakes.by_polars(folder.lake)
    code, _, err = lakes.run(capsys, *options, "--yes")
    assert (code, "kept: " in err, lakes.by_polars(folder.lake)) == (0, True, before), err


def test_delete_says_what_it_can_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = lakes.run(capsys, "delete", "--lake", tmp_path)
    assert (code, "--older-contents" in err) == (2, True)


@pytest.mark.slow
def test_a_content_that_comes_back_after_a_restore_is_there_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table has its old rows again, and the batch that brings the content back must not double them."""
    lake, file = tmp_path / "lake", tmp_path / "in" / "a.pcap"
    file.parent.mkdir()
    (file.parent / "b.pcap").write_bytes(can_capture(7, 1))

    def ingest(content: bytes, *options: str) -> None:
        file.write_bytes(content)
        assert lakes.run(capsys, "ingest", file.parent, "--lake", lake, *options)[0] == 0

    ingest(can_capture(5, 2))
    ingest(can_capture(4, 3), "--replace-changed")
    table = DeltaTable(lake / "can_frames")
    table.restore(table.version() - 1)
    ingest(can_capture(5, 2), "--reread")
    assert DeltaTable(lake / "can_frames").to_pyarrow_table().num_rows == 7 + 4 + 5
