"""The queries of dashboard and alerts, and what is in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from .rendered import CHART

RULES = CHART / "files" / "alerts.yaml"
RULES_OF_JOBS = CHART / "files" / "alerts-jobs.yaml"
"""On metrics of kube-state-metrics: no process of ours has them."""
RULES_OF_OPERATOR = CHART / "files" / "alerts-operator.yaml"
"""Only for who runs one: it asks whether there is none."""
_NAME = re.compile(r"\b(?:pcaplake|process)_[a-z_]+\b")
_COMPARED = re.compile(r"\s+[<>]=?\s+[\d.]+\s*$")


def alerts(*files: Path) -> list[dict[str, Any]]:
    """Every rule of these files; those on pcaplake's own metrics by default."""
    groups = [group for file in files or (RULES,) for group in yaml.safe_load(file.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    """Every panel of the dashboard that shows something."""
    dashboard = json.loads((CHART / "files" / "dashboard.json").read_text())
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def of_panels(window: str) -> Iterator[tuple[str, str]]:
    """Title and query of each target, with the variables as Grafana fills them in for "all"."""
    for panel in panels():
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", window)
            yield f"{panel['title']} {target['refId']}", query.replace("$namespace", ".*").replace("$release", ".*")


def of_alert(rule: dict[str, Any]) -> list[str]:
    """The queries whose values the alert compares: they have data whether it fires or not."""
    expression = str(rule["expr"]).strip()
    if absent := re.fullmatch(r"absent\((.*)\)", expression):
        return [absent[1]]
    parts = re.split(r"\bunless\b(?: on \([^)]*\))?|^or$", expression, flags=re.M)
    return [_COMPARED.sub("", part).strip() for part in parts]


def metrics(query: str) -> set[str]:
    """Names of the metrics of pcaplake and its process in a query."""
    return set(_NAME.findall(query))


def kube_metrics(query: str) -> set[str]:
    """Names of the metrics of kube-state-metrics in a query."""
    return set(re.findall(r"\bkube_[a-z_]+\b", query))
