"""The types of SOME/IP payloads as plain data.

Layout: AUTOSAR PRS_SOMEIPProtocol R22-11, section "Serialization of data structures".
Sizes of length fields, selectors and alignments are bits, as in the files; sizes of strings and offsets are bytes.

All of it is checked when it is built: a wrong type raises `DescriptionError` with its name and what to change.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, TypeAlias

from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.model import Scale

LENGTH_BITS: Final = (0, 8, 16, 32)
SELECTOR_BITS: Final = (8, 16, 32)
ALIGNMENTS: Final = (0, 8, 16, 32, 64, 128, 256)
DEEPEST: Final = 32
"""Most types that contain each other."""
MOST_LEAVES: Final = 1 << 16
"""Most members of a message at all depths; each element of an array is the same member."""
MOST_ELEMENTS: Final = 1 << 24
"""Most elements of a dimension without a length field; a payload has at most 16 MB."""

UNSCALED: Final = Scale()

Coding = Literal["uint", "sint", "float"]
Encoding = Literal["ascii", "utf-8", "utf-16"]


class DescriptionError(DatabaseError):
    """A type or message contradicts itself or the standard. The text names it and says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseType:
    """A number. `labels`: (raw value, text), which makes it an enumeration.

    `bits`: its size in the payload, whole bytes: uint and sint 8 to 64, float 16, 32 or 64. `scale`: value = raw * factor +
    offset, and the unit. `minimum`, `maximum`: outside of these bounds a value is not `valid`.
    """

    name: str
    coding: Coding
    bits: int
    big_endian: bool = True
    labels: tuple[tuple[int, str], ...] = ()
    scale: Scale = UNSCALED
    minimum: float | None = None
    maximum: float | None = None

    def __post_init__(self) -> None:
        allowed = (16, 32, 64) if self.coding == "float" else range(8, 65, 8)
        require(
            self.coding in ("uint", "sint", "float"), self, f"its coding is {self.coding!r}: use uint, sint or float"
        )
        require(self.bits in allowed, self, f"it has {self.bits} bits: use one of {', '.join(map(str, allowed))}")
        _require_labels(self, self.labels, self.bits)

    @property
    def least_bytes(self) -> int:
        return self.bits // 8

    fixed_bytes = least_bytes
    nesting, leaves = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Bits:
    """One member of a bitfield: `bits` bits of its number, from `bit` on (0: the least significant)."""

    name: str
    bit: int
    bits: int = 1
    signed: bool = False
    labels: tuple[tuple[int, str], ...] = ()
    scale: Scale = UNSCALED

    def __post_init__(self) -> None:
        _require_name(self)
        require(
            self.bits >= 1 and self.bit >= 0,
            self,
            f"it has {self.bits} bits from bit {self.bit} on: give it at least one",
        )
        _require_labels(self, self.labels, self.bits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bitfield:
    """A number whose bits are members: uint of 8 to 64 bits."""

    name: str
    base: BaseType
    members: tuple[Bits, ...]

    def __post_init__(self) -> None:
        require(self.base.coding == "uint", self, f"its base type is a {self.base.coding}: use a uint")
        for member in self.members:
            last = member.bit + member.bits
            require(
                last <= self.base.bits,
                self,
                f"{member.name} ends at bit {last} of {self.base.bits}: make its base larger",
            )
        _require_distinct(self, (member.name for member in self.members))

    @property
    def least_bytes(self) -> int:
        return self.base.least_bytes

    fixed_bytes = least_bytes
    nesting = 0

    @property
    def leaves(self) -> int:
        return len(self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class String:
    """A text: of `fixed_length` bytes (`length_bits` 0), or with a length field.

    Byte order mark and terminator are part of the string, and counted by its length. `big_endian`: UTF-16 without a mark.
    `length_big_endian`: of the length field. `alignment`: what follows a string with a length field starts at a multiple.
    """

    name: str
    encoding: Encoding
    fixed_length: int = 0
    length_bits: int = 0
    big_endian: bool = True
    length_big_endian: bool = True
    alignment: int = 0

    def __post_init__(self) -> None:
        known = ("ascii", "utf-8", "utf-16")
        require(self.encoding in known, self, f"its encoding is {self.encoding!r}: use one of {', '.join(known)}")
        _require_field_sizes(self, self.length_bits, self.alignment)
        require(self.fixed_length >= 0, self, f"its fixed length is {self.fixed_length}: give bytes")
        require(
            bool(self.length_bits) or self.fixed_length > 0,
            self,
            "it has neither a length field nor a length: give one",
        )

    @property
    def least_bytes(self) -> int:
        return self.length_bits // 8 or self.fixed_length

    @property
    def fixed_bytes(self) -> int | None:
        return None if self.length_bits else self.fixed_length

    nesting, leaves = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """One dimension of an array: `length_bits` 0 means exactly `maximum` elements; otherwise a length field counts the bytes.

    `maximum` None: as many as the length field says. Elements beyond `maximum` are skipped, as the standard requires.
    """

    maximum: int | None = None
    minimum: int = 0
    length_bits: int = 0
    length_big_endian: bool = True
    alignment: int = 0


@dataclass(frozen=True, kw_only=True)
class Array:
    """`dimensions`: the outermost first."""

    name: str
    element: Type
    dimensions: tuple[Dimension, ...]

    def __post_init__(self) -> None:
        require(len(self.dimensions) >= 1, self, "it has no dimension: give at least one")
        require(len(self.dimensions) <= 8, self, "it has more than 8 dimensions: nest arrays instead")
        for dimension in self.dimensions:
            _require_field_sizes(self, dimension.length_bits, dimension.alignment)
            least, most = dimension.minimum, dimension.maximum
            require(least >= 0 and (most is None or most >= max(1, least)), self, f"it has {least} to {most} elements")
            if not dimension.length_bits:
                require(
                    most is not None, self, "a dimension has neither a length field nor a number of elements: give one"
                )
                assert most is not None
                require(most <= MOST_ELEMENTS, self, f"it has {most:,} elements: at most {MOST_ELEMENTS:,} are read")
        require(self.element.least_bytes > 0, self, "its elements may have no bytes: give them a length field")
        _require_size(self)

    @cached_property
    def least_bytes(self) -> int:
        count = 1
        for dimension in self.dimensions:  # up to the first length field, whose dimension may be empty
            if dimension.length_bits:
                return count * (dimension.length_bits // 8)
            count *= dimension.maximum or 0
        return count * self.element.least_bytes

    @cached_property
    def fixed_bytes(self) -> int | None:
        if self.element.fixed_bytes is None or any(dimension.length_bits for dimension in self.dimensions):
            return None
        return self.least_bytes

    @cached_property
    def nesting(self) -> int:
        return len(self.dimensions) + self.element.nesting

    @cached_property
    def leaves(self) -> int:
        return self.element.leaves


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member of a struct, or a parameter. `data_id`: in a tagged struct, its 12 bits of the tag."""

    name: str
    type: Type
    data_id: int | None = None

    def __post_init__(self) -> None:
        _require_name(self)
        known = self.data_id is None or 0 <= self.data_id < 1 << 12
        require(known, self, f"its data id is {self.data_id}: use 0 to 4095")


@dataclass(frozen=True, kw_only=True)
class Struct:
    """`tagged`: each member follows its tag (TLV), in any order, and may be missing; all members have a data id then.

    A length field counts the bytes after it; what it counts beyond the members is skipped. A tagged struct without a length
    field reaches to the end of what contains it. `alignment`: as for strings.
    """

    name: str
    members: tuple[Member, ...]
    length_bits: int = 0
    length_big_endian: bool = True
    alignment: int = 0
    tagged: bool = False

    def __post_init__(self) -> None:
        _require_field_sizes(self, self.length_bits, self.alignment)
        _require_distinct(self, (member.name for member in self.members))
        if self.tagged:
            missing = [member.name for member in self.members if member.data_id is None]
            require(
                not missing,
                self,
                f"its member {', '.join(missing)} has no data id: give one to each",
            )
            _require_distinct(self, (member.data_id for member in self.members))
        _require_size(self)

    @cached_property
    def least_bytes(self) -> int:
        if self.length_bits or self.tagged:
            return self.length_bits // 8
        return sum(member.type.least_bytes for member in self.members)

    @cached_property
    def fixed_bytes(self) -> int | None:
        if self.length_bits or self.tagged or any(member.type.fixed_bytes is None for member in self.members):
            return None
        return self.least_bytes

    @cached_property
    def nesting(self) -> int:
        return 1 + max((member.type.nesting for member in self.members), default=0)

    @cached_property
    def leaves(self) -> int:
        return sum(member.type.leaves for member in self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One of the types of a union. `type` None: it has no bytes (AUTOSAR's null type)."""

    selector: int
    name: str
    type: Type | None

    def __post_init__(self) -> None:
        _require_name(self)


@dataclass(frozen=True, kw_only=True)
class Union:
    """A length field, which counts the bytes of the variant with its padding, then the selector, then the variant.

    `length_bits` 0: all variants have the size of the largest, and none has a length field.
    """

    name: str
    variants: tuple[Variant, ...]
    selector_bits: int = 32
    length_bits: int = 32
    length_big_endian: bool = True
    selector_big_endian: bool = True
    alignment: int = 0

    def __post_init__(self) -> None:
        _require_field_sizes(self, self.length_bits, self.alignment)
        require(
            self.selector_bits in SELECTOR_BITS, self, f"its selector has {self.selector_bits} bits: use 8, 16 or 32"
        )
        for variant in self.variants:
            fits = 0 <= variant.selector < 1 << self.selector_bits
            require(
                fits,
                self,
                f"{variant.name} has the selector {variant.selector}: use {self.selector_bits} bits",
            )
            if not self.length_bits:
                fixed = variant.type is None or variant.type.fixed_bytes is not None
                require(
                    fixed,
                    self,
                    f"it has no length field, and the size of {variant.name} varies: give it a length field",
                )
        _require_distinct(self, (variant.selector for variant in self.variants))
        _require_distinct(self, (variant.name for variant in self.variants))
        _require_size(self)

    @cached_property
    def largest_bytes(self) -> int:
        """The size of the largest variant, for a union without a length field."""
        return max(
            ((variant.type.fixed_bytes or 0) for variant in self.variants if variant.type is not None), default=0
        )

    @cached_property
    def least_bytes(self) -> int:
        return (self.length_bits + self.selector_bits) // 8 + (0 if self.length_bits else self.largest_bytes)

    fixed_bytes = None  # which members it has depends on the selector

    @cached_property
    def nesting(self) -> int:
        return 1 + max((variant.type.nesting for variant in self.variants if variant.type is not None), default=0)

    @cached_property
    def leaves(self) -> int:
        return 1 + sum(variant.type.leaves for variant in self.variants if variant.type is not None)


Type: TypeAlias = BaseType | Bitfield | String | Array | Struct | Union


# -- checks -----------------------------------------------------------------------------------------------------------
def require(holds: bool, what: object, otherwise: str) -> None:
    if not holds:
        raise DescriptionError(f"{getattr(what, 'name', '') or type(what).__name__}: {otherwise}")


def _require_name(what: Bits | Member | Variant) -> None:
    require(bool(what.name), what, "it has no name: give one")


def _require_distinct(what: object, keys: Iterable[object]) -> None:
    seen: set[object] = set()
    for key in keys:
        require(key not in seen, what, f"two of its members have the same name or id {key}: rename one")
        seen.add(key)


def _require_labels(what: object, labels: tuple[tuple[int, str], ...], bits: int) -> None:
    for raw, label in labels:
        require(-(1 << (bits - 1)) <= raw < 1 << bits, what, f"its value {raw} ({label}) does not fit in {bits} bits")
    _require_distinct(what, (raw for raw, _ in labels))


def _require_field_sizes(what: object, length_bits: int, alignment: int) -> None:
    require(length_bits in LENGTH_BITS, what, f"its length field has {length_bits} bits: use 0, 8, 16 or 32")
    require(
        alignment in ALIGNMENTS,
        what,
        f"its alignment is {alignment} bits: use one of {', '.join(map(str, ALIGNMENTS))}",
    )


def _require_size(what: Array | Struct | Union) -> None:
    require(
        what.leaves <= MOST_LEAVES,
        what,
        f"it has {what.leaves:,} members at all depths: at most {MOST_LEAVES:,} are read",
    )
    require(what.nesting <= DEEPEST, what, f"it nests more than {DEEPEST} types: shorten the chain of types")
