"""Schemas of the custom resources that the chart makes, and objects checked against them as strictly as an API server does.

    python -m tests.helm.crds        # fetches the definitions anew; needs Go and its module proxy

Rules in CEL (`x-kubernetes-validations`) are not evaluated, and no webhook is asked.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

FOLDER = Path(__file__).with_name("crds")
MODULES: Mapping[str, Mapping[str, str]] = {  # path -> kind -> file
    "github.com/kedacore/keda/v2@v2.21.0": {
        "ScaledObject": "config/crd/bases/keda.sh_scaledobjects.yaml",
        "TriggerAuthentication": "config/crd/bases/keda.sh_triggerauthentications.yaml",
    },
    "github.com/prometheus-operator/prometheus-operator@v0.85.0": {
        "PodMonitor": "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
        "ServiceMonitor": "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
        "PrometheusRule": "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
    },
    "github.com/kubeflow/spark-operator/v2@v2.4.0": {
        "SparkApplication": "config/crd/bases/sparkoperator.k8s.io_sparkapplications.yaml",
        "ScheduledSparkApplication": "config/crd/bases/sparkoperator.k8s.io_scheduledsparkapplications.yaml",
    },
}
KINDS = frozenset(kind for files in MODULES.values() for kind in files)
_TEXTS = ("description", "example")


def problems(manifest: Mapping[str, Any]) -> list[str]:
    """What an API server with these definitions would not take; [] is well. KeyError: none of these kinds."""
    group_version, validator = _validator(str(manifest["kind"]))
    found = [] if manifest["apiVersion"] == group_version else [f"apiVersion is not {group_version}"]
    wrong = validator.iter_errors(dict(manifest))
    return found + [f"{'.'.join(map(str, error.absolute_path))}: {error.message[:300]}" for error in wrong]


@functools.cache
def _validator(kind: str) -> tuple[str, Draft202012Validator]:
    stored = json.loads((FOLDER / f"{kind}.json").read_text())
    return stored["apiVersion"], Draft202012Validator(strict(stored["schema"]))


def strict(schema: Any) -> Any:
    """A structural schema of Kubernetes as JSON schema: what is not named is refused, where it would be pruned."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        key: {name: strict(one) for name, one in value.items()} if key == "properties" else strict(value)
        for key, value in schema.items()
        if not key.startswith("x-kubernetes-") and key not in ("format", "nullable", "default")
    }
    if schema.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
        made["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    open_ended = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if schema.get("type") == "object" and "properties" in schema and not open_ended:
        made["additionalProperties"] = False
    if schema.get("nullable") and isinstance(made.get("type"), str):
        made["type"] = [made["type"], "null"]
    return made


def _without_texts(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_texts(one) for one in schema]
    if isinstance(schema, dict):
        return {
            key: _without_texts(value)
            for key, value in schema.items()
            if not (key in _TEXTS and isinstance(value, str))
        }
    return schema


def main() -> int:
    for module, files in MODULES.items():
        done = subprocess.run(["go", "mod", "download", "-json", module], capture_output=True, text=True, check=True)
        folder = Path(json.loads(done.stdout)["Dir"])
        for kind, file in files.items():
            definition = yaml.safe_load((folder / file).read_text())["spec"]
            version = next(one for one in definition["versions"] if one["storage"])
            schema = _without_texts(version["schema"]["openAPIV3Schema"])
            schema["properties"].pop("status", None)
            schema["properties"]["metadata"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
            stored = {
                "apiVersion": f"{definition['group']}/{version['name']}",
                "from": f"{module} {file}",
                "schema": schema,
            }
            (FOLDER / f"{kind}.json").write_text(json.dumps(stored, separators=(",", ":"), sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
