"""What typer does not do for a command: options grouped in dataclasses, help that fits the terminal, errors as sentences."""

from __future__ import annotations

import dataclasses
import functools
import gc
import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, get_type_hints

from typer.core import TyperCommand

T = TypeVar("T")


class PlainCommand(TyperCommand):
    """A command whose help shows an argument as its metavar says, without a type of Python."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """As typer, but `CAPTURES...` instead of `{CAPTURES...}...`. Braces stay around a choice."""
        return [
            re.sub(r"^\{([^|}]+?)(\.\.\.)?\}(\.\.\.)?$", r"\1\2", piece) for piece in super().collect_usage_pieces(ctx)
        ]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for parameter in self.params:
            if parameter.param_type_name == "argument":
                parameter.display_type_rich = lambda ctx: None  # type: ignore[attr-defined]
        super().format_options(ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        process_without_pydantic(self.get_params(ctx))
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """The modules are imported. They live as long as the process, so the garbage collector can ignore them."""
        if not gc.isenabled():
            gc.freeze()
            gc.enable()
        return super().invoke(ctx)


def process_without_pydantic(parameters: Iterable[Any]) -> None:
    """Let these parameters of typer take values that are not given, and texts, without pydantic.

    typer would import it, and build a validator for each parameter, which takes longer than `--help`.
    """
    for parameter in parameters:
        parameter.process_value = functools.partial(_process_value, parameter)


def _process_value(parameter: Any, ctx: Any, value: Any) -> Any:
    described = parameter.type_descriptor
    is_list = described.annotation == list[str] and isinstance(value, (list, tuple)) and bool(value)
    is_text = described.annotation is str and isinstance(value, str)
    is_missing = value is None and not parameter.required
    if described.parameter_info.parser is not None or not (is_list or is_text or is_missing):
        return type(parameter).process_value(parameter, ctx, value)
    value = list(value) if is_list else value
    return value if parameter.callback is None else parameter.callback(ctx, parameter, value)


def expand_options(command: Callable[..., T]) -> Callable[..., T]:
    """The command with the fields of a dataclass as parameters, wherever one of its parameters is a dataclass.

    Its docstring, the text of `--help`, has its examples marked.

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

    run_command.__doc__ = mark_examples(command.__doc__)
    run_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run_command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run_command


def explain_usage_error(message: str) -> str:
    """A message of typer as a sentence, without what pydantic puts before the text of a parser."""
    sentence = message.replace("Value error, ", "").rstrip(".")
    return sentence if sentence.endswith("?") else f"{sentence}."


def mark_examples(text: str | None) -> str | None:
    """The text with indented paragraphs, such as examples, marked to keep their lines. typer wraps all other paragraphs."""
    if text is None:
        return None
    paragraphs: list[str] = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if not paragraph.startswith(" "):
            paragraphs.append(paragraph)
        elif paragraphs and paragraphs[-1].startswith("\b"):
            paragraphs[-1] += f"\n{paragraph}"
        else:
            paragraphs.append(f"\b\n{paragraph}")
    return "\n\n".join(paragraphs)


def _field_types(group: Any) -> dict[str, Any]:
    return get_type_hints(group, include_extras=True)
