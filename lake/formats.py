"""Versions of the formats of lake.json, manifests, stages and ledgers.

A format has a major version, an integer. Within a major version, newer programs only add fields that older ones may
ignore; an older program that rewrites a record keeps them (`unknown`). Any other change raises the major version, which
older programs refuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any

from pcaplake.common.errors import Fatal

_NOTHING: dict[str, Any] = {}


def check_format(what: str, version: object, newest: int) -> None:
    """Raises Fatal unless this program can read major version `version` of `what`; it reads 1 to `newest`."""
    if not isinstance(version, int) or version < 1:
        raise Fatal(f"{what} has a format that no version of pcaplake writes ({version!r}): restore the original")
    if version > newest:
        raise Fatal(f"{what} has format {version}, this version of pcaplake reads up to {newest}: use a newer pcaplake")


def unknown_fields() -> Any:
    """A dataclass field for unknown fields of newer versions; all empty ones share a dict."""
    return field(default_factory=lambda: _NOTHING, repr=False, compare=False)


def read_fields(kind: type[Any], raw: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for a dataclass: its fields, and the rest in `unknown`. Raises TypeError unless `raw` is a mapping."""
    known = {known_field.name for known_field in fields(kind)} - {"unknown"}
    arguments = {name: value for name, value in raw.items() if name in known}
    if len(arguments) < len(raw):
        arguments["unknown"] = {name: value for name, value in raw.items() if name not in known}
    return arguments


def written_fields(record: Any, *, nulls: bool = True) -> dict[str, Any]:
    """The reverse: the fields of such a dataclass to write; without `nulls`, those that are not None."""
    values = {known.name: getattr(record, known.name) for known in fields(record) if known.name != "unknown"}
    return {
        **{name: value for name, value in values.items() if nulls or value is not None},
        # rule: fields that only a newer version knows are kept
        **record.unknown,
    }
