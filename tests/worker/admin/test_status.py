"""What `pcaplake status` shows: lakes in memory, whose clock and leader the test moves, and a real one on a terminal."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pcaplake.lake.ledger import Lease
from pcaplake.lake.records import Manifest, manifest_path
from pcaplake.lake.tables import SCHEMAS
from pcaplake.worker.admin.doctor.checks_queue import QueueFacts
from pcaplake.worker.admin.open_case import Subject
from pcaplake.worker.admin.status import FleetWatch, LakeStatus, LakeWatch, Leader, Status, TableStatus
from pcaplake.worker.cli.status import render_status
from pcaplake.worker.config.service_settings import FleetSettings
from tests.drives import Drive
from tests.lake.delta.deltas import add, foreign
from tests.worker import lakes
from tests.worker.patients import Ground, change, described, drop, with_checkpoint

Capsys = pytest.CaptureFixture[str]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def watch_of(ground: Ground, clock: Clock | None = None) -> LakeWatch:
    return LakeWatch(ground.case(), clock or Clock())


async def look(ground: Ground) -> LakeStatus:
    return await watch_of(ground).read_status(wait=True)


async def test_a_lake_at_rest_and_one_that_works() -> None:
    ground = await Ground().start()
    now = await look(ground)
    assert (now.problem, now.head, now.last_batch, now.pending, now.oldest_pending) == (None, 2, 2, 0, None)
    assert now.leader == Leader(owner="", moves=False)
    packets = now.tables["packets"]
    assert (packets.version, packets.txn, packets.files, packets.rows) == (3, 2, 3, 6)
    files = ground.objects("packets", ".parquet")
    assert packets.bytes == sum(len(ground.store.objects[path][0]) for path in files)
    assert (packets.checkpoint, packets.checkpoint_age, packets.blocked) == (None, None, None)
    stage = await ground.staged("d")
    await ground.staged("e")
    held = await ground.staged("f")
    assert await ground.ledger.hold_stage(0, held.stage_id, "a test")
    ground.days = 0.5
    manifest = Manifest(batch=3, generation=0, opens=False, tables=(), stages=(stage,))
    ground.store.put_past_faults(manifest_path(3), manifest.to_json())
    now = await look(ground)
    assert (now.head, now.last_batch, now.pending, now.oldest_pending) == (2, 3, 2, 43_200.0)
    assert now.held == {held.stage_id: "a test"}


async def test_blocked_tables_and_those_that_cannot_be_read() -> None:
    ground = await Ground().start()
    change(ground, "packets", described(ground, "packets", configuration={"delta.constraints.c": "x"}))
    drop(ground, f"captures/_delta_log/{2:020d}.json")
    now = await look(ground)
    assert now.blocked_tables.keys() == {"packets", "captures"}
    assert "delta.constraints.c is set" in now.blocked_tables["packets"]
    assert "version 2 is missing" in now.blocked_tables["captures"]


async def test_what_is_kept_between_looks_is_only_continued() -> None:
    ground = await Ground().start()
    watch = watch_of(ground)
    assert (await watch.read_status(wait=True)).tables["packets"].files == 3
    await ground.batch("d")
    metadata_read = f"store.get packets/_delta_log/{1:020d}.json"
    ground.faults.seen.clear()
    now = await watch.read_status(wait=True)
    assert (now.head, now.tables["packets"].files, now.tables["packets"].rows) == (3, 4, 8)
    assert metadata_read not in ground.faults.seen
    gone = next(iter(json.loads(line)["add"]["path"] for line in log_of(ground) if "add" in json.loads(line)))
    foreign(ground.store, "packets", {"remove": {"path": gone, "dataChange": False}}, {"add": bare("compacted")})
    now = await watch.read_status(wait=True)
    assert (now.tables["packets"].files, now.tables["packets"].rows) == (4, None), "one does not say its rows"


def log_of(ground: Ground) -> list[bytes]:
    return [line for name in ground.objects("packets", ".json") for line in ground.store.objects[name][0].splitlines()]


def bare(name: str) -> dict[str, Any]:
    return {key: value for key, value in add(name).to_json().items() if key != "stats"}


async def test_a_log_that_was_cleaned_up_between_two_looks_is_read_anew() -> None:
    ground = await Ground().start()
    watch = watch_of(ground)
    await watch.read_status(wait=True)
    await ground.batch("d")
    ground.days = 1.0
    with_checkpoint(ground, "packets", 4, [add(number, rows=10) for number in range(5)], clean_up=True)
    ground.days = 1.5
    packets = (await watch.read_status(wait=True)).tables["packets"]
    assert (packets.version, packets.files, packets.rows) == (4, 5, 50)
    assert (packets.checkpoint, packets.checkpoint_age) == (4, 43_200.0)


async def test_whether_somebody_leads_is_seen_from_the_beat() -> None:
    ground = await Ground().start()
    clock = Clock()
    watch = watch_of(ground, clock)

    async def seen(beat: int) -> bool | None:
        ground.ledger.shared.lease = Lease(owner="leader", beat=beat)
        now = await watch.read_status(wait=False)
        assert now.leader.owner == "leader"
        return now.leader.moves

    assert await seen(1) is None, "seen once"
    assert await seen(1) is None
    assert await seen(2) is True
    clock.now = 0.5
    assert await seen(2) is True, "it has time"
    clock.now = 1.1
    assert await seen(2) is False
    assert await seen(3) is True
    ground.ledger.shared.lease = Lease(owner="", beat=4)
    assert (await watch.read_status(wait=False)).leader == Leader(owner="", moves=False)

    ground.ledger.shared.lease = Lease(owner="leader", beat=5)
    ground.slept = 0.0
    assert (await look(ground)).leader.moves is False
    assert ground.slept == pytest.approx(1.0), "the wait for the lease"

    def beat() -> None:
        ground.ledger.shared.lease = Lease(owner="leader", beat=6)

    ground.while_asleep = beat
    ground.slept = 0.0
    assert (await look(ground)).leader.moves is True
    assert ground.slept < 0.5, "no longer than needed"


async def test_a_lake_that_cannot_be_known() -> None:
    ground = await Ground().start()
    broken = await LakeWatch(ground.case(log_store="put-if-absent")).read_status(wait=True)
    assert broken.problem is None, "that is for the doctor"
    ground.faults.inject_fault("ledger.head", "error")
    assert "injected" in ((await look(ground)).problem or "")
    drop(ground, "_pcaplake/lake.json")
    assert "lake.json is gone" in ((await look(ground)).problem or "")
    assert "does not exist yet" in ((await look(Ground())).problem or "")


# -- what is shown --------------------------------------------------------------------------------------------------------


def text(now: Status) -> list[str]:
    console = Console(width=160, no_color=True, highlight=False)
    with console.capture() as captured:
        console.print(render_status(now))
    return [line.rstrip() for line in captured.get().splitlines()]


def table(**values: Any) -> TableStatus:
    given = {"version": 7, "txn": 3, "files": 2, "rows": 1_234_567, "bytes": 99, "checkpoint": 5}
    return TableStatus(**{**given, "checkpoint_age": 7_200.0, "blocked": None, **values})


def test_one_screen() -> None:
    dead = QueueFacts(name="q-dead", visible=2, in_flight=0, delayed=0, visibility_timeout=30, retention=1)
    queue = QueueFacts(
        name="q", visible=1_000, in_flight=3, delayed=0, visibility_timeout=30, retention=1, oldest_age=90.0,
        max_receives=5, dead_letters=dead,
    )  # fmt: skip
    lake = LakeStatus(
        uri="s3://lakes/a", lake_id="1", head=3, last_batch=5, pending=4, oldest_pending=600.0, held={"s": "[why]"},
        leader=Leader(owner="me", moves=True), tables={"packets": table(), "faults": table(rows=None, blocked="faults: no")},
    )  # fmt: skip
    other = LakeStatus(uri="s3://lakes/b", problem="no permission")
    assert text(Status(queue=queue, queue_problem=None, lakes=(lake, other))) == [
        "queue q: 1,000 visible (the oldest for 90 s), 3 in flight, 0 delayed, 2 dead letters",
        "",
        "s3://lakes/a",
        "  batches: head 3, last 5 (2 open)",
        "  stages: 4 pending, the oldest for 10 min, 1 held",
        "  committer: me, heartbeat active",
        "  held s: [why]",
        "  blocked faults: no",
        " table      version  batch  files       rows  bytes   checkpoint",
        "   packets        7      3      2  1,234,567     99  5 (2 h ago)",
        "   faults         7      3      2          ?     99  5 (2 h ago)",
        "",
        "s3://lakes/b: no permission",
    ]
    unseen = LakeStatus(
        uri="s3://lakes/a",
        not_allowed=("DynamoDB Query on l",),
        head=None,
        last_batch=5,
        pending=None,
        held=None,
        leader=None,
    )
    queue = replace(queue, dead_letters=None, not_allowed="SQS queue q-dead")
    now = Status(queue=queue, queue_problem=None, lakes=(unseen,))
    assert now.is_complete
    assert text(now) == [
        "queue q: 1,000 visible (the oldest for 90 s), 3 in flight, 0 delayed, dead letters unknown (not allowed: SQS queue "
        "q-dead)",
        "",
        "s3://lakes/a",
        "  batches: head unknown, last 5",
        "  stages: unknown pending, unknown held",
        "  committer: unknown",
        "  not allowed: DynamoDB Query on l",
    ]
    failed = Status(queue=None, queue_problem="no such queue", lakes=())
    assert (text(failed), failed.is_complete) == (["queue: no such queue"], False)


@pytest.mark.slow
def test_a_lake_of_this_machine(drive: Drive, tmp_path: Path, capsys: Capsys) -> None:
    lake = tmp_path / "lake"
    assert lakes.run(capsys, "ingest", drive.folder, "--lake", lake, "--profile", drive.profile)[0] == 0
    code, out, err = lakes.run(capsys, "status", "--lake", lake, "--json")
    assert (code, err) == (0, "")
    said = json.loads(out)
    assert said["queue"] is None
    (one,) = said["lakes"]
    assert (one["problem"], one["pending"], one["head"]) == (None, 0, one["last_batch"])
    code, out, _ = lakes.run(capsys, "tables", "--lake", lake, "--json")
    counted = json.loads(out)
    assert {name: {key: each[key] for key in counted[name]} for name, each in one["tables"].items()} == counted
    code, out, err = lakes.run(capsys, "status", "--lake", lake)
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert all(name in out for name in SCHEMAS)
    (lake / "_pcaplake/ledger.sqlite").unlink()
    code, out, _ = lakes.run(capsys, "status", "--lake", lake)
    assert code == 3
    assert "ledger.sqlite does not exist" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lake", "{tmp}/no"], "no does not exist"),
        (["--lake", "{tmp}", "--watch"], "--watch needs a terminal"),
        (["--lake", "{tmp}", "--every", "0.1"], "the minimum is 0.5 s"),
    ],
)
def test_usage(arguments: list[str], message: str, tmp_path: Path, capsys: Capsys) -> None:
    code, out, err = lakes.run(capsys, "status", *(each.format(tmp=tmp_path) for each in arguments))
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.slow
def test_live_on_a_terminal_until_ctrl_c(drive: Drive, tmp_path: Path, capsys: Capsys) -> None:
    lake = tmp_path / "lake"
    assert lakes.run(capsys, "ingest", drive.captures[0], "--lake", lake, "--profile", drive.profile)[0] == 0
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "pcaplake.worker", "status", "--lake", lake, "--watch", "--every", "0.5"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160", "LINES": "50"}
    process = subprocess.Popen(command, stdout=slave, stderr=slave, env=environment, start_new_session=True)
    os.close(slave)
    drawn = b""
    interrupted = False
    while True:
        try:
            drawn += os.read(master, 65_536)
        except OSError:  # the other end is closed
            break
        if drawn.count(b"batches: head 0, last 0") >= 2 and not interrupted:
            interrupted = True
            process.send_signal(signal.SIGINT)
    os.close(master)
    assert process.wait() == 0
    assert interrupted
    assert b"Traceback" not in drawn


async def test_two_lakes_of_settings_one_of_which_is_gone(drive: Drive, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    assert lakes.ingest([drive.captures[0]], lake, tmp_path / "log", profile=str(drive.profile))[0] == 0
    routes = [f"  - {{bucket: {name}, lake: '{tmp_path / name}'}}" for name in ("lake", "other")]
    (tmp_path / "routes.yaml").write_text("\n".join(["routes:", *routes]))
    async with FleetWatch(Subject(settings=FleetSettings(routes=tmp_path / "routes.yaml"))) as watch:
        now = await watch.read_status()
    assert [one.problem for one in now.lakes] == [None, "the lake does not exist yet"]
    assert not now.is_complete
