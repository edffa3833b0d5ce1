"""Translates a kernel, or a function that kernels call, to a function of Cython: for given types of its arguments.

Kernels are written in a small part of Python: integers, arrays of integers, loops, and calls of each other. An integer is an
int64 unless it comes from `np.uint64`. An array is a pointer to its first item and the length of each dimension. Everything
else is an error here, when the wheel is built.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pcaplake.parser.engine.kernel import Intrinsic

INT, UNSIGNED = "int64_t", "uint64_t"
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


class NotTranslated(Exception):
    """A kernel uses a part of Python that is not translated."""

    def __init__(
        self, source: Source, node: ast.AST, why: str = "this is not a part of Python that kernels may use"
    ) -> None:
        text = ast.unparse(node).splitlines()[0]
        super().__init__(f"{source.tree.name}, line {getattr(node, 'lineno', '?')}: {text}: {why}")


class Function:
    """One function of Cython. parameters: with their C types; result: the type or types that it returns, None for nothing."""

    name = ""

    def __init__(self, functions: Functions, source: Source, types: Sequence[Type]) -> None:
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
                declared.append(f"{kind} {_spell(name, kind)}")
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
    def _emit(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

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

    def _is_array(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Subscript):
            return isinstance(node.slice, ast.Slice)
        return isinstance(node, ast.Name) and isinstance(self._types.get(node.id), Array)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(value, ast.Name) and self._is_array(value):
            assert isinstance(target, ast.Name)
            self._types[target.id] = self._types[value.id]
        elif isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice):
            assert isinstance(target, ast.Name)
            array = self._array(value.value)
            first = self._expression(value.slice.lower)[0] if value.slice.lower else "0"
            last = self._expression(value.slice.upper)[0] if value.slice.upper else f"{array.name}_0"
            part = Array(array.item, 1, target.id + "_part", array.origin)
            self._types[target.id] = part
            self._locals[part.name], self._locals[part.parts[1]] = f"{array.item}*", INT
            self._emit(f"{part.name} = {array.name} + {first}")
            self._emit(f"{part.parts[1]} = {last} - {first}")
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
        name = _spell(target.id, kind)
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

    # -- expressions ----------------------------------------------------------------------------------------------------
    def _expression(self, node: ast.expr) -> Expression:
        if isinstance(node, ast.Constant):
            return _literal(node.value), INT
        if isinstance(node, ast.Name):
            kind = self._types.get(node.id)
            if kind is None:
                return _literal(self._constant(node)), INT
            return (kind.name if isinstance(kind, Array) else _spell(node.id, kind)), kind
        if isinstance(node, ast.BinOp):
            return self._operation(node)
        if isinstance(node, ast.UnaryOp):
            if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
                return _literal(-_integer(node.operand.value)), INT
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
            return _literal(eval(ast.unparse(node))), INT
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
                    values = [_literal(value) for value in self._constant(right)]
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
            return self._array(node.value.value).parts[1 + _integer(node.slice.value)], INT
        array, at = self._item(node)
        return _cast(f"{array.name}[{at}]", array.item), array.value

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
                return _cast(f"{array.name}[{at}]", array.item), INT
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
                part = ast.Name(f"argument_{i}")
                self._assign(part, argument)
                given.append(self._expression(part))
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


def _spell(name: str, kind: Type) -> str:
    """A variable has another name as an unsigned number: C declares one type for each name."""
    return f"{name}_unsigned" if kind == UNSIGNED else f"{name}_" if name in KEYWORDS else name


def _cast(item: str, kind: str) -> str:
    return item if kind in (INT, UNSIGNED) else f"(<int64_t>{item})"


def _integer(value: Any) -> int:
    assert isinstance(value, int | np.integer), value
    return int(value)


def _literal(value: Any) -> str:
    number = _integer(value)
    if number == -(1 << 63):
        return "LEAST_INT64"  # C has no literal for it
    if number >= 1 << 63:
        return f"{number}ULL"
    return str(number) if -(1 << 31) <= number < 1 << 31 else f"(<int64_t>{number})"
