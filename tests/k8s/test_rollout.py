"""A rollout that fails: the pods that work go on, are made anew when their node is drained, and a rollback ends well."""

from __future__ import annotations

import pytest

from tests.integration.stages import FRAMES, check_all

from .lab import Failed
from .release import NAME, TIMEOUT, Release

pytestmark = pytest.mark.slow


def evict(release: Release, pod: str) -> None:
    """As a drain does: it is asked for, the disruption budget allows it, and the pod is gone."""
    namespace, lab = release.namespace, release.lab
    path = f"/api/v1/namespaces/{namespace.name}/pods/{pod}/eviction"
    lab.until(lambda: lab.ask("POST", path, {"metadata": {"name": pod}})[0] in (200, 201), f"{pod} is not evicted")
    lab.until(lambda: pod not in {one["metadata"]["name"] for one in namespace.pods()}, f"{pod} stays")


def of_replica_set(release: Release, owner: str) -> list[str]:
    """Names of the workers of this ReplicaSet that are ready."""
    ready = set(release.namespace.ready())
    return [
        one["metadata"]["name"]
        for one in release.namespace.pods()
        if one["metadata"]["name"] in ready and one["metadata"]["ownerReferences"][0]["name"] == owner
    ]


def test_broken_settings_leave_the_old_pods_alone(release: Release) -> None:
    """Upgrade that cannot become ready, a drain meanwhile, a rollback: 2 of 2 workers are ready each time."""
    stage, namespace, lab = release.stage, release.namespace, release.lab
    release.install(worker={"replicas": 2})
    old = release.ready(2)
    owner = namespace.get("pod", old[0])["metadata"]["ownerReferences"][0]["name"]
    broken = ["--set", "settings.queue=nobody-has-made-it,settings.log_level=debug"]
    with pytest.raises(Failed):
        namespace.helm("upgrade", NAME, *release.arguments(), *broken, "--wait", "--timeout", "30s")
    assert set(of_replica_set(release, owner)) == set(old), "pods that work are not touched"

    for pod in old:
        evict(release, pod)
        lab.until(lambda: len(of_replica_set(release, owner)) == 2, "an old pod does not come back")
    assert not set(of_replica_set(release, owner)) & set(old)
    stage.upload(range(3))
    lab.until(lambda: len(stage.captures()) == 3 and not stage.left(), "captures are not in the lake")

    namespace.helm("rollback", NAME, "1", "--wait", "--timeout", TIMEOUT)
    assert len(release.ready(2)) == 2
    evict(release, release.ready(2)[0])
    assert len(release.ready(2)) == 2
    stage.upload(range(3, 6))
    lab.until(lambda: len(stage.captures()) == 6 and not stage.left(), "captures are not in the lake")
    check_all(stage, dict.fromkeys(stage.uris(range(6)), FRAMES))
