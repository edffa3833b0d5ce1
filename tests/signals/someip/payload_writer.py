"""Writes random payloads of a description, and tells what is in them."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field, replace
from typing import Any

from pcaplake.signals.someip.description import Array, BaseType, Bitfield, PayloadMessage, String, Struct, Type, Union

HEADER = 16
MOST_VALUES = 300
TEXTS = ("", "a", "Straße", "ASCII only", "日本語", "x" * 40, "€")


class TooLong(Exception):
    """The content does not fit in its length field, or has too many values for a quick test: draw again."""


@dataclass
class Writer:
    """Writes a payload. `truth`: path -> raw integer, float, text, or tuple of numbers before scaling."""

    rng: random.Random
    plain: bool = False
    content: bytearray = field(default_factory=bytearray)
    truth: dict[str, Any] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    types: dict[str, Type] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)

    def write_message(self, message: PayloadMessage) -> bytes:
        if message.e2e is not None:
            self.content += self.rng.randbytes(message.e2e.offset + message.e2e.header_bytes)
        self.write(message.parameters, "", None)
        return bytes(self.content)

    def note(self, path: str, type_: Type, value: Any, at: int, end: int) -> None:
        """`type_`: of a list, of its numbers; of a selector, its union."""
        if len(self.truth) > MOST_VALUES:
            raise TooLong
        assert path not in self.truth
        self.truth[path], self.types[path], self.places[path], self.ends[path] = value, type_, at, end

    def write(self, type_: Type, path: str, override: int | None) -> None:
        if isinstance(type_, BaseType):
            at = len(self.content)
            value, content = self.number(type_)
            self.content += content
            self.note(path, type_, value, at, len(self.content))
        elif isinstance(type_, Bitfield):
            raw = self.rng.getrandbits(type_.base.bits)
            for bits in type_.members:
                value = raw >> bits.bit & (1 << bits.bits) - 1
                if bits.signed and value >> bits.bits - 1:
                    value -= 1 << bits.bits
                end = len(self.content) + type_.least_bytes
                self.note(f"{path}.{bits.name}", type_, value, len(self.content), end)
            self.content += raw.to_bytes(type_.base.bits // 8, "big" if type_.base.big_endian else "little")
        elif isinstance(type_, String):
            self.write_string(type_, path, override)
        elif isinstance(type_, Struct):
            self.write_struct(type_, path, override)
        elif isinstance(type_, Union):
            self.write_union(type_, path, override)
        else:
            self.write_dimension(type_, 0, path, override)

    def number(self, base: BaseType) -> tuple[Any, bytes]:
        rng = self.rng
        if base.coding == "float":
            letter = (">" if base.big_endian else "<") + {16: "e", 32: "f", 64: "d"}[base.bits]
            content = struct.pack(letter, rng.choice((0.0, 1.5, -1e4, rng.uniform(-1e3, 1e3))))
            return struct.unpack(letter, content)[0], content
        raw = rng.getrandbits(base.bits)
        if base.labels and rng.random() < 0.5:
            raw = rng.choice(base.labels)[0] % (1 << base.bits)
        content = raw.to_bytes(base.bits // 8, "big" if base.big_endian else "little")
        return int.from_bytes(content, "big" if base.big_endian else "little", signed=base.coding == "sint"), content

    # -- length fields --------------------------------------------------------------------------------------------
    def open(self, length_bits: int, override: int | None) -> tuple[int, int]:
        """The place and bytes of a length field that `close` fills."""
        size = length_bits // 8 if override is None else override
        self.content += bytes(size)
        return len(self.content) - size, size

    def close(self, opened: tuple[int, int], start: int, big_endian: bool) -> None:
        at, size = opened
        length = len(self.content) - start
        if size:
            if length >= 1 << 8 * size:
                raise TooLong
            self.content[at : at + size] = length.to_bytes(size, "big" if big_endian else "little")

    def pad(self, alignment: int, length_bits: int) -> None:
        if alignment and length_bits:
            while (len(self.content) + HEADER) % (alignment // 8):
                self.content += b"\xaa"

    # -- types ----------------------------------------------------------------------------------------------------
    def write_string(self, string: String, path: str, override: int | None) -> None:
        opened = self.open(string.length_bits, override)
        start = len(self.content)
        codec = {"ascii": "ascii", "utf-8": "utf-8", "utf-16": "utf-16-be" if string.big_endian else "utf-16-le"}
        order = codec[string.encoding]
        mark = b""
        if string.encoding == "utf-8" and not self.plain and self.rng.random() < 0.5:
            mark = b"\xef\xbb\xbf"
        elif string.encoding == "utf-16" and not self.plain and self.rng.random() < 0.5:
            order = self.rng.choice(("utf-16-be", "utf-16-le"))
            mark = b"\xfe\xff" if order == "utf-16-be" else b"\xff\xfe"
        most = 10_000 if opened[1] else string.fixed_length
        zero = b"\0\0" if string.encoding == "utf-16" else b"\0"
        while True:
            text = self.rng.choice(TEXTS)
            text = text.encode("ascii", "ignore").decode() if string.encoding == "ascii" else text
            encoded = mark + text.encode(order)
            if len(encoded) <= most:
                break
            mark = mark if len(mark) <= most else b""
        if opened[1]:
            self.content += encoded + zero * self.rng.choice((0, 1))
        else:
            self.content += encoded.ljust(string.fixed_length, b"\0")
        self.note(path, string, text, start, len(self.content))
        self.close(opened, start, string.length_big_endian)
        self.pad(string.alignment, string.length_bits)

    def write_struct(self, struct_: Struct, path: str, override: int | None) -> None:
        opened = self.open(struct_.length_bits, override)
        start = len(self.content)
        if struct_.tagged:
            self.write_tagged(struct_, path)
        else:
            for member in struct_.members:
                self.write(member.type, join(path, member.name), None)
        if opened[1] and not struct_.tagged and self.rng.random() < 0.2:
            self.content += self.rng.randbytes(self.rng.randint(1, 5))  # members of a newer version
        self.close(opened, start, struct_.length_big_endian)
        self.pad(struct_.alignment, struct_.length_bits)

    def write_tagged(self, struct_: Struct, path: str) -> None:
        members = [member for member in struct_.members if self.rng.random() < 0.8]
        self.rng.shuffle(members)
        for member in members:
            if self.rng.random() < 0.2:
                self.write_unknown_member()
            type_ = member.type
            assert member.data_id is not None
            if isinstance(type_, BaseType | Bitfield):
                if type_.least_bytes not in (1, 2, 4, 8):
                    continue  # no wire type has this size
                self.write_tag(type_.least_bytes.bit_length() - 1, member.data_id)
                self.write(type_, join(path, member.name), None)
                continue
            length_bits = (
                type_.dimensions[0].length_bits if isinstance(type_, Array) else getattr(type_, "length_bits", 0)
            )
            wire = self.rng.choice((4, 5, 6, 7) if length_bits else (5, 6, 7))
            self.write_tag(wire, member.data_id)
            self.write(self.without_padding(type_), join(path, member.name), {4: None, 5: 1, 6: 2, 7: 4}[wire])

    @staticmethod
    def without_padding(type_: Type) -> Type:
        """A tagged member has no padding: the next tag follows at once."""
        if isinstance(type_, Array):
            first, *others = type_.dimensions
            return replace(type_, dimensions=(replace(first, alignment=0), *others))
        assert isinstance(type_, String | Struct | Union)
        return replace(type_, alignment=0)

    def write_tag(self, wire: int, data_id: int) -> None:
        self.content += (wire << 12 | data_id).to_bytes(2, "big")

    def write_unknown_member(self) -> None:
        wire = self.rng.choice((0, 1, 2, 3, 5, 6, 7))
        self.write_tag(wire, self.rng.randint(100, 4095))
        if wire < 4:
            self.content += self.rng.randbytes(1 << wire)
        else:
            content = self.rng.randbytes(self.rng.randint(0, 9))
            self.content += len(content).to_bytes(1 << wire - 5, "big") + content

    def write_union(self, union: Union, path: str, override: int | None) -> None:
        opened = self.open(union.length_bits, override)
        variant = self.rng.choice(union.variants)
        at = len(self.content)
        self.note(path, union, variant.selector, at, at + union.selector_bits // 8)
        self.content += variant.selector.to_bytes(
            union.selector_bits // 8, "big" if union.selector_big_endian else "little"
        )
        start = len(self.content)
        if variant.type is not None:
            self.write(variant.type, join(path, variant.name), None)
        if opened[1]:
            self.content += bytes(self.rng.choice((0, 0, 3)))  # padding
        else:
            self.content += bytes(union.largest_bytes - (len(self.content) - start))
        self.close(opened, start, union.length_big_endian)
        self.pad(union.alignment, union.length_bits)

    def write_dimension(self, array: Array, place: int, path: str, override: int | None) -> None:
        dimension = array.dimensions[place]
        opened = self.open(dimension.length_bits, override)
        start = len(self.content)
        last = place == len(array.dimensions) - 1
        most = dimension.maximum if dimension.maximum is not None else 5
        least = dimension.minimum if dimension.length_bits else most
        many = most > 32 and last and isinstance(array.element, BaseType)
        count = least if least == most else self.rng.randint(least, most if many else max(least, min(most, 4)))
        whole = last and isinstance(array.element, BaseType) and (dimension.maximum is None or dimension.maximum > 32)
        if whole:
            assert isinstance(array.element, BaseType)
            drawn = [self.number(array.element) for _ in range(count)]
            self.content += b"".join(content for _, content in drawn)
            self.note(path, array.element, tuple(value for value, _ in drawn), start, len(self.content))
        else:
            for index in range(count):
                if last:
                    self.write(array.element, f"{path}[{index}]", None)
                else:
                    self.write_dimension(array, place + 1, f"{path}[{index}]", None)
        self.close(opened, start, dimension.length_big_endian)
        self.pad(dimension.alignment, dimension.length_bits)


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
