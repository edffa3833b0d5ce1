"""The kernels a second time, as plain Python: every load and store is checked against the bounds of its array."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import pcaplake.parser.engine.decoder
from pcaplake.parser.engine.decoder import ScratchBuffers
from pcaplake.parser.engine.kernel import Helper
from pcaplake.parser.engine.kernels import (
    block_search,
    carried,
    cases,
    clock,
    columns,
    encoding,
    fields,
    header_values,
    key_columns,
    layers,
    payloads,
    pieces,
    rows,
    shapes,
    text_codes,
    walk,
)
from pcaplake.parser.engine.kernels.raw_memory import SLACK
from pcaplake.parser.engine.program import Program
from tests.mutants import VALUE, Mutant

MODULES = (
    encoding,
    clock,
    rows,
    header_values,
    layers,
    walk,
    shapes,
    cases,
    fields,
    columns,
    text_codes,
    key_columns,
    payloads,
    carried,
    pieces,
    block_search,
)
_MASK = (1 << 64) - 1


class OutOfBounds(AssertionError):
    """A kernel touched memory that is not its own."""


def _signed(value: int) -> int:
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def load(data: Any, at: int) -> int:
    at = int(at)
    if at < 0 or at + 8 > data.size:
        raise OutOfBounds(f"load of 8 bytes at {at} of {data.size}")
    return int.from_bytes(data[at : at + 8].tobytes(), "little", signed=True)


def are_zero(data: Any, at: int, size: int) -> bool:
    load(data, at)
    return not data[int(at) : int(at) + min(max(int(size), 0), 8)].any()


def swap(word: int) -> int:
    return _signed(int.from_bytes((int(word) & _MASK).to_bytes(8, "little"), "big"))


def _store(size: int) -> Any:
    def store(data: Any, at: int, word: int) -> None:
        at = int(at)
        if at < 0 or at + size > data.size:
            raise OutOfBounds(f"store of {size} bytes at {at} of {data.size}")
        data[at : at + size] = np.frombuffer((int(word) & (1 << 8 * size) - 1).to_bytes(size, "little"), np.uint8)

    return store


def get(array: Any, i: int) -> int:
    if not 0 <= int(i) < array.size:
        raise OutOfBounds(f"item {i} of {array.size}")
    return int(array.reshape(-1)[int(i)])


def put(array: Any, i: int, value: int) -> None:
    if not 0 <= int(i) < array.size:
        raise OutOfBounds(f"item {i} of {array.size}")
    array.reshape(-1)[int(i)] = value


def copy(out: Any, to: int, data: Any, at: int, size: int) -> None:
    for array, start in ((out, int(to)), (data, int(at))):
        if start < 0 or start + size > array.size:
            raise OutOfBounds(f"copy of {size} bytes at {start} of {array.size}")
    out[int(to) : int(to) + size] = data[int(at) : int(at) + size]


class Endless(AssertionError):
    """A kernel did not come back."""


def _within(steps: int) -> Any:
    """`get`, so often and not once more."""
    left = iter(range(steps))

    def counted(array: Any, i: int) -> int:
        if next(left, None) is None:
            raise Endless(f"more than {steps} steps")
        return get(array, i)

    return counted


def checked_kernels(mutant: Mutant | None = None, *, steps: int | None = None) -> ModuleType:
    """All of `pcaplake.parser.engine.kernels`, or a mutant of them, as one module, interpreted and checked.

    `steps` ends what would never end.
    """
    checked = ModuleType("checked_kernels")
    names = {
        "load": load,
        "are_zero": are_zero,
        "swap": swap,
        "get": _within(steps) if steps else get,
        "put": put,
        "copy": copy,
        "SLACK": SLACK,
    }
    checked.__dict__.update(names, store8=_store(1), store16=_store(2), store32=_store(4), store64=_store(8))
    checked.__dict__.update(helper=lambda function: function, kernel=lambda function: function)
    if mutant:
        checked.__dict__[VALUE] = mutant.change.value
    for module in MODULES:
        assert module.__file__
        file = Path(module.__file__).resolve()
        tree = mutant.tree() if mutant and mutant.file == file else ast.parse(file.read_text(encoding="utf-8"))
        tree.body = [node for node in tree.body if not isinstance(node, ast.ImportFrom)]  # what they have of each other
        exec(compile(tree, "checked_kernels", "exec"), checked.__dict__)
    checked.__dict__["ROWS_IN_CACHE"] = 3  # a few rows are several blocks
    return checked


class _OwnRooms(ScratchBuffers):
    """Working memory that nobody had before: what other kernels left in it neither helps nor hurts."""

    @classmethod
    def take_or_allocate(cls, program: Program, morsel_rows: int) -> ScratchBuffers:
        return ScratchBuffers(program, morsel_rows)


@contextmanager
def own_rooms() -> Iterator[None]:
    """Working memory is new for each capture, and not a byte longer than it says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pcaplake.parser.engine.decoder, "ScratchBuffers", _OwnRooms)
        patch.setattr(ScratchBuffers, "release_buffers", lambda self, program, clean: None)
        yield


@contextmanager
def in_place(kernels: ModuleType) -> Iterator[None]:
    """Everything is decoded with these kernels."""
    with own_rooms(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(pcaplake.parser.engine.decoder, "choose_walk", lambda program: walk.walk_records)
        for module in MODULES:
            for name, value in [*vars(module).items()]:
                if isinstance(value, Helper) and value.__module__ == module.__name__:
                    patch.setattr(module, name, getattr(kernels, name))
        with np.errstate(over="ignore"):
            yield
