"""Mutants: the product with one of its rules taken out, which a test must notice.

A rule is marked in product code by a comment on the line above the statement, condition, operand or argument that keeps it:

    # rule: a recovery marks the stages that manifests list
    if batch > marked:

A `Mutant` names the function object, the rule and a change, so that functions, attributes and variables can be renamed. It
fails when the function does not have the rule exactly once, or when the change does not apply to what follows the mark.
"""

from __future__ import annotations

import ast
import inspect
import io
import sys
import textwrap
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest

MARK = "# rule: "
VALUE = "_value_of_a_mutant"  # a global of the mutant's module


class Place(NamedTuple):
    """A node of the syntax tree and where its parent has it: `parent.field`, or `parent.field[index]`."""

    parent: ast.AST
    field: str
    index: int | None
    node: ast.AST

    def put(self, *nodes: ast.AST) -> None:
        if self.index is not None:
            getattr(self.parent, self.field)[self.index : self.index + 1] = nodes
        else:
            (node,) = nodes
            setattr(self.parent, self.field, node)


# -- changes: each takes the places that begin on the marked line, outermost first --------------------------------------
@dataclass(frozen=True)
class Change:
    """What becomes of a marked place. `value` is what the mutant's code finds as the global VALUE."""

    value: Any = None

    def apply(self, places: list[Place]) -> None:
        raise NotImplementedError


class _Drop(Change):
    """The statement, or the operand of `and` and `or`, item or keyword argument, is not there."""

    def apply(self, places: list[Place]) -> None:
        place = next(place for place in places if place.index is not None)
        if isinstance(place.node, ast.stmt):
            place.put(ast.Pass())
        elif isinstance(place.parent, ast.BoolOp):
            place.put(ast.Constant(isinstance(place.parent.op, ast.And)))
        else:
            place.put()
            if isinstance(place.parent, ast.Dict):
                del place.parent.keys[place.index]


class _First(Change):
    """The statement is the first of its block."""

    def apply(self, places: list[Place]) -> None:
        block = getattr(places[0].parent, places[0].field)
        block.insert(0, block.pop(places[0].index))


@dataclass(frozen=True)
class _Condition(Change):
    """The condition always has this value; an `except` clause that never holds catches nothing."""

    def apply(self, places: list[Place]) -> None:
        node = places[0].node
        if isinstance(node, ast.ExceptHandler) and not self.value:
            node.type = ast.Tuple([], ast.Load())
            return
        if isinstance(node, ast.Return | ast.Assign):
            node = node.value  # type: ignore[assignment]
        assert isinstance(node, ast.If | ast.While | ast.IfExp), f"{ast.unparse(node)} is not a condition"
        node.test = ast.Constant(self.value)


def _value(places: list[Place]) -> Place:
    """The value at a mark: what is assigned, returned, passed, iterated over, caught or tested."""
    place = places[0]
    for field in ("value", "iter", "test", "type"):
        if isinstance(place.node, ast.stmt | ast.keyword | ast.ExceptHandler) and hasattr(place.node, field):
            return Place(place.node, field, None, getattr(place.node, field))
    assert isinstance(place.node, ast.expr), f"{ast.unparse(place.node)} has no value"
    return place


class Becomes(Change):
    """The value at the mark is this one."""

    def apply(self, places: list[Place]) -> None:
        _value(places).put(ast.Name(VALUE, ast.Load()))


class Through(Change):
    """The value at the mark is what this function makes of it."""

    def apply(self, places: list[Place]) -> None:
        place = _value(places)
        place.put(ast.Call(ast.Name(VALUE, ast.Load()), [place.node], []))  # type: ignore[list-item]


class Argument(Change):
    """The first argument of the call at the mark is what this function makes of it."""

    def apply(self, places: list[Place]) -> None:
        call = next(node for node in ast.walk(_value(places).node) if isinstance(node, ast.Call))
        call.args[0] = ast.Call(ast.Name(VALUE, ast.Load()), [call.args[0]], [])


class Instead(Change):
    """The method is what this function makes of the original."""


DROP, FIRST, NEVER, ALWAYS = _Drop(), _First(), _Condition(False), _Condition(True)


# -- marks --------------------------------------------------------------------------------------------------------------
def marks(source: str) -> Iterator[tuple[str, int]]:
    """Each rule that this source marks, and the line of the code that follows the mark."""
    rule = ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and token.string.startswith(MARK):
            assert not rule, f"two marks of one place: {rule}"
            assert not token.line[: token.start[1]].strip(), f"a mark has a line of its own: {token.line}"
            rule = token.string.removeprefix(MARK)
        elif rule and token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
            yield rule, token.start[0]
            rule = ""


def _places(tree: ast.AST, line: int) -> Iterator[Place]:
    for parent in ast.walk(tree):  # breadth first: the outermost before what is in it
        for field, value in ast.iter_fields(parent):
            for index, node in enumerate(value if isinstance(value, list) else [value]):
                if getattr(node, "lineno", None) == line:
                    yield Place(parent, field, index if isinstance(value, list) else None, node)


@dataclass(frozen=True)
class Mutant:
    """A rule of a function, and what the mutant does instead. Called with a monkeypatch, it puts the mutant in place."""

    function: Callable[..., Any]
    rule: str
    change: Change

    @property
    def _function(self) -> FunctionType:
        function = inspect.unwrap(self.function)
        assert isinstance(function, FunctionType)
        return function

    @property
    def file(self) -> Path:
        return Path(self._function.__code__.co_filename).resolve()

    def code(self) -> CodeType:
        """The changed function's code."""
        function = self._function
        source = textwrap.dedent(inspect.getsource(function))
        lines = [line for rule, line in marks(source) if rule == self.rule]
        assert len(lines) == 1, f"{function.__qualname__} marks {len(lines)} times: {self.rule}"
        if isinstance(self.change, Instead):
            return function.__code__
        tree = ast.parse(source)
        before = ast.dump(tree)
        self.change.apply(sorted(_places(tree, lines[0]), key=lambda place: place.node.col_offset))  # type: ignore[attr-defined]
        assert ast.dump(tree) != before, f"{function.__qualname__} does not change: {self.rule}"
        (definition,) = tree.body
        assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
        definition.decorator_list = []
        outer = ast.parse(f"def outer({', '.join(function.__code__.co_freevars)}): ...")
        outer.body[0].body = [definition]  # type: ignore[attr-defined]
        module = compile(
            ast.fix_missing_locations(outer),
            f"a mutant of {self.file}",
            "exec",
            flags=annotations.compiler_flag,
            dont_inherit=True,
        )
        (outer_code,) = (const for const in module.co_consts if isinstance(const, CodeType))
        return next(
            const for const in outer_code.co_consts if isinstance(const, CodeType) and const.co_name == definition.name
        )

    def __call__(self, patch: pytest.MonkeyPatch) -> None:
        function, code = self._function, self.code()
        if isinstance(self.change, Instead):
            owner: Any = sys.modules[function.__module__]
            for name in function.__qualname__.split(".")[:-1]:
                owner = getattr(owner, name)
            patch.setattr(owner, function.__name__, self.change.value(function))
        else:
            patch.setitem(function.__globals__, VALUE, self.change.value)
            patch.setattr(function, "__code__", code)  # also for everybody who has imported it
