"""The chart as Helm renders it, by the cases in this folder.

python -m tests.helm.rendered    # writes the golden files anew: read what changed
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "pcaplake"
HERE = Path(__file__).parent
CASES = sorted(path.stem for path in (HERE / "cases").glob("*.yaml"))
NOTES = "pcaplake/templates/NOTES.txt"
LEAST: Mapping[str, Any] = {"settings": {"queue": "captures", "lake": "s3://lake/drives"}}


def case(name: str) -> dict[str, Any]:
    values: dict[str, Any] = yaml.load((HERE / "cases" / f"{name}.yaml").read_text(), Loader=yaml.CSafeLoader)
    return values


@functools.cache
def chart() -> helm_python.Chart:
    return helm_python.Chart.load(CHART)


def texts(values: Mapping[str, Any], *, release: str = "pcaplake", namespace: str = "captures") -> dict[str, str]:
    """Template -> what it gives, without those that give nothing. HelmError where Helm refuses the values."""
    return dict(_render(json.dumps(values), release, namespace))


@functools.cache  # many tests look at the same manifests
def _render(values: str, release: str, namespace: str) -> dict[str, str]:
    made = chart().render(values=json.loads(values), name=release, namespace=namespace)
    return {name: text for name, text in made.items() if text.strip()}


def manifests(
    values: Mapping[str, Any], *, release: str = "pcaplake", namespace: str = "captures"
) -> list[dict[str, Any]]:
    """All objects."""
    return [
        one
        for name, text in texts(values, release=release, namespace=namespace).items()
        if name != NOTES
        for one in yaml.load_all(text, Loader=yaml.CSafeLoader)
        if one is not None
    ]


def of_kind(objects: list[dict[str, Any]], kind: str, suffix: str = "") -> dict[str, Any]:
    """The only one of this kind whose name ends so."""
    found = [one for one in objects if one["kind"] == kind and one["metadata"]["name"].endswith(suffix)]
    assert len(found) == 1, [one["metadata"]["name"] for one in found]
    return found[0]


def with_values(**values: Any) -> dict[str, Any]:
    """The least values, and these; `a__b` is b below a."""
    made = copy.deepcopy(dict(LEAST))
    for path, value in values.items():
        below, keys = made, path.split("__")
        for key in keys[:-1]:
            below = below.setdefault(key, {})
        below[keys[-1]] = value
    return made


def pods(objects: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every pod's spec that the objects would make, by name."""
    for one in objects:
        spec = one.get("spec", {})
        if one["kind"] == "Pod":
            yield one["metadata"]["name"], spec
        elif one["kind"] == "Deployment":
            yield one["metadata"]["name"], spec["template"]["spec"]
        elif one["kind"] == "CronJob":
            yield one["metadata"]["name"], spec["jobTemplate"]["spec"]["template"]["spec"]


def files_of(template: Mapping[str, Any], volume: str = "settings") -> dict[str, str]:
    """Path -> text of what a pod of this template has in a volume, as the Downward API fills it from its annotations."""
    (source,) = [one["downwardAPI"] for one in template["spec"]["volumes"] if one["name"] == volume]
    annotations = template["metadata"]["annotations"]
    files = {}
    for item in source["items"]:
        key = re.fullmatch(r"metadata\.annotations\['([^']+)'\]", item["fieldRef"]["fieldPath"])
        assert key is not None
        files[item["path"]] = annotations[key[1]]
    return files


def planned(objects: list[dict[str, Any]]) -> list[str]:
    """Names of the jobs in the operator's file; none where there is no operator."""
    templates = [one["spec"]["template"] for one in objects if one["kind"] == "Deployment"]
    files = [files_of(one) for one in templates]
    return [name for one in files if "jobs.yaml" in one for name in yaml.safe_load(one["jobs.yaml"])["jobs"]]


def lake_hash(uri: str) -> str:
    """What the chart writes for a lake in the names of its jobs."""
    return hashlib.sha256(uri.encode()).hexdigest()[:8]


def golden(name: str) -> str:
    """What a case gives, as it is kept; the long files of the chart itself are left out."""
    parts = [f"# {template}\n{text.strip()}\n" for template, text in sorted(texts(case(name)).items())]
    whole = "\n".join(parts)
    whole = re.sub(r"^( *pcaplake-\w+\.json: ).*", r"\1(files/dashboard.json)", whole, flags=re.M)
    return "\n".join(line.rstrip() for line in whole.splitlines()) + "\n"


def main() -> int:
    for name in CASES:
        (HERE / "golden" / f"{name}.yaml").write_text(golden(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
