"""The data types of a FIBEX file as types of SOME/IP payloads.

FIBEX says the sizes of length fields where a type is used: SERIALIZATION-ATTRIBUTES of a parameter or member. They apply to
what is inside as well if PASS-ON-TO-SUBELEMENTS is true; a member's own come first. ARRAY-LENGTH-FIELD-SIZE of something that
is no array can only mean the arrays in it. Defaults are those of the standard: 32 bits for strings, unions and arrays of
variable length, none for structs and fixed arrays; big endian.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from pcaplake.signals.computations import Computation, array_of, bits_of
from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.someip.types import Bitfield, Dimension, Member, Struct, Type, Union, Variant

from .codings import base_type, bytes_of, is_bitfield, is_text, string
from .records import Attributes, Coding, Datatype, FibexFile, Use

_NOTHING: Final = Attributes()
_DEFAULT_BITS: Final = 32
_DEEPEST: Final = 64  # typedefs and structs inside each other; `description` allows fewer structs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """What a use adds to its data type: the key of the built types, with the data type."""

    attributes: Attributes
    inside: Attributes
    big_endian: bool | None
    coding: str | None
    signal: str | None
    bit_length: int | None


class TypeBuilder:
    """Builds each type once for each way in which it is used."""

    def __init__(self, file: FibexFile) -> None:
        self._file = file
        self._built: dict[tuple[str, _Context], Type] = {}
        self._open: list[str] = []

    def type_of(self, use: Use, outer: Attributes = _NOTHING) -> Type:
        """The type of a parameter or member. `outer`: what applies inside of what contains it. Raises `DatabaseError`."""
        own = use.attributes
        merged = _merge(own, outer)
        inside = _merge(own if own.passed_on else _NOTHING, outer)
        if own.array_length_bits is not None and not use.dimensions:
            inside = replace(inside, array_length_bits=own.array_length_bits)
        context = _Context(
            attributes=merged,
            inside=inside,
            big_endian=use.big_endian,
            coding=use.coding,
            signal=use.signal,
            bit_length=use.bit_length,
        )
        element = self._build(use.datatype, context)
        if not use.dimensions:
            return element
        return array_of(use.name, element, tuple(_dimensions(use, merged)))

    def struct_of(
        self, name: str, uses: tuple[Use, ...], outer: Attributes, length_bits: int = 0, alignment: int = 0
    ) -> Struct:
        """A struct of these members; with a data id it is tagged."""
        members = tuple(Member(name=use.name, type=self.type_of(use, outer), data_id=use.data_id) for use in uses)
        tagged = any(use.data_id is not None for use in uses)
        optional = [use.name for use in uses if not use.mandatory and use.data_id is None]
        if optional:
            raise DatabaseError(f"{name}: its members {', '.join(optional)} are optional: give them a DATA-ID")
        return Struct(name=name, members=members, length_bits=length_bits, alignment=alignment, tagged=tagged)

    def _build(self, identifier: str, context: _Context) -> Type:
        key = identifier, context
        if key in self._built:
            return self._built[key]
        datatype = self._file.datatypes.get(identifier)
        if datatype is None:
            raise DatabaseError(f"its data type {identifier} is not in the file, or cannot be read")
        if identifier in self._open or len(self._open) >= _DEEPEST:
            raise DatabaseError(
                f"its data type {datatype.name} contains itself, or is nested more than {_DEEPEST} deep"
            )
        self._open.append(identifier)
        try:
            built = self._build_kind(datatype, context)
        except DatabaseError as error:
            raise DatabaseError(f"{error} (data type {datatype.name}, line {datatype.line})") from error
        finally:
            self._open.pop()
        self._built[key] = built
        return built

    def _build_kind(self, datatype: Datatype, context: _Context) -> Type:
        sizes = context.attributes
        if datatype.kind in ("COMMON", "ENUM"):
            return self._build_leaf(datatype, context)
        if datatype.kind == "STRUCTURE":
            length = sizes.length_bits or 0
            return self.struct_of(
                datatype.name,
                datatype.members,
                context.inside,
                length_bits=length,
                alignment=(sizes.alignment or 0) if length else 0,
            )
        if datatype.kind == "UNION":
            length = _DEFAULT_BITS if sizes.length_bits is None else sizes.length_bits
            return Union(
                name=datatype.name,
                variants=tuple(
                    Variant(selector=_selector(use), name=use.name, type=self.type_of(use, context.inside))
                    for use in sorted(datatype.members, key=_selector)
                ),
                selector_bits=_DEFAULT_BITS if sizes.type_bits is None else sizes.type_bits,
                length_bits=length,
                alignment=(sizes.alignment or 0) if length else 0,
            )
        if datatype.kind == "TYPEDEF":
            return self._build_typedef(datatype, context)
        raise DatabaseError(f"data types of the class {datatype.kind or 'none'} are not read")

    def _build_typedef(self, datatype: Datatype, context: _Context) -> Type:
        if len(datatype.members) != 1:
            raise DatabaseError(f"a TYPEDEF has one member, and this one has {len(datatype.members)}")
        (use,) = datatype.members
        stands_for = replace(
            use,
            big_endian=context.big_endian if use.big_endian is None else use.big_endian,
            coding=context.coding or use.coding,
            signal=context.signal or use.signal,
            bit_length=use.bit_length if context.bit_length is None else context.bit_length,
        )
        return self.type_of(stands_for, _merge(context.attributes, context.inside))

    def _build_leaf(self, datatype: Datatype, context: _Context) -> Type:
        coding = self._coding(datatype.coding or context.coding)
        meaning = self._meaning(coding, context)
        sizes, bits = context.attributes, context.bit_length
        big_endian = context.big_endian is not False
        if is_text(coding):
            return string(datatype.name, coding, bits, sizes.length_bits, sizes.alignment or 0, big_endian)
        if coding.base == "A_BYTEFIELD":
            return bytes_of(datatype.name, coding, bits, sizes.array_length_bits, sizes.alignment or 0)
        if is_bitfield(meaning):
            plain = replace(meaning, computation=Computation(), low=None, high=None, unit=None)
            base = base_type(self._file, coding.name, coding, plain, (), bits, big_endian)
            return Bitfield(name=datatype.name, base=base, members=bits_of(meaning.computation))
        return base_type(self._file, datatype.name, coding, meaning, datatype.labels, bits, big_endian)

    def _meaning(self, coding: Coding, context: _Context) -> Coding:
        """The coding that says what the values mean: that of the use, of its signal, or of the data type."""
        signal = self._file.signals.get(context.signal or "")
        for identifier in (context.coding, signal):
            if identifier is not None:
                found = self._coding(identifier)
                if found.computation.scales or is_bitfield(found):
                    return found
        return coding

    def _coding(self, identifier: str | None) -> Coding:
        found = self._file.codings.get(identifier or "")
        if found is None:
            raise DatabaseError(f"its coding {identifier} is not in the file, or cannot be read")
        return found


def _merge(own: Attributes, outer: Attributes) -> Attributes:
    return Attributes(
        length_bits=outer.length_bits if own.length_bits is None else own.length_bits,
        type_bits=outer.type_bits if own.type_bits is None else own.type_bits,
        array_length_bits=outer.array_length_bits if own.array_length_bits is None else own.array_length_bits,
        alignment=outer.alignment if own.alignment is None else own.alignment,
    )


def _dimensions(use: Use, sizes: Attributes) -> list[Dimension]:
    dimensions = []
    for each in use.dimensions:
        fixed = each.maximum is not None and each.minimum == each.maximum
        bits = sizes.array_length_bits
        if bits is None:
            bits = 0 if fixed else _DEFAULT_BITS
        alignment = (each.alignment or sizes.alignment or 0) if bits else 0
        dimensions.append(Dimension(minimum=each.minimum, maximum=each.maximum, length_bits=bits, alignment=alignment))
    return dimensions


def _selector(use: Use) -> int:
    if use.index is None:
        raise DatabaseError(
            f"its member {use.name} (line {use.line}) has no INDEX, so its selector is unknown: add one"
        )
    return use.index
