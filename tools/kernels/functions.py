"""Translates a kernel, or a function that kernels call, to a function of Cython: for given types of its arguments.

Kernels are written in a small part of Python: integers, arrays of integers, loops, and calls of each other. An integer is an
int64 unless it comes from `np.uint64`. An array is a pointer to its first item and the length of each dimension. Everything
else is an error here, when the wheel is built.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .expressions import Expressions
from .types import INT, Array, NotTranslated, Source, Type, spell


@dataclass
class Functions:
    """The functions of one Cython module, in an order in which each follows those that it calls."""

    made: dict[tuple[Source, tuple[Type, ...]], Function] = field(default_factory=dict)
    sources: dict[Callable[..., Any], Source] = field(default_factory=dict)

    def source(self, function: Callable[..., Any]) -> Source:
        if function not in self.sources:
            self.sources[function] = Source.of(function)
        return self.sources[function]

    def translate(self, source: Source, types: Sequence[Type]) -> Function:
        """The function of this source for these types of arguments."""
        key = source, tuple(t.type if isinstance(t, Array) else t for t in types)
        if key not in self.made:
            function = Function(self, source, types)
            function.translate()
            function.name = f"c_{source.tree.name}_{len(self.made)}"
            self.made[key] = function
        return self.made[key]


class Function(Expressions):
    """One function of Cython. parameters: with their C types."""

    # -- the whole function ---------------------------------------------------------------------------------------------
    def translate(self) -> None:
        self._block(self.source.tree.body)

    @property
    def parameters(self) -> list[str]:
        declared = []
        for name, kind in zip(self.source.parameters, self.types, strict=True):
            if isinstance(kind, Array):
                declared += [f"{kind.item}* {name}", *(f"{INT} {name}_{i}" for i in range(kind.dimensions))]
            else:
                declared.append(f"{kind} {spell(name, kind)}")
        return declared

    @property
    def result_type(self) -> str:
        if self.result is None:
            return "void"
        return f"({', '.join(self.result)})" if isinstance(self.result, tuple) else str(self.result)

    def text(self, *, inline: bool) -> str:
        head = f"cdef {'inline ' if inline else ''}{self.result_type} {self.name}({', '.join(self.parameters)}) noexcept nogil:"
        declared = [f"    cdef {kind} {name}" for name, kind in sorted(self._locals.items())]
        return "\n".join([head, *declared, *self._lines, ""])

    # -- statements -----------------------------------------------------------------------------------------------------
    def _block(self, body: Sequence[ast.stmt]) -> None:
        self._depth += 1
        before = len(self._lines)
        for statement in body:
            self._statement(statement)
        if len(self._lines) == before:
            self._emit("pass")
        self._depth -= 1

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Expr):
            if not isinstance(node.value, ast.Constant):  # a docstring
                self._emit(self._expression(node.value)[0])
        elif isinstance(node, ast.Assign):
            self._assignment(node)
        elif isinstance(node, ast.AugAssign):
            target = ast.parse(ast.unparse(node.target), mode="eval").body
            self._assign(node.target, ast.BinOp(target, node.op, node.value))
        elif isinstance(node, ast.If):
            self._emit(f"if {self._expression(node.test)[0]}:")
            self._block(node.body)
            if node.orelse:
                self._emit("else:")
                self._block(node.orelse)
        elif isinstance(node, ast.While) and not node.orelse:
            self._emit(f"while {'True' if isinstance(node.test, ast.Constant) else self._expression(node.test)[0]}:")
            self._block(node.body)
        elif isinstance(node, ast.For) and not node.orelse:
            self._loop(node)
        elif isinstance(node, ast.Return):
            self._return(node)
        elif isinstance(node, ast.Break | ast.Continue | ast.Pass):
            self._emit(type(node).__name__.lower())
        else:
            raise NotTranslated(self.source, node)

    def _assignment(self, node: ast.Assign) -> None:
        target = node.targets[0]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Call):
            text, kinds = self._expression(node.value)
            bound = [self._bind(each, "", kind)[0] for each, kind in zip(target.elts, kinds, strict=True)]
            several = f"several_{len(self._locals)}"
            self._locals[several] = f"({', '.join(kinds)})"
            self._emit(f"{several} = {text}")
            for i, name in enumerate(bound):
                self._emit(f"{name} = {several}[{i}]")
        elif isinstance(target, ast.Tuple):
            assert isinstance(node.value, ast.Tuple)
            pairs = list(zip(target.elts, node.value.elts, strict=True))
            for each, value in pairs:
                if self._is_array(value):
                    self._assign(each, value)
            values = [(each, self._expression(value)) for each, value in pairs if not self._is_array(value)]
            if values:
                names, texts = zip(*(self._bind(each, *value) for each, value in values), strict=True)
                self._emit(f"{', '.join(names)} = {', '.join(texts)}")
        else:
            for each in node.targets:
                self._assign(each, node.value)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(value, ast.Name) and self._is_array(value):
            assert isinstance(target, ast.Name)
            self._types[target.id] = self._types[value.id]
        elif isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice):
            assert isinstance(target, ast.Name)
            self._take_part(target.id, value, value.slice)
        elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Slice):
            self._clear(target, target.slice, value)
        else:
            self._emit(" = ".join(self._bind(target, *self._expression(value))))

    def _clear(self, target: ast.Subscript, part: ast.Slice, value: ast.expr) -> None:
        """array[:n] = 0"""
        array = self._array(target.value)
        if part.lower or not isinstance(value, ast.Constant) or value.value != 0:
            raise NotTranslated(self.source, target, "only the beginning of an array is cleared, with 0")
        size = self._expression(part.upper)[0] if part.upper else f"{array.name}_0"
        self.written.add(array.origin)
        self._emit(f"memset({array.name}, 0, {size} * sizeof({array.item}))")

    def _bind(self, target: ast.expr, text: str, kind: Type) -> tuple[str, str]:
        """The texts of a variable or an item, and of what is assigned to it."""
        if isinstance(target, ast.Subscript):
            array, at = self._item(target)
            self.written.add(array.origin)
            return f"{array.name}[{at}]", text if array.item == kind else f"<{array.item}>({text})"
        assert isinstance(target, ast.Name)
        assert isinstance(kind, str), ast.unparse(target)
        self._types[target.id] = kind
        name = spell(target.id, kind)
        declared = dict(zip(self.source.parameters, self.types, strict=True))
        if declared.get(target.id) != kind:
            self._locals[name] = kind
        return name, text

    def _loop(self, node: ast.For) -> None:
        assert isinstance(node.target, ast.Name)
        if isinstance(node.iter, ast.Tuple):  # a few constants: a copy of the body for each
            for value in node.iter.elts:
                self._assign(node.target, value)
                for statement in node.body:
                    self._statement(statement)
            return
        if not isinstance(node.iter, ast.Call) or ast.unparse(node.iter.func) != "range":
            raise NotTranslated(self.source, node)
        bounds = [self._expression(argument)[0] for argument in node.iter.args]
        name, _ = self._bind(node.target, "", INT)
        if len(bounds) < 3 or bounds[2].lstrip("-").isdigit():
            self._emit(f"for {name} in range({', '.join(bounds)}):")
            self._block(node.body)
        else:  # Cython needs to know the direction. The step is positive, and `continue` does not occur.
            if any(isinstance(each, ast.Continue) for each in ast.walk(node)):
                raise NotTranslated(self.source, node, "a loop with a computed step has no `continue`")
            self._emit(f"{name} = {bounds[0]}")
            self._emit(f"while {name} < {bounds[1]}:")
            self._block([*node.body, ast.parse(f"{node.target.id} += {ast.unparse(node.iter.args[2])}").body[0]])

    def _return(self, node: ast.Return) -> None:
        if node.value is None:
            self._emit("return")
            return
        several = isinstance(node.value, ast.Tuple)
        values = [
            self._expression(value)
            for value in (node.value.elts if isinstance(node.value, ast.Tuple) else [node.value])
        ]
        kinds = tuple(kind for _, kind in values) if several else values[0][1]
        if self.result not in (None, kinds):
            raise NotTranslated(self.source, node, f"returns {kinds}, and {self.result} elsewhere")
        self.result = kinds
        text = ", ".join(text for text, _ in values)
        self._emit(f"return ({text})" if several else f"return {text}")
