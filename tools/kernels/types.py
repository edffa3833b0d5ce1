"""The types of Cython's functions, and the Python functions that they are made from."""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

INT, UNSIGNED = "int64_t", "uint64_t"
KEYWORDS = frozenset(
    {"by", "cdef", "char", "cimport", "double", "float", "include", "int", "long", "short", "sizeof", "struct"}
)


@dataclass(frozen=True)
class Array:
    """The type of an array. name: what its pointer is called in the function; origin: the parameter that it is a part of."""

    item: str  # the C type of an item
    dimensions: int
    name: str = ""
    origin: str = ""

    @property
    def value(self) -> str:
        """The type of an item that was read."""
        return UNSIGNED if self.item == UNSIGNED else INT

    @property
    def type(self) -> Array:
        return replace(self, name="", origin="")

    @property
    def parts(self) -> list[str]:
        """The names of the pointer and of the lengths."""
        return [self.name, *(f"{self.name}_{i}" for i in range(self.dimensions))]


Type = str | Array
Expression = tuple[str, Any]
"""The text of an expression, and its type; of a call that returns several values, a tuple of types."""


@dataclass(frozen=True, eq=False)
class Source:
    """A Python function: its syntax tree, and what the names in it stand for."""

    tree: ast.FunctionDef
    names: Mapping[str, Any]

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Source:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
        assert isinstance(tree, ast.FunctionDef)
        return cls(tree, {**function.__globals__, **inspect.getclosurevars(function).nonlocals})

    @property
    def parameters(self) -> list[str]:
        return [argument.arg for argument in self.tree.args.args]

    def spread(self, groups: Mapping[str, Sequence[str]]) -> Source:
        """The same function with a parameter `group_field` for each field of its parameters `group`, which are NamedTuples."""
        tree = _Spread(groups).visit(copy.deepcopy(self.tree))
        tree.args.args = [
            ast.arg(name)
            for argument in tree.args.args
            for name in [f"{argument.arg}_{each}" for each in groups.get(argument.arg, ())] or [argument.arg]
        ]
        return Source(tree, self.names)


class _Spread(ast.NodeTransformer):
    """`group.field` becomes `group_field`."""

    def __init__(self, groups: Mapping[str, Sequence[str]]) -> None:
        self.groups = groups

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if isinstance(node.value, ast.Name) and node.value.id in self.groups:
            return ast.Name(f"{node.value.id}_{node.attr}", node.ctx)
        node.value = self.visit(node.value)
        return node


class NotTranslated(Exception):
    """A kernel uses a part of Python that is not translated."""

    def __init__(
        self, source: Source, node: ast.AST, why: str = "this is not a part of Python that kernels may use"
    ) -> None:
        text = ast.unparse(node).splitlines()[0]
        super().__init__(f"{source.tree.name}, line {getattr(node, 'lineno', '?')}: {text}: {why}")


def spell(name: str, kind: Type) -> str:
    """A variable has another name as an unsigned number: C declares one type for each name."""
    return f"{name}_unsigned" if kind == UNSIGNED else f"{name}_" if name in KEYWORDS else name


def cast(item: str, kind: str) -> str:
    return item if kind in (INT, UNSIGNED) else f"(<int64_t>{item})"


def integer(value: Any) -> int:
    assert isinstance(value, int | np.integer), value
    return int(value)


def literal(value: Any) -> str:
    number = integer(value)
    if number == -(1 << 63):
        return "LEAST_INT64"  # C has no literal for it
    if number >= 1 << 63:
        return f"{number}ULL"
    return str(number) if -(1 << 31) <= number < 1 << 31 else f"(<int64_t>{number})"
