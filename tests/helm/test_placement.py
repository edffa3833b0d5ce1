"""Where pods go: every pod that the chart can make takes placement, labels and annotations, for all pods and for its own part."""

from __future__ import annotations

import hashlib
from typing import Any

import helm_python
import pytest

from tests.helm.pods import JOBS, pods, ways

from . import builtin, crds
from .rendered import manifests, of_kind, with_values

COMPONENTS = ("worker", "committer", "scheduler", "reconcile", "tests", "spark", *(f"spark.{job}.pod" for job in JOBS))
SPREAD = [{"maxSkew": 3, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}]


def shape(of: str) -> dict[str, Any]:
    """Every value of the placement, each with `of` in it."""
    terms = [{"matchExpressions": [{"key": of, "operator": "Exists"}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {
        "podLabels": {f"label-{of}": of},
        "podAnnotations": {f"note-{of}": of},
        "nodeSelector": {f"node-{of}": of},
        "tolerations": [{"key": of, "operator": "Exists"}],
        "affinity": {"nodeAffinity": required},
        "topologySpreadConstraints": [{**SPREAD[0], "topologyKey": of}],
        "priorityClassName": of,
    }


def component(name: str, metadata: dict[str, Any]) -> str:
    """The part of the values that is about this pod."""
    found = metadata["labels"]["app.kubernetes.io/component"]
    if found == "spark-application":
        found = next(job for job in JOBS if f"-{job}-" in name)
    return {"doctor": "tests", **{job: f"spark.{job}.pod" for job in JOBS}}.get(found, found)


def put(values: dict[str, Any], path: str, what: dict[str, Any]) -> None:
    *above, last = path.split(".")
    for key in above:
        values = values.setdefault(key, {})
    values[last] = {**values.get(last, {}), **what}


def check(name: str, metadata: dict[str, Any], spec: dict[str, Any], *of: str) -> None:
    """It has all that was said, by `pods`, `spark` and its own part; the last said wins where there can be one."""
    for each in of:
        said = shape(each)
        assert metadata["labels"].items() >= said["podLabels"].items(), (name, each)
        assert metadata["annotations"].items() >= said["podAnnotations"].items(), (name, each)
        assert spec["nodeSelector"].items() >= said["nodeSelector"].items(), (name, each)
        assert said["tolerations"][0] in spec["tolerations"], (name, each)
    last = shape(of[-1])
    assert spec["priorityClassName"] == last["priorityClassName"], name
    assert spec["affinity"] == last["affinity"], name
    if not name.endswith((" driver", " executor")):  # the custom resource has no such field
        (spread,) = spec["topologySpreadConstraints"]
        assert spread["topologyKey"] == of[-1], name
        assert spread["labelSelector"]["matchLabels"].items() <= metadata["labels"].items(), name


@pytest.mark.slow
def test_every_pod_takes_what_is_said_of_it_and_of_all() -> None:
    seen = set()
    for values in ways():
        put(values, "pods", shape("all"))
        for each in COMPONENTS:
            put(values, each, shape(each.replace(".", "-")))
        objects = manifests(values)
        for name, metadata, spec in pods(objects):
            own = component(name, metadata)
            above = ["spark"] if own.startswith("spark.") else []
            check(name, metadata, spec, "all", *above, own.replace(".", "-"))
            assert metadata["labels"]["team"] == "vehicles", "commonLabels"
            seen.add((own, next(iter(name.split(" ")[1:]), "") if " " in name else ""))
        for one in objects:
            if one["kind"] in crds.KINDS:
                assert crds.problems(one) == []
            else:
                assert builtin.problems(one, builtin.VERSIONS[-1]) == [], one["metadata"]["name"]
    assert {own for own, _ in seen} == set(COMPONENTS) - {"spark"}


@pytest.mark.slow
def test_what_is_said_of_all_reaches_every_pod_alone() -> None:
    """Without anything of their own, but for the spread and the priority that some have by default."""
    for values in ways():
        for part in (values, *values.values()):
            if isinstance(part, dict):
                for key in ("nodeSelector", "tolerations", "affinity", "priorityClassName", "priorityClass"):
                    part.pop(key, None)
        for part in ("worker", "committer", "scheduler"):
            put(values, part, {"topologySpreadConstraints": []})
        put(values, "pods", shape("all"))
        found = list(pods(manifests(values)))
        assert len(found) >= 7
        for name, metadata, spec in found:
            check(name, metadata, spec, "all")
            assert spec["nodeSelector"] == shape("all")["nodeSelector"]


def test_what_is_special_wins() -> None:
    values = with_values(
        commonLabels={"team": "all"},
        pods={"nodeSelector": {"a": "1", "b": "1"}, "priorityClassName": "all", "podLabels": {"team": "pods"}},
        worker={"nodeSelector": {"b": "2"}},
        priorityClass={"create": True, "name": "made"},
    )
    objects = manifests(values)
    worker = of_kind(objects, "Deployment")["spec"]["template"]
    assert worker["spec"]["nodeSelector"] == {"a": "1", "b": "2"}
    assert worker["spec"]["priorityClassName"] == "made", "the chart's own is for workers"
    assert worker["metadata"]["labels"]["team"] == "pods"
    assert of_kind(objects, "Pod")["spec"]["priorityClassName"] == "all"


def test_each_job_of_spark_has_its_own_size() -> None:
    size = {"driverMemory": "6g", "resources": {"limits": {"memory": "9Gi"}}, "scratch": "99Gi"}
    values = with_values(spark={"vacuum": {"pod": size}})
    vacuum, compact = (
        of_kind(manifests(values), "CronJob", f"{job}-{LAKE}")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        for job in ("vacuum", "compact")
    )
    assert vacuum["containers"][0]["resources"] == {
        "requests": {"cpu": "2", "memory": "5Gi"},
        "limits": {"memory": "9Gi"},
    }
    assert "--driver-memory=6g" in vacuum["containers"][0]["args"]
    assert {"sizeLimit": "99Gi"} in [one.get("emptyDir") for one in vacuum["volumes"]]
    assert compact["containers"][0]["resources"]["limits"] == {"memory": "5Gi"}
    assert "--driver-memory=3g" in compact["containers"][0]["args"]
    own = {"executor": {"instances": 9}, "driverCores": 3}
    application = of_kind(
        manifests(with_values(spark={"mode": "kubeflow", "vacuum": {"pod": own}})), "ScheduledSparkApplication", f"vacuum-{LAKE}"
    )["spec"]["template"]  # fmt: skip
    assert (application["executor"]["instances"], application["executor"]["cores"]) == (9, 2)
    assert application["driver"]["cores"] == 3


LAKE = hashlib.sha256(b"s3://lake/drives").hexdigest()[:8]


@pytest.mark.parametrize("of", ["pods", *COMPONENTS])
def test_labels_of_selectors_are_refused(of: str) -> None:
    values = with_values()
    put(values, of, {"podLabels": {"app.kubernetes.io/instance": "x"}})
    with pytest.raises(
        helm_python.HelmError, match=rf"{of}\.podLabels: the chart sets the label app\.kubernetes\.io/instance"
    ):
        manifests(values)


@pytest.mark.parametrize("of", ["pods", *COMPONENTS])
def test_what_is_no_placement_is_refused(of: str) -> None:
    values = with_values()
    put(values, of, {"nodeSelectors": {}})
    with pytest.raises(helm_python.HelmError, match="additional properties 'nodeSelectors' not allowed"):
        manifests(values)
