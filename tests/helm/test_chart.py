"""What the chart gives for a matrix of values: as it is kept, as Kubernetes takes it, and all of it belongs together."""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from worker.cluster.plan import Plan
from worker.settings import seconds

from . import builtin, crds
from .rendered import CASES, CHART, HERE, LEAST, NOTES, ROOT, case, golden, manifests, of_kind, pods, texts, with_values

ANY_CASE = pytest.mark.parametrize("name", CASES)


@ANY_CASE
def test_golden(name: str) -> None:
    """`python -m tests.helm.rendered` writes them anew."""
    assert golden(name) == (HERE / "golden" / f"{name}.yaml").read_text()


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
        manifests(case("kubeflow")), "ScheduledSparkApplication", "-compact-" + _lake("s3://lake/other")
    )
    container = application["spec"]["template"]["driver"]
    container["securityContext"]["runAsRoot"] = False
    container["cores"] = "two"
    found = crds.problems(application)
    assert any("runAsRoot" in one for one in found)
    assert any("cores" in one for one in found)


def _lake(uri: str) -> str:
    return hashlib.sha256(uri.encode()).hexdigest()[:8]


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
        settings = next(one["configMap"] for one in spec["volumes"] if one["name"] == "settings")
        data = of_kind(objects, "ConfigMap", settings["name"])["data"] if "-" in settings["name"] else None
        data = data or next(
            one["data"] for one in objects if one["metadata"]["name"] == settings["name"] and "data" in one
        )
        assert {item["key"] for item in settings["items"]} == set(data)
    deployments = [one for one in objects if one["kind"] == "Deployment"]
    selectors = [one["spec"]["selector"]["matchLabels"] for one in deployments]
    for number, one in enumerate(deployments):
        labels = one["spec"]["template"]["metadata"]["labels"]
        assert [number] == [n for n, selector in enumerate(selectors) if selector.items() <= labels.items()]


@ANY_CASE
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


def test_the_grace_period_is_longer_than_the_drain() -> None:
    for drain, grace in [(None, 90), (90, 120), ("90s", 120), ("1.5m", 120), ("2h", 7230), ("20500ms", 51), (30.5, 61)]:
        objects = manifests(with_values(settings__drain_timeout=drain))
        assert of_kind(objects, "Deployment")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == grace
    for name in CASES:
        objects = manifests(case(name))
        for one in objects:
            if one["kind"] == "Deployment" and one["metadata"]["name"].endswith(("-worker", "-committer")):
                drain = seconds(case(name)["settings"].get("drain_timeout", 60))
                assert one["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= drain + 10


def test_pods_are_made_anew_when_a_setting_changes() -> None:
    def checksum(**values: Any) -> str:
        template = of_kind(manifests(with_values(**values)), "Deployment")["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/settings"])

    assert checksum() == checksum(worker__replicas=5)
    assert len({checksum(), checksum(settings__raw=True), checksum(profiles={"a": "x: 1"})}) == 3


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
        plans = [
            one["data"]["jobs.yaml"] for one in objects if one["kind"] == "ConfigMap" and "jobs.yaml" in one["data"]
        ]
        return {(one["kind"], one["metadata"]["name"]) for one in objects} | {
            ("job", job) for plan in plans for job in yaml.safe_load(plan)["jobs"]
        }

    one, two, other = named("s3://l/a"), named("s3://l/b", "s3://l/a"), named("s3://l/b")
    assert one < two
    assert other < two
    assert one | other == two


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


def test_the_doctor_has_memory_of_its_own() -> None:
    """It knows all live files at once; reconcile does not."""

    def limit(**values: Any) -> Any:
        (container,) = of_kind(manifests(with_values(**values)), "Pod")["spec"]["containers"]
        return container["resources"]["limits"]["memory"]

    assert limit() == limit(reconcile__resources={"limits": {"memory": "256Mi"}}) == "2Gi"
    assert limit(tests__resources={"limits": {"memory": "8Gi"}}) == "8Gi"


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


def test_the_operator_launches_what_cronjobs_would(tmp_path: Path) -> None:
    values = case("scheduler")
    objects = manifests(values)
    deployment = of_kind(objects, "Deployment", "-scheduler")
    assert not [one for one in objects if one["kind"] == "CronJob"]
    (tmp_path / "jobs.yaml").write_text(of_kind(objects, "ConfigMap", "-scheduler")["data"]["jobs.yaml"])
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
        == {"reconcile", *(f"compact-{_lake(lake)}" for lake in ("s3://lakes/a", "s3://lakes/b"))}
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


def test_notes_say_what_was_installed() -> None:
    notes = texts(case("everything"))[NOTES]
    for said in ("captures", "s3://lake/drives", "KEDA", "-committer", "quality", "helm test", "0 to 50"):
        assert said in notes
    assert "Pod Identity" not in notes
    assert "create-pod-identity-association" in texts(LEAST)[NOTES]
