"""`schedule.by: operator`: the chart's own operator launches maintenance, Spark among it, and another one takes over."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyspark
import pytest

from pcaplake.spark_jobs.jars import ensure_jars
from tests.integration.stages import FRAMES
from tools.k8s.plane import ROOT

from .lab import Doc, Lab
from .release import NAME, Release

pytestmark = pytest.mark.slow
IMAGE = "pcaplake-spark"
SCHEDULER = f"{NAME}-pcaplake-scheduler"
LEASE = f"{NAME}-pcaplake"
EACH_MINUTE, NEVER = "* * * * *", "0 0 1 1 *"
TIMES = 4  # uploads that come one by one, each to files of their own
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(scope="module")
def spark_image(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the Dockerfile's stage `spark` has: our jars, and the file for spark-submit. The rest is this machine's."""
    app = tmp_path_factory.mktemp("app")
    shutil.copy(ROOT / "deploy/docker/job.py", app)
    app.chmod(0o755)
    lab.image(
        IMAGE,
        binds={"/app": str(app), "/app/jars": str(ensure_jars())},
        env={
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "PYSPARK_PYTHON": sys.executable,
            "PCAPLAKE_SPARK_JARS": "/app/jars",
            "HOME": "/tmp",
        },
    )
    return IMAGE


def values(spark_image: str, raw: str, **jobs: str) -> dict[str, Any]:
    """Of the chart: these jobs, at these times; `raw`: the bucket of the captures."""
    return {
        "schedule": {"by": "operator", "backoffLimit": 0, "failedJobsHistoryLimit": 10},
        "reconcile": {
            "enabled": "reconcile" in jobs,
            "schedule": jobs.get("reconcile", NEVER),
            "args": ["--announce", "--older-than", "0s", f"s3://{raw}/in/"],
        },
        "spark": {
            "image": {"repository": spark_image, "tag": "lab"},
            "driverMemory": "1g",
            "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "3Gi"}},
            "conf": {  # in the image the jars are linked into Spark's own folder
                "spark.driver.extraClassPath": "/app/jars/*",
                "spark.driver.extraJavaOptions": JVM,
                "spark.sql.shuffle.partitions": "2",
            },
            "compact": {
                "enabled": "compact" in jobs,
                "schedule": jobs.get("compact", NEVER),
                "args": ["--min-files", "2"],
            },
        },
    }


class Launched:
    """The Jobs that the operator has made in one namespace."""

    def __init__(self, release: Release) -> None:
        self._namespace = release.namespace

    def __iter__(self) -> Iterator[Doc]:
        label = "app.kubernetes.io/managed-by=pcaplake-operator"
        yield from self._namespace.get("jobs", "-l", label)["items"]

    def ended(self, job: str, condition: str = "Complete") -> list[str]:
        """Names of those that are so; AssertionError where one of them failed."""
        found = [one for one in self if one["metadata"]["labels"]["app.kubernetes.io/component"] == job]
        states = {one["metadata"]["name"]: _true(one) for one in found}
        failed = [name for name, state in states.items() if "Failed" in state]
        assert not failed, [self._namespace.kubectl("logs", f"job/{name}", check=False)[-6000:] for name in failed]
        return [name for name, state in states.items() if condition in state]


def _true(job: Doc) -> set[str]:
    return {one["type"] for one in job.get("status", {}).get("conditions", ()) if one["status"] == "True"}


def files(release: Release, table: str) -> int:
    """That a table has now, by its log as `deltalake` reads it."""
    from deltalake import DeltaTable

    options = {"AWS_ALLOW_HTTP": "true", **release.stage.aws.environment}
    return len(DeltaTable(f"{release.stage.uri}/{table}", storage_options=options).file_uris())


def leader(release: Release) -> str:
    """The pod that has the Lease; "" when nobody has."""
    found = release.namespace.get("lease", LEASE)["spec"].get("holderIdentity") or ""
    return str(found).rpartition("_")[0]


def test_the_charts_operator_launches_maintenance_and_another_takes_over(release: Release, spark_image: str) -> None:
    """A capture that nobody announced comes in, small files become fewer, each row is there once."""
    stage, namespace, lab = release.stage, release.namespace, release.lab
    release.install()  # the lake is there before anybody looks after it
    release.upgrade(**values(spark_image, stage.raw, reconcile=EACH_MINUTE, compact=EACH_MINUTE))
    assert namespace.get("cronjobs")["items"] == []
    assert len(namespace.ready("scheduler")) == 2
    before = 0
    for number in range(TIMES):
        stage.upload([number])
        lab.until(lambda n=number: len(stage.captures()) == n + 1, "captures are not in the lake")  # type: ignore[misc]
        before = max(before, files(release, "can_frames"))
    stage.aws.client("s3").put_bucket_notification_configuration(Bucket=stage.raw, NotificationConfiguration={})
    stage.upload([TIMES])

    launched = Launched(release)
    lab.until(lambda: launched.ended("reconcile"), "reconcile was not launched, or does not end")
    lab.until(lambda: len(stage.captures()) == TIMES + 1, "what nobody announced is not in the lake")
    lab.until(lambda: launched.ended("compact"), "Spark was not launched, or does not end")
    lab.until(lambda: files(release, "can_frames") < before + 1, "Spark has compacted nothing")
    first = leader(release)
    assert first in {one["metadata"]["name"] for one in namespace.pods("scheduler")}

    began = time.monotonic()
    namespace.kubectl("delete", "pod", first, "--wait=false")
    lab.until(lambda: leader(release) not in ("", first), "nobody took over")
    took = time.monotonic() - began
    lab.until(lambda: len(namespace.ready("scheduler")) == 2, "the Deployment does not make it good")
    lab.until(lambda: f"{first} stopped" in lab.node_log(), "it does not end")
    assert re.search(rf"{first} stopped in \S+ s of 15 s grace, exit 0", lab.node_log()), lab.node_log()[-2000:]
    print(f"another pod led {took:.1f} s after its deletion was asked for")

    for job in launched:
        meta = job["metadata"]
        minute = int(datetime.fromisoformat(meta["annotations"]["pcaplake-due"]).timestamp()) // 60
        assert meta["name"] == f"{LEASE}-{meta['labels']['pcaplake-job']}-{minute}"
    assert set(stage.captures().values()) == {1}
    frames = stage.read("can_frames")
    keys = set(zip(frames["capture_id"].to_pylist(), frames["packet_no"].to_pylist(), strict=True))
    assert len(keys) == frames.num_rows == (TIMES + 1) * FRAMES


def test_its_role_is_enough_and_nothing_more(release: Release, spark_image: str) -> None:
    """With the token that is mounted into the pod. That it is enough for a real launch the other test shows."""
    namespace, lab = release.namespace, release.lab
    release.install(
        worker={"replicas": 1}, scheduler={"replicas": 1}, **values(spark_image, release.stage.raw, reconcile=NEVER)
    )
    lab.until(lambda: leader(release), "nobody leads")
    (pod,) = namespace.pods("scheduler")
    token = namespace.token(pod["metadata"]["uid"])
    core, own = "/api/v1", f"/api/v1/namespaces/{namespace.name}"
    apps, batch, rbac, leases = (
        f"/apis/{group}/v1/namespaces/{namespace.name}"
        for group in ("apps", "batch", "rbac.authorization.k8s.io", "coordination.k8s.io")
    )
    merge = "application/merge-patch+json"

    def status(method: str, path: str, body: Any = None, kind: str = "application/json") -> int:
        return lab.ask(method, path, body, kind=kind, token=token)[0]

    template = namespace.get("deployment", SCHEDULER)["spec"]["template"]
    job = {"metadata": {"name": "x"}, "spec": {"suspend": True, "template": template}}
    job["spec"]["template"]["spec"]["restartPolicy"] = "Never"  # type: ignore[index]
    assert status("GET", f"{leases}/leases/{LEASE}") == 200
    assert status("GET", f"{batch}/jobs") == 200
    assert status("POST", f"{batch}/jobs", job) == 201
    assert status("DELETE", f"{batch}/jobs/x") == 200
    assert status("POST", f"{leases}/leases", {"metadata": {"name": "another"}}) == 201, "RBAC knows no names here"
    for method, path, body, kind in (
        ("GET", f"{leases}/leases", None, ""),
        ("GET", f"{leases}/leases/another", None, ""),
        ("PUT", f"{leases}/leases/another", {"metadata": {"name": "another"}}, ""),
        ("DELETE", f"{leases}/leases/{LEASE}", None, ""),
        ("PATCH", f"{leases}/leases/{LEASE}", {"spec": {"holderIdentity": "me"}}, merge),
        ("GET", f"{batch}/jobs/x", None, ""),
        ("GET", f"{batch}/jobs?watch=true", None, ""),
        ("DELETE", f"{batch}/jobs", None, ""),
        ("PATCH", f"{batch}/jobs/x", {"spec": {"suspend": True}}, merge),
        ("GET", f"{batch}/cronjobs", None, ""),
        ("GET", "/apis/batch/v1/jobs", None, ""),
        ("POST", "/apis/batch/v1/namespaces/default/jobs", job, ""),
        ("GET", f"{own}/pods", None, ""),
        ("GET", f"{own}/pods/{pod['metadata']['name']}/log", None, ""),
        ("POST", f"{own}/pods", {"metadata": {"name": "x"}, "spec": template["spec"]}, ""),
        ("PATCH", f"{own}/pods/{pod['metadata']['name']}", {"metadata": {"labels": {"a": "b"}}}, merge),
        ("GET", f"{own}/secrets", None, ""),
        ("GET", f"{own}/configmaps", None, ""),
        ("POST", f"{own}/serviceaccounts/{NAME}-pcaplake-worker/token", {"spec": {}}, ""),
        ("PATCH", f"{apps}/deployments/{SCHEDULER}", {"spec": {"replicas": 9}}, merge),
        ("GET", f"{rbac}/roles", None, ""),
        ("GET", f"{core}/nodes", None, ""),
    ):
        assert status(method, path, body, kind or "application/json") == 403, (method, path)
