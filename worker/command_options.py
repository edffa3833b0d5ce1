"""Groups options of a command in dataclasses. typer, which makes an option of each parameter, does not support that."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

T = TypeVar("T")


def expand_options(command: Callable[..., T]) -> Callable[..., T]:
    """The command with the fields of a dataclass as parameters, wherever one of its parameters is a dataclass.

    Raises ValueError if two of the resulting parameters have the same name.
    """
    groups: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    hints = get_type_hints(command, include_extras=True)
    for parameter in inspect.signature(command).parameters.values():
        members, hint = [parameter], hints[parameter.name]
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            groups[parameter.name] = hint
            members, hints = list(inspect.signature(hint).parameters.values()), hints | _field_types(hint)
        parameters += [
            member.replace(annotation=hints[member.name], kind=inspect.Parameter.KEYWORD_ONLY) for member in members
        ]

    @functools.wraps(command)
    def run_command(**given: Any) -> T:
        for name, group in groups.items():
            given[name] = group(**{field: given.pop(field) for field in _field_types(group)})
        return command(**given)

    run_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run_command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run_command


def _field_types(group: Any) -> dict[str, Any]:
    return get_type_hints(group, include_extras=True)
