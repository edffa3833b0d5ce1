"""What the chart's pods may do: to their node, at the API server, at AWS."""

from __future__ import annotations

import re

import pytest
import yaml

from .rendered import CASES, ROOT, case, manifests, of_kind, pods, with_values


@pytest.mark.parametrize("name", CASES)
def test_pods_may_do_as_little_as_can_be(name: str) -> None:
    for called, spec in pods(manifests(case(name))):
        patches_itself = name == "everything" and called.endswith("-worker")
        assert spec["automountServiceAccountToken"] is (patches_itself or called.endswith("-scheduler"))
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert any(mount["mountPath"] == "/tmp" for mount in container["volumeMounts"]), called


@pytest.mark.slow
def test_who_may_ask_the_api_server_for_what() -> None:
    """Workers patch pods where they write their deletion cost, a driver of Spark has its executors; nobody else."""
    for name in CASES:
        rules = {
            one["metadata"]["name"].rpartition("-")[2]: one["rules"]
            for one in manifests(case(name))
            if one["kind"] in ("Role", "ClusterRole")
        }
        assert set(rules) == {"everything": {"worker"}, "kubeflow": {"spark"}, "scheduler": {"scheduler"}}.get(
            name, set()
        )
        if "worker" in rules:
            assert rules["worker"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}]
            (binding,) = [one for one in manifests(case(name)) if one["kind"] == "RoleBinding"]
            assert [one["name"] for one in binding["subjects"]] == ["pcaplake-captures-worker"], (
                "a committer has no messages"
            )
        for rule in rules.get("spark", ()):
            assert "*" not in rule["verbs"] + rule["resources"]
            assert rule["apiGroups"] == [""]
        if "scheduler" in rules:
            scheduler = of_kind(manifests(case(name)), "Deployment", "-scheduler")["spec"]["template"]["spec"]
            lease = scheduler["containers"][0]["args"][-1]
            page = (ROOT / "docs" / "operator.md").read_text().replace("[pcaplake-operator]", f"[{lease}]")
            said = re.findall(r"^  - (\{.*\})$", page, re.M)
            assert rules["scheduler"] == [yaml.safe_load(one) for one in said if "pods" not in one]


def test_a_committer_of_its_own_writes_no_deletion_cost() -> None:
    """It has no message, so no right to patch pods, and the setting that is in the file of both is off for it."""
    environments = {
        called.rpartition("-")[2]: {one["name"]: one.get("value") for one in spec["containers"][0]["env"]}
        for called, spec in pods(manifests(case("everything")))
    }
    assert environments["committer"]["PCAPLAKE_DELETION_COST"] == "false"
    assert "POD_NAME" not in environments["committer"]
    assert "PCAPLAKE_DELETION_COST" not in environments["worker"]
    assert "POD_NAME" in environments["worker"]


def test_roles_of_aws() -> None:
    arn = "eks.amazonaws.com/role-arn"
    accounts = {
        one["metadata"]["name"]: one["metadata"].get("annotations", {})
        for one in manifests(case("everything"))
        if one["kind"] == "ServiceAccount"
    }
    assert {name: each[arn].rpartition("/")[2] for name, each in accounts.items()} == {
        f"pcaplake-captures-{role}": f"pcaplake-{role}" for role in ("worker", "committer", "spark")
    }
    assert accounts["pcaplake-captures-spark"]["owner"] == "data"
    objects = manifests(case("scheduler"))
    tested = of_kind(objects, "Pod")["spec"]["serviceAccountName"]
    assert tested.endswith("-doctor")
    assert of_kind(objects, "ServiceAccount", tested)["metadata"]["annotations"][arn].endswith("role/doctor")
    assert of_kind(manifests(case("everything")), "Pod")["spec"]["serviceAccountName"] == "examiner"
    by_association = manifests(with_values(serviceAccounts__worker__roleArn="arn:aws:iam::123456789012:role/x"))
    assert not [one for one in by_association if arn in one["metadata"].get("annotations", {})]


def test_keda_asks_the_queue_as_itself_or_as_the_workers() -> None:
    for name, identity in {
        "everything": {"provider": "aws", "roleArn": "arn:aws:iam::123456789012:role/pcaplake-keda"},
        "keda": {"provider": "aws", "identityOwner": "workload"},
    }.items():
        objects = manifests(case(name))
        worker = of_kind(objects, "Deployment", "-worker")["spec"]["template"]["spec"]["serviceAccountName"]
        annotations = of_kind(objects, "ServiceAccount", worker)["metadata"]["annotations"]
        assert "eks.amazonaws.com/role-arn" in annotations, "where KEDA reads the role of `workload`"
        authentication = of_kind(objects, "TriggerAuthentication")
        assert authentication["spec"]["podIdentity"] == identity
        (trigger,) = of_kind(objects, "ScaledObject")["spec"]["triggers"]
        assert trigger["authenticationRef"] == {"name": authentication["metadata"]["name"]}
        assert trigger["metadata"]["scaleOnInFlight"] == "true"
        assert all(isinstance(value, str) for value in trigger["metadata"].values())
