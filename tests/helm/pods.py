"""Pods of a rendered chart, however a role is deployed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from tests.helm.rendered import case

JOBS = ("compact", "vacuum", "quality", "signals")


def everything(**more: Any) -> dict[str, Any]:
    """Values with all parts on."""
    plain = case("everything")
    values = plain | more | {"spark": {**plain["spark"], **more.get("spark", {})}}
    for job in JOBS:
        values["spark"][job] = {**values["spark"].get(job, {}), "enabled": True}
    return values


def ways() -> Iterator[dict[str, Any]]:
    """Values by which pods of every kind come: by CronJob, as a Deployment that streams, by the operator, as applications."""
    yield everything()
    stream = everything()
    stream["spark"]["signals"]["schedule"] = ""
    yield stream
    accounts = {**case("everything")["serviceAccounts"], "scheduler": {"create": True}}
    yield everything(schedule={"by": "operator"}, serviceAccounts=accounts)
    yield everything(spark={"mode": "kubeflow"})


def pods(given: Any, name: str = "") -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Name, metadata and spec of whatever has containers, anywhere in the objects, also in the operator's file; of
    applications driver and executor, which have both in one."""
    if isinstance(given, list):
        for one in given:
            yield from pods(one, name)
    elif isinstance(given, dict):
        name = (given.get("metadata") or {}).get("name", name)
        if "containers" in given.get("spec", {}):
            yield name, given["metadata"], given["spec"]
        for key, one in given.items():
            if key in ("driver", "executor"):
                yield f"{name} {key}", one, one
            elif key.startswith("pcaplake/job-"):
                yield from pods(yaml.safe_load(one), f"job {key.removeprefix('pcaplake/')}")
            else:
                yield from pods(one, name)
