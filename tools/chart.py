"""Generates parts of the Helm chart: its README, and `settings` in values.yaml and values.schema.json.

    python -m tools.chart            # `make docs`

The README comes from the comments in values.yaml, `settings` from the fields of FleetSettings. The schema of the other values is
written by hand.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BeforeValidator

from pcaplake.worker.config.service_settings import FleetSettings
from pcaplake.worker.config.setting_texts import list_settings
from pcaplake.worker.config.settings import parse_seconds, parse_size

CHART = Path(__file__).parents[1] / "helm" / "pcaplake"
SIZE = r"^[0-9]+(\.[0-9]+)? ?([KMGTkmgt]?([Ii]?[Bb])?)$"
TIME = r"^[0-9]+(\.[0-9]+)? ?(ms|s|min|m|h)?$"
GIVEN: Mapping[str, Any] = {"http_host": "0.0.0.0", "http_port": 9464}  # values that a pod needs; all others are null
_KEY = re.compile(r"( *)([A-Za-z_]\w*):(.*)")
_BEGIN, _END = "settings:\n", "# end of settings\n"
_WIDTH = 118

INTRODUCTION = """\
# Chart pcaplake

Installs workers that read an SQS queue, the committer, Spark maintenance jobs, autoscaling, dashboards and alerts. Requires
Kubernetes 1.29 or newer. [docs/deploy.md](../../docs/deploy.md) explains how to prepare a cluster and an AWS account, and how
to upgrade.
```
helm install pcaplake helm/pcaplake --namespace pcaplake --create-namespace \\
  --set image.repository=my.registry/data/pcaplake,spark.image.repository=my.registry/data/pcaplake-spark \\
  --set settings.queue=captures --set settings.lake=s3://lake/drives --set settings.region=eu-central-1
helm test pcaplake --namespace pcaplake --logs
```
Helm refuses unknown values and values that contradict each other. The message says what to change.

## Values
`make docs` generates this table from values.yaml, and a test compares both.

| value | default | description |
|---|---|---|
"""


def build_values_schema() -> dict[str, Any]:
    """JSON schema of `settings`: the fields of FleetSettings. Fields without a value in the chart may be null."""
    fields = FleetSettings.model_json_schema()["properties"]
    texts = {name: text for name, _, _, text in list_settings()}
    properties = {}
    for name in texts:
        allowed = _allowed_values_schema(name, fields[name])
        if name not in GIVEN:
            allowed = {"anyOf": [*allowed.pop("anyOf", [allowed]), {"type": "null"}]}
        properties[name] = {"description": texts[name], **allowed}
    properties["http_port"]["minimum"] = 1  # 0 would select a free port, which probes and Prometheus do not know
    return {
        "type": "object",
        "additionalProperties": False,
        "required": sorted(GIVEN),
        "properties": properties,
    }


def _allowed_values_schema(name: str, field: Mapping[str, Any]) -> dict[str, Any]:
    options = [option for option in field.get("anyOf", [field]) if option.get("type") != "null"]
    kept = ("type", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "items")
    schema = {key: options[0][key] for key in kept if key in options[0]}
    spelled = {
        validator.func
        for validator in FleetSettings.model_fields[name].metadata
        if isinstance(validator, BeforeValidator)
    }
    if parse_size in spelled:
        return {"anyOf": [{"type": "integer", "minimum": field["ge"]}, {"type": "string", "pattern": SIZE}]}
    if parse_seconds in spelled:
        return {"anyOf": [{"type": "number", "exclusiveMinimum": field["gt"]}, {"type": "string", "pattern": TIME}]}
    if schema["type"] == "object":  # Pairs
        pair = {"type": "string", "pattern": "^[^=]+="}
        return {
            "anyOf": [
                {"type": "object", "additionalProperties": {"type": "string"}},
                {"type": "array", "items": pair},
                pair,
            ]
        }
    if schema["type"] == "array":  # Names
        return {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string", "minLength": 1}]}
    if schema["type"] == "string" and "enum" not in schema:
        schema["minLength"] = 1
    return schema


def format_settings_block() -> str:
    """The lines below `settings:` in values.yaml."""
    lines = []
    for name, kind, default, text in list_settings():
        comment = f"{text}{f' One of{kind[1:].replace(chr(40), chr(32)).rstrip(chr(41))}.' if kind else ''}"
        if name == "role":
            comment += " The chart sets it if `committer.separate` is set."
        elif name == "threads":
            comment += " The chart derives the number from `worker.resources`."
        if default and name not in GIVEN:
            comment += f" Default {default}."
        lines += [f"  # {part}" for part in _wrap_comment(comment)]
        lines.append(f"  {name}: {json.dumps(GIVEN.get(name))}")
    return "\n".join(lines) + "\n"


def _wrap_comment(text: str) -> Iterator[str]:
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > _WIDTH:
            yield line
            line = ""
        line = f"{line} {word}".strip()
    yield line


def replace_settings_block(values: str) -> str:
    """values.yaml with the block of settings replaced."""
    before, _, rest = values.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}{format_settings_block()}{_END}{after}"


def iterate_documented_values(values: str) -> Iterator[tuple[str, str, str]]:
    """Path, default as JSON and comment of each value that has a comment, in the order of the file.

    A comment belongs to the key directly below it. A key with a comment is one value, also if it is a map, unless keys in this
    map have comments of their own.
    """
    data, path, comment = yaml.safe_load(values), [], []
    depths: list[int] = []
    for line in values.splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            comment.append(stripped.lstrip("# "))
            continue
        match = _KEY.fullmatch(line)
        if match is None or match[2] is None:
            comment = []
            continue
        while depths and depths[-1] >= len(match[1]):
            depths.pop()
            path.pop()
        depths.append(len(match[1]))
        path.append(match[2])
        if comment:
            yield ".".join(path), json.dumps(_value_at_path(data, path)), " ".join(comment)
        comment = []


def _value_at_path(data: Any, path: list[str]) -> Any:
    for key in path:
        data = data[key]
    return data


def format_chart_readme(values: str) -> str:
    """README.md of the chart."""
    rows = list(iterate_documented_values(values))
    parents = {name for name, _, _ in rows for other, _, _ in rows if other.startswith(f"{name}.")}
    lines = []
    for name, default, text in rows:
        shown = "" if name in parents else f"`{default}`".replace("|", "\\|")
        lines.append(f"| `{name}` | {shown} | {text.replace('|', chr(92) + '|')} |")
    return INTRODUCTION + "\n".join(lines) + "\n"


def generate_chart_files(chart: Path = CHART) -> dict[Path, str]:
    """Path and expected text of each generated file."""
    values = replace_settings_block((chart / "values.yaml").read_text())
    whole = json.loads((chart / "values.schema.json").read_text())
    whole["properties"]["settings"] = build_values_schema()
    return {
        chart / "values.yaml": values,
        chart / "values.schema.json": json.dumps(whole, indent=2, ensure_ascii=False) + "\n",
        chart / "README.md": format_chart_readme(values),
    }


def main() -> int:
    for path, text in generate_chart_files().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
