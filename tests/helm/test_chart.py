"""What the chart gives for a matrix of values: as it is kept, as Kubernetes takes it, and all of it belongs together."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from typing import Any

import helm_python
import pytest

from pcaplake.worker.config.settings import parse_seconds

from . import builtin, crds
from .rendered import (
    CASES,
    CHART,
    HERE,
    LEAST,
    NOTES,
    case,
    golden,
    lake_hash,
    manifests,
    of_kind,
    pods,
    texts,
    with_values,
)

ANY_CASE = pytest.mark.parametrize("name", CASES)


@ANY_CASE
def test_golden(name: str) -> None:
    """`python -m tests.helm.rendered` writes them anew."""
    assert golden(name) == (HERE / "golden" / f"{name}.yaml").read_text()


@pytest.mark.slow
@ANY_CASE
def test_kubernetes_takes_it(name: str) -> None:
    objects = manifests(case(name))
    for one in objects:
        if one["kind"] in crds.KINDS:
            assert crds.problems(one) == [], one["metadata"]["name"]
            continue
        for version in builtin.VERSIONS:
            assert builtin.problems(one, version) == [], (one["metadata"]["name"], version)
    assert len(builtin.VERSIONS) >= 9


@pytest.mark.slow
def test_the_cases_have_every_kind_and_the_schemas_refuse() -> None:
    objects = [one for name in CASES for one in manifests(case(name))]
    kinds = {one["kind"] for one in objects}
    assert kinds >= crds.KINDS | {
        "Deployment",
        "CronJob",
        "HorizontalPodAutoscaler",
        "PodDisruptionBudget",
        "PriorityClass",
    }
    assert kinds >= {"NetworkPolicy", "Role", "RoleBinding", "ServiceAccount", "Service", "ConfigMap", "Pod"}
    for one in objects:
        broken = copy.deepcopy(one)
        broken["spec" if "spec" in one else "metadata"]["nonsense"] = 1
        assert crds.problems(broken) if one["kind"] in crds.KINDS else builtin.problems(broken, builtin.VERSIONS[-1])


def test_a_schema_refuses_what_is_deep_inside() -> None:
    application = of_kind(
        manifests(case("kubeflow")), "ScheduledSparkApplication", "-compact-" + lake_hash("s3://lake/other")
    )
    container = application["spec"]["template"]["driver"]
    container["securityContext"]["runAsRoot"] = False
    container["cores"] = "two"
    found = crds.problems(application)
    assert any("runAsRoot" in one for one in found)
    assert any("cores" in one for one in found)


@ANY_CASE
def test_helm_lint(name: str) -> None:
    for version in ("v1.29.0", "v1.37.0"):
        report = helm_python.lint(CHART, case(name), strict=True, kube_version=version)
        assert report["total_charts_linted"] == 1
        assert [one for one in report["messages"] if one["severity"] >= 2] == []
        assert report["errors"] == []


@ANY_CASE
def test_objects_belong_together(name: str) -> None:
    """Names are once there, what is named is there, selectors find their pods and nobody else's."""
    objects = manifests(case(name))
    keys = [(one["kind"], one["metadata"]["name"]) for one in objects]
    assert len(set(keys)) == len(keys)
    longest = {"CronJob": 52, "ScheduledSparkApplication": 43}
    for kind, called in keys:
        assert len(called) <= longest.get(kind, 63)
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", called)
    elsewhere = {"default", *(one.get("name") for one in case(name).get("serviceAccounts", {}).values())}
    for called, spec in pods(objects):
        account = spec["serviceAccountName"]
        assert ("ServiceAccount", account) in keys or account in elsewhere, called
        volumes = {one["name"] for one in spec["volumes"]}
        for container in spec["containers"]:
            assert {one["name"] for one in container["volumeMounts"]} <= volumes
    deployments = [one for one in objects if one["kind"] == "Deployment"]
    selectors = [one["spec"]["selector"]["matchLabels"] for one in deployments]
    for number, one in enumerate(deployments):
        labels = one["spec"]["template"]["metadata"]["labels"]
        assert [number] == [n for n, selector in enumerate(selectors) if selector.items() <= labels.items()]


@pytest.mark.slow
def test_the_grace_period_is_longer_than_the_drain() -> None:
    for drain, grace in [(None, 90), (90, 120), ("90s", 120), ("1.5m", 120), ("2h", 7230), ("20500ms", 51), (30.5, 61)]:
        objects = manifests(with_values(settings__drain_timeout=drain))
        assert of_kind(objects, "Deployment")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == grace
    for name in CASES:
        objects = manifests(case(name))
        for one in objects:
            if one["kind"] == "Deployment" and one["metadata"]["name"].endswith(("-worker", "-committer")):
                drain = parse_seconds(case(name)["settings"].get("drain_timeout", 60))
                assert one["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= drain + 10


def test_pods_are_made_anew_when_a_setting_changes_and_only_then() -> None:
    def template(**values: Any) -> str:
        return json.dumps(of_kind(manifests(with_values(**values)), "Deployment")["spec"]["template"])

    assert template() == template(worker__replicas=5)
    assert len({template(), template(settings__raw=True), template(profiles={"a": "x: 1"})}) == 3


def test_nobody_sets_the_replicas_beside_an_autoscaler() -> None:
    for name in CASES:
        objects, values = manifests(case(name)), case(name)
        scaled = any(values.get(each, {}).get("enabled") for each in ("hpa", "keda"))
        assert ("replicas" in of_kind(objects, "Deployment", "-worker")["spec"]) != scaled


def test_roles_of_the_deployments() -> None:
    def roles(values: Mapping[str, Any]) -> dict[str, str]:
        return {
            one["metadata"]["name"].rpartition("-")[2]: one["spec"]["template"]["spec"]["containers"][0]["args"][-1]
            for one in manifests(values)
            if one["kind"] == "Deployment"
        }

    assert roles(LEAST) == {"worker": "all"}
    assert roles(with_values(settings__role="all")) == {"worker": "all"}
    assert roles(with_values(committer__separate=True)) == {"worker": "worker", "committer": "committer"}


def test_two_releases_share_nothing() -> None:
    one, other = (
        {
            (each["kind"], each["metadata"]["name"])
            for each in manifests(case("everything") | {"extraObjects": []}, release=name)
        }
        for name in ("blue", "green")
    )
    assert not one & other


@pytest.mark.parametrize("release", ["123", "1e3", "true"])
def test_a_release_may_be_called_as_a_number_is(release: str) -> None:
    objects = manifests(case("everything") | {"extraObjects": []}, release=release)
    for one in objects:
        found = crds.problems(one) if one["kind"] in crds.KINDS else builtin.problems(one, builtin.VERSIONS[-1])
        assert found == [], one["metadata"]["name"]
        assert one["metadata"]["labels"]["app.kubernetes.io/instance"] == release
    for labels in labels_of_pods(objects).values():
        assert labels["app.kubernetes.io/instance"] == release


def labels_of_pods(objects: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """Labels of the pods of each Deployment, by its name."""
    return {
        one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"]
        for one in objects
        if one["kind"] == "Deployment"
    }


def selected(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """As Kubernetes does."""
    if not selector.get("matchLabels", {}).items() <= labels.items():
        return False
    for one in selector.get("matchExpressions", ()):
        inside = labels.get(one["key"]) in one["values"]
        if inside != {"In": True, "NotIn": False}[one["operator"]]:
            return False
    return True


@ANY_CASE
def test_what_is_about_pods_finds_them(name: str) -> None:
    objects = manifests(case(name))
    labels = labels_of_pods(objects)
    services = {called for called in labels if called.endswith(("-worker", "-committer"))}
    for one in objects:
        kind, spec = one["kind"], one.get("spec", {})
        found = {called for called, each in labels.items() if selected(spec.get("selector", {}), each)}
        if kind == "PodDisruptionBudget":
            assert found == {one["metadata"]["name"]}
        elif kind == "PodMonitor":
            assert found == services | {called for called in labels if called.endswith("-scheduler")}
            assert spec["podMetricsEndpoints"][0]["port"] == "http"
        elif kind == "Service":
            assert {called for called, each in labels.items() if spec["selector"].items() <= each.items()} >= services
        elif kind == "ServiceMonitor":
            assert selected(spec["selector"], of_kind(objects, "Service")["metadata"]["labels"])
        elif kind == "NetworkPolicy":
            assert {called for called, each in labels.items() if selected(spec["podSelector"], each)} == set(labels)
            applications = [each["spec"] for each in objects if each["kind"].endswith("SparkApplication")]
            for application in applications:
                driver = application.get("template", application)["driver"]["labels"]
                assert not selected(spec["podSelector"], driver), "its ports are nobody's to know"
        elif kind in ("HorizontalPodAutoscaler", "ScaledObject"):
            assert spec["scaleTargetRef"] == {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "name": one["metadata"]["name"],
            }
            assert one["metadata"]["name"] in labels
    for called, spec in pods(objects):
        if called in services:
            ports = {each["name"]: each["containerPort"] for each in spec["containers"][0]["ports"]}
            assert ports == {"http": case(name)["settings"].get("http_port", 9464)}
            for probe, path in {
                "startupProbe": "/healthz",
                "livenessProbe": "/healthz",
                "readinessProbe": "/readyz",
            }.items():
                assert spec["containers"][0][probe]["httpGet"] == {"path": path, "port": "http"}


def test_the_doctor_has_memory_of_its_own() -> None:
    """It knows all live files at once; reconcile does not."""

    def limit(**values: Any) -> Any:
        (container,) = of_kind(manifests(with_values(**values)), "Pod")["spec"]["containers"]
        return container["resources"]["limits"]["memory"]

    assert limit() == limit(reconcile__resources={"limits": {"memory": "256Mi"}}) == "2Gi"
    assert limit(tests__resources={"limits": {"memory": "8Gi"}}) == "8Gi"


def test_notes_say_what_was_installed() -> None:
    notes = texts(case("everything"))[NOTES]
    for said in ("captures", "s3://lake/drives", "KEDA", "-committer", "quality", "helm test", "0 to 50"):
        assert said in notes
    assert "Pod Identity" not in notes
    assert "create-pod-identity-association" in texts(LEAST)[NOTES]
