"""Translates expressions of kernels."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from pcaplake.parser.engine.kernel import Intrinsic

from .types import INT, UNSIGNED, Array, Expression, NotTranslated, Source, Type, cast, integer, literal, spell

OPERATORS: Mapping[type, str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.USub: "-",
    ast.Invert: "~",
    ast.And: " and ",
    ast.Or: " or ",
}
DIVISIONS: Mapping[type, str] = {ast.FloorDiv: "divide", ast.Mod: "remainder_of"}
CASTS: Mapping[str, tuple[str, str]] = {
    "int": ("<int64_t>", INT),
    "np.int64": ("<int64_t>", INT),
    "np.uint64": ("<uint64_t>", UNSIGNED),
    "np.int32": ("<int64_t><int32_t>", INT),
}
RETURN_INT = frozenset({"load", "swap", "are_zero"})  # of the intrinsics that are functions of raw_memory.h
WRITE_TO_FIRST = frozenset({"copy", "store8", "store16", "store32", "store64"})


class Called(Protocol):
    """A function that is translated. See `functions.Function`."""

    name: str
    result: Any
    written: set[str]
    divides: bool


class Translator(Protocol):
    """See `functions.Functions`."""

    def source(self, function: Any) -> Source: ...

    def translate(self, source: Source, types: Sequence[Type]) -> Called: ...


class Expressions:
    """Those of one function. result: the type or types that it returns, None for nothing."""

    name = ""

    def __init__(self, functions: Translator, source: Source, types: Sequence[Type]) -> None:
        self.functions, self.source, self.types = functions, source, types
        self.result: Any = None
        self.written: set[str] = set()  # the array parameters that it writes to
        self.divides = False  # whether it divides by what is no constant
        self._locals: dict[str, str] = {}
        self._lines: list[str] = []
        self._depth = 0
        self._types: dict[str, Type] = {
            name: replace(kind, name=name, origin=name) if isinstance(kind, Array) else kind
            for name, kind in zip(source.parameters, types, strict=True)
        }

    def _emit(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    def _is_array(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Subscript):
            return isinstance(node.slice, ast.Slice)
        return isinstance(node, ast.Name) and isinstance(self._types.get(node.id), Array)

    def _take_part(self, name: str, node: ast.Subscript, part: ast.Slice) -> None:
        """name = array[first:last]"""
        array = self._array(node.value)
        first = self._expression(part.lower)[0] if part.lower else "0"
        last = self._expression(part.upper)[0] if part.upper else f"{array.name}_0"
        taken = Array(array.item, 1, name + "_part", array.origin)
        self._types[name] = taken
        self._locals[taken.name], self._locals[taken.parts[1]] = f"{array.item}*", INT
        self._emit(f"{taken.name} = {array.name} + {first}")
        self._emit(f"{taken.parts[1]} = {last} - {first}")

    # -- expressions ----------------------------------------------------------------------------------------------------
    def _expression(self, node: ast.expr) -> Expression:
        if isinstance(node, ast.Constant):
            return literal(node.value), INT
        if isinstance(node, ast.Name):
            kind = self._types.get(node.id)
            if kind is None:
                return literal(self._constant(node)), INT
            return (kind.name if isinstance(kind, Array) else spell(node.id, kind)), kind
        if isinstance(node, ast.BinOp):
            return self._operation(node)
        if isinstance(node, ast.UnaryOp):
            if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
                return literal(-integer(node.operand.value)), INT
            text, kind = self._expression(node.operand)
            return (
                (f"(not {text})", INT)
                if isinstance(node.op, ast.Not)
                else (f"({OPERATORS[type(node.op)]}{text})", kind)
            )
        if isinstance(node, ast.BoolOp):
            conditions = [self._condition(value) for value in node.values]
            return f"({OPERATORS[type(node.op)].join(conditions)})", INT
        if isinstance(node, ast.IfExp):
            (one, kind), (other, _) = self._same_type(node, node.body, node.orelse)
            return f"({one} if {self._expression(node.test)[0]} else {other})", kind
        if isinstance(node, ast.Compare):
            return self._comparison(node)
        if isinstance(node, ast.Attribute) and node.attr == "size":
            return f"({' * '.join(self._array(node.value).parts[1:])})", INT
        if isinstance(node, ast.Subscript):
            return self._read(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        raise NotTranslated(self.source, node)

    def _constant(self, node: ast.Name) -> Any:
        if node.id not in self.source.names:
            raise NotTranslated(self.source, node, "nothing of this name is assigned before")
        return self.source.names[node.id]

    def _condition(self, node: ast.expr) -> str:
        text, _ = self._expression(node)
        return text if isinstance(node, ast.Compare | ast.BoolOp) else f"({text} != 0)"

    def _same_type(self, node: ast.AST, left: ast.expr, right: ast.expr) -> tuple[Expression, Expression]:
        """Both expressions. A constant takes the type of the other one; other types may not meet: C would convert one."""
        one, other = self._expression(left), self._expression(right)
        if one[1] != other[1]:
            constant = isinstance(left, ast.Constant), isinstance(right, ast.Constant)
            if constant[0]:
                one = f"(<uint64_t>{one[0]})", UNSIGNED
            elif constant[1]:
                other = f"(<uint64_t>{other[0]})", UNSIGNED
            else:
                raise NotTranslated(self.source, node, f"one side is {one[1]}, the other {other[1]}")
        return one, other

    def _operation(self, node: ast.BinOp) -> Expression:
        if all(isinstance(each, ast.BinOp | ast.Constant | ast.operator) for each in ast.walk(node)):
            return literal(eval(ast.unparse(node))), INT
        if isinstance(node.op, ast.LShift | ast.RShift):
            (left, kind), (right, _) = self._expression(node.left), self._expression(node.right)
            left = f"(<int64_t>{left})" if left.lstrip("-").isdigit() else left
        else:
            (left, kind), (right, _) = self._same_type(node, node.left, node.right)
        if division := DIVISIONS.get(type(node.op)):
            self.divides |= not right.strip("()").removeprefix("<uint64_t>").isdigit()
            return f"{division}_{kind.removesuffix('64_t')}({left}, {right})", kind
        if type(node.op) not in OPERATORS:
            raise NotTranslated(self.source, node)
        return f"({left} {OPERATORS[type(node.op)]} {right})", kind

    def _comparison(self, node: ast.Compare) -> Expression:
        parts, left = [], node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(operator, ast.In):
                text, _ = self._expression(left)
                if isinstance(right, ast.Tuple):
                    values = [self._expression(each)[0] for each in right.elts]
                else:
                    assert isinstance(right, ast.Name)
                    values = [literal(value) for value in self._constant(right)]
                parts.append("(" + " or ".join(f"({text} == {value})" for value in values) + ")")
            else:
                (one, _), (other, _) = self._same_type(node, left, right)
                parts.append(f"({one} {OPERATORS[type(operator)]} {other})")
            left = right
        return parts[0] if len(parts) == 1 else f"({' and '.join(parts)})", INT

    def _array(self, node: ast.expr) -> Array:
        kind = self._types.get(node.id) if isinstance(node, ast.Name) else None
        if not isinstance(kind, Array):
            raise NotTranslated(self.source, node, "this is not an array")
        return kind

    def _item(self, node: ast.Subscript) -> tuple[Array, str]:
        """The array, and the index of an item in its memory."""
        array = self._array(node.value)
        indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if len(indices) != array.dimensions:
            raise NotTranslated(self.source, node, f"the array has {array.dimensions} dimensions")
        at = self._expression(indices[0])[0]
        for dimension, index in enumerate(indices[1:], 1):
            at = f"({at} * {array.name}_{dimension} + {self._expression(index)[0]})"
        return array, at

    def _read(self, node: ast.Subscript) -> Expression:
        if isinstance(node.value, ast.Attribute):  # array.shape[0]
            assert node.value.attr == "shape"
            assert isinstance(node.slice, ast.Constant)
            return self._array(node.value.value).parts[1 + integer(node.slice.value)], INT
        array, at = self._item(node)
        return cast(f"{array.name}[{at}]", array.item), array.value

    def _call(self, node: ast.Call) -> Expression:
        name = ast.unparse(node.func)
        if name in CASTS:
            cast, kind = CASTS[name]
            return f"({cast}{self._expression(node.args[0])[0]})", kind
        if name in ("min", "max"):
            (one, kind), (other, _) = self._same_type(node, *node.args)
            if kind != INT:
                raise NotTranslated(self.source, node, "only of int64")
            return f"{name}imum({one}, {other})", INT
        if name not in self.source.names:
            raise NotTranslated(self.source, node, "this is not a function that kernels may call")
        target = self.source.names[name]
        if isinstance(target, Intrinsic):
            return self._intrinsic(target.name, node.args)
        return self._call_helper(target, node.args)

    def _intrinsic(self, name: str, arguments: Sequence[ast.expr]) -> Expression:
        if name in ("get", "put"):
            array, at = self._array(arguments[0]), self._expression(arguments[1])[0]
            if array.value != INT:
                raise NotTranslated(self.source, arguments[0], "get and put are of int64")
            if name == "get":
                return cast(f"{array.name}[{at}]", array.item), INT
            self.written.add(array.origin)
            value = self._expression(arguments[2])[0]
            return f"{array.name}[{at}] = {value if array.item == INT else f'<{array.item}>({value})'}", None
        if name in WRITE_TO_FIRST:
            self.written.add(self._array(arguments[0]).origin)
        texts = (self._expression(argument)[0] for argument in arguments)
        return f"{name}({', '.join(texts)})", INT if name in RETURN_INT else None

    def _call_helper(self, target: Any, arguments: Sequence[ast.expr]) -> Expression:
        given = []
        for i, argument in enumerate(arguments):
            if isinstance(argument, ast.Subscript) and isinstance(argument.slice, ast.Slice):
                self._take_part(f"argument_{i}", argument, argument.slice)
                given.append(self._expression(ast.Name(f"argument_{i}")))
            else:
                given.append(self._expression(argument))
        source = target if isinstance(target, Source) else self.functions.source(target.py_func)
        called = self.functions.translate(source, [kind for _, kind in given])
        self.divides |= called.divides
        for parameter, (_, kind) in zip(source.parameters, given, strict=True):
            if isinstance(kind, Array) and parameter in called.written:
                self.written.add(kind.origin)
        texts = [part for text, kind in given for part in (kind.parts if isinstance(kind, Array) else [text])]
        return f"{called.name}({', '.join(texts)})", called.result
