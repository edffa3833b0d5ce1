"""Which Jobs are launched when, by whichever leader; what the file may say; the command."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.worker.cli import app as cli
from pcaplake.worker.config.settings import WrongSetting
from pcaplake.worker.kubernetes.api import Forbidden, Refused
from pcaplake.worker.kubernetes.jobs import ClusterJobs
from pcaplake.worker.kubernetes.operator import Operator
from pcaplake.worker.kubernetes.plan import DUE, Plan
from pcaplake.worker.kubernetes.schedule import Delete, Launch, Overlap, Seen, State, decide
from tests.worker.kubernetes import clusters
from tests.worker.kubernetes.clusters import until
from tests.worker.telemetry.counts import Counts

NOON = datetime(2026, 3, 28, 12, 0, 30, tzinfo=UTC)
TEMPLATE = {
    "spec": {
        "backoffLimit": 1,
        "template": {
            "spec": {"restartPolicy": "Never", "containers": [{"name": "spark", "image": "spark", "args": ["x"]}]}
        },
    }
}


def plan_of(folder: Path, **given: Any) -> Plan:
    file = folder / "jobs.yaml"
    file.write_text(yaml.safe_dump({"template": TEMPLATE, "jobs": {"compact": {"schedule": "0 * * * *"}}, **given}))
    return Plan.load(file)


def seen(due: datetime, state: State = "active", job: str = "compact", uid: str | None = None) -> Seen:
    name = f"op-{job}-{int(due.timestamp()) // 60}"
    return Seen(name=name, uid=uid or name, job=job, due=due, state=state)


@pytest.fixture
def counts() -> Counts:
    return Counts()


# -- the file ---------------------------------------------------------------------------------------------------------
def test_labels_and_annotations_of_a_job_are_of_its_pod_too(tmp_path: Path) -> None:
    """What finds our Jobs is ours, whatever the file says."""
    job = {
        "schedule": "0 * * * *",
        "labels": {"lake": "a", "pcaplake-job": "x"},
        "annotations": {"uri": "s3://a", DUE: "never"},
    }
    made = plan_of(tmp_path, jobs={"compact": job}).manifest("compact", NOON, operator="op")
    for meta in (made["metadata"], made["spec"]["template"]["metadata"]):
        assert meta["labels"]["lake"] == "a"
        assert meta["labels"]["pcaplake-job"] == "compact"
        assert meta["annotations"]["uri"] == "s3://a"
    assert made["metadata"]["annotations"][DUE] == NOON.isoformat()


def test_a_job_is_made_of_its_template(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(yaml.safe_dump({**TEMPLATE, "metadata": {"labels": {"team": "x"}}}))
    jobs = {
        "compact": {"schedule": "17 * * * *", "args": ["compact", "--lake", "s3://lake/a"]},
        "vacuum": {"schedule": "0 2 * * *", "template": "other.yaml"},
    }
    plan = plan_of(tmp_path, jobs=jobs)
    due = datetime(2026, 3, 28, 12, 17, tzinfo=UTC)
    made = plan.manifest("compact", due, operator="op")
    assert (made["apiVersion"], made["kind"]) == ("batch/v1", "Job")
    assert made["metadata"]["name"] == f"op-compact-{int(due.timestamp()) // 60}"
    assert made["metadata"]["annotations"][DUE] == "2026-03-28T12:17:00+00:00"
    assert made["spec"]["template"]["spec"]["containers"][0]["args"] == ["compact", "--lake", "s3://lake/a"]
    other = plan.manifest("vacuum", due, operator="op")
    assert other["metadata"]["labels"]["team"] == "x"
    assert other["spec"]["template"]["spec"]["containers"][0]["args"] == ["x"]
    assert made["spec"]["template"]["metadata"]["labels"]["pcaplake-job"] == "compact"
    assert plan.manifest("compact", due, operator="op") == made, "templates are not changed by what is made of them"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"jobs": {}}, "jobs"),
        ({"jobs": {"Compact": {"schedule": "0 * * * *"}}}, "Compact"),
        ({"jobs": {"c": {"schedule": "0 * * *"}}}, "five fields"),
        ({"jobs": {"c": {"schedule": "0 0 30 2 *"}}}, "not a cron schedule"),
        ({"jobs": {"c": {"schedule": "61 * * * *"}}}, "not a cron schedule"),
        ({"jobs": {"c": {"schedul": "0 * * * *"}}}, "schedul"),
        ({"timezone": "Europe/Nowhere"}, "time zone"),
        ({"late": "soon"}, "is not a time"),
        ({"keep_failed": 0}, "keep_failed"),
        ({"template": None}, "no template"),
        ({"template": "nothing.yaml"}, "cannot read"),
        ({"template": {"kind": "Pod"}}, "batch/v1"),
        ({"template": {"spec": {}}}, "one container"),
        ({"template": {"spec": {"template": {"spec": {"containers": [{"name": "a"}]}}}}}, "restartPolicy"),
        ({"template": {**TEMPLATE, "metadata": {"namespace": "x"}}}, "namespace"),
        ({"template": {"spec": {**TEMPLATE["spec"], "ttlSecondsAfterFinished": 5}}}, "ttlSecondsAfterFinished"),
        ({"template": [1]}, "template"),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_name(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    with pytest.raises(WrongSetting, match=said):
        plan_of(tmp_path, **given)


def test_a_template_file_that_is_no_job(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("- a list")
    with pytest.raises(WrongSetting, match=r"t\.yaml"):
        plan_of(tmp_path, template="t.yaml")


@pytest.mark.parametrize(
    ("zone", "schedule", "now", "due"),
    [
        ("Etc/UTC", "0 * * * *", "2026-03-28T12:00:00Z", "2026-03-28T12:00:00Z"),
        ("Etc/UTC", "0 * * * *", "2026-03-28T11:59:59Z", "2026-03-28T11:00:00Z"),
        ("Europe/Berlin", "30 2 * * *", "2026-03-28T12:00:00Z", "2026-03-28T01:30:00Z"),
        ("Europe/Berlin", "30 2 * * *", "2026-06-28T12:00:00Z", "2026-06-28T00:30:00Z"),
        ("Europe/Berlin", "30 2 * * *", "2026-03-29T12:00:00Z", "2026-03-29T01:00:00Z"),  # 2:30 is not: at 3:00
    ],
)
def test_times_are_those_of_the_zone(tmp_path: Path, zone: str, schedule: str, now: str, due: str) -> None:
    plan = plan_of(tmp_path, timezone=zone, jobs={"c": {"schedule": schedule}})
    assert plan.last_due("c", datetime.fromisoformat(now)) == datetime.fromisoformat(due)


# -- what is decided --------------------------------------------------------------------------------------------------
def test_a_time_is_launched_once_and_not_beside_another(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    due, before = NOON.replace(second=0), NOON.replace(hour=11, second=0)
    assert decide(plan, [], NOON) == [Launch(job="compact", due=due)]
    states: tuple[State, ...] = ("active", "succeeded", "failed")
    for state in states:
        assert decide(plan, [seen(due, state)], NOON) == []
    assert decide(plan, [seen(before)], NOON) == [Overlap(job="compact", due=due, running=seen(before).name)]
    assert decide(plan, [seen(before, "failed")], NOON) == [Launch(job="compact", due=due)]
    assert decide(plan, [seen(before, job="other")], NOON) == [Launch(job="compact", due=due)]


def test_what_is_too_late_or_suspended_is_left_out(tmp_path: Path) -> None:
    assert decide(plan_of(tmp_path), [], NOON + timedelta(minutes=10)) == []
    assert decide(plan_of(tmp_path, late="20m"), [], NOON + timedelta(minutes=10)) != []
    assert decide(plan_of(tmp_path, jobs={"c": {"schedule": "0 * * * *", "suspend": True}}), [], NOON) == []


@pytest.mark.slow
@given(
    states=st.lists(st.sampled_from(["active", "succeeded", "failed"]), max_size=12),
    succeeded=st.integers(1, 3),
    failed=st.integers(1, 3),
    order=st.randoms(use_true_random=False),
)
def test_history_keeps_the_last_and_never_what_runs(
    tmp_path_factory: pytest.TempPathFactory, states: list[State], succeeded: int, failed: int, order: Any
) -> None:
    plan = plan_of(tmp_path_factory.mktemp("p"), keep_succeeded=succeeded, keep_failed=failed)
    there = [seen(NOON - timedelta(hours=hours), state, uid=str(hours)) for hours, state in enumerate(states, 1)]
    newest = there[0] if there else None
    order.shuffle(there)
    gone = [action.seen for action in decide(plan, there, NOON) if isinstance(action, Delete)]
    stay = [one for one in there if one not in gone]
    assert newest is None or newest in stay
    keep: dict[State, int] = {"active": 99, "succeeded": succeeded, "failed": failed}
    for state, most in keep.items():
        all_of = sorted((one for one in there if one.state == state), key=lambda one: one.due, reverse=True)
        assert [one for one in all_of if one in stay] == all_of[:most]


# -- what is done -----------------------------------------------------------------------------------------------------
class MemoryJobs:
    """A namespace's Jobs; `fail` holds what the next calls raise."""

    def __init__(self) -> None:
        self.jobs: dict[str, Seen] = {}
        self.launched: Counter[str] = Counter()
        self.fail: list[Exception] = []

    def _maybe(self) -> None:
        if self.fail:
            raise self.fail.pop(0)

    async def there(self) -> Sequence[Seen]:
        self._maybe()
        return list(self.jobs.values())

    async def make(self, manifest: Mapping[str, Any]) -> bool:
        self._maybe()
        name, labels = manifest["metadata"]["name"], manifest["metadata"]["labels"]
        if name in self.jobs:
            return False
        due = datetime.fromisoformat(manifest["metadata"]["annotations"][DUE])
        self.jobs[name] = Seen(name=name, uid=name, job=labels["pcaplake-job"], due=due, state="active")
        self.launched[name] += 1
        return True

    async def delete(self, seen: Seen) -> None:
        self._maybe()
        del self.jobs[seen.name]

    def end(self, state: State = "succeeded", why: str = "") -> None:
        for name, one in self.jobs.items():
            if one.state == "active":
                self.jobs[name] = Seen(name=name, uid=one.uid, job=one.job, due=one.due, state=state, why=why)


class Days:
    """Looks of one or more leaders at times that the test names."""

    def __init__(self, plan: Plan, counts: Counts, leaders: int = 1) -> None:
        self.jobs, self.now = MemoryJobs(), NOON.replace(minute=0, second=0)
        self.leaders = [
            Operator(plan, self.jobs, name="op", meter=counts, now=lambda: self.now) for _ in range(leaders)
        ]

    def look(self, **later: float) -> None:
        self.now += timedelta(**later)

        async def all_of() -> None:
            await asyncio.gather(*(leader.turn() for leader in self.leaders))

        asyncio.run(all_of())


@pytest.mark.slow
def test_a_day_of_hourly_jobs_by_two_who_both_believe_to_lead(tmp_path: Path, counts: Counts) -> None:
    days = Days(plan_of(tmp_path), counts, leaders=2)
    for _ in range(24 * 60):
        days.look(minutes=1)
        if days.now.minute == 30:
            days.jobs.end()
    assert len(days.jobs.launched) == 24 + 1
    assert set(days.jobs.launched.values()) == {1}
    assert counts("operator_jobs_total", job="compact", outcome="launched") == 25
    assert len(days.jobs.jobs) == 2, "the one that runs, and a day's history"


def test_overlap_waits_is_told_once_and_is_launched_late(
    tmp_path: Path, counts: Counts, caplog: pytest.LogCaptureFixture
) -> None:
    days = Days(plan_of(tmp_path, late="20m"), counts)
    days.look()
    for _ in range(10):
        days.look(minutes=6.5)
    assert len(days.jobs.launched) == 1
    assert counts("operator_jobs_total", job="compact", outcome="overlap") == 1
    assert "is still running" in caplog.text
    days.jobs.end()
    days.look(minutes=1)
    assert len(days.jobs.launched) == 2


def test_what_becomes_of_jobs_is_told(tmp_path: Path, counts: Counts, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    days = Days(plan_of(tmp_path), counts)
    days.look()
    days.look(minutes=1)
    days.jobs.end("failed", why="BackoffLimitExceeded: it has failed twice")
    days.look(minutes=1)
    days.look(minutes=1)
    assert "launched op-compact-" in caplog.text
    assert caplog.text.count("failed: BackoffLimitExceeded: it has failed twice") == 1
    assert counts("operator_jobs_total", job="compact", outcome="failed") == 1
    days.look(minutes=57)
    days.jobs.end()
    days.look(minutes=1)
    assert counts("operator_jobs_total", job="compact", outcome="succeeded") == 1


def test_a_job_that_cannot_be_is_told_once_each_time_and_keeps_nobody_waiting(tmp_path: Path, counts: Counts) -> None:
    jobs = {"bad": {"schedule": "0 * * * *"}, "good": {"schedule": "0 * * * *"}}
    days = Days(plan_of(tmp_path, jobs=jobs), counts)
    days.jobs.fail = []
    make = days.jobs.make

    async def picky(manifest: Mapping[str, Any]) -> bool:
        if "bad" in manifest["metadata"]["name"]:
            raise Refused(422, "no such field")
        return await make(manifest)

    days.jobs.make = picky  # type: ignore[method-assign]
    for _ in range(5):
        days.look(seconds=10)
    assert counts("operator_jobs_total", job="bad", outcome="refused") == 1
    assert [name.split("-")[1] for name in days.jobs.launched] == ["good"]
    days.look(hours=1)
    assert counts("operator_jobs_total", job="bad", outcome="refused") == 2


async def test_a_job_that_a_quota_forbids_is_tried_again_and_keeps_nobody_waiting(
    tmp_path: Path, counts: Counts, caplog: pytest.LogCaptureFixture
) -> None:
    """403 is also what ResourceQuota and admission webhooks answer: it stops neither the others nor the process."""
    jobs, now, forbids = MemoryJobs(), NOON.replace(minute=0, second=0), True
    later = {"bad": {"schedule": "0 * * * *"}, "good": {"schedule": "1 * * * *"}}
    make = jobs.make

    class Enough(Exception):
        pass

    async def picky(manifest: Mapping[str, Any]) -> bool:
        if "bad" in manifest["metadata"]["name"] and forbids:
            raise Forbidden("exceeded quota")
        return await make(manifest)

    async def kept(seen: Seen) -> None:
        raise Forbidden("denied by a webhook")

    async def sleep(seconds: float) -> None:
        nonlocal now, forbids
        now += timedelta(seconds=seconds)
        if now.minute == 5:
            jobs.end()
            forbids = False
        if now.minute == 6:
            raise Enough

    jobs.make, jobs.delete = picky, kept  # type: ignore[method-assign]
    for hour in (1, 2):  # history that should go
        due = now - timedelta(hours=hour)
        jobs.jobs[f"old-{hour}"] = Seen(name=f"old-{hour}", uid=str(hour), job="good", due=due, state="succeeded")
    operator = Operator(
        plan_of(tmp_path, jobs=later), jobs, name="op", every=10.0, meter=counts,
        now=lambda: now, clock=lambda: now.timestamp(), sleep=sleep,
    )  # fmt: skip
    with pytest.raises(Enough):
        await operator.run()
    assert {name.split("-")[1]: made for name, made in jobs.launched.items()} == {"good": 1, "bad": 1}
    assert counts("operator_jobs_total", job="bad", outcome="refused") == 1
    assert caplog.text.count("exceeded quota") == 1
    assert "old-2" in jobs.jobs
    assert caplog.text.count("cannot delete old-2, which has succeeded") == 1


async def test_a_role_that_may_make_no_job_is_final(tmp_path: Path, counts: Counts) -> None:
    jobs, now = MemoryJobs(), NOON
    file = {
        "a": {"schedule": "0 * * * *"},
        "b": {"schedule": "1 * * * *"},
        "c": {"schedule": "0 0 * * *", "suspend": True},
    }

    async def never(manifest: Mapping[str, Any]) -> bool:
        raise Forbidden("the Role")

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += timedelta(seconds=seconds)

    jobs.make = never  # type: ignore[method-assign]
    operator = Operator(
        plan_of(tmp_path, jobs=file), jobs, name="op", every=10.0, meter=counts,
        now=lambda: now, clock=lambda: now.timestamp(), sleep=sleep,
    )  # fmt: skip
    with pytest.raises(Fatal, match="the Role"):
        await operator.run()
    assert NOON + timedelta(seconds=60) <= now <= NOON + timedelta(seconds=90), "b was due, and half a minute"


async def test_a_leader_goes_on_after_failures(tmp_path: Path, counts: Counts) -> None:
    class Enough(Exception):
        pass

    jobs, looks = MemoryJobs(), 0
    jobs.fail = [Retryable("away"), Retryable("away")]

    async def sleep(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 4:
            raise Enough

    operator = Operator(plan_of(tmp_path), jobs, name="op", meter=counts, now=lambda: NOON, sleep=sleep)
    with pytest.raises(Enough):
        await operator.run()
    assert len(jobs.launched) == 1
    assert operator.seconds_since_listing == 0, "it does not lead"


async def test_a_refusal_is_final_when_it_lasts(tmp_path: Path, counts: Counts) -> None:
    """A server that has just begun forbids everything for some seconds."""
    jobs, now = MemoryJobs(), 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    jobs.fail = [Forbidden("no"), Forbidden("no"), Retryable("away")] + [Forbidden("the Role")] * 9
    given: dict[str, Any] = {"meter": counts, "now": lambda: NOON, "clock": lambda: now, "sleep": sleep}
    with pytest.raises(Fatal, match="the Role"):
        await Operator(plan_of(tmp_path), jobs, name="op", every=5.0, **given).run()
    assert now >= 30


# -- over the API server ----------------------------------------------------------------------------------------------
async def test_jobs_of_the_cluster(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with clusters.connected(tmp_path) as (api, cluster):
        plan, jobs = plan_of(tmp_path), ClusterJobs(cluster, namespace="ns", operator="op")
        manifest = plan.manifest("compact", NOON, operator="op")
        assert await jobs.make(manifest)
        assert not await jobs.make(manifest)
        assert await ClusterJobs(cluster, namespace="ns", operator="other").there() == []
        (one,) = await jobs.there()
        assert (one.job, one.due, one.state) == ("compact", NOON, "active")
        doc = api.objects["jobs", one.name]
        condition = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "too long"}
        doc["status"] = {"conditions": [{"type": "FailureTarget", "status": "True"}, condition]}
        (ended,) = await jobs.there()
        assert (ended.state, ended.why) == ("failed", "DeadlineExceeded: too long")
        doc["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
        assert (await jobs.there())[0].state == "succeeded"
        await jobs.delete(Seen(name=one.name, uid="another", job="compact", due=NOON, state="failed"))
        assert len(api.objects) == 1, "another Job of the same name stays"
        await jobs.delete(one)
        await jobs.delete(one)
        assert not api.objects
        doc["metadata"]["annotations"] = {DUE: "some day"}
        api.put("jobs", "odd", doc)
        assert await jobs.there() == []
        assert "is ignored" in caplog.text
        api.at("POST", 422)
        with pytest.raises(Refused):
            await jobs.make(manifest)


# -- the command ------------------------------------------------------------------------------------------------------
def file_of(folder: Path, schedule: str = "* * * * *") -> Path:
    file = folder / "jobs.yaml"
    jobs = {"compact": {"schedule": schedule, "args": ["compact"]}, "off": {"schedule": "0 2 * * *", "suspend": True}}
    file.write_text(yaml.safe_dump({"template": TEMPLATE, "jobs": jobs, "timezone": "Europe/Berlin"}))
    return file


def test_check_shows_the_schedule_without_a_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run_command_line(["operator", "--jobs", str(file_of(tmp_path, "17 3 * * *")), "--check"]) == 0
    shown = capsys.readouterr().out
    assert shown.count(" 03:17") == 3
    assert "Europe/Berlin" in shown
    assert "suspended" in shown


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        (["--check", "--jobs", "nothing.yaml"], cli.USAGE, "cannot read"),
        ([], cli.USAGE, "--namespace"),
        (["--namespace", "ns", "--renew", "20"], cli.USAGE, "--renew"),
        (["--name", "Op", "--namespace", "ns"], cli.USAGE, "--name"),
        (["--namespace", "ns"], cli.FATAL, "--kubeconfig"),
    ],
)
def test_what_is_wrong_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: list[str],
    code: int,
    said: str,
) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "POD_NAME", "POD_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PCAPLAKE_HTTP_PORT", "0")
    jobs = [] if "--jobs" in given else ["--jobs", str(file_of(tmp_path))]
    assert cli.run_command_line(["operator", *jobs, *given]) == code
    assert said in capsys.readouterr().err


def test_help_teaches_and_works_without_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run_command_line(["operator", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Examples" in shown
    assert "Exit codes" in shown
    monkeypatch.setitem(sys.modules, "pcaplake.worker.kubernetes.operate", None)
    assert cli.run_command_line(["operator", "--jobs", str(file_of(tmp_path))]) == cli.FATAL
    assert "pcaplake[aws,cluster]" in capsys.readouterr().err


@pytest.mark.slow
async def test_the_process_launches_tells_and_gives_the_lease_back(tmp_path: Path) -> None:
    """A real one: elected, a Job launched within its minute, SIGTERM, exit 0."""

    async with clusters.serving() as api:
        file = clusters.kubeconfig(tmp_path / "kubeconfig", api)
        command = ["operator", "--jobs", str(file_of(tmp_path)), "--namespace", "ns", "--name", "op"]
        options = ["--kubeconfig", str(file), "--every", "0.2"]
        log = (tmp_path / "log").open("wb")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pcaplake.worker", *command, *options,
            stdout=log, stderr=log, env={"PATH": "", "PCAPLAKE_HTTP_PORT": "0"}, cwd=Path(__file__).parents[3],
        )  # fmt: skip
        try:
            await until(lambda: any(kind == "jobs" for kind, _ in api.objects), "nothing was launched", seconds=120)
            (name,) = [name for kind, name in api.objects if kind == "jobs"][:1]
            assert name.startswith("op-compact-")
            api.objects["jobs", name]["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
            await until(lambda: f"{name} succeeded" in (tmp_path / "log").read_text(), "it is not told", seconds=120)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 60) == 0, (tmp_path / "log").read_text()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            log.close()
        assert api.objects["leases", "op"]["spec"]["holderIdentity"] == ""
        events = [json.loads(line)["event"] for line in (tmp_path / "log").read_text().splitlines()]
        assert any("released the Lease" in event for event in events)
        assert "stopped; running Jobs continue" in events


@pytest.mark.slow
def test_the_package_is_imported_only_where_it_is_asked_for() -> None:
    code = (
        "import sys\n"
        "from pcaplake.worker.cli.app import SUMMARIES, run_command_line\n"
        "assert not any(run_command_line([name, '--help']) for name in SUMMARIES)\n"
        "sys.exit(any(name.split('.')[0] in ('kubernetes', 'cronsim') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).parents[3])
    assert done.returncode == 0
