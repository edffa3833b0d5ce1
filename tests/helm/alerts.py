"""Scenes of the alerts: what Prometheus sees, and which alerts fire."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
import yaml

from tests.helm import queries
from tests.helm.rendered import HERE, of_kind

FILES = (queries.RULES, queries.RULES_OF_OPERATOR, queries.RULES_OF_JOBS)


ALERTS = queries.alerts(*FILES)


NAMES = [rule["alert"] for rule in ALERTS]


SCENES: dict[str, dict[str, Any]] = yaml.safe_load((HERE / "alerts.yaml").read_text())


def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is missing: it comes with Debian's package prometheus (.ci/tools prometheus)")
    return found


def shown(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """The dashboard as Grafana reads it."""
    (text,) = of_kind(objects, "ConfigMap", "-dashboard")["data"].values()
    found: dict[str, Any] = json.loads(text)
    return found
