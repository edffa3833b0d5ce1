"""Two releases under one Prometheus and one Grafana: the alerts of each are about it alone, and both have their dashboard.

The series are labelled as the chart's monitors have Prometheus label them: `namespace`, and the pods' label of the release.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.alerts import FILES, NAMES, SCENES, promtool, shown

from . import queries
from .rendered import case, manifests, of_kind, with_values

RELEASES = {
    "one": ("captures", "one"),
    "the same in another namespace": ("tests", "one"),
    "beside it": ("captures", "two"),
}
SCOPE = re.compile(r"\b(?:pcaplake|process)_[a-z_]+\b(\{[^}]*\})?")


def objects_of(release: str, **values: Any) -> list[dict[str, Any]]:
    namespace, name = RELEASES[release]
    given = with_values(
        prometheusRule={"enabled": True}, dashboard={"enabled": True}, schedule={"by": "operator"}, **values
    )
    return manifests(given, release=name, namespace=namespace)


def fullname(release: str) -> str:
    return f"{RELEASES[release][1]}-pcaplake"


def of_release(series: str, release: str) -> str:
    """A series of a scene, as that release's."""
    namespace, name = RELEASES[release]
    series = series.replace('namespace="a"', f'namespace="{namespace}"').replace('"pcaplake-', f'"{fullname(release)}-')
    if '{job="ksm"' in series:
        return series
    labels = f'namespace="{namespace}",app_kubernetes_io_instance="{name}",'
    return series.replace("{", "{" + labels, 1)


def only(alert: str, files: list[Path]) -> list[dict[str, Any]]:
    """The groups with the rules of one alert: promtool evaluates all that it is given, each minute of a scene."""
    groups = [group for file in files for group in yaml.safe_load(file.read_text())["groups"]]
    assert all("alert" in rule and "ALERTS" not in rule["expr"] for group in groups for rule in group["rules"])
    kept = [group | {"rules": [rule for rule in group["rules"] if rule["alert"] == alert]} for group in groups]
    return [group for group in kept if group["rules"]]


def fired(folder: Path, rules: list[Path]) -> dict[tuple[str, str, str], str]:
    """By alert, scene and the one release that is broken in it, while the others are well and all are scraped by one Prometheus,
    by jobs of one name -> what promtool says of the alerts that fire; nothing where none does."""
    about, files = dict[str, tuple[str, str, str]](), []
    for alert, scene in SCENES.items():
        well = next(series for kind, series in scene.items() if kind.startswith("silent"))
        tests = []
        for broken, kind in itertools.product(RELEASES, (kind for kind in scene if kind.startswith("fires"))):
            whole: dict[str, str] = {}  # what is in two of them, as the noise of other namespaces, is there once
            for one in RELEASES:
                series = scene[kind] if one == broken else well
                whole |= {of_release(each, one): values for each, values in series.items()}
            name = f"test {len(about)}."
            about[name] = alert, kind, broken
            tests.append(
                {
                    "name": name,
                    "interval": "1m",
                    "input_series": [{"series": each, "values": values} for each, values in whole.items()],
                    "alert_rule_test": [{"eval_time": f"{scene['minutes']}m", "alertname": alert, "exp_alerts": []}],
                }
            )
        files.append(folder / f"{alert}.yaml")
        rules_file = folder / f"rules-{alert}.yaml"
        rules_file.write_text(yaml.safe_dump({"groups": only(alert, rules)}))
        given = {"rule_files": [str(rules_file)], "evaluation_interval": "1m", "tests": tests}
        files[-1].write_text(yaml.safe_dump(given))
    done = subprocess.run([promtool(), "test", "rules", *files], capture_output=True, text=True)
    parts = re.split(r"^\s*name: (test \d+\.)", done.stdout + done.stderr, flags=re.M)
    return {about[name]: said for name, said in zip(parts[1::2], parts[2::2], strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("watched", RELEASES)
def test_each_alert_is_about_its_own_release(watched: str, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(yaml.safe_dump(of_kind(objects_of(watched), "PrometheusRule")["spec"]))
    found = fired(tmp_path, [rules])
    assert {broken for _, _, broken in found} == {watched}
    assert {alert for alert, _, _ in found} == set(NAMES)


@pytest.mark.slow
def test_the_plain_rules_tell_releases_apart(tmp_path: Path) -> None:
    """But for what is not there at all: nothing is absent while another release has one."""
    found = fired(tmp_path, list(FILES))
    gone = {"PcaplakeNothingRuns", "PcaplakeOperatorDown"}
    of_pcaplake = {alert for alert in NAMES if alert != "PcaplakeJobFailed"}  # the chart writes the Jobs' names
    assert {(alert, broken) for alert, _, broken in found if alert in of_pcaplake - gone} == {
        (alert, broken) for alert in of_pcaplake - gone for broken in RELEASES
    }
    for (alert, _, broken), said in found.items():
        if alert in of_pcaplake:
            namespace, name = RELEASES[broken]
            assert set(re.findall(r'app_kubernetes_io_instance="(\w+)"', said)) == {name}, (alert, said)
            assert set(re.findall(r'\bnamespace="(\w+)"', said)) == {namespace}, (alert, said)


def test_every_series_that_a_rule_asks_for_is_the_releases() -> None:
    for release, (namespace, name) in RELEASES.items():
        objects = objects_of(release)
        rules = [rule for group in of_kind(objects, "PrometheusRule")["spec"]["groups"] for rule in group["rules"]]
        panels = [target["expr"] for panel in shown(objects)["panels"] for target in panel.get("targets", ())]
        assert len(rules) == len(NAMES)
        assert len(panels) > 40
        for expression in [rule["expr"] for rule in rules] + panels:
            if queries.kube_metrics(expression):
                continue  # of kube-state-metrics: test_watching.py looks at their selectors
            asked = SCOPE.findall(expression)
            assert asked
            for selector in asked:
                assert f'namespace="{namespace}"' in selector, expression
                assert f'app_kubernetes_io_instance="{name}"' in selector, expression


def test_the_monitors_have_the_labels_that_rules_ask_for() -> None:
    for name, kind in (("hpa", "PodMonitor"), ("everything", "ServiceMonitor")):
        monitor = of_kind(manifests(case(name)), kind)["spec"]
        assert "app.kubernetes.io/instance" in monitor["podTargetLabels"]


@pytest.mark.slow
def test_dashboards_of_releases_do_not_meet() -> None:
    """By nothing that Grafana or its sidecar knows one by: the file, the uid, the title."""
    boards = [shown(objects_of(release)) for release in RELEASES]
    files = [next(iter(of_kind(objects_of(release), "ConfigMap", "-dashboard")["data"])) for release in RELEASES]
    for found in (files, [one["uid"] for one in boards], [one["title"] for one in boards]):
        assert len(set(found)) == len(RELEASES), found
    for one in boards:
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,40}", one["uid"])
        used = set(re.findall(r"\$\{?([a-z]+)\}?", json.dumps(one["panels"])))
        assert used <= {variable["name"] for variable in one["templating"]["list"]}
    assert shown(objects_of("one")) == shown(objects_of("one", settings__raw=True)), "the same at each upgrade"
