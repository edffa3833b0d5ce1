"""Settings belong to a revision: an old ReplicaSet's pod that is made anew reads what its own revision was given.

Helm changes an object of a fixed name in place, and deletes one that the new revision has no more. So nothing that pods read may
be such an object: it stands in the pod template, as annotations that the Downward API mounts as files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import helm_python
import pytest
import yaml

from tests.helm.pods import pods, ways

from .rendered import CASES, LEAST, case, files_of, manifests, of_kind, with_values

ANY_CASE = pytest.mark.parametrize("name", CASES)


def read(spec: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Kind and name of the objects whose content the pod reads, in volumes and in its environment."""
    for volume in spec.get("volumes", ()):
        for source in (volume, *volume.get("projected", {}).get("sources", ())):
            for key, kind in (("configMap", "ConfigMap"), ("secret", "Secret")):
                if key in source:
                    yield kind, source[key].get("name") or source[key]["secretName"]
    for container in spec.get("containers", (spec,)):
        for one in container.get("envFrom", ()):
            for key, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
                if key in one:
                    yield kind, one[key]["name"]


@pytest.mark.slow
def test_no_pod_reads_an_object_that_the_next_revision_changes() -> None:
    for values in (*ways(), *(case(name) for name in CASES)):
        objects = manifests(values)
        made = {(one["kind"], one["metadata"]["name"]) for one in objects}
        found = list(pods(objects))
        assert found
        for name, _, spec in found:
            assert not set(read(spec)) & made, name


@ANY_CASE
def test_what_a_pod_mounts_as_settings_stands_in_its_own_annotations(name: str) -> None:
    for called, metadata, spec in pods(manifests(case(name))):
        if called.endswith((" driver", " executor")):
            continue  # the volumes are the application's
        files = files_of({"metadata": metadata, "spec": spec})
        assert set(yaml.safe_load(files["fleet.yaml"])) >= {"queue"}, called


def test_an_application_mounts_what_its_pods_are_annotated_with() -> None:
    for one in manifests(case("kubeflow")):
        if one["kind"].endswith("SparkApplication"):
            spec = one["spec"].get("template", one["spec"])
            for part in ("driver", "executor"):
                files = files_of({"metadata": spec[part], "spec": spec})
                assert yaml.safe_load(files["fleet.yaml"])["queue"] == "captures"


def test_a_changed_setting_leaves_nothing_changed_but_pod_templates() -> None:
    """What an old ReplicaSet's pods need is in the ReplicaSet: of the objects beside it none is another, or gone."""

    def others(**changed: Any) -> list[Any]:
        objects = manifests(with_values(committer__separate=True, **changed))
        return [one for one in objects if one["kind"] not in ("Deployment", "CronJob", "Pod")]

    changed = {"settings__raw": True, "settings__profile": "profiles/x.yaml", "profiles": {"x": "vehicle_id: a"}}
    assert others() == others(**changed)


def test_the_old_and_the_new_pod_read_each_its_own() -> None:
    before, after = (
        of_kind(manifests(with_values(settings__log_level=level)), "Deployment")["spec"]["template"]
        for level in ("info", "debug")
    )
    assert [yaml.safe_load(files_of(one)["fleet.yaml"])["log_level"] for one in (before, after)] == ["info", "debug"]
    assert before["spec"] == after["spec"]


def test_pods_of_spark_carry_no_routes() -> None:
    """There is one for each job and lake: with the routes of all lakes in each, the release would grow with their square."""
    values = case("routes")
    for called, metadata, spec in pods(manifests(values)):
        job = metadata["labels"]["app.kubernetes.io/component"] in ("compact", "signals")
        files = files_of({"metadata": metadata, "spec": spec})
        assert (set(files) == {"fleet.yaml"}) == job, called
        assert ("routes" in yaml.safe_load(files["fleet.yaml"])) != job


@pytest.mark.slow
def test_many_lakes_fit() -> None:
    """By both ways to start jobs: a release is kept in a Secret of 1 MiB, packed, and annotations may have 256 KiB."""
    routes = [
        {"name": f"fleet-{n}", "bucket": f"raw-{n}", "key": "drives/*", "lake": f"s3://lakes/{n}"} for n in range(150)
    ]
    for by in ("cronjobs", "operator"):
        objects = manifests({"settings": {"queue": "captures"}, "routes": routes, "schedule": {"by": by}})
        sizes = [sum(map(len, metadata["annotations"].values())) for _, metadata, _ in pods(objects)]
        assert max(sizes) < 200_000
        assert len(json.dumps(objects)) < 3_000_000


@pytest.mark.slow
def test_settings_above_what_annotations_hold_are_refused() -> None:
    profiles = {f"car-{n}": f"# {'x' * 10_000}" for n in range(30)}
    with pytest.raises(helm_python.HelmError, match="mount profiles with extraVolumes"):
        manifests({**LEAST, "profiles": profiles})
    many = [{"bucket": f"raw-{n}", "lake": f"s3://lakes/{n}"} for n in range(400)]
    with pytest.raises(helm_python.HelmError, match=r"set schedule\.by to cronjobs"):
        manifests({"settings": {"queue": "q"}, "routes": many, "schedule": {"by": "operator"}})
    routes = [{"bucket": "a", "lake": "s3://b", "profile": "/profiles/car.yaml"}]
    assert manifests({"settings": {"queue": "q"}, "routes": routes})
