"""The kernels a second time, as plain Python: every load and store is checked against the bounds of its array."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import parser.batch
import parser.decoder
import parser.kernels
import parser.pcapng
from parser.decoder import Rooms
from parser.memory import SLACK
from parser.program import Program

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


def checked_kernels(old: str = "", new: str = "", *, steps: int | None = None) -> ModuleType:
    """A module with the names of `parser.kernels`, interpreted and checked.

    With `new` for `old`, which must stand once in the source as `ast.unparse` writes it (so that comments and line
    breaks do not matter); `steps` ends what would never end.
    """
    source = Path(parser.kernels.__file__).read_text(encoding="utf-8")
    if old:
        source = ast.unparse(ast.parse(source))
        assert source.count(old) == 1, f"stands {source.count(old)} times in the kernels: {old}"
        source = source.replace(old, new)
    source = re.sub(r"^from numba import njit$", "def njit(f=None, **_): return f or (lambda g: g)", source, flags=re.M)
    source = re.sub(r"^from \.memory import .*$", "", source, flags=re.M)
    module = ModuleType("checked_kernels")
    names = {"load": load, "swap": swap, "get": _within(steps) if steps else get, "put": put, "SLACK": SLACK}
    module.__dict__.update(names, store8=_store(1), store16=_store(2), store32=_store(4), store64=_store(8))
    module.__dict__["__file__"] = parser.kernels.__file__
    exec(compile(source, parser.kernels.__file__, "exec"), module.__dict__)
    return module


class _OwnRooms(Rooms):
    """Working memory that nobody had before: what other kernels left in it neither helps nor hurts."""

    @classmethod
    def of(cls, program: Program, morsel_rows: int) -> Rooms:
        return Rooms(program, morsel_rows)


@contextmanager
def in_place(kernels: ModuleType) -> Iterator[None]:
    """Everything is decoded with these kernels."""
    users = (parser.decoder, parser.batch, parser.pcapng)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parser.decoder, "Rooms", _OwnRooms)
        patch.setattr(Rooms, "give_back", lambda self, program, clean: None)
        for user in users:
            patch.setattr(user, "k", kernels)
        with np.errstate(over="ignore"):
            yield
