"""The settings of the service as text, for the help of `pcaplake run`, docs/settings.md and the chart."""

from __future__ import annotations

from typing import Any

from .service_settings import FleetSettings
from .settings import LakeSettings


def list_settings() -> list[tuple[str, str, str, str]]:
    """Name, choices, default and description of every setting."""
    rows = []
    # pydantic lists the fields of base classes first; those that few set come last
    fields = sorted(FleetSettings.model_fields.items(), key=lambda item: item[0] in LakeSettings.model_fields)
    for name, field in fields:
        choices = getattr(field.annotation, "__args__", ())
        kind = (
            f" ({', '.join(map(str, choices))})"
            if choices and all(isinstance(choice, str) for choice in choices)
            else ""
        )
        text = field.description or ""
        stated = "Default: " in text or field.default_factory is not None or field.default in (None, {})
        rows.append((name, kind, "" if stated else f"`{_as_yaml(field.default)}`", text))
    return rows


def _as_yaml(value: Any) -> str:
    """A default as it is written in a YAML file: true, 30."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
