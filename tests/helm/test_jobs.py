"""The jobs on schedule: each lake has its own, and whoever starts them, they are the same."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from pcaplake.worker.kubernetes.plan import Plan

from . import builtin
from .rendered import case, files_of, lake_hash, manifests, of_kind, planned


def test_each_lake_has_its_jobs() -> None:
    objects = manifests(case("routes"))
    jobs = [one for one in objects if one["kind"] == "CronJob" and "-compact" in one["metadata"]["name"]]
    told = [one["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["args"][-3:] for one in jobs]
    assert told == [["compact", "--lake", "s3://lakes/a"], ["compact", "--lake", "s3://lakes/b"]]


@pytest.mark.parametrize("name", ["minimal", "scheduler", "kubeflow"])
def test_names_stay_when_a_lake_comes_and_goes(name: str) -> None:
    """Helm makes what has a new name before it takes the old one away: two of one stream at once."""

    def named(*lakes: str) -> set[tuple[str, str]]:
        values = case(name)
        spark = {**values.get("spark", {}), "lakes": list(lakes)}
        schedule = "* * * * *" if name == "scheduler" else ""
        spark["signals"] = {"enabled": True, "schedule": schedule, "args": ["--databases", "/a"]}
        objects = manifests({**values, "spark": spark})
        return {(one["kind"], one["metadata"]["name"]) for one in objects} | {("job", job) for job in planned(objects)}

    one, two, other = named("s3://l/a"), named("s3://l/b", "s3://l/a"), named("s3://l/b")
    assert one < two
    assert other < two
    assert one | other == two


@pytest.mark.slow
def test_the_operator_launches_what_cronjobs_would(tmp_path: Path) -> None:
    values = case("scheduler")
    objects = manifests(values)
    deployment = of_kind(objects, "Deployment", "-scheduler")
    assert not [one for one in objects if one["kind"] == "CronJob"]
    for path, text in files_of(deployment["spec"]["template"]).items():
        (tmp_path / path).write_text(text)
    plan = Plan.load(tmp_path / "jobs.yaml")
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    release = arguments[arguments.index("--name") + 1]
    by_cron = {
        one["metadata"]["name"].removeprefix(f"{release}-"): one["spec"]
        for one in manifests({**values, "schedule": {**values["schedule"], "by": "cronjobs"}})
        if one["kind"] == "CronJob"
    }
    assert (
        set(plan.jobs)
        == set(by_cron)
        == {"reconcile", *(f"compact-{lake_hash(lake)}" for lake in ("s3://lakes/a", "s3://lakes/b"))}
    )
    for name, cron in by_cron.items():
        job = plan.manifest(name, datetime(2026, 11, 21, tzinfo=UTC), operator=release)
        assert len(job["metadata"]["name"]) <= 63
        assert [problem for version in builtin.VERSIONS for problem in builtin.problems(job, version)] == []
        assert job["spec"]["template"]["spec"] == cron["jobTemplate"]["spec"]["template"]["spec"]
        for one, other in (
            (job["metadata"], cron["jobTemplate"]["metadata"]),
            (job["spec"]["template"]["metadata"], cron["jobTemplate"]["spec"]["template"]["metadata"]),
        ):
            assert one["labels"].items() >= other["labels"].items() - {("app.kubernetes.io/managed-by", "Helm")}
            assert one["annotations"].items() >= other.get("annotations", {}).items()
            assert other["labels"]["app.kubernetes.io/component"] == name.partition("-")[0]
        assert {key: job["spec"][key] for key in ("backoffLimit", "activeDeadlineSeconds")} == {
            key: cron["jobTemplate"]["spec"][key] for key in ("backoffLimit", "activeDeadlineSeconds")
        }
        assert plan.jobs[name].schedule == cron["schedule"]
        assert plan.late_of(name) == cron["startingDeadlineSeconds"]
        assert plan.keep(name, failed=True) == cron["failedJobsHistoryLimit"]
        assert plan.timezone == cron["timeZone"]


def test_an_application_has_its_scratch_mounted_once() -> None:
    """Spark takes a volume of this prefix for its scratch; beside spark.local.dir it would mount one of its own there."""
    objects = [one for one in manifests(case("kubeflow")) if one["kind"].endswith("SparkApplication")]
    assert {one["kind"] for one in objects} == {"SparkApplication", "ScheduledSparkApplication"}
    for one in objects:
        spec = one["spec"].get("template", one["spec"])
        assert not [name for name in spec["sparkConf"] if "local" in name]
        for pod in (spec["driver"], spec["executor"]):
            paths = {mount["mountPath"]: mount["name"] for mount in pod["volumeMounts"]}
            assert len(paths) == len(pod["volumeMounts"])
            assert [path for path, volume in paths.items() if volume.startswith("spark-local-dir-")] == ["/scratch"]
            assert set(paths.values()) <= {volume["name"] for volume in spec["volumes"]}
