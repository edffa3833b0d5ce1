"""The members of a message that have values, at all depths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from .description import Array, Bitfield, PayloadMessage, String, Struct, Type, Union
from .end_to_end import find_header_members
from .program import is_numeric_list, join_path
from .values import LeafReader


@dataclass(frozen=True, kw_only=True)
class ValueMember:
    """`path`: with `{}` for each index. `sizes`: the most elements of each array that an index is of; None: no limit.

    `is_list`: an array of numbers in one row. `has_labels`: its values may have texts.
    """

    path: str
    sizes: tuple[int | None, ...] = ()
    is_list: bool = False
    has_labels: bool = False

    @cached_property
    def combinations(self) -> int | None:
        """How many different indices it may have; None: no limit."""
        total = 1
        for size in self.sizes:
            if size is None:
                return None
            total *= size
        return total


def list_members(message: PayloadMessage) -> list[ValueMember]:
    """In the order of the payload; those of the end-to-end header first."""
    header = [] if message.e2e is None else find_header_members(message.e2e)
    paths = [path for member in header for path in LeafReader(member.leaf).paths]
    return [*(ValueMember(path=path) for path in paths), *_list_members(message.parameters, ValueMember(path=""))]


def list_paths(message: PayloadMessage) -> list[str]:
    """The paths of those members."""
    return [member.path for member in list_members(message)]


def _list_members(type_: Type, at: ValueMember) -> Iterator[ValueMember]:
    if isinstance(type_, Struct):
        for member in type_.members:
            yield from _list_members(member.type, _below(at, member.name))
    elif isinstance(type_, Union):
        yield replace(at, has_labels=True)
        for variant in type_.variants:
            if variant.type is not None:
                yield from _list_members(variant.type, _below(at, variant.name))
    elif isinstance(type_, Array):
        whole = is_numeric_list(type_.dimensions[-1], type_.element)
        indexed = type_.dimensions[:-1] if whole else type_.dimensions
        sizes = (*at.sizes, *(dimension.maximum for dimension in indexed))
        element = replace(at, path=at.path + "[{}]" * len(indexed), sizes=sizes)
        if whole:
            yield replace(element, is_list=True)
        else:
            yield from _list_members(type_.element, element)
    elif isinstance(type_, Bitfield):
        for bits in type_.members:
            yield replace(_below(at, bits.name), has_labels=bool(bits.labels))
    else:
        yield replace(at, has_labels=isinstance(type_, String) or bool(type_.labels))


def _below(at: ValueMember, name: str) -> ValueMember:
    return replace(at, path=join_path(at.path, name))
