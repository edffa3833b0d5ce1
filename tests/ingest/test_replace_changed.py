"""`ingest --replace-changed`: of a capture that changed, the lake keeps the content of now, wherever a run ends."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from pcaplake.lake.records import SIGHTINGS
from pcaplake.parser.schemas import TABLES
from tests.drives import Drive
from tests.worker import lakes
from tests.worker.fleets import can_capture


class Growing:
    """A capture that grows, with two others; `rows` by table of the three, for each of its contents.

    `started`: a lake that has them with the first half.
    """

    def __init__(
        self, bus_drive: Drive, path: Path, folder: Path, rows: dict[str, dict[str, int]], started: Path
    ) -> None:
        self.path, self.lake, self.log, self.rows, self.started = path, folder / "lake", folder / "log", rows, started
        self.profile, self.others = str(bus_drive.profile), bus_drive.captures[1:3]
        whole = bus_drive.captures[0].read_bytes()
        self.contents = {"half": whole[: len(whole) // 2], "whole": whole}

    def become(self, name: str) -> None:
        self.path.write_bytes(self.contents[name])

    def start(self) -> None:
        """The first half is in the lake: as `become("half")` and `ingest()`, from a copy."""
        shutil.copy2(self.started.with_suffix(".half"), self.path)
        shutil.copytree(self.started, self.lake)

    def ingest(self, **given: Any) -> tuple[int, dict[str, Any]]:
        """It and two others, which share its windows and so its Parquet files."""
        return lakes.ingest([self.path, *self.others], self.lake, self.log, profile=self.profile, **given)


@pytest.fixture(scope="module")
def first(bus_drive: Drive, tmp_path_factory: pytest.TempPathFactory) -> Growing:
    """The growing capture is in one place for all tests, because lakes name it."""
    path, rows = tmp_path_factory.mktemp("growing") / "grows.pcapng", dict[str, dict[str, int]]()
    for name in ("whole", "half"):
        folder = tmp_path_factory.mktemp(name)
        growing = Growing(bus_drive, path, folder, rows, folder / "lake")
        growing.become(name)
        code, result = growing.ingest()
        assert code == 0, growing.log.read_text()
        rows[name] = result["rows"]
    shutil.copy2(path, growing.started.with_suffix(".half"))
    return growing


@pytest.fixture
def growing(bus_drive: Drive, tmp_path: Path, first: Growing) -> Growing:
    return Growing(bus_drive, first.path, tmp_path, first.rows, first.started)


@pytest.mark.slow
def test_the_old_content_goes_when_the_new_one_is_in(growing: Growing, capsys: pytest.CaptureFixture[str]) -> None:
    growing.start()
    growing.become("whole")
    code, result = growing.ingest(replace_changed=True)
    assert (code, result["captures"], result["changed"], result["replaced"]) == (0, 1, 0, 1), growing.log.read_text()
    lakes.check(growing.lake, growing.rows["whole"], capsys)
    for name in ("captures", "packets"):  # each reader can filter the files that hold the rows of the others
        ids = DeltaTable(growing.lake / name).to_pandas(columns=["capture_id"]).capture_id
        found = DeltaTable(growing.lake / name).to_pandas(filters=[("capture_id", "=", ids[0])], columns=["capture_id"])
        assert len(found) == (ids == ids[0]).sum()
    code, out, _ = lakes.run(capsys, "doctor", "--lake", growing.lake)
    assert code == 0, out


@pytest.mark.slow
def test_what_an_ordinary_ingest_has_left_is_replaced_later(
    growing: Growing, capsys: pytest.CaptureFixture[str]
) -> None:
    for content in growing.contents:
        growing.become(content)
        _, result = growing.ingest()
    assert (result["changed"], result["replaced"]) == (1, 0)
    code, result = growing.ingest(replace_changed=True)
    assert (code, result["already_ingested"], result["replaced"]) == (0, 3, 1), growing.log.read_text()
    lakes.check(growing.lake, growing.rows["whole"], capsys)
    assert growing.ingest(replace_changed=True)[1]["replaced"] == 0


@pytest.mark.slow
def test_a_content_that_comes_back_is_read_again(growing: Growing, capsys: pytest.CaptureFixture[str]) -> None:
    for content in ("half", "whole", "half", "whole", "half"):
        growing.become(content)
        code, _ = growing.ingest(replace_changed=True)
        assert code == 0, growing.log.read_text()
        lakes.check(growing.lake, growing.rows[content], capsys)
    assert growing.ingest()[1]["already_ingested"] == 3
    lakes.check(growing.lake, growing.rows["half"], capsys)


@pytest.mark.slow
def test_what_is_no_capture_replaces_nothing(growing: Growing, capsys: pytest.CaptureFixture[str]) -> None:
    growing.start()
    growing.path.write_bytes(b"no capture any more")
    code, result = growing.ingest(replace_changed=True)
    assert (code, result["quarantined"], result["changed"], result["replaced"]) == (1, 1, 1, 0)
    rows = growing.rows["half"]
    more = {"captures": rows["captures"] + 1, "quarantine": rows["quarantine"] + 1}
    lakes.check(growing.lake, {**rows, **more}, capsys)


@pytest.mark.slow
def test_ctrl_c_replaces_nothing(growing: Growing, capsys: pytest.CaptureFixture[str]) -> None:
    growing.start()
    growing.become("whole")
    code, result = growing.ingest(replace_changed=True, interrupt="after stage.5")
    assert (code, result["replaced"]) == (130, 0)
    code, result = growing.ingest(replace_changed=True)
    assert (code, result["replaced"]) == (0, 1), growing.log.read_text()
    lakes.check(growing.lake, growing.rows["whole"], capsys)


STEPS = (
    "before swap",
    "after swap record",
    "after swap can_frames",
    "after swap packets",
    "after swap captures",
)
THEN = [(where, then) for where in STEPS for then in ("the same", "the old content")]
THEN += [(where, then) for where in STEPS[::3] for then in ("an ordinary ingest", "a ledger built anew")]


@pytest.mark.slow
@pytest.mark.parametrize(("where", "then"), THEN)
def test_killed_between_two_steps(where: str, then: str, growing: Growing, capsys: pytest.CaptureFixture[str]) -> None:
    growing.start()
    growing.become("whole")
    killed, _ = growing.ingest(replace_changed=True, kill=where)
    assert killed == -signal.SIGKILL, growing.log.read_text()
    begun = where != "before swap"
    expected = dict(growing.rows["whole"])
    if then == "the same":
        assert growing.ingest(replace_changed=True)[0] == 0, growing.log.read_text()
    elif then == "an ordinary ingest":
        assert growing.ingest()[0] == 0, growing.log.read_text()
        if not begun:
            assert growing.ingest(replace_changed=True)[1]["replaced"] == 1
    elif then == "the old content":
        growing.become("half")
        assert growing.ingest(replace_changed=True)[0] == 0, growing.log.read_text()
        expected = dict(growing.rows["half"]) | {SIGHTINGS: int(not begun)}  # the lake had it still
    else:
        (growing.lake / lakes.LEDGER_FILE).unlink()
        code, out, err = lakes.run(capsys, "doctor", "--lake", growing.lake, "--repair", "--adopt", "--yes")
        assert code in (0, 1), out + err  # batches wait for the next ingest
        if not begun:
            assert growing.ingest(replace_changed=True)[1]["replaced"] == 1
        growing.become("half")
        assert growing.ingest(replace_changed=True)[0] == 0, growing.log.read_text()
        expected = dict(growing.rows["half"])
    lakes.check(growing.lake, {name: expected[name] for name in TABLES}, capsys)


def replaced_twice(growing: Growing) -> None:
    """Half, then whole, then half again: two contents were replaced."""
    for content in ("half", "whole", "half"):
        growing.become(content)
        assert growing.ingest(replace_changed=True)[0] == 0, growing.log.read_text()


@pytest.mark.slow
def test_an_older_copy_of_the_ledger_takes_no_content_that_came_back(
    growing: Growing, capsys: pytest.CaptureFixture[str]
) -> None:
    growing.start()
    older = (growing.lake / lakes.LEDGER_FILE).read_bytes()
    replaced_twice(growing)
    for path in growing.lake.glob(f"{lakes.LEDGER_FILE}*"):
        path.unlink()
    (growing.lake / lakes.LEDGER_FILE).write_bytes(older)
    assert growing.ingest()[0] == 3, "the ledger does not know the last batches"
    code, out, err = lakes.run(capsys, "doctor", "--lake", growing.lake, "--repair", "--yes")
    assert code == 0, out + err
    assert growing.ingest()[0] == 0, growing.log.read_text()
    lakes.check(growing.lake, growing.rows["half"], capsys)


def versions(growing: Growing, table: str) -> list[Path]:
    return sorted((growing.lake / table / "_delta_log").glob("*.json"))


@pytest.mark.slow
def test_a_table_that_was_rolled_back_loses_replaced_rows_again(
    growing: Growing, capsys: pytest.CaptureFixture[str]
) -> None:
    """The version that removed the rows is lost: no batch is, so nobody else can tell."""
    growing.start()
    growing.become("whole")
    growing.ingest(replace_changed=True)
    versions(growing, "packets")[-1].unlink()
    code, out, _ = lakes.run(capsys, "doctor", "--lake", growing.lake)
    assert code == 1
    assert "older rows of 1 capture" in out
    assert growing.ingest()[0] == 0, growing.log.read_text()
    lakes.check(growing.lake, growing.rows["whole"], capsys)
    assert lakes.run(capsys, "doctor", "--lake", growing.lake)[0] == 0


@pytest.mark.slow
def test_an_accepted_loss_brings_no_replaced_rows_back(growing: Growing, capsys: pytest.CaptureFixture[str]) -> None:
    growing.start()
    growing.become("whole")
    growing.ingest(replace_changed=True)
    for path in versions(growing, "packets")[-2:]:  # the batch of the whole, too
        path.unlink()
    assert growing.ingest()[0] == 3
    before = len(versions(growing, "packets"))
    assert growing.ingest(replace_changed=True)[0] == 3
    assert len(versions(growing, "packets")) == before, "nobody writes to it before it is free: it may be put back"
    options = ("--repair", "--accept-loss", "packets", "--yes")
    lakes.run(capsys, "doctor", "--lake", growing.lake, *options)
    assert growing.ingest()[0] == 0, growing.log.read_text()
    half, whole = growing.rows["half"], growing.rows["whole"]
    assert lakes.by_polars(growing.lake)["packets"] < half["packets"], "those of the others, which share no content"
    assert lakes.by_polars(growing.lake)["can_frames"] == whole["can_frames"]


@pytest.mark.slow
def test_killed_at_random_moments_while_captures_change(
    tmp_path: Path, moments: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Captures share files and change again and again. The seed is printed when it fails; `make torture` kills 200 runs."""
    seed = random.SystemRandom().getrandbits(32)
    rng = random.Random(seed)
    folder, lake, log = tmp_path / "in", tmp_path / "lake", tmp_path / "log"
    folder.mkdir()
    frames = dict.fromkeys(("a", "b", "c"), 0)

    def change(names: list[str]) -> None:
        for name in names:
            frames[name] = rng.choice([count for count in range(1, 40) if count != frames[name]])
            (folder / f"{name}.pcap").write_bytes(can_capture(frames[name], rng.randrange(1000)))

    change(list(frames))
    given = {"threads": 1, "replace_changed": True}
    assert lakes.ingest([folder], lake, log, threads=1)[0] == 0, log.read_text()
    change(["a"])
    begin = time.monotonic()
    assert lakes.ingest([folder], lake, log, **given)[0] == 0, log.read_text()
    longest = time.monotonic() - begin
    killed = 0
    for moment in range(moments):
        change(rng.sample(list(frames), rng.randint(1, 2)))
        process = lakes.start([folder], lake, log, **given)
        process.join(rng.uniform(longest / 3, longest))
        if process.exitcode is None:
            os.kill(process.pid, signal.SIGKILL)
        process.join()
        killed += process.exitcode == -signal.SIGKILL
        assert process.exitcode in (0, -signal.SIGKILL), f"seed {seed}, moment {moment}: {log.read_text()}"
        if moment % 3 < 2:  # what is left over adds up
            continue
        for options in (given, {"threads": 1}):
            code, result = lakes.ingest([folder], lake, log, **options)
            assert (code, result["changed"]) == (0, 0), f"seed {seed}, moment {moment}: {log.read_text()}"
        rows = {"captures": 3, "packets": sum(frames.values()), "can_frames": sum(frames.values())}
        lakes.check(lake, {name: rows.get(name, 0) for name in TABLES}, capsys)
        code, out, _ = lakes.run(capsys, "doctor", "--lake", lake)
        assert code == 0, f"seed {seed}, moment {moment}: {out}"
    assert killed > moments / 4, f"seed {seed}"
