"""A real Prometheus scrapes workers at work: every query of the dashboard and of the alerts has data, and true figures."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm import queries
from tests.parser import captures
from tests.worker.fleets import can_capture
from tools.local.engines import LOOPBACK
from tools.local.stack import find_free_ports

from .conftest import Aws
from .stages import FRAMES, PATIENCE, Stage, staged, until

WINDOW = "2m"  # of a rate; what happened a minute ago still shows
GOOD, CUT = 6, 3  # captures; packets that are cut


class Prometheus:
    """Asked over HTTP."""

    def __init__(self, port: int) -> None:
        self._base = f"http://{LOOPBACK}:{port}"

    def get(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self._base}{path}?{query}", timeout=10) as answer:
            return json.load(answer)["data"]

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._base}/-/ready", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def values(self, query: str) -> list[float]:
        """Of an instant vector."""
        return [float(one["value"][1]) for one in self.get("/api/v1/query", query=query)["result"]]

    def has_data(self, query: str) -> bool:
        found = self.values(query)
        return bool(found) and not all(math.isnan(value) for value in found)


@pytest.fixture
def stage(aws: Aws, tmp_path: Path) -> Iterator[Stage]:
    with staged(aws, tmp_path) as made:
        yield made


def started(stage: Stage, targets: list[int]) -> Prometheus:
    """Scrapes these ports of loopback each second; killed when the stage is left."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is missing: Debian's package of that name (.ci/tools prometheus)")
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(queries.RULES), str(queries.RULES_OF_JOBS)],
        "scrape_configs": [
            {
                "job_name": "pcaplake",
                "static_configs": [
                    {"targets": [f"{LOOPBACK}:{port}" for port in targets], "labels": {"namespace": "captures"}}
                ],
            }
        ],
    }
    path = stage.folder / "prometheus.yaml"
    path.write_text(yaml.safe_dump(config))
    (port,) = find_free_ports(1)
    with (stage.folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={path}",
                f"--storage.tsdb.path={stage.folder / 'tsdb'}",
                f"--web.listen-address={LOOPBACK}:{port}",
                "--log.level=warn",
            ],
            stdout=log,
            stderr=log,
        )
    stage.ends.callback(process.wait)
    stage.ends.callback(process.kill)
    asked = Prometheus(port)
    wait(asked.ready, stage)
    return asked


def wait(what: Callable[[], bool], stage: Stage, why: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline, why() + stage.logs()[-4000:]
        time.sleep(0.2)


@pytest.mark.slow
def test_every_panel_and_every_alert_has_data(stage: Stage) -> None:
    ports = find_free_ports(2)
    prometheus = started(stage, ports)
    for port in ports:
        stage.start(PCAPLAKE_HTTP_PORT=str(port), PCAPLAKE_CHECKPOINT_INTERVAL="2")
    wait(lambda: prometheus.values("sum(up)") == [2.0], stage)
    stage.put("in/junk.pcap", b"no capture at all")
    stage.put("in/cut.pcap", captures.pcap([bytes(5)] * CUT, 227))
    for number in range(GOOD):  # one by one, so that there are several commits
        stage.put(f"in/{number}.pcap", can_capture(FRAMES, number))
        until(lambda number=number: len(stage.captures()) >= number + 1, stage)  # type: ignore[misc]
    until(lambda: len(stage.captures()) == GOOD + 2 and not stage.left(), stage)
    done = time.time()  # what is counted by now, only a later scrape shows
    wait(lambda: prometheus.values("min(timestamp(up))")[0] > done, stage)

    asked = dict(queries.of_panels(WINDOW))
    asked |= {
        f"{rule['alert']} {number}": query
        for rule in queries.alerts()
        for number, query in enumerate(queries.of_alert(rule))
    }
    empty = set(asked)

    def all_have() -> bool:
        empty.difference_update([name for name in empty if prometheus.has_data(asked[name])])
        return not empty

    wait(all_have, stage, lambda: "".join(f"{name}: {asked[name]}\n" for name in sorted(empty)))

    def total(query: str) -> float:
        return sum(prometheus.values(query))

    frames = stage.read("can_frames")
    assert frames.num_rows == GOOD * FRAMES
    assert total('pcaplake_rows_total{table="can_frames"}') == frames.num_rows
    assert total("pcaplake_quarantined_total") == 1
    assert total("pcaplake_faults_total") == stage.read("faults").num_rows >= CUT
    assert total("pcaplake_leader") == 1
    assert prometheus.values('pcaplake_captures_total{outcome="gone"}') == [0.0, 0.0], "none was, and that is known"
    assert total('increase(pcaplake_captures_total{outcome="quarantined"}[10m])') > 0, "the first event is seen"
    assert total("max(pcaplake_queue_oldest_message_age_seconds)") < PATIENCE

    rules = [rule for group in prometheus.get("/api/v1/rules")["groups"] for rule in group["rules"]]
    # those on Jobs are evaluated, too, and have no data here: kube-state-metrics would have it
    evaluated = queries.alerts(queries.RULES, queries.RULES_OF_JOBS)
    assert sorted(rule["name"] for rule in rules) == sorted(rule["alert"] for rule in evaluated)
    assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"} == {}
    quiet = {"PcaplakeQuarantine", "PcaplakeFaults"}  # a junk of eight captures is many; they are pending
    assert {rule["name"] for rule in rules if rule["state"] != "inactive"} <= quiet
