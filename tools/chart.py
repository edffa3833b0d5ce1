"""What is made of the Helm chart's values: its README, and the `settings` in values.yaml and values.schema.json.

    python -m tools.chart            # `make docs`

Knows how values.yaml is commented, and FleetSettings. The other values' schema is written by hand.
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

from worker.fleet_settings import FleetSettings, listed
from worker.settings import seconds, size

CHART = Path(__file__).parents[1] / "helm" / "pcaplake"
SIZE = r"^[0-9]+(\.[0-9]+)? ?([KMGTkmgt]?([Ii]?[Bb])?)$"
TIME = r"^[0-9]+(\.[0-9]+)? ?(ms|s|min|m|h)?$"
GIVEN: Mapping[str, Any] = {"http_host": "0.0.0.0", "http_port": 9464}  # what a pod needs; the rest is null
_KEY = re.compile(r"( *)([A-Za-z_]\w*):(.*)")
_BEGIN, _END = "settings:\n", "# end of settings\n"
_WIDTH = 118

INTRODUCTION = """\
# Chart pcaplake

Workers that follow an SQS queue, the committer, Spark's maintenance, scaling, dashboards and alerts. How a cluster and an
account are made ready, and how it is upgraded, is in [docs/deploy.md](../../docs/deploy.md). Kubernetes 1.29 or newer.
```
helm install pcaplake helm/pcaplake --namespace pcaplake --create-namespace \\
  --set image.repository=my.registry/data/pcaplake,spark.image.repository=my.registry/data/pcaplake-spark \\
  --set settings.queue=captures --set settings.lake=s3://lake/drives --set settings.region=eu-central-1
helm test pcaplake --namespace pcaplake --logs
```
A wrong name of a value is refused, and so is what does not go together, with a message that says what to do.

## Values
Made by `make docs` from values.yaml; a test keeps it true.

| value | default | what it is |
|---|---|---|
"""


def schema() -> dict[str, Any]:
    """JSON schema of `settings`: exactly the fields of FleetSettings, each also null where the chart gives none."""
    fields = FleetSettings.model_json_schema()["properties"]
    texts = {name: text for name, _, _, text in listed()}
    properties = {}
    for name in FleetSettings.model_fields:
        allowed = _allowed(name, fields[name])
        if name not in GIVEN:
            allowed = {"anyOf": [*allowed.pop("anyOf", [allowed]), {"type": "null"}]}
        properties[name] = {"description": texts[name], **allowed}
    properties["http_port"]["minimum"] = 1  # probes and Prometheus must know it
    return {
        "type": "object",
        "additionalProperties": False,
        "required": sorted(GIVEN),
        "properties": properties,
    }


def _allowed(name: str, field: Mapping[str, Any]) -> dict[str, Any]:
    options = [one for one in field.get("anyOf", [field]) if one.get("type") != "null"]
    kept = ("type", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "items")
    one = {key: options[0][key] for key in kept if key in options[0]}
    spelled = {each.func for each in FleetSettings.model_fields[name].metadata if isinstance(each, BeforeValidator)}
    if size in spelled:
        return {"anyOf": [{"type": "integer", "minimum": field["ge"]}, {"type": "string", "pattern": SIZE}]}
    if seconds in spelled:
        return {"anyOf": [{"type": "number", "exclusiveMinimum": field["gt"]}, {"type": "string", "pattern": TIME}]}
    if one["type"] == "object":  # Pairs
        pair = {"type": "string", "pattern": "^[^=]+="}
        return {
            "anyOf": [
                {"type": "object", "additionalProperties": {"type": "string"}},
                {"type": "array", "items": pair},
                pair,
            ]
        }
    if one["type"] == "array":  # Names
        return {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string", "minLength": 1}]}
    if one["type"] == "string" and "enum" not in one:
        one["minLength"] = 1
    return one


def settings_block() -> str:
    """Below `settings:` in values.yaml."""
    lines = []
    for name, kind, default, text in listed():
        said = f"{text}{f' One of{kind[1:].replace(chr(40), chr(32)).rstrip(chr(41))}.' if kind else ''}"
        if name == "role":
            said += " The chart sets it where `committer.separate` is."
        elif name == "threads":
            said += " The chart takes them from `worker.resources`."
        if default and name not in GIVEN:
            said += f" Default {default}."
        lines += [f"  # {part}" for part in _wrapped(said)]
        lines.append(f"  {name}: {json.dumps(GIVEN.get(name))}")
    return "\n".join(lines) + "\n"


def _wrapped(text: str) -> Iterator[str]:
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > _WIDTH:
            yield line
            line = ""
        line = f"{line} {word}".strip()
    yield line


def with_settings(values: str) -> str:
    """values.yaml with the block of today's settings."""
    before, _, rest = values.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}{settings_block()}{_END}{after}"


def documented(values: str) -> Iterator[tuple[str, str, str]]:
    """Path, default as JSON, comment of every value that has one, in the order of the file.

    A comment stands directly above its key. What has a comment is one value, whatever is in it, but for a map whose
    own keys have comments.
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
            yield ".".join(path), json.dumps(_at(data, path)), " ".join(comment)
        comment = []


def _at(data: Any, path: list[str]) -> Any:
    for key in path:
        data = data[key]
    return data


def readme(values: str) -> str:
    """README.md of the chart."""
    rows = list(documented(values))
    parents = {name for name, _, _ in rows for other, _, _ in rows if other.startswith(f"{name}.")}
    lines = []
    for name, default, text in rows:
        shown = "" if name in parents else f"`{default}`".replace("|", "\\|")
        lines.append(f"| `{name}` | {shown} | {text.replace('|', chr(92) + '|')} |")
    return INTRODUCTION + "\n".join(lines) + "\n"


def made(chart: Path = CHART) -> dict[Path, str]:
    """What each file should say."""
    values = with_settings((chart / "values.yaml").read_text())
    whole = json.loads((chart / "values.schema.json").read_text())
    whole["properties"]["settings"] = schema()
    return {
        chart / "values.yaml": values,
        chart / "values.schema.json": json.dumps(whole, indent=2, ensure_ascii=False) + "\n",
        chart / "README.md": readme(values),
    }


def main() -> int:
    for path, text in made().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
