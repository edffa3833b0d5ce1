"""Names of a package that are imported on first use, because what they need takes long to load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def import_on_use(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package. `modules`: name -> the module below the package that has it, as `MODULE` or as
    `MODULE:NAME` if its name there is another.
    """

    def get_attribute(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, name_there = modules[name].partition(":")
        return getattr(import_module(f".{module}", package), name_there or name)

    return get_attribute
