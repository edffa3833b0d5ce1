"""The chart from install to uninstall on a real API server: Helm, controllers, real workers, each row once."""

from __future__ import annotations

import json

import pytest

from tests.integration.stages import FRAMES, Stage, check_all

from .lab import CHART, Failed, Namespace
from .release import NAME, Release

pytestmark = pytest.mark.slow


def well(stage: Stage) -> None:
    """What `pcaplake setup` makes of queue and tables, so that the doctor finds nothing."""
    dead = stage.aws.queue_arn(stage.aws.queue("dead", MessageRetentionPeriod="1209600"))
    redrive = json.dumps({"deadLetterTargetArn": dead, "maxReceiveCount": "5"})
    attributes = {"VisibilityTimeout": "60", "RedrivePolicy": redrive}
    stage.aws.client("sqs").set_queue_attributes(QueueUrl=stage.queue_url, Attributes=attributes)
    expiry = {"Enabled": True, "AttributeName": "expireTime"}
    for table in (stage.ledger, stage.locks):
        stage.aws.client("dynamodb").update_time_to_live(TableName=table, TimeToLiveSpecification=expiry)


@pytest.mark.parametrize("apply", ["true", "false"], ids=["on the server's side", "on the client's side"])
def test_an_autoscaler_keeps_the_pods_that_there_are(namespace: Namespace, apply: str) -> None:
    """Switched on, upgraded beside, rolled back, switched off; by both ways to apply, the second Helm 3's. No pod has to run."""
    values = ["--set", "settings.queue=q,settings.lake=s3://lake/a,worker.replicas=3,image.repository=none"]
    scaled = [*values, "--set", "hpa.enabled=true,hpa.metric.name=nothing"]
    mode = f"--server-side={apply}"
    takes = ["--force-conflicts"] if apply == "true" else []  # the count, from whoever has set it last
    deployment = "scaled-pcaplake-worker"

    def replicas() -> int:
        found: int = namespace.get("deployment", deployment)["spec"]["replicas"]
        return found

    def scale(count: int) -> None:
        namespace.kubectl(
            "scale", f"deployment/{deployment}", f"--replicas={count}"
        )  # as an autoscaler: the subresource

    namespace.helm("install", "scaled", str(CHART), *values, mode)
    for level in ("info", "debug"):
        namespace.helm("upgrade", "scaled", str(CHART), *scaled, "--set", f"settings.log_level={level}", mode)
        assert replicas() == 3, "Helm's own count, until somebody counts"
    scale(7)
    for level in ("info", "debug"):
        namespace.helm("upgrade", "scaled", str(CHART), *scaled, "--set", f"settings.log_level={level}", mode)
        assert replicas() == 7
    scale(0)
    namespace.helm("upgrade", "scaled", str(CHART), *scaled, mode)
    assert replicas() == 0, "KEDA's count, too"
    scale(5)
    namespace.helm("rollback", "scaled", "5", mode)
    assert replicas() == (5 if apply == "true" else 7), (
        "on the client's side that revision's, until the autoscaler looks"
    )
    if takes:
        with pytest.raises(Failed, match="conflict"):
            namespace.helm("rollback", "scaled", "1", mode)
        with pytest.raises(Failed, match="conflict"):
            namespace.helm("upgrade", "scaled", str(CHART), *values, mode)
    namespace.helm("rollback", "scaled", "1", mode, *takes)
    assert replicas() == 3
    namespace.helm("upgrade", "scaled", str(CHART), *scaled, mode)
    scale(6)
    namespace.helm("upgrade", "scaled", str(CHART), *values, mode, *takes)
    assert replicas() == 3
    namespace.helm("uninstall", "scaled")

    namespace.helm("install", "scaled", str(CHART), *scaled, mode)  # from the start: Helm never gives a count
    scale(4)
    namespace.helm("upgrade", "scaled", str(CHART), *scaled, "--set", "settings.log_level=debug", mode)
    assert replicas() == 4
    namespace.helm("uninstall", "scaled")


def test_install_test_upgrade_rollback_uninstall(release: Release) -> None:
    stage, namespace = release.stage, release.namespace
    well(stage)
    release.install()
    stage.upload(range(5))
    namespace.lab.until(lambda: len(stage.captures()) == 5 and not stage.left(), "captures are not in the lake")
    said = namespace.helm("test", NAME, "--timeout", "300s", "--logs")
    assert "Succeeded" in said, said
    (before,) = release.ready(1)

    release.upgrade(settings={"flush_interval": 2, "log_level": "debug"})
    (after,) = release.ready(1)
    assert after != before, "settings that changed are read by new pods"
    stage.upload(range(5, 10))
    namespace.lab.until(lambda: len(stage.captures()) == 10, "captures are not in the lake")

    namespace.helm("rollback", NAME, "1", "--wait", "--timeout", "300s")
    (back,) = release.ready(1)
    assert back not in (before, after)
    assert "debug" not in namespace.get("pod", back)["metadata"]["annotations"]["pcaplake/fleet.yaml"]
    stage.upload(range(10, 12))
    namespace.lab.until(lambda: len(stage.captures()) == 12 and not stage.left(), "captures are not in the lake")

    release.gone()
    kinds = "deployments,replicasets,pods,configmaps,serviceaccounts,roles,rolebindings,poddisruptionbudgets,cronjobs,services"
    selector = f"app.kubernetes.io/instance={NAME},app.kubernetes.io/component!=doctor"  # Helm leaves what a hook made
    left = namespace.get(kinds, "-l", selector)["items"]
    assert [f"{one['kind']}/{one['metadata']['name']}" for one in left] == []
    release.check_endings()
    check_all(stage, dict.fromkeys(stage.uris(range(12)), FRAMES))


def test_values_that_cannot_be_are_refused_before_anything_is_made(release: Release) -> None:
    with pytest.raises(Failed, match="pdb"):
        release.install(pdb={"maxUnavailble": 1})
    assert release.namespace.get("deployments")["items"] == []
    release._installed = False


def test_a_wrong_setting_is_seen_in_the_pod(release: Release) -> None:
    """The workers say what is wrong, and exit 3: `helm install --wait` would not go on."""
    stage, namespace = release.stage, release.namespace
    stage.aws.client("sqs").delete_queue(QueueUrl=stage.queue_url)
    release._installed = True
    with pytest.raises(Failed):
        namespace.helm("install", NAME, *release.arguments(), "--wait", "--timeout", "20s")

    def ended() -> bool:
        states = [one["status"].get("containerStatuses", [{}])[0] for one in namespace.pods()]
        return any(one.get("lastState", {}).get("terminated", {}).get("exitCode") == 3 for one in states)

    namespace.lab.until(ended, "no worker ended with 3")
    (pod,) = namespace.pods()
    assert "pcaplake setup" in namespace.log(pod["metadata"]["name"])
