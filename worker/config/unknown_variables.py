"""Finds environment variables PCAPLAKE_... that no program reads: their names are misspelled."""

from __future__ import annotations

from .environment import PREFIX, list_variables
from .service_settings import FleetSettings
from .settings import Settings, suggest_setting

# read elsewhere, in the product or in tests
_OTHERS = ("CONFIG", "DEBUG", "SPARK_JARS", "K8S_BIN", "TEST_AWS", "CAPTURES")


def describe_unknown_variables() -> str | None:
    """One line about unknown variables PCAPLAKE_...; None if there are none."""
    names = list_unknown_variables()
    return f"unknown environment variables: {names}" if names else None


def list_unknown_variables() -> str:
    """Unknown variables PCAPLAKE_..., each with a similar name; "" if there are none.

    Variables that Kubernetes sets for a Service whose name starts with `pcaplake` are ignored.
    """
    known = {name.upper() for name in (*Settings.model_fields, *FleetSettings.model_fields, *_OTHERS)}
    set_variables = list_variables()
    services = {name.removesuffix("_SERVICE_HOST") for name in set_variables if name.endswith("_SERVICE_HOST")}
    foreign = tuple(f"{service}_{kind}" for service in services for kind in ("SERVICE_", "PORT"))
    bare = {name: name.upper().removeprefix(PREFIX) for name in sorted(set_variables) if not name.startswith(foreign)}
    unread = {name: word for name, word in bare.items() if word not in known}
    return "; ".join(f"{name}: {suggest_setting(word, known, PREFIX)}" for name, word in unread.items())
