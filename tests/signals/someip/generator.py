"""Random descriptions of SOME/IP messages, and payloads with what is in them."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from pcaplake.signals.model import Scale
from pcaplake.signals.someip.description import (
    Array,
    BaseType,
    Bitfield,
    Bits,
    Dimension,
    EndToEnd,
    Member,
    PayloadMessage,
    String,
    Struct,
    Type,
    Union,
    Variant,
)
from tests.signals.someip.payload_writer import TooLong, Writer

LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(kw_only=True)
class Generator:
    """`plain`: only what Wireshark's tables can say and tshark 4.0 decodes as the standard says."""

    rng: random.Random
    plain: bool = False
    deepest: int = 5
    numbers: int = 0

    def name(self) -> str:
        self.numbers += 1
        return f"{self.rng.choice(LETTERS)}{self.rng.choice(LETTERS)}{self.numbers}"

    def message(self, number: int = 0) -> PayloadMessage:
        rng = self.rng
        while True:
            tagged = rng.random() < 0.25
            parameters = self.struct(0, tagged=tagged, outermost=True)
            if self.plain or rng.random() < 0.7:
                e2e = None
            else:
                profile = rng.choice((1, 2, 4, 5, 6, 7))
                ids = tuple(rng.randrange(256) for _ in range(16 if profile == 2 else 1)) if rng.random() < 0.8 else ()
                mode = rng.choice(("both", "alternating", "low", "nibble"))
                e2e = EndToEnd(
                    profile=profile,  # type: ignore[arg-type]
                    offset=rng.choice((0, 0, 3)),
                    data_ids=ids,
                    data_id_mode=mode,  # type: ignore[arg-type]
                    covers_header=rng.random() < 0.7,
                )
            return PayloadMessage(
                service_id=0x1000 + number,
                method_id=0x8001 if number % 2 else 0x21,
                message_type=2 if number % 2 else rng.choice((0, 1, 0x80)),
                interface_version=rng.choice((1, 3)) if self.plain else rng.choice((1, 3, None)),
                service=f"Service{number}",
                method=f"method{number}",
                parameters=parameters,
                e2e=e2e,
            )

    def type(self, depth: int) -> Type:
        kinds = ["base"] * 4 + ["string"] * 2 + ([] if self.plain else ["bits"])
        if depth < self.deepest:
            kinds += ["array"] * 3 + ["struct"] * 2 + ["union"] * 2
        kind = self.rng.choice(kinds)
        if kind == "base":
            return self.base()
        if kind == "string":
            return self.string()
        if kind == "bits":
            return self.bitfield()
        if kind == "array":
            return self.array(depth + 1)
        return self.struct(depth + 1, tagged=self.rng.random() < 0.2) if kind == "struct" else self.union(depth + 1)

    def base(self, coding: str | None = None) -> BaseType:
        rng = self.rng
        coding = coding or rng.choice(("uint", "uint", "sint", "float"))
        sizes = {"float": (32, 64) if self.plain else (16, 32, 64)}.get(coding, (8, 16, 32, 64))
        if coding != "float" and not self.plain and rng.random() < 0.2:
            sizes = (24, 40, 48, 56)
        base = BaseType(name=self.name(), coding=coding, bits=rng.choice(sizes), big_endian=rng.random() < 0.6)  # type: ignore[arg-type]
        if coding == "uint" and rng.random() < 0.3:
            base = replace(base, labels=tuple((raw, f"label {raw}") for raw in sorted(rng.sample(range(256), 3))))
        if not self.plain and coding == "sint" and rng.random() < 0.3:
            base = replace(base, labels=((-1, "minus one"), (5, "five")))
        if not self.plain and base.bits <= 32 and rng.random() < 0.3:
            base = replace(
                base, scale=Scale(factor=rng.choice((0.5, 0.1, 2)), offset=rng.choice((0, -40)), unit="km/h")
            )
        return base

    def bitfield(self) -> Bitfield:
        base = self.base("uint")
        base, members, bit = replace(base, labels=(), scale=Scale()), [], 0
        while bit < base.bits:
            bits = min(self.rng.choice((1, 1, 2, 5, 9)), base.bits - bit)
            if self.rng.random() < 0.7:
                members.append(Bits(name=self.name(), bit=bit, bits=bits, signed=bits > 1 and self.rng.random() < 0.3))
            bit += bits
        return Bitfield(
            name=self.name(), base=base, members=tuple(members) or (Bits(name="all", bit=0, bits=base.bits),)
        )

    def alignment(self) -> int:
        return 0 if self.plain else self.rng.choice((0, 0, 0, 8, 16, 32, 64, 256))

    def length_order(self) -> bool:
        return self.plain or self.rng.random() < 0.9

    def string(self) -> String:
        rng = self.rng
        dynamic = rng.random() < 0.6
        return String(
            name=self.name(),
            encoding=rng.choice(("ascii", "utf-8", "utf-16")),
            fixed_length=0 if dynamic else rng.choice((2, 8, 20)),
            length_bits=rng.choice((8, 16, 32)) if dynamic else 0,
            big_endian=rng.random() < 0.5,
            length_big_endian=self.length_order(),
            alignment=self.alignment(),
        )

    def array(self, depth: int) -> Array:
        rng = self.rng
        element = self.type(depth)
        while element.least_bytes == 0:
            element = self.base()
        dimensions = []
        count = rng.choice((1, 1, 1, 2, 3))
        all_fixed = rng.random() < 0.4
        same = rng.choice((1, 2, 3))
        for place in range(count):
            if all_fixed or (not self.plain and rng.random() < 0.3):
                last = place == count - 1
                many = last and count == 1 and isinstance(element, BaseType) and rng.random() < 0.2
                maximum = 50 if many else same if self.plain else rng.choice((1, 2, 3))
                minimum = maximum if self.plain else rng.choice((0, maximum))
                dimensions.append(Dimension(maximum=maximum, minimum=minimum))
            else:
                maximum = rng.choice((None, 4, 6, 60))
                dimensions.append(
                    Dimension(
                        maximum=maximum,
                        minimum=rng.choice((0, 0, 2)),
                        length_bits=rng.choice((8, 16, 32)),
                        length_big_endian=self.length_order(),
                        alignment=self.alignment(),
                    )
                )
        return Array(name=self.name(), element=element, dimensions=tuple(dimensions))

    def struct(self, depth: int, *, tagged: bool, outermost: bool = False) -> Struct:
        rng = self.rng
        count = rng.randint(1, 5)
        ids = rng.sample(range(20), count)
        members = []
        for place in range(count):
            type_ = self.type(depth)
            while tagged and self.plain and not self.can_be_tagged(type_):
                type_ = self.type(depth)
            members.append(Member(name=self.name(), type=type_, data_id=ids[place] if tagged else None))
        length_bits = 0 if outermost else rng.choice((8, 16, 32)) if tagged else rng.choice((0, 0, 8, 16, 32))
        return Struct(
            name=self.name(),
            members=tuple(members),
            length_bits=length_bits,
            length_big_endian=self.length_order(),
            alignment=0 if outermost else self.alignment(),
            tagged=tagged,
        )

    @staticmethod
    def can_be_tagged(type_: Type) -> bool:
        """Whether tshark 4.0 decodes a tagged member of this type: no unions, no arrays of several dimensions."""
        if isinstance(type_, BaseType):
            return type_.bits in (8, 16, 32, 64)
        return not isinstance(type_, Union) and not (isinstance(type_, Array) and len(type_.dimensions) > 1)

    def union(self, depth: int) -> Union:
        rng = self.rng
        length_bits = rng.choice((8, 16, 32)) if self.plain or rng.random() < 0.8 else 0
        variants = []
        for selector in rng.sample(range(1, 9), rng.randint(1, 4)):
            type_: Type | None = self.type(depth)
            if not length_bits and type_ is not None and type_.fixed_bytes is None:
                type_ = self.base()
            if not self.plain and rng.random() < 0.15:
                type_ = None
            variants.append(Variant(selector=selector, name=self.name(), type=type_))
        return Union(
            name=self.name(),
            variants=tuple(variants),
            selector_bits=rng.choice((8, 16, 32)),
            length_bits=length_bits,
            length_big_endian=self.length_order(),
            selector_big_endian=self.length_order(),
            alignment=self.alignment(),
        )


def draw_payloads(
    rng: random.Random, number: int, count: int, *, plain: bool = False
) -> tuple[PayloadMessage, list[tuple[bytes, Writer]]]:
    """A message, payloads of it and what is in them; `plain` as in `Generator`."""
    while True:
        message = Generator(rng=rng, plain=plain, deepest=rng.choice((1, 3, 5))).message(number)
        drawn: list[tuple[bytes, Writer]] = []
        for _ in range(4 * count):
            writer = Writer(rng, plain)
            try:
                drawn.append((writer.write_message(message), writer))
            except TooLong:
                continue
            if len(drawn) == count:
                return message, drawn


def damage(content: bytes, rng: random.Random) -> bytes:
    """A payload that is cut off, longer, has other bytes or smaller lengths, or has a part of it twice."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 5))):
        kind = rng.choice(("cut", "add", "byte", "large", "small", "twice"))
        at = rng.randrange(len(changed)) if changed else 0
        if kind == "cut":
            del changed[at:]
        elif kind == "add":
            changed += rng.randbytes(rng.randint(1, 9))
        elif kind == "twice":
            changed[at:at] = changed[at : at + rng.randint(1, 12)]
        elif changed:
            changed[at] = {"byte": rng.randrange(256), "large": 255, "small": changed[at] // 2}[kind]
    return bytes(changed)
