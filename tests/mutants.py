"""Mutants: the product with one of its rules taken out, which a test must notice.

A rule is marked in product code by a comment on the line above the statement, condition, operand or argument that keeps it:

    # rule: a recovery marks the stages that manifests list
    if batch > marked:

A `Mutant` names the function object (for a statement outside functions the module), the rule and a change, so that functions,
attributes and variables can be renamed. It fails when the function does not have the rule exactly once, or when the change
does not apply to what follows the mark.
"""

from __future__ import annotations

import ast
import functools
import inspect
import io
import sys
import tokenize
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
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


def _value(places: list[Place]) -> Place:
    """The value at a mark: what is assigned, returned, passed, iterated over, caught or tested."""
    place = places[0]
    if isinstance(place.node, ast.BoolOp):  # the mark is of the operand that it begins with
        place = next(inner for inner in places if inner.parent is place.node)
    for field in ("value", "iter", "test", "type"):
        if isinstance(place.node, ast.stmt | ast.keyword | ast.ExceptHandler) and hasattr(place.node, field):
            return Place(place.node, field, None, getattr(place.node, field))
    assert isinstance(place.node, ast.expr), f"{ast.unparse(place.node)} has no value"
    return place


def _called(*arguments: Any) -> ast.Call:
    return ast.Call(ast.Name(VALUE, ast.Load()), list(arguments), [])


@dataclass(frozen=True)
class _Condition(Change):
    """The condition always has this value; an `except` clause that never holds catches nothing."""

    def apply(self, places: list[Place]) -> None:
        node = places[0].node
        if isinstance(node, ast.ExceptHandler) and not self.value:
            node.type = ast.Tuple([], ast.Load())
            return
        if not isinstance(node, ast.If | ast.While):
            (node,) = (inner for inner in ast.walk(_value(places).node) if isinstance(inner, ast.IfExp))
        node.test = ast.Constant(self.value)


class Becomes(Change):
    """The value at the mark is this one."""

    def apply(self, places: list[Place]) -> None:
        _value(places).put(ast.Name(VALUE, ast.Load()))


class Through(Change):
    """The value at the mark is what this function makes of it."""

    def apply(self, places: list[Place]) -> None:
        place = _value(places)
        place.put(_called(place.node))


@dataclass(frozen=True)
class Argument(Change):
    """An argument, the first unless `index` says otherwise, of the call at the mark is what this function makes of it."""

    index: int = 0

    def apply(self, places: list[Place]) -> None:
        call = next(node for node in ast.walk(_value(places).node) if isinstance(node, ast.Call))
        call.args[self.index] = _called(call.args[self.index])


@dataclass(frozen=True)
class Operation(Change):
    """The only operation of this kind at the mark (`ast.Lt`, `ast.Add`) is what this function makes of its two sides."""

    kind: type[ast.cmpop | ast.operator] = ast.cmpop

    def apply(self, places: list[Place]) -> None:
        marked = _value(places)
        ((place, index),) = (
            (place, index)
            for place in (marked, *_places(marked.node))
            for index, operator in enumerate(getattr(place.node, "ops", None) or [getattr(place.node, "op", None)])
            if isinstance(operator, self.kind)
        )
        if isinstance(place.node, ast.BinOp):
            place.put(_called(place.node.left, place.node.right))
            return
        assert isinstance(place.node, ast.Compare)
        sides = [place.node.left, *place.node.comparators]
        parts: list[ast.expr] = [ast.Compare(sides[i], [op], [sides[i + 1]]) for i, op in enumerate(place.node.ops)]
        parts[index] = _called(sides[index], sides[index + 1])
        place.put(ast.BoolOp(ast.And(), parts) if len(parts) > 1 else parts[0])


class Instead(Change):
    """The method is what this function makes of the original."""


DROP, FIRST, NEVER, ALWAYS = _Drop(), _First(), _Condition(False), _Condition(True)


# -- marks --------------------------------------------------------------------------------------------------------------
@functools.cache
def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8")


@functools.cache
def marks(source: str) -> list[tuple[str, int]]:
    """Each rule that this source marks, and the line of the code that follows the mark."""
    found = []
    rule = ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and token.string.startswith(MARK):
            assert not rule, f"two marks of one place: {rule}"
            assert not token.line[: token.start[1]].strip(), f"a mark has a line of its own: {token.line}"
            rule = token.string.removeprefix(MARK)
        elif rule and token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
            found.append((rule, token.start[0]))
            rule = ""
    return found


def _statement_around(block: ast.Module | ast.ClassDef, line: int) -> tuple[ast.Module | ast.ClassDef, int]:
    """The module or class that has the outermost statement around a line, other than a class, and its index there."""
    at = max(index for index, statement in enumerate(block.body) if _first_line(statement) <= line)
    statement = block.body[at]
    return (
        _statement_around(statement, line)
        if isinstance(statement, ast.ClassDef) and statement.lineno < line
        else (block, at)
    )


def _first_line(statement: ast.stmt) -> int:
    return min([statement.lineno, *(each.lineno for each in getattr(statement, "decorator_list", ()))])


def _places(tree: ast.AST, line: int | None = None) -> Iterator[Place]:
    """The places in a tree, the outermost before what is in it; only those that this line is part of, if one is given."""
    parents = deque([tree])
    while parents:
        parent = parents.popleft()
        for field, value in ast.iter_fields(parent):
            for index, node in enumerate(value if isinstance(value, list) else [value]):
                if isinstance(node, ast.AST) and (line is None or _has_line(node, line)):
                    parents.append(node)
                    yield Place(parent, field, index if isinstance(value, list) else None, node)


def _has_line(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", line), getattr(node, "end_lineno", line)
    return bool(first <= line <= last)


@dataclass(frozen=True)
class Mutant:
    """A rule of a function, and what the mutant does instead. Called with a monkeypatch, it puts the mutant in place."""

    function: Callable[..., Any] | ModuleType
    rule: str
    change: Change

    @property
    def _original(self) -> Any:
        return inspect.unwrap(self.function)  # type: ignore[arg-type]

    @property
    def file(self) -> Path:
        return Path(inspect.getfile(self._original)).resolve()

    def tree(self) -> ast.Module:
        """The syntax tree of the file with the changed function."""
        lines, first = inspect.getsourcelines(self._original)
        source = _read(self.file)
        marked = [
            line for rule, line in marks(source) if rule == self.rule and first <= line < max(first, 1) + len(lines)
        ]
        assert len(marked) == 1, f"{self.function.__name__} marks {len(marked)} times: {self.rule}"
        tree = ast.parse(source)
        if not isinstance(self.change, Instead):
            block, at = _statement_around(tree, marked[0])
            outermost = Place(block, "body", at, block.body[at])
            places = [
                place
                for place in (outermost, *_places(block.body[at], marked[0]))
                if getattr(place.node, "lineno", None) == marked[0]
            ]
            before = ast.dump(block.body[at])
            self.change.apply(sorted(places, key=lambda place: place.node.col_offset))  # type: ignore[attr-defined]
            assert ast.dump(block.body[at]) != before, f"{self.function.__name__} does not change: {self.rule}"
            ast.fix_missing_locations(block.body[at])
        return tree

    def code(self) -> CodeType:
        """The changed function's code."""
        original = self._original.__code__
        nested = [compile(self.tree(), f"a mutant of {self.file}", "exec", dont_inherit=True)]
        for code in nested:
            nested += (const for const in code.co_consts if isinstance(const, CodeType))
        (changed,) = (
            code
            for code in nested
            if (code.co_qualname, code.co_firstlineno) == (original.co_qualname, original.co_firstlineno)
        )
        return changed

    def __call__(self, patch: pytest.MonkeyPatch) -> None:
        function, code = self._original, self.code()
        if isinstance(self.change, Instead):
            owner: Any = sys.modules[function.__module__]
            for name in function.__qualname__.split(".")[:-1]:
                owner = getattr(owner, name)
            patch.setattr(owner, function.__name__, self.change.value(function))
        else:
            patch.setitem(function.__globals__, VALUE, self.change.value)
            patch.setattr(function, "__code__", code)  # also for everybody who has imported it
