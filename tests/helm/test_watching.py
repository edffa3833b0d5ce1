"""Dashboard, alerts and runbooks: they name what there is, each alert fires when it should, and pages say what to do."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml

from pcaplake.parser import TABLES
from pcaplake.worker.telemetry.metrics import METRICS
from tests.helm.alerts import ALERTS, FILES, NAMES, SCENES, promtool, shown

from . import queries
from .rendered import CHART, ROOT, case, manifests, of_kind, planned

RUNBOOKS = ROOT / "docs" / "runbooks"
OF_HISTOGRAMS = re.compile(r"_(bucket|sum|count)$")
OF_PROCESSES = {"process_cpu_seconds_total", "process_resident_memory_bytes"}
OF_JOBS = {"kube_job_failed", "kube_job_complete", "kube_job_status_start_time"}
"""STABLE metrics of kube-state-metrics 2 (internal/store/job.go there)."""


def test_every_metric_exists() -> None:
    known = {metric.name: metric for metric in METRICS.values()}
    asked = {name for _, query in queries.of_panels("5m") for name in queries.metrics(query)}
    asked |= {name for rule in ALERTS for name in queries.metrics(rule["expr"])}
    assert len(asked) > 30
    for name in asked - OF_PROCESSES:
        base = OF_HISTOGRAMS.sub("", name)
        metric = known.get(base) or known[name]
        assert (base != name) == (metric.kind == "histogram"), name


def test_labels_exist() -> None:
    known = {metric.name: metric for metric in METRICS.values()}
    for query in [query for _, query in queries.of_panels("5m")] + [str(rule["expr"]) for rule in ALERTS]:
        for name, selector in re.findall(r"(pcaplake_[a-z_]+)\{([^}]*)\}", query):
            labels = {each.split("=")[0].strip(" ~!") for each in selector.split(",")} - {
                "namespace",
                "app_kubernetes_io_instance",
            }
            assert labels <= set(known[OF_HISTOGRAMS.sub("", name)].labels), query
        for outcome in re.findall(r'outcome="(\w+)"', query):
            assert any(outcome in one.labels.get("outcome", "") for one in METRICS.values()), outcome


def test_counters_are_never_read_as_they_stand() -> None:
    counters = {metric.name for metric in METRICS.values() if metric.kind == "counter"}
    for query in [query for _, query in queries.of_panels("5m")] + [str(rule["expr"]) for rule in ALERTS]:
        for name in queries.metrics(query) & counters:
            assert re.search(rf"(rate|increase)\({name}[^)]*\[\w+\]\)", query), query


def test_panels_do_not_overlap_and_say_what_they_show() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in queries.panels():
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
        assert panel["description"]
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
    titles = [panel["title"] for panel in queries.panels()]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("rule", ALERTS, ids=NAMES)
def test_an_alert_says_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("warning", "critical")
    page = ROOT / rule["annotations"]["runbook_url"]
    text = page.read_text()
    assert text.startswith(f"# {rule['alert']}\n")
    for part in ("What it means", "What to look at", "What to do"):
        assert f"\n## {part}\n" in text, f"{page.name} has no part {part}"
    assert "```" in text, "commands are written out"
    for label in re.findall(r"\$labels\.(\w+)", str(rule)):
        assert label in re.findall(r"by \(([^)]*)\)", rule["expr"])[0].split(", "), label


def test_each_page_belongs_to_an_alert() -> None:
    pages = {path.relative_to(ROOT).as_posix() for path in RUNBOOKS.glob("*.md")} - {"docs/runbooks/README.md"}
    assert pages == {rule["annotations"]["runbook_url"] for rule in ALERTS}
    index = (RUNBOOKS / "README.md").read_text()
    assert all(f"({Path(page).name})" in index for page in pages)


def test_runbooks_name_commands_options_metrics_and_settings_that_there_are() -> None:
    from typer.main import get_command

    from pcaplake.worker.cli.app import app
    from pcaplake.worker.config.service_settings import FleetSettings

    commands: Any = get_command(app).commands  # type: ignore[attr-defined]
    names = {metric.name for metric in METRICS.values()}
    for page in [*RUNBOOKS.glob("*.md"), ROOT / "docs" / "deploy.md"]:
        text = page.read_text()
        blocks = "\n".join(re.findall(r"```\n(.*?)```", text, re.S))
        for command, rest in re.findall(r"(?:^|-- )pcaplake ([a-z]+)([^\n`]*)", blocks, re.M):
            assert command in commands, f"{page.name}: pcaplake {command}"
            options = {option for each in commands[command].params for option in each.opts} | {"--help"}
            asked = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", rest.partition("#")[0].partition("|")[0]))
            assert asked <= options, f"{page.name}: pcaplake {command} {asked - options}"
        for name in re.findall(r"`(pcaplake_[a-z_]+)`", text):
            assert OF_HISTOGRAMS.sub("", name) in names or name == "pcaplake_ledger", f"{page.name}: {name}"
        for name in re.findall(r"`settings\.(\w+)`", text):
            assert name in FleetSettings.model_fields, f"{page.name}: {name}"


def test_pages_know_the_release_from_what_names_begin_with() -> None:
    """`RELEASE-pcaplake` is the name of most; Helm and the label `instance` want the release."""
    for page in [*RUNBOOKS.glob("*.md"), ROOT / "docs" / "deploy.md", ROOT / "docs" / "operator.md"]:
        text = page.read_text()
        assert not re.search(r"helm \w+ \$APP\b|instance=\$APP", text), page.name
        assert not re.search(r"(?:deploy|deployment|scaledobject)[/ ]\$RELEASE", text), page.name
        assert "--reuse-values" not in text, f"{page.name}: a new chart's own values would be missing"


def test_commands_get_along_where_an_optional_kind_is_not_known() -> None:
    """`kubectl get a,b` shows nothing at all where the cluster does not know b."""
    optional = {"scaledobject", "podmonitor", "servicemonitor", "prometheusrule", "scheduledsparkapplications"}
    for page in [*RUNBOOKS.glob("*.md"), ROOT / "docs" / "deploy.md"]:
        for kinds in re.findall(r"kubectl (?:-n \S+ )?(?:get|describe) (\S+)", page.read_text()):
            asked = set(kinds.split(","))
            assert not asked & optional or len(asked) == 1, f"{page.name}: {kinds}"


def test_the_sql_of_the_pages_runs() -> None:
    blocks = []
    for page in [*sorted(RUNBOOKS.glob("*.md")), ROOT / "docs" / "troubleshooting.md"]:
        blocks += [(page.name, sql) for sql in re.findall(r"```sql\n(.*?)```", page.read_text(), re.S)]
    assert {name for name, _ in blocks} >= {"quarantine.md", "faults.md"}
    with duckdb.connect() as connection:
        for name, table in TABLES.items():
            connection.register(name, table.schema.empty_table())
        for name, sql in blocks:
            try:
                connection.execute(sql).fetchall()
            except duckdb.Error as error:
                raise AssertionError(f"{name}: {sql}") from error


@pytest.mark.slow
def test_promtool_takes_the_rules() -> None:
    done = subprocess.run([promtool(), "check", "rules", *FILES], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sum(map(int, re.findall(r"(\d+) rules found", done.stdout))) == len(ALERTS)


@pytest.mark.slow
def test_each_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    """All scenes by one call of promtool; what it evaluates are the files that the chart has."""
    assert list(SCENES) == NAMES
    whole = {"rule_files": [str(file) for file in FILES], "evaluation_interval": "1m", "tests": []}
    rules = {rule["alert"]: rule for rule in ALERTS}
    for name, scene in SCENES.items():
        for kind, series in scene.items():
            if kind == "minutes":
                continue
            at = f"{scene['minutes']}m"
            whole["tests"].append(  # type: ignore[attr-defined]
                {
                    "name": f"{name} {kind}",
                    "interval": "1m",
                    "input_series": [{"series": each, "values": values} for each, values in series.items()],
                    "alert_rule_test": [{"eval_time": at, "alertname": name, "exp_alerts": []}],
                }
            )
            assert rules[name]["labels"]
    path = tmp_path / "tests.yaml"
    path.write_text(yaml.safe_dump(whole))
    done = subprocess.run([promtool(), "test", "rules", path], capture_output=True, text=True)
    said = done.stdout + done.stderr
    fired = {name for name in NAMES if re.search(rf"alertname:\s*{name}\b", said)}
    for name, scene in SCENES.items():
        wanted = sum(kind.startswith("fires") for kind in scene)
        assert len(re.findall(rf"^\s*name: {name} fires[^\n]*\n\s*alertname: {name}\b", said, re.M)) == wanted, said
        assert f"{name} silent" not in said, said
    assert fired == set(NAMES)


def test_the_chart_carries_both() -> None:
    objects = manifests(case("everything"))
    made = of_kind(objects, "PrometheusRule")["spec"]["groups"]
    by_name = {rule["alert"]: rule for group in made[:-1] for rule in group["rules"]}
    assert set(by_name) == set(NAMES) - {"PcaplakeSlowLoop", "PcaplakeOperatorDown"}
    for rule in ALERTS:
        if rule["alert"] in by_name:
            labels = {**rule["labels"], "team": "vehicles", "app_kubernetes_io_instance": "pcaplake"}
            assert by_name[rule["alert"]]["labels"] == labels
            page = Path(rule["annotations"]["runbook_url"]).name
            assert by_name[rule["alert"]]["annotations"]["runbook_url"] == f"https://wiki.example.com/pcaplake/{page}"
    assert [group["name"] for group in made] == ["pcaplake", "pcaplake-jobs", "ours"]
    board = shown(objects)
    plain = json.loads((CHART / "files" / "dashboard.json").read_text())
    assert [panel["title"] for panel in board["panels"]] == [panel["title"] for panel in plain["panels"]]


def test_who_runs_the_operator_is_told_when_it_is_down() -> None:
    objects = manifests({**case("scheduler"), "prometheusRule": {"enabled": True}})
    rules = [rule for group in of_kind(objects, "PrometheusRule")["spec"]["groups"] for rule in group["rules"]]
    (expression,) = [rule["expr"] for rule in rules if rule["alert"] == "PcaplakeOperatorDown"]
    mine = 'namespace="captures", app_kubernetes_io_instance="pcaplake"'
    assert f"absent(pcaplake_operator_leader{{{mine}}})" in expression
    deployment = of_kind(objects, "Deployment", "-scheduler")["spec"]["template"]["spec"]["containers"][0]
    assert deployment["ports"][0]["name"] == "http", "the monitors scrape it"


@pytest.mark.parametrize("name", ["everything", "scheduler", "routes", "kubeflow"])
def test_the_alert_on_jobs_knows_those_of_its_release_and_no_others(name: str) -> None:
    """By CronJobs and by the operator; the minute of its due time ends a Job's name in both."""
    values = {**case(name), "prometheusRule": {"enabled": True}}
    objects = manifests(values)
    (rule,) = [
        group for group in of_kind(objects, "PrometheusRule")["spec"]["groups"] if group["name"] == "pcaplake-jobs"
    ]
    expression = rule["rules"][0]["expr"]
    assert queries.kube_metrics(expression) == OF_JOBS
    assert set(re.findall(r'namespace="([^"]*)"', expression)) == {"captures"}
    (pattern,) = set(re.findall(r'job_name=~"([^"]*)"', expression))
    base = of_kind(objects, "Deployment", "-worker")["metadata"]["name"].removesuffix("-worker")
    made = [one["metadata"]["name"] for one in objects if one["kind"] == "CronJob"]
    made += [f"{base}-{job}" for job in planned(objects)]
    assert made
    for job in made:
        assert re.fullmatch(pattern, f"{job}-29402011"), job  # Prometheus anchors it at both ends, too
        assert not re.fullmatch(pattern, f"other-{job}-29402011")
        assert not re.fullmatch(pattern, f"{job}-now"), "what somebody starts by hand is looked at by that one"


def test_the_alert_on_jobs_can_be_left_out() -> None:
    for values in ({"jobs": False}, {"without": ["PcaplakeJobFailed"]}):
        rules = of_kind(manifests({**case("minimal"), "prometheusRule": {"enabled": True, **values}}), "PrometheusRule")
        assert [group["name"] for group in rules["spec"]["groups"]] == ["pcaplake"]
        assert "kube_" not in str(rules)
