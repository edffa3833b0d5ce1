"""A plain decoder of SOME/IP payloads: one payload, one recursive function per type. What the compiled decoder must equal."""

from __future__ import annotations

import contextlib
import struct
from dataclasses import dataclass, field
from typing import Literal

from pcaplake.signals.someip.description import (
    Array,
    BaseType,
    Bitfield,
    Dimension,
    PayloadMessage,
    String,
    Struct,
    Type,
    Union,
)

LONGEST_INDEXED = 32
HEADER = 16


@dataclass(frozen=True)
class Value:
    """`number`: physical, None for texts and lists; `at`: its byte in the payload."""

    path: str
    at: int
    raw: int | None
    number: float | None
    label: str | None
    valid: bool
    numbers: tuple[float, ...] | None = None


@dataclass
class Payload:
    content: bytes
    values: list[Value] = field(default_factory=list)
    short: bool = False
    long: bool = False
    damaged: bool = False
    unknown: bool = False

    def add(self, value: Value) -> None:
        if all(value.path != other.path for other in self.values):  # a tagged member that comes twice
            self.values.append(value)

    def does_not_fit(self, needed: int) -> None:
        """Something ends at byte `needed`, beyond what contains it."""
        if needed > len(self.content):
            self.short = True
        else:
            self.damaged = True


class Unfitting(Exception):
    """It is unknown where the next member is."""


def decode(message: PayloadMessage, content: bytes) -> Payload:
    """All values but those of end-to-end protection."""
    payload = Payload(content)
    start = 0 if message.e2e is None else message.e2e.offset + message.e2e.header_bytes
    if start > len(content):
        start = len(content)
        payload.short = True
    try:
        at = decode_type(payload, message.parameters, "", start, len(content))
    except Unfitting:
        return payload
    if at < len(content):
        payload.long = True
    return payload


def decode_type(payload: Payload, type_: Type, path: str, at: int, end: int, override: int | None = None) -> int:
    """Where the type ends. `end`: of what contains it; `override`: bytes of the length field by the wire type of a tag."""
    if isinstance(type_, BaseType | Bitfield):
        if at + type_.least_bytes > end:
            payload.does_not_fit(at + type_.least_bytes)
            raise Unfitting
        decode_number(payload, type_, path, at)
        return at + type_.least_bytes
    if isinstance(type_, String):
        return decode_string(payload, type_, path, at, end, override)
    if isinstance(type_, Struct):
        return decode_struct(payload, type_, path, at, end, override)
    if isinstance(type_, Union):
        return decode_union(payload, type_, path, at, end, override)
    return decode_dimension(payload, type_, type_.dimensions, path, at, end, override)


def read_integer(payload: Payload, at: int, size: int, big_endian: bool) -> int:
    return int.from_bytes(payload.content[at : at + size], "big" if big_endian else "little")


def read_length(payload: Payload, at: int, end: int, size: int, big_endian: bool) -> tuple[int, bool]:
    """The end that a length field of `size` bytes gives, at most `end`, and whether it is beyond it."""
    if at + size > end:
        payload.does_not_fit(at + size)
        raise Unfitting
    its_end = at + size + read_integer(payload, at, size, big_endian)
    if its_end > end:
        payload.does_not_fit(its_end)
        return end, True
    return its_end, False


def align(at: int, end: int, bits: int, variable: bool) -> int:
    if not bits or not variable:
        return at
    while (at + HEADER) % (bits // 8) and at < end:
        at += 1
    return at


# -- leaves -------------------------------------------------------------------------------------------------------------
def number_of(base: BaseType, content: bytes) -> tuple[int, float, str | None, bool]:
    """Raw value, physical value, label, and whether it is valid."""
    order: Literal["big", "little"] = "big" if base.big_endian else "little"
    if base.coding == "float":
        letter = {2: "e", 4: "f", 8: "d"}[len(content)]
        exact = struct.unpack((">" if base.big_endian else "<") + letter, content)[0]
        raw: int = int.from_bytes(content, order)
        raw = raw - (1 << 64) if raw >> 63 else raw
    else:
        raw = int.from_bytes(content, order, signed=base.coding == "sint")
        exact = raw
        if base.coding == "uint" and raw >> 63:
            raw -= 1 << 64  # the same bits in the signed column
    value = float(exact * base.scale.factor + base.scale.offset)
    valid = value == value and abs(value) != float("inf")
    valid &= base.minimum is None or value >= base.minimum
    valid &= base.maximum is None or value <= base.maximum
    return raw, value, dict(base.labels).get(exact), valid


def decode_number(payload: Payload, type_: BaseType | Bitfield, path: str, at: int) -> None:
    content = payload.content[at : at + type_.least_bytes]
    if isinstance(type_, BaseType):
        raw, value, label, valid = number_of(type_, content)
        payload.add(Value(path, at, raw, value, label, valid))
        return
    word = int.from_bytes(content, "big" if type_.base.big_endian else "little")
    for bits in type_.members:
        raw = word >> bits.bit & (1 << bits.bits) - 1
        if bits.signed and raw >> (bits.bits - 1):
            raw -= 1 << bits.bits
        value = raw * bits.scale.factor + bits.scale.offset
        stored = raw - (1 << 64) if raw >> 63 > 0 else raw
        payload.add(Value(f"{path}.{bits.name}", at, stored, float(value), dict(bits.labels).get(raw), True))


def decode_string(payload: Payload, string: String, path: str, at: int, end: int, override: int | None) -> int:
    size = string.length_bits // 8 if override is None else override
    start = at + size
    if size:
        its_end, clipped = read_length(payload, at, end, size, string.length_big_endian)
    else:
        its_end, clipped = at + string.fixed_length, at + string.fixed_length > end
        if clipped:
            payload.does_not_fit(its_end)
    if clipped:
        raise Unfitting
    text, valid = text_of(string, payload.content[start:its_end])
    payload.add(Value(path, start, None, None, text, valid))
    return align(its_end, end, string.alignment, string.length_bits > 0)


def text_of(string: String, content: bytes) -> tuple[str, bool]:
    codec = {"ascii": "ascii", "utf-8": "utf-8", "utf-16": "utf-16-be" if string.big_endian else "utf-16-le"}[
        string.encoding
    ]
    if string.encoding == "utf-16":
        if content[:2] == b"\xfe\xff":
            codec, content = "utf-16-be", content[2:]
        elif content[:2] == b"\xff\xfe":
            codec, content = "utf-16-le", content[2:]
        for place in range(0, len(content) - 1, 2):
            if content[place : place + 2] == b"\0\0":
                content = content[:place]
                break
    else:
        if string.encoding == "utf-8" and content[:3] == b"\xef\xbb\xbf":
            content = content[3:]
        content = content.split(b"\0")[0]
    try:
        return content.decode(codec), True
    except UnicodeDecodeError:
        return content.decode(codec, "replace"), False


# -- containers ---------------------------------------------------------------------------------------------------------
def decode_struct(payload: Payload, struct_: Struct, path: str, at: int, end: int, override: int | None) -> int:
    size = struct_.length_bits // 8 if override is None else override
    its_end = end
    if size:
        its_end, _ = read_length(payload, at, end, size, struct_.length_big_endian)
        at += size
    if struct_.tagged:
        decode_tagged(payload, struct_, path, at, its_end)
        at = its_end
    else:
        try:
            for member in struct_.members:
                at = decode_type(payload, member.type, join(path, member.name), at, its_end)
        except Unfitting:
            if not size:
                raise
    if size:
        at = its_end
    return align(at, end, struct_.alignment, struct_.length_bits > 0)


def decode_tagged(payload: Payload, struct_: Struct, path: str, at: int, end: int) -> None:
    members = {member.data_id: member for member in struct_.members}
    while end - at >= 2:
        tag = read_integer(payload, at, 2, True)
        at += 2
        wire, member = tag >> 12 & 7, members.get(tag & 0xFFF)
        if member is None:
            payload.unknown = True
        scalar = member is not None and isinstance(member.type, BaseType | Bitfield)
        if wire < 4:
            size = 1 << wire
            if at + size > end:
                payload.does_not_fit(at + size)
                return
            if member is not None:
                if isinstance(member.type, BaseType | Bitfield) and member.type.least_bytes == size:
                    decode_number(payload, member.type, join(path, member.name), at)
                else:
                    payload.damaged = True
            at += size
            continue
        length_bytes = {5: 1, 6: 2, 7: 4}.get(wire, 0)
        big_endian = True
        if member is not None and not scalar:
            declared, big_endian = declared_length(member.type)
            length_bytes = length_bytes or declared
        if not length_bytes:
            payload.damaged = True
            return
        if at + length_bytes > end:
            payload.does_not_fit(at + length_bytes)
            return
        its_end = at + length_bytes + read_integer(payload, at, length_bytes, big_endian)
        if member is None or scalar:
            if scalar:
                payload.damaged = True
            if its_end > end:
                payload.does_not_fit(its_end)
        else:
            if isinstance(member.type, Union):
                its_end += member.type.selector_bits // 8
            override = length_bytes if wire > 4 else None
            with contextlib.suppress(Unfitting):
                decode_type(payload, member.type, join(path, member.name), at, end, override)
        at = min(its_end, end)
    if at < end:
        payload.does_not_fit(at + 2)


def declared_length(type_: Type) -> tuple[int, bool]:
    """The bytes of the length field of a type, and whether it is big endian."""
    if isinstance(type_, Array):
        return type_.dimensions[0].length_bits // 8, type_.dimensions[0].length_big_endian
    assert isinstance(type_, String | Struct | Union)
    return type_.length_bits // 8, type_.length_big_endian


def decode_dimension(
    payload: Payload,
    array: Array,
    dimensions: tuple[Dimension, ...],
    path: str,
    at: int,
    end: int,
    override: int | None,
) -> int:
    dimension, *inner = dimensions
    size = dimension.length_bits // 8 if override is None else override
    its_end = end
    if size:
        its_end, _ = read_length(payload, at, end, size, dimension.length_big_endian)
        at += size
    most = dimension.maximum
    whole = not inner and isinstance(array.element, BaseType) and (most is None or most > LONGEST_INDEXED)
    numbers: list[tuple[float, bool]] = []
    start, count = at, 0
    try:
        while count != most and (not size or at < its_end):
            if whole:
                assert isinstance(array.element, BaseType)
                element_end = at + array.element.least_bytes
                if element_end > its_end:
                    payload.does_not_fit(element_end)
                    raise Unfitting
                _, value, _, valid = number_of(array.element, payload.content[at:element_end])
                numbers.append((value, valid))
                at = element_end
            else:
                if inner:
                    at = decode_dimension(payload, array, tuple(inner), f"{path}[{count}]", at, its_end, None)
                else:
                    at = decode_type(payload, array.element, f"{path}[{count}]", at, its_end)
            count += 1
        if size and at < its_end:
            payload.long = True
        if size and count < dimension.minimum:
            payload.short = True
    except Unfitting:
        if size and isinstance(array.element, BaseType) and not inner and count < dimension.minimum:
            payload.short = True
        if not size:
            if whole and count:
                add_list(payload, path, start, numbers)
            raise
    if whole:
        add_list(payload, path, start, numbers)
    if size:
        at = its_end
    return align(at, end, dimension.alignment, dimension.length_bits > 0)


def add_list(payload: Payload, path: str, start: int, numbers: list[tuple[float, bool]]) -> None:
    everything_valid = all(valid for _, valid in numbers)
    payload.add(Value(path, start, None, None, None, everything_valid, tuple(value for value, _ in numbers)))


def decode_union(payload: Payload, union: Union, path: str, at: int, end: int, override: int | None) -> int:
    size = union.length_bits // 8 if override is None else override
    selector_bytes = union.selector_bits // 8
    start = at + size + selector_bytes
    if start > end:
        payload.does_not_fit(start)
        raise Unfitting
    length = read_integer(payload, at, size, union.length_big_endian) if size else union.largest_bytes
    its_end = start + length
    if its_end > end:
        payload.does_not_fit(its_end)
        its_end = end
    selector = read_integer(payload, at + size, selector_bytes, union.selector_big_endian)
    variant = next((one for one in union.variants if one.selector == selector), None)
    label = None if variant is None else variant.name
    payload.add(Value(path, at + size, selector, float(selector), label, True))
    if variant is None:
        payload.unknown = True
    elif variant.type is not None:
        with contextlib.suppress(Unfitting):
            decode_type(payload, variant.type, join(path, variant.name), start, its_end)
    return align(its_end, end, union.alignment, union.length_bits > 0)


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
