"""Random services of SOME/IP as every format can describe them, and the messages that they mean.

The formats differ in what they can say: FIBEX gives sizes to each member, ARXML to a whole event, Wireshark to a type. So the
sizes here are the same in one service, and so is the byte order; little endian services have no length fields, because only
ARXML gives those a byte order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from hypothesis import strategies as st

from pcaplake.signals.model import Scale
from pcaplake.signals.someip.description import (
    NOTIFICATION,
    REQUEST,
    REQUEST_NO_RETURN,
    RESPONSE,
    Array,
    BaseType,
    Bitfield,
    Bits,
    Dimension,
    Member,
    PayloadMessage,
    String,
    Struct,
    Type,
    Union,
    Variant,
)

Kind = Literal["event", "call", "method", "field"]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Bits. `arrays`: of variable length; fixed ones have a length field if `fixed_arrays` says so.

    `plain`: only what all formats can say.
    """

    arrays: int = 32
    fixed_arrays: int = 0
    strings: int = 32
    structs: int = 0
    unions: int = 32
    selectors: int = 32
    alignment: int = 0
    big_endian: bool = True
    plain: bool = False


@dataclass(frozen=True, kw_only=True)
class Operation:
    """`ids`: of the method or event; of a field: getter, setter, notifier (None: it has none)."""

    kind: Kind
    name: str
    ids: tuple[int | None, ...]
    given: Struct
    returned: Struct


@dataclass(frozen=True, kw_only=True)
class Service:
    name: str
    id: int
    major: int
    sizes: Sizes
    operations: tuple[Operation, ...]


def messages_of(service: Service, database: str) -> Iterator[PayloadMessage]:
    for operation in service.operations:
        for method_id, message_type, parameters in _payloads(operation):
            yield PayloadMessage(
                service_id=service.id,
                method_id=method_id,
                message_type=message_type,
                interface_version=service.major,
                service=service.name,
                method=operation.name,
                parameters=parameters,
                database=database,
            )


def _payloads(operation: Operation) -> Iterator[tuple[int, int, Struct]]:
    first, *others = operation.ids
    if operation.kind == "event":
        assert first is not None
        yield first, NOTIFICATION, operation.given
    elif operation.kind == "call":
        assert first is not None
        yield first, REQUEST_NO_RETURN, operation.given
    elif operation.kind == "method":
        assert first is not None
        yield first, REQUEST, operation.given
        yield first, RESPONSE, operation.returned
    else:
        setter, notifier = others
        if first is not None:
            yield first, REQUEST, replace(operation.given, members=())
            yield first, RESPONSE, operation.given
        if setter is not None:
            yield setter, REQUEST, operation.given
            yield setter, RESPONSE, operation.given
        if notifier is not None:
            yield notifier, NOTIFICATION, operation.given


def without_type_names(one: Type) -> Type:
    """The type without the names of types, which the formats give to different things; members keep theirs."""
    if isinstance(one, BaseType | String):
        return replace(one, name="")
    if isinstance(one, Bitfield):
        return replace(one, name="", base=replace(one.base, name=""))
    if isinstance(one, Array):
        return replace(one, name="", element=without_type_names(one.element))
    if isinstance(one, Struct):
        return replace(
            one, name="", members=tuple(replace(each, type=without_type_names(each.type)) for each in one.members)
        )
    variants = (
        replace(each, type=None if each.type is None else without_type_names(each.type)) for each in one.variants
    )
    return replace(one, name="", variants=tuple(variants))


def comparable(message: PayloadMessage) -> PayloadMessage:
    parameters = without_type_names(message.parameters)
    assert isinstance(parameters, Struct)
    return replace(message, parameters=parameters, database="")


# -- generators -------------------------------------------------------------------------------------------------------
_words = st.sampled_from(["alpha", "speed", "state", "wheel", "door", "level", "temp"])
_field_bits = st.sampled_from([8, 16, 32])


@st.composite
def sizes(draw: st.DrawFn) -> Sizes:
    if not draw(st.booleans()):
        return Sizes(big_endian=draw(st.booleans()))
    arrays = draw(_field_bits)
    return Sizes(
        arrays=arrays,
        fixed_arrays=arrays,
        strings=draw(_field_bits),
        structs=draw(st.sampled_from([0, 8, 16, 32])),
        unions=draw(_field_bits),
        selectors=draw(_field_bits),
        alignment=draw(st.sampled_from([0, 16, 32, 64])),
    )


@st.composite
def labels(draw: st.DrawFn, coding: str, bits: int) -> tuple[tuple[int, str], ...]:
    low, high = (0, (1 << bits) - 1) if coding == "uint" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    raws = draw(st.lists(st.integers(low, high), unique=True, max_size=3))
    return tuple((raw, f"L{place} <&\"'") for place, raw in enumerate(sorted(raws)))


@st.composite
def base_types(draw: st.DrawFn, about: Sizes) -> BaseType:
    coding = draw(st.sampled_from(["uint", "sint", "float"]))
    bits = draw(st.sampled_from([32, 64] if coding == "float" else [8, 16, 24, 32, 40, 48, 56, 64]))
    scale, bounds = Scale(), (None, None)
    if not about.plain and draw(st.integers(0, 3)) == 0:
        factor = draw(st.sampled_from([0.5, 2.0, 0.1]))
        scale = Scale(
            factor=factor, offset=draw(st.sampled_from([0.0, -40.0])), unit=draw(st.sampled_from([None, "km/h"]))
        )
        bounds = draw(st.sampled_from([(None, None), (-5.0, 100.0)]))
    elif coding != "float":
        return BaseType(
            name="E", coding=coding, bits=bits, big_endian=about.big_endian, labels=draw(labels(coding, bits))
        )
    return BaseType(
        name="N",
        coding=coding,
        bits=bits,
        big_endian=about.big_endian,
        scale=scale,
        minimum=bounds[0],
        maximum=bounds[1],
    )


@st.composite
def bitfields(draw: st.DrawFn, about: Sizes) -> Bitfield:
    bits = draw(st.sampled_from([8, 16, 32]))
    base = BaseType(name="B", coding="uint", bits=bits, big_endian=about.big_endian)
    members, place = [], 0
    while place < bits and len(members) < 4:
        place += draw(st.integers(0, 2))
        size = draw(st.integers(1, 3))
        if place + size > bits:
            break
        texts = tuple((raw, f"t{raw}") for raw in range(1 << size))
        members.append(Bits(name=f"b{place}", bit=place, bits=size, labels=texts))
        place += size
    if not members:
        members.append(Bits(name="b0", bit=0, labels=((0, "t0"), (1, "t1"))))
    return Bitfield(name="F", base=base, members=tuple(members))


@st.composite
def strings(draw: st.DrawFn, about: Sizes) -> String:
    encoding = draw(st.sampled_from(["ascii", "utf-8", "utf-16"]))
    if not about.big_endian or draw(st.booleans()):
        return String(
            name="S", encoding=encoding, fixed_length=2 * draw(st.integers(1, 20)), big_endian=about.big_endian
        )
    return String(name="S", encoding=encoding, length_bits=about.strings, alignment=about.alignment)


@st.composite
def arrays(draw: st.DrawFn, about: Sizes, depth: int) -> Array:
    dimensions = []
    for _ in range(draw(st.integers(1, 2))):
        most = draw(st.integers(1, 4))
        if not about.big_endian or draw(st.booleans()):
            bits = about.fixed_arrays
            dimensions.append(
                Dimension(minimum=most, maximum=most, length_bits=bits, alignment=about.alignment if bits else 0)
            )
        else:
            dimensions.append(Dimension(maximum=most, length_bits=about.arrays, alignment=about.alignment))
    return Array(name="A", element=draw(types(about, depth - 1, arrays_too=False)), dimensions=tuple(dimensions))


@st.composite
def structs(draw: st.DrawFn, about: Sizes, depth: int) -> Struct:
    members = draw(member_lists(about, depth - 1, least=1))
    tagged = about.structs > 0 and draw(st.booleans())
    if tagged:
        members = tuple(replace(member, data_id=place + 1) for place, member in enumerate(members))
    return Struct(
        name="T",
        members=members,
        length_bits=about.structs,
        alignment=about.alignment if about.structs else 0,
        tagged=tagged,
    )


@st.composite
def unions(draw: st.DrawFn, about: Sizes, depth: int) -> Union:
    variants = tuple(
        Variant(selector=place + 1, name=f"v{place}", type=draw(types(about, depth - 1, arrays_too=False)))
        for place in range(draw(st.integers(1, 3)))
    )
    return Union(
        name="U", variants=variants, selector_bits=about.selectors, length_bits=about.unions, alignment=about.alignment
    )


def types(about: Sizes, depth: int, *, arrays_too: bool = True) -> st.SearchStrategy[Type]:
    kinds: list[st.SearchStrategy[Type]] = [base_types(about), base_types(about), strings(about)]
    if not about.plain:
        kinds.append(bitfields(about))
    if depth > 0:
        kinds.append(structs(about, depth))
        if about.big_endian:
            kinds.append(unions(about, depth))
        if arrays_too:
            kinds.append(arrays(about, depth))
    return st.one_of(kinds)


@st.composite
def member_lists(draw: st.DrawFn, about: Sizes, depth: int, least: int = 0) -> tuple[Member, ...]:
    count = draw(st.integers(least, 3))
    return tuple(Member(name=f"{draw(_words)}{place}", type=draw(types(about, depth))) for place in range(count))


@st.composite
def services(draw: st.DrawFn, adaptive: bool = False, plain: bool = False) -> Service:
    """`adaptive`: as AUTOSAR's adaptive platform, where an event has one parameter with its own name.

    `plain`: what Wireshark's tables can say as well: no factors, units and bitfields.
    """
    about = replace(draw(sizes()), plain=plain)
    operations = []
    for place in range(draw(st.integers(1, 4))):
        kind: Kind = draw(st.sampled_from(["event", "call", "method", "field"]))
        name = f"{draw(_words).title()}{place}"
        given = Struct(name="", members=draw(member_lists(about, 3)))
        returned = Struct(name="", members=draw(member_lists(about, 2)))
        ids: tuple[int | None, ...] = (0x8000 + place if kind == "event" else 0x10 + place,)
        if adaptive and kind == "event":
            given = Struct(name="", members=(Member(name=name, type=draw(types(about, 3))),))
        if kind == "field":
            given = Struct(name="", members=(Member(name=name, type=draw(types(about, 2))),))
            has = draw(st.tuples(st.booleans(), st.booleans(), st.booleans()).filter(any))
            ids = tuple(
                base + place if wanted else None for base, wanted in zip((0x100, 0x200, 0x8100), has, strict=True)
            )
        operations.append(Operation(kind=kind, name=name, ids=ids, given=given, returned=returned))
    return Service(
        name=f"{draw(_words).title()}Service",
        id=draw(st.integers(1, 0xFFFE)),
        major=draw(st.integers(0, 255)),
        sizes=about,
        operations=tuple(operations),
    )


def described_service(number: int) -> Service:
    """An event with a list of structs that have a list, and a text."""
    sizes, dimensions = Sizes(plain=True), (Dimension(maximum=40, length_bits=32),)
    u16 = BaseType(name="number", coding="uint", bits=16)
    samples = Member(name="Samples", type=Array(name="samples", element=u16, dimensions=dimensions))
    part = Struct(name="Part", members=(Member(name="Level", type=u16), samples))
    parts = Member(name="Parts", type=Array(name="parts", element=part, dimensions=dimensions))
    text = Member(name="Text", type=String(name="text", encoding="utf-8", length_bits=32))
    state = Struct(name="State", members=(Member(name="Level", type=u16), parts, text))
    given = Struct(name="", members=(Member(name="State", type=state),))
    event = Operation(kind="event", name="State", ids=(0x8001,), given=given, returned=Struct(name="", members=()))
    return Service(name=f"Service{number}", id=number, major=1, sizes=sizes, operations=(event,))
