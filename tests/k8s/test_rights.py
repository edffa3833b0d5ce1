"""What a worker's pod may do in the cluster, with the token that is mounted into it: its own annotation, and no more."""

from __future__ import annotations

from typing import Any

import pytest

from .release import NAME, Release

pytestmark = pytest.mark.slow


def test_the_role_is_enough_and_nothing_more(release: Release) -> None:
    namespace, lab = release.namespace, release.lab
    release.install()
    (pod,) = release.ready(1)
    lab.until(lambda: release.cost(pod) == 0, "the worker has not written its cost: the Role is not enough")
    doc = namespace.get("pod", pod)
    token = namespace.token(doc["metadata"]["uid"])
    note = {"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "7"}}}
    core, own = "/api/v1", f"/api/v1/namespaces/{namespace.name}"
    apps, batch = (f"/apis/{group}/v1/namespaces/{namespace.name}" for group in ("apps", "batch"))
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace.name}/leases"
    merge = "application/merge-patch+json"

    def status(method: str, path: str, body: Any = None, kind: str = "application/json") -> int:
        return lab.ask(method, path, body, kind=kind, token=token)[0]

    assert status("PATCH", f"{own}/pods/{pod}", note, merge) == 200
    job = {"metadata": {"name": "x"}, "spec": {"template": doc["spec"]}}
    for method, path, body, kind in (
        ("GET", f"{own}/pods", None, ""),
        ("GET", f"{own}/pods/{pod}", None, ""),
        ("DELETE", f"{own}/pods/{pod}", None, ""),
        ("GET", f"{own}/pods/{pod}/log", None, ""),
        ("POST", f"{own}/pods/{pod}/eviction", {"metadata": {"name": pod}}, ""),
        ("PATCH", f"{own}/pods/{pod}/status", note, merge),
        ("PATCH", f"{core}/namespaces/default/pods/any", note, merge),
        ("GET", f"{own}/secrets", None, ""),
        ("GET", f"{own}/configmaps", None, ""),
        ("POST", f"{own}/serviceaccounts/{NAME}-pcaplake-worker/token", {"spec": {}}, ""),
        ("PATCH", f"{apps}/deployments/{NAME}-pcaplake-worker", {"spec": {"replicas": 9}}, merge),
        ("POST", f"{batch}/jobs", job, ""),
        ("GET", leases, None, ""),
        ("POST", leases, {"metadata": {"name": "x"}}, ""),
        ("GET", f"{core}/nodes", None, ""),
    ):
        assert status(method, path, body, kind or "application/json") == 403, (method, path)
    assert lab.ask("PATCH", f"{own}/pods/{pod}", note, kind=merge, token="nobody")[0] == 401


def test_without_the_setting_there_is_no_role_and_no_token(release: Release) -> None:
    namespace = release.namespace
    release.install(settings={"deletion_cost": False})
    (pod,) = release.ready(1)
    assert release.cost(pod) is None
    assert namespace.get("roles")["items"] == []
    doc = namespace.get("pod", pod)
    assert not list((release.lab.node / "pods" / doc["metadata"]["uid"]).glob("volumes/kube-api-access-*"))
    assert doc["spec"]["automountServiceAccountToken"] is False


def test_the_container_is_closed(release: Release) -> None:
    """No root, nothing to write to but its scratch, and process 1 is ours."""
    namespace = release.namespace
    release.install()
    (pod,) = release.ready(1)
    doc = namespace.get("pod", pod)
    pid = release.lab.process(doc["metadata"]["uid"])
    status = dict(line.split(":\t", 1) for line in pid.joinpath("status").read_text().splitlines() if ":\t" in line)
    assert set(status["Uid"].split()) == {"10001"}
    assert status["NoNewPrivs"] == "1"
    assert status["NSpid"].split()[-1] == "1"
    assert b"pcaplake" in pid.joinpath("cmdline").read_bytes()
    mounts = [line.split() for line in pid.joinpath("mounts").read_text().splitlines()]
    (root,) = [one for one in mounts if one[1] == "/"]
    assert "ro" in root[3].split(",")
