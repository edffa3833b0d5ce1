"""Compiles the parameters of a message: to members at constant offsets, or to the table of integers that `kernels.walk` reads.

A *leaf* is what gives rows: a number, a bitfield, a text, the selector of a union, or a whole array of numbers. Each element
of an array has the same leaf, and tells its indices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .description import Array, BaseType, Bitfield, Dimension, Member, PayloadMessage, String, Struct, Type, Union
from .kernels import encoding as E

LONGEST_INDEXED: Final = 32
"""An array of numbers that may be longer is one row with a list, in every message."""
MOST_FIXED: Final = 4096
"""Most members at constant offsets that are read one by one; messages with more are walked."""
Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Leaf:
    """`path`: with `{}` for each index. `type`: of a selector, its union. `is_list`: an array of numbers in one row."""

    path: str
    type: BaseType | Bitfield | String | Union
    is_list: bool = False


@dataclass(frozen=True, slots=True)
class FixedMember:
    """One leaf at a constant byte `offset` of the payload. `count`: numbers of a list, otherwise 1."""

    leaf: Leaf
    indices: tuple[int, ...]
    offset: int
    count: int = 1


def join_path(path: str, name: str) -> str:
    """A path below another; braces in names are doubled, because indices are filled in by `str.format`."""
    name = name.replace("{", "{{").replace("}", "}}")
    return f"{path}.{name}" if path else name


def is_numeric_list(dimension: Dimension, element: object) -> bool:
    """Whether a dimension is one row: its elements are numbers, and may be more than LONGEST_INDEXED."""
    return isinstance(element, BaseType) and (dimension.maximum is None or dimension.maximum > LONGEST_INDEXED)


def find_fixed_members(message: PayloadMessage, start: int) -> list[FixedMember] | None:
    """The members of a message in which everything has a constant offset, from byte `start` on; None for other messages."""
    if message.parameters.fixed_bytes is None:
        return None
    members = []
    for member in _expand(message.parameters, "", (), start, {}):
        members.append(member)
        if len(members) > MOST_FIXED:
            return None
    return members


def _expand(
    type_: Type, path: str, indices: tuple[int, ...], offset: int, leaves: dict[str, Leaf]
) -> Iterator[FixedMember]:
    if isinstance(type_, Struct):
        for member in type_.members:
            yield from _expand(member.type, join_path(path, member.name), indices, offset, leaves)
            offset += member.type.least_bytes
    elif isinstance(type_, Array):
        yield from _expand_dimension(type_, 0, path, indices, offset, leaves)
    else:
        assert not isinstance(type_, Union)  # never of fixed size
        yield FixedMember(leaves.setdefault(path, Leaf(path, type_)), indices, offset)


def _expand_dimension(
    array: Array, place: int, path: str, indices: tuple[int, ...], offset: int, leaves: dict[str, Leaf]
) -> Iterator[FixedMember]:
    dimension = array.dimensions[place]
    last = place == len(array.dimensions) - 1
    count = dimension.maximum or 0
    if last and isinstance(array.element, BaseType) and is_numeric_list(dimension, array.element):
        yield FixedMember(leaves.setdefault(path, Leaf(path, array.element, is_list=True)), indices, offset, count)
        return
    size = array.element.least_bytes
    for inner in array.dimensions[place + 1 :]:
        size *= inner.maximum or 0
    for index in range(count):
        below = (f"{path}[{{}}]", (*indices, index), offset + index * size, leaves)
        if last:
            yield from _expand(array.element, *below)
        else:
            yield from _expand_dimension(array, place + 1, *below)


class WalkProgram:
    """`nodes`: int64 of shape (nodes, E.FIELDS), the first is the parameters. `leaves`: by the number in E.LEAF."""

    def __init__(self, message: PayloadMessage) -> None:
        self.leaves: list[Leaf] = []
        self._rows: list[list[int]] = []
        self._reserve(1)
        self._compile(0, message.parameters, "")
        self.nodes = np.array(self._rows, np.int64)

    def _reserve(self, count: int) -> int:
        first = len(self._rows)
        self._rows += [[0] * E.FIELDS for _ in range(count)]
        return first

    def _set(self, node: int, **fields: int) -> None:
        for name, value in fields.items():
            self._rows[node][getattr(E, name.upper())] = int(value)

    def _leaf(self, leaf: Leaf) -> int:
        self.leaves.append(leaf)
        return len(self.leaves) - 1

    def _compile(self, node: int, type_: Type, path: str) -> None:
        if isinstance(type_, BaseType | Bitfield):
            self._set(node, kind=E.NUMBER, size=type_.least_bytes, leaf=self._leaf(Leaf(path, type_)))
        elif isinstance(type_, String):
            self._set(
                node,
                kind=E.TEXT,
                size=type_.fixed_length,
                length_bytes=type_.length_bits // 8,
                length_little=not type_.length_big_endian,
                align=type_.alignment // 8,
                leaf=self._leaf(Leaf(path, type_)),
            )
        elif isinstance(type_, Array):
            self._compile_dimension(node, type_, 0, path)
        elif isinstance(type_, Struct):
            self._compile_struct(node, type_, path)
        else:
            self._compile_union(node, type_, path)

    def _compile_struct(self, node: int, struct: Struct, path: str) -> None:
        first = self._reserve(len(struct.members))
        self._set(
            node,
            kind=E.TAGGED if struct.tagged else E.STRUCT,
            first=first,
            count=len(struct.members),
            length_bytes=struct.length_bits // 8,
            length_little=not struct.length_big_endian,
            align=struct.alignment // 8,
        )
        members: list[Member] = list(struct.members)
        if struct.tagged:
            members.sort(key=lambda member: member.data_id or 0)  # the walk searches for them
        for place, member in enumerate(members, first):
            self._compile(place, member.type, join_path(path, member.name))
            self._set(place, key=member.data_id or 0)

    def _compile_union(self, node: int, union: Union, path: str) -> None:
        first = self._reserve(len(union.variants))
        self._set(
            node,
            kind=E.UNION,
            first=first,
            count=len(union.variants),
            length_bytes=union.length_bits // 8,
            length_little=not union.length_big_endian,
            selector_bytes=union.selector_bits // 8,
            selector_little=not union.selector_big_endian,
            size=union.largest_bytes,
            align=union.alignment // 8,
            leaf=self._leaf(Leaf(path, union)),
        )
        for place, variant in enumerate(sorted(union.variants, key=lambda variant: variant.selector), first):
            if variant.type is None:
                self._set(place, kind=E.NOTHING)
            else:
                self._compile(place, variant.type, join_path(path, variant.name))
            self._set(place, key=variant.selector)

    def _compile_dimension(self, node: int, array: Array, place: int, path: str) -> None:
        dimension = array.dimensions[place]
        last = place == len(array.dimensions) - 1
        fields = {
            "length_bytes": dimension.length_bits // 8,
            "length_little": not dimension.length_big_endian,
            "align": dimension.alignment // 8,
            "minimum": dimension.minimum,
            "maximum": -1 if dimension.maximum is None else dimension.maximum,
        }
        if last and isinstance(array.element, BaseType):
            whole = is_numeric_list(dimension, array.element)
            leaf = self._leaf(Leaf(path if whole else f"{path}[{{}}]", array.element, is_list=whole))
            self._set(node, kind=E.NUMBERS, size=array.element.least_bytes, whole=whole, leaf=leaf, **fields)
            return
        first = self._reserve(1)
        self._set(node, kind=E.ARRAY, first=first, count=1, **fields)
        if last:
            self._compile(first, array.element, f"{path}[{{}}]")
        else:
            self._compile_dimension(first, array, place + 1, f"{path}[{{}}]")
