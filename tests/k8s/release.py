"""helm/pcaplake as a test installs it: values for one stage of S3, SQS and DynamoDB, and what became of its workers."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Mapping
from typing import Any

from tests.integration.stages import Stage

from .lab import CHART, IMAGE, Namespace

Values = dict[str, Any]
NAME = "lab"
TIMEOUT = "300s"
TERMINATED = 128 + signal.SIGTERM
NEVER = {name: {"enabled": False} for name in ("compact", "vacuum", "quality", "signals")}
CREDENTIALS = "credentials"
SKIPPED = ("AWS_REGION", "AWS_DEFAULT_REGION")


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> Values:
    """As Helm merges values."""
    both = dict(one)
    for name, value in other.items():
        old = both.get(name)
        both[name] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return both


class Release:
    """`install`, `upgrade` and what there is afterwards. `values` may be changed before."""

    def __init__(self, namespace: Namespace, stage: Stage) -> None:
        self.namespace, self.stage, self.lab = namespace, stage, namespace.lab
        self.values: Values = {
            "image": {"repository": IMAGE, "tag": "lab"},
            "identity": {"kind": "none"},
            "settings": {
                "queue": stage.queue,
                "lake": stage.uri,
                "region": stage.aws.region,
                "ledger_table": stage.ledger,
                "lock_table": stage.locks,
                "storage_option": {"allow_http": "true"},
                "threads": 1,
                "poll_wait": 1,
                "drain_timeout": 30,
                "flush_interval": 1,
                "max_batch_age": 0.3,
                "lease_timeout": 2,
                "deletion_cost": True,
                "deletion_cost_interval": 1,
            },
            "worker": {
                "replicas": 1,
                "graceSeconds": 15,
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "2Gi"}},
            },
            "extraEnvFrom": [{"secretRef": {"name": CREDENTIALS}}],
            "probes": {"startup": {"periodSeconds": 1, "failureThreshold": 240}, "readiness": {"periodSeconds": 1}},
            "schedule": {},
            "reconcile": {"enabled": False},
            "spark": NEVER,
        }
        self._installed = False
        given = {name: value for name, value in stage.aws.environment.items() if name not in SKIPPED}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": CREDENTIALS}, "stringData": given}
        namespace.kubectl("apply", "-f", "-", given=secret)

    @property
    def deployment(self) -> str:
        return f"deployment/{NAME}-pcaplake-worker"

    def _file(self, values: Mapping[str, Any]) -> str:
        file = self.stage.folder / "values.json"
        file.write_text(json.dumps(values))
        return str(file)

    def install(self, **values: Any) -> None:
        """And wait until all is ready."""
        self._installed = True
        self._helm("install", values)

    def upgrade(self, **values: Any) -> None:
        self._helm("upgrade", values)

    def arguments(self) -> list[str]:
        """Chart and values, for a command of Helm."""
        return [str(CHART), "--values", self._file(self.values)]

    def _helm(self, verb: str, values: Values) -> None:
        self.values = merged(self.values, values)
        self.namespace.helm(verb, NAME, *self.arguments(), "--wait", "--timeout", TIMEOUT)

    def gone(self) -> None:
        """Uninstalled, and every worker has ended; the pod of `helm test` stays to be looked at."""
        if self._installed:
            self._installed = False
            self.namespace.helm("uninstall", NAME, "--ignore-not-found", "--wait", "--timeout", TIMEOUT)
            made = f"app.kubernetes.io/managed-by=pcaplake-operator,pcaplake-operator={NAME}-pcaplake"
            self.namespace.kubectl("delete", "jobs", "-l", made)  # nobody owns them (docs/deploy.md)
            others = ("pods", "-l", "app.kubernetes.io/component!=doctor")
            self.lab.until(lambda: not self.namespace.get(*others)["items"], "pods stay")

    def scale(self, replicas: int) -> None:
        self.namespace.kubectl("scale", self.deployment, f"--replicas={replicas}")

    def replicas(self) -> int:
        found: int = self.namespace.get(self.deployment)["spec"]["replicas"]
        return found

    def ready(self, count: int) -> list[str]:
        """Waits until exactly so many workers work -> their names."""
        self.lab.until(lambda: len(self.namespace.ready()) == len(self.namespace.pods()) == count, f"not {count} ready")
        return self.namespace.ready()

    def cost(self, pod: str) -> int | None:
        """What the pod has written about itself."""
        notes = self.namespace.get("pod", pod)["metadata"].get("annotations", {})
        value = notes.get("controller.kubernetes.io/pod-deletion-cost")
        return None if value is None else int(value)

    def check_endings(self) -> None:
        """Every worker that was told to stop drained within its grace, or had not begun (SIGTERM ends it at once)."""
        ends = self.endings()
        assert set(ends.values()) <= {0, TERMINATED}, ends
        begun = [path.read_text() for path in self.lab.containers() if path.stem == "pcaplake"]
        late = sum(code == TERMINATED for code in ends.values())
        assert late <= sum("running as" not in log for log in begun), "one had begun, and did not drain"

    def endings(self) -> dict[str, int]:
        """Exit code by pod, of those in this namespace that were told to stop, from the node's log."""
        pattern = rf"{re.escape(self.namespace.name)}/(\S+-worker-\S+) stopped in \S+ s of \S+ s grace, exit (\d+)"
        return {match[1]: int(match[2]) for match in re.finditer(pattern, self.lab.node_log())}
