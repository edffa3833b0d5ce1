"""`pcaplake operator` against a real API server: elections, and Jobs that run to their end."""

from __future__ import annotations

import json
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.k8s.plane import ROOT, TETHERED

from .lab import IMAGE, PATIENCE, Lab, Namespace

pytestmark = pytest.mark.slow
LEASE, RENEW, RETRY = 6, 4, 1
TEMPLATE = {
    "spec": {
        "backoffLimit": 0,
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 2,
                "containers": [{"name": "spark", "image": f"{IMAGE}:lab", "args": ["pcaplake", "--version"]}],
            }
        },
    }
}


class Operators:
    """Candidates as processes, with the rights of docs/operator.md and nothing more."""

    def __init__(self, namespace: Namespace, folder: Path, stack: ExitStack) -> None:
        self.namespace, self.lab, self._folder, self._stack = namespace, namespace.lab, folder, stack
        self._config = folder / "kubeconfig"
        self._allow()
        self.plan({"nightly": {"schedule": "0 3 1 1 *"}})

    def _allow(self) -> None:
        page = (ROOT / "docs/operator.md").read_text().replace("[pcaplake-operator]", "[op]")  # as --name says
        rules = next(
            found["rules"]
            for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
            if "leases" in text and (found := yaml.safe_load(text))
        )
        base = "rbac.authorization.k8s.io"
        kubectl, name = self.namespace.kubectl, {"name": "operator"}
        kubectl("create", "serviceaccount", "operator")
        role = {"apiVersion": f"{base}/v1", "kind": "Role", "metadata": name, "rules": rules}
        kubectl("apply", "-f", "-", given=role)
        kubectl(
            "create", "rolebinding", "operator", "--role=operator", f"--serviceaccount={self.namespace.name}:operator"
        )
        token = kubectl("create", "token", "operator").strip()
        doc = json.loads(self.lab.plane.kubeconfig.read_text())
        doc["users"][0]["user"] = {"token": token}
        self._config.write_text(json.dumps(doc))

    def plan(self, jobs: dict[str, Any], **given: Any) -> None:
        (self._folder / "jobs.yaml").write_text(yaml.safe_dump({"template": TEMPLATE, "jobs": jobs, **given}))

    def start(self, name: str, *options: str) -> Operator:
        times = ("--lease", str(LEASE), "--renew", str(RENEW), "--retry", str(RETRY), "--every", "0.5")
        command = (sys.executable, "-m", "pcaplake.worker", "operator", "--jobs", str(self._folder / "jobs.yaml"))
        where = ("--kubeconfig", str(self._config), "--namespace", self.namespace.name, "--name", "op")
        log = self._folder / f"{name}.log"
        env = {"PATH": "/usr/bin:/bin", "PCAPLAKE_HTTP_PORT": "0"}
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*TETHERED, *command, *where, *times, *options], stdout=out, stderr=out, env=env, cwd=ROOT
            )
        made = Operator(process, log, self.lab)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return made

    def holder(self) -> str:
        return str(self.namespace.get("lease", "op")["spec"].get("holderIdentity") or "")


class Operator:
    """One candidate, and what it says."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, lab: Lab) -> None:
        self.process, self._log, self._lab = process, log, lab

    def events(self) -> list[str]:
        lines = self._log.read_text(errors="replace").splitlines()
        return [json.loads(line)["event"] for line in lines if line.startswith("{")]

    @property
    def stands(self) -> bool:
        return any(" takes part in the election for " in event for event in self.events())

    @property
    def identity(self) -> str:
        """As it stands in the Lease."""
        text = " takes part in the election for "
        return next(event.partition(text)[0] for event in self.events() if text in event)

    @property
    def terms(self) -> int:
        return sum(event.endswith(" leads") for event in self.events())

    def until(self, holds: Callable[[], Any], what: str) -> float:
        def checked() -> bool:
            assert self.process.poll() is None, self._log.read_text()
            return bool(holds())

        return self._lab.until(checked, what)


@pytest.fixture
def operators(namespace: Namespace, tmp_path: Path) -> Iterator[Operators]:
    with ExitStack() as stack:
        yield Operators(namespace, tmp_path, stack)


def test_another_leads_when_the_leader_is_gone(operators: Operators) -> None:
    """Killed: after the lease. Told to stop: it gives the Lease back within two seconds, and the other leads at once."""
    leader = operators.start("0")
    leader.until(lambda: leader.terms, "nobody leads")
    took: dict[str, list[float]] = {"SIGKILL": [], "SIGTERM": []}
    releases = []
    for number in range(1, 5):
        other = operators.start(str(number))
        other.until(lambda o=other: o.stands, "it does not stand")  # type: ignore[misc]
        kind = "SIGKILL" if number % 2 else "SIGTERM"
        began = time.monotonic()
        leader.process.send_signal(getattr(signal, kind))
        if kind == "SIGTERM":
            assert leader.process.wait(PATIENCE) == 0
            releases.append(time.monotonic() - began)
            assert any("released the Lease" in event for event in leader.events())
        other.until(lambda o=other: o.terms, "nobody took over")  # type: ignore[misc]
        took[kind].append(time.monotonic() - began)
        leader = other
    print(f"lease {LEASE} s, renew {RENEW} s, retry {RETRY} s; a new leader after {took}; gone after {releases}")
    assert max(releases) < 2
    assert statistics.mean(took["SIGTERM"]) < statistics.mean(took["SIGKILL"])
    assert min(took["SIGKILL"]) >= LEASE - RENEW, "nobody is taken for dead who may be alive"


def test_the_leader_outlives_the_api_server_or_steps_back(operators: Operators) -> None:
    """An API server that is away for longer than `renew` ends the leading; when it is back, somebody leads again."""
    plane = operators.lab.plane
    leader = operators.start("0")
    leader.until(lambda: leader.terms, "nobody leads")
    plane.processes["kube-apiserver"].kill()
    plane.processes["kube-apiserver"].wait()
    leader.until(lambda: any("lost leadership" in event for event in leader.events()), "it works on alone")
    plane.start_api_server()
    plane.wait_until_ready()
    leader.until(lambda: leader.terms == 2, "nobody leads again")
    leader.process.send_signal(signal.SIGTERM)
    assert leader.process.wait(PATIENCE) == 0
    assert operators.holder() == ""


def test_a_frozen_leader_steps_back_at_its_first_look(operators: Operators) -> None:
    leader = operators.start("0")
    leader.until(lambda: leader.terms, "nobody leads")
    other = operators.start("1")
    other.until(lambda: other.stands, "it does not stand")
    leader.process.send_signal(signal.SIGSTOP)
    other.until(lambda: other.terms, "nobody took over")
    leader.process.send_signal(signal.SIGCONT)
    took = leader.until(lambda: any("lost leadership" in event for event in leader.events()), "two lead")
    print(f"a leader that thawed beside another stepped back after {took:.1f} s")
    assert took < LEASE
    assert operators.holder() == other.identity


def test_jobs_run_to_their_end_once_and_history_is_kept(operators: Operators) -> None:
    """Each minute a Job, of two operators; one fails and says why."""
    operators.plan(
        {
            "version": {"schedule": "* * * * *"},
            "fails": {"schedule": "* * * * *", "args": ["pcaplake", "ingest", "nothing", "--lake", "/tmp/lake"]},
            "bad": {"schedule": "* * * * *", "template": {"spec": {**TEMPLATE["spec"], "nonsense": 1}}},
        },
        late="50s",
    )
    first = operators.start("0")
    second = operators.start("1")

    def said(text: str) -> bool:
        return any(text in event for event in first.events() + second.events())

    for text in ("launched op-version-", "launched op-fails-", "bad cannot be launched"):
        first.until(lambda t=text: said(t), f"not said: {text}")  # type: ignore[misc]
    first.until(lambda: re.search(r"op-version-\d+ succeeded", "\n".join(first.events() + second.events())), "no end")
    first.until(lambda: said("failed: BackoffLimitExceeded"), "the failure is not told")
    jobs = operators.namespace.get("jobs")["items"]
    assert len({job["metadata"]["name"] for job in jobs}) == len(jobs)
    assert {job["metadata"]["labels"]["pcaplake-job"] for job in jobs} == {"version", "fails"}
    launched = [event for event in first.events() + second.events() if event.startswith("launched ")]
    assert len(launched) == len(set(launched)), "no time was launched twice"
    assert (first.terms, second.terms) in ((1, 0), (0, 1))


def test_without_rights_it_says_which(operators: Operators) -> None:
    operators.namespace.kubectl("delete", "rolebinding", "operator")
    alone = operators.start("0")
    assert alone.process.wait(PATIENCE) == 3
    assert "pcaplake docs operator" in alone._log.read_text()
