"""Specializes the walk for one program: the interpreter `walk.walk_records` with what the program says of each layer put in.

The tables of a program do not change, so most of what the walk asks of a layer has one answer. This module takes the syntax tree
of what the walk does with one layer and evaluates, for each frequent layer, what depends only on the program: reads of its
tables, conditions on them, and loops over checks and keys. What depends on the packet or on `lut` (ports, link types of
interfaces) stays. The rules are therefore written once, in `layers.py` and `walk.py`, which remain what all other layers and
programs run.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import itertools
import logging
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from . import kernels
from .kernel import compiled_module
from .kernels import encoding
from .program import Ints, Program

log = logging.getLogger(__name__)

OPERATIONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.RShift: operator.rshift,
    ast.LShift: operator.lshift,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
CONSTANTS = {name: value for name, value in vars(encoding).items() if isinstance(value, int)}
MODULE = "walk"  # of pcaplake.core
Walk = Callable[..., int]
Tables = Mapping[str, Ints]
"""The tables of a program by their names in `walk.py`: layers, uses, owner and first_slots, int64."""
BEHIND_A_LAYER = "if depth == 0"  # the statement in the loop over layers that begins what is the same for all of them
# functions of `layers.py` with one copy for each frequent layer whose row of the program's table passes
REPEATED: dict[str, Callable[[Ints], bool]] = {
    "enter_layer": lambda row: True,
    "read_record": lambda row: bool(row[encoding.FLAGS] & encoding.F_RECORD),
    "keep_starts": lambda row: bool(row[encoding.SOURCE] >= 0),
}


def specialized_walk(program: Program) -> Walk | None:
    """The compiled walk that was specialized for this program, None if none was: then `walk.walk_records` does the same, slower.

    Programs with the same tables share it: ports of a profile are in `lut`.
    """
    module = compiled_module(MODULE, kernels.__name__)
    if digest_program(program) != module.PROGRAM:
        log.debug("no walk is compiled for this program, the general one runs")
        return None
    found: Walk = module.walk_records
    return found


def digest_program(program: Program) -> str:
    """Changes with what the walk is specialized for, and with this file."""
    # `files` also reads a zip archive, from which an executor of Spark may import
    digest = hashlib.blake2b(files(__package__).joinpath("specialize.py").read_bytes(), digest_size=16)
    digest.update(repr(program.frequent).encode())
    for table in program_tables(program).values():
        digest.update(repr(table.shape).encode() + table.tobytes())
    return digest.hexdigest()


def program_tables(program: Program) -> Tables:
    return {"layers": program.program, "uses": program.uses, "owner": program.owner, "first_slots": program.first_slots}


def walk_source() -> str:
    """The functions from which the walk is made."""
    folder = files(kernels.__name__)
    return "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in ("layers.py", "walk.py"))


def specialize_walk(source: str, tables: Tables, frequent: Sequence[int]) -> list[ast.FunctionDef]:
    """The syntax trees of the functions of REPEATED for each frequent layer, then of `walk_records`, in which each of these
    layers has a copy of the statements that enter a layer and go on to the next one.

    source: `walk_source()`; frequent: numbers of layers.
    """
    functions = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    specialized, walk_records = [], functions["walk_records"]
    walk_records.decorator_list = []
    (loop,) = (node for node in ast.walk(walk_records) if isinstance(node, ast.While) and _is_over_layers(node))
    first_after = next(i for i, statement in enumerate(loop.body) if ast.unparse(statement).startswith(BEHIND_A_LAYER))
    choice = loop.body[:first_after]
    for layer in reversed(frequent):
        for name, has in REPEATED.items():
            if has(tables["layers"][layer]):
                function = copy.deepcopy(functions[name])
                function.name = f"{name}_{layer}"
                function.body = _Evaluator(function, tables, layer).block(function.body[1:])
                specialized.append(function)
        own = _Evaluator(walk_records, tables, layer).block(loop.body[:first_after])
        test = ast.Compare(ast.Name("layer", ast.Load()), [ast.Eq()], [ast.Constant(layer)])
        choice = [ast.If(test, own, choice)]
    loop.body[:first_after] = choice
    return [*specialized, walk_records]


def _is_over_layers(loop: ast.While) -> bool:
    return isinstance(loop.test, ast.Constant) and ast.unparse(loop.body[0]).startswith("layer_row = ")


class _Evaluator:
    """Evaluates what depends only on the tables of a program and on the number of a layer.

    A name that the function assigns in one place only needs no variable if its value is known.
    """

    def __init__(self, function: ast.FunctionDef, tables: Tables, layer: int) -> None:
        self.tables = {name: table.ravel().tolist() for name, table in tables.items()}
        names = [n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        self.once = {name for name in names if names.count(name) == 1}
        self.known: dict[str, Any] = {**CONSTANTS, "layer": layer, "slots": tables["uses"].shape[1]}
        self.repeated = {name: f"{name}_{layer}" for name, has in REPEATED.items() if has(tables["layers"][layer])}

    # -- statements -----------------------------------------------------------------------------------------------------
    def block(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """The statements that are left of a block; `pass` if none is."""
        return [out for statement in statements for out in self.statement(statement)] or [ast.Pass()]

    def statement(self, node: ast.stmt) -> Iterator[ast.stmt]:
        if isinstance(node, ast.If):
            test = self.expression(node.test)
            if isinstance(test, ast.Constant):
                for statement in node.body if test.value else node.orelse:
                    yield from self.statement(statement)
            else:
                yield ast.If(test, self.block(node.body), self.block(node.orelse) if node.orelse else [])
        elif isinstance(node, ast.For):
            assert isinstance(node.target, ast.Name)
            assert isinstance(node.iter, ast.Call)
            for n in range(_value(self.expression(node.iter.args[0]))):
                self.known[node.target.id] = n
                for statement in node.body:
                    yield from self.statement(statement)
        elif isinstance(node, ast.Assign):
            yield from self.assignment(node)
        elif isinstance(node, ast.AugAssign):
            yield ast.AugAssign(node.target, node.op, self.expression(node.value))
        elif isinstance(node, ast.Expr):
            yield ast.Expr(self.expression(node.value))
        elif isinstance(node, ast.Break | ast.Continue):
            yield node
        else:
            assert isinstance(node, ast.Return), ast.unparse(node)
            assert node.value is not None
            yield ast.Return(self.expression(node.value))

    def assignment(self, node: ast.Assign) -> Iterator[ast.stmt]:
        (target,) = node.targets
        pairs = [(target, node.value)]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(target.elts, node.value.elts, strict=True))
        left = []
        for name, value in pairs:
            result = self.expression(value)
            if isinstance(name, ast.Name) and name.id in self.once and isinstance(result, ast.Constant):
                self.known[name.id] = result.value
            else:
                left.append((name, result))
        if len(left) == 1:
            yield ast.Assign([left[0][0]], left[0][1])
        elif left:
            names, values = zip(*left, strict=True)
            yield ast.Assign([ast.Tuple(list(names), ast.Store())], ast.Tuple(list(values), ast.Load()))

    # -- expressions ----------------------------------------------------------------------------------------------------
    def expression(self, node: ast.expr) -> ast.expr:
        """The expression, or the constant that it is."""
        if isinstance(node, ast.Name):
            return ast.Constant(self.known[node.id]) if node.id in self.known else node
        if isinstance(node, ast.BinOp):
            left, right = self.expression(node.left), self.expression(node.right)
            return self.operation(node.op, left, right) or ast.BinOp(left, node.op, right)
        if isinstance(node, ast.Compare):
            sides = [self.expression(side) for side in (node.left, *node.comparators)]
            folded = [self.operation(op, *pair) for op, pair in zip(node.ops, itertools.pairwise(sides), strict=True)]
            if all(folded):
                return ast.Constant(all(_value(part) for part in folded if part is not None))
            return ast.Compare(sides[0], node.ops, sides[1:])
        if isinstance(node, ast.BoolOp):
            return self.bool_operation(node)
        if isinstance(node, ast.IfExp):
            test = self.expression(node.test)
            if isinstance(test, ast.Constant):
                return self.expression(node.body if test.value else node.orelse)
            return ast.IfExp(test, self.expression(node.body), self.expression(node.orelse))
        if isinstance(node, ast.UnaryOp):
            operand = self.expression(node.operand)
            if isinstance(operand, ast.Constant) and isinstance(node.op, ast.USub | ast.Not):
                return ast.Constant(-_value(operand) if isinstance(node.op, ast.USub) else not operand.value)
            return ast.UnaryOp(node.op, operand)
        if isinstance(node, ast.Tuple):
            return ast.Tuple([self.expression(part) for part in node.elts], ast.Load())
        return self.call(node) if isinstance(node, ast.Call) else node

    @staticmethod
    def operation(kind: ast.AST, left: ast.expr, right: ast.expr) -> ast.Constant | None:
        if isinstance(left, ast.Constant) and isinstance(right, ast.Constant):
            return ast.Constant(OPERATIONS[type(kind)](left.value, right.value))
        return None

    def bool_operation(self, node: ast.BoolOp) -> ast.expr:
        decides = isinstance(node.op, ast.Or)  # the value that decides the operation
        left = []
        for operand in map(self.expression, node.values):
            if not isinstance(operand, ast.Constant):
                left.append(operand)
            elif bool(operand.value) == decides:  # no operand has effects, so those before it do not matter
                return ast.Constant(decides)
        if not left:
            return ast.Constant(not decides)
        return left[0] if len(left) == 1 else ast.BoolOp(node.op, left)

    def call(self, node: ast.Call) -> ast.expr:
        arguments = [self.expression(argument) for argument in node.args]
        name = ast.unparse(node.func)
        if name == "get" and ast.unparse(arguments[0]) in self.tables and isinstance(arguments[1], ast.Constant):
            return ast.Constant(self.tables[ast.unparse(arguments[0])][_value(arguments[1])])
        if name == "read_term_value":
            return self.term(arguments)
        function = ast.Name(self.repeated[name], ast.Load()) if name in self.repeated else node.func
        return ast.Call(function, arguments, [])

    def term(self, arguments: Sequence[ast.expr]) -> ast.expr:
        """What `header_values.read_term_value` computes for a term that is known."""
        data, where, at, _, place = arguments
        read, mask, mul, add = self.tables["layers"][_value(place) : _value(place) + encoding.TERM]
        if mul == 0:
            return ast.Constant(add)
        if read & encoding.R_CARRIER:
            at = _call("get", where, ast.Constant(read >> encoding.R_PLACE))
        word: ast.expr = _call("load", data, ast.BinOp(at, ast.Add(), ast.Constant(read & 0xFFFF)))
        if read & encoding.R_BIG:
            word = _call("swap", word)
        for kind, value, unneeded in (
            (ast.RShift, read >> encoding.R_SHIFT & 63, 0),
            (ast.BitAnd, mask, -1),
            (ast.Mult, mul, 1),
            (ast.Add, add, 0),
        ):
            if value != unneeded:
                word = ast.BinOp(word, kind(), ast.Constant(value))
        return word


def _value(node: ast.expr) -> int:
    assert isinstance(node, ast.Constant), f"the program does not determine {ast.unparse(node)}"
    assert isinstance(node.value, int)
    return node.value


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])
