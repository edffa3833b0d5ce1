"""A description that contradicts itself cannot be built, and says what to change."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pcaplake.signals.someip.description import (
    Array,
    BaseType,
    Bitfield,
    Bits,
    DescriptionError,
    Dimension,
    EndToEnd,
    Member,
    Services,
    String,
    Struct,
    Type,
    Union,
    Variant,
)
from tests.signals.someip.vehicle import U8, describe

NUMBER = Member(name="a", type=U8)
NOTHING = Struct(name="nothing", members=())


def nested(depth: int, width: int) -> Type:
    type_: Type = U8
    for level in range(depth):
        members = tuple(Member(name=f"m{number}", type=type_) for number in range(width))
        type_ = Struct(name=f"level {level}", members=members)
    return type_


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "bits of a number": (lambda: BaseType(name="n", coding="uint", bits=12), "n: it has 12 bits: use one of 8, 16"),
    "bits of a float": (lambda: BaseType(name="n", coding="float", bits=24), "use one of 16, 32, 64"),
    "a label that does not fit": (
        lambda: BaseType(name="n", coding="uint", bits=8, labels=((256, "x"),)),
        "does not fit in 8",
    ),
    "bits beyond a bitfield": (
        lambda: Bitfield(name="b", base=U8, members=(Bits(name="x", bit=7, bits=2),)),
        "x ends at bit 9 of 8",
    ),
    "a text without a length": (lambda: String(name="s", encoding="utf-8"), "neither a length field nor a length"),
    "a length field of 24 bits": (lambda: String(name="s", encoding="utf-8", length_bits=24), "use 0, 8, 16 or 32"),
    "an array without dimensions": (lambda: Array(name="a", element=U8, dimensions=()), "no dimension"),
    "a dimension without a size": (
        lambda: Array(name="a", element=U8, dimensions=(Dimension(),)),
        "nor a number of elements",
    ),
    "elements without bytes": (
        lambda: Array(name="a", element=NOTHING, dimensions=(Dimension(length_bits=8),)),
        "elements may have no bytes",
    ),
    "two members of one name": (lambda: Struct(name="s", members=(NUMBER, NUMBER)), "the same name or id a"),
    "a tagged member without data id": (lambda: Struct(name="s", members=(NUMBER,), tagged=True), "a has no data id"),
    "a selector that does not fit": (
        lambda: Union(name="u", selector_bits=8, variants=(Variant(selector=256, name="v", type=U8),)),
        "selector 256",
    ),
    "a union of unknown size": (
        lambda: Union(
            name="u",
            length_bits=0,
            variants=(Variant(selector=1, name="v", type=String(name="s", encoding="ascii", length_bits=8)),),
        ),
        "give it a length field",
    ),
    "too many members": (lambda: nested(17, 2), "131,072 members"),
    "too deep": (lambda: nested(33, 1), "nests more than 32 types"),
    "data ids of profile 2": (lambda: EndToEnd(profile=2, data_ids=(1,)), "1 data ids: give 16"),
    "a message type": (lambda: describe(NUMBER, message_type=7), "message type 0x7"),
    "paths of a name with a dot": (
        lambda: describe(Member(name="a", type=nested(1, 2)), Member(name="a.m0", type=U8)),
        "same path",
    ),
    "the path of end-to-end protection": (
        lambda: describe(Member(name="E2E", type=U8), e2e=EndToEnd(profile=5)),
        "same path",
    ),
    "one message twice": (lambda: Services.from_messages([describe(NUMBER), describe()]), "differently: remove one"),
}


@pytest.mark.parametrize("case", WRONG)
def test_it_is_refused(case: str) -> None:
    build, text = WRONG[case]
    with pytest.raises(DescriptionError) as raised:
        build()
    assert text in str(raised.value)


def test_names_with_dots_are_allowed_where_paths_differ() -> None:
    describe(Member(name="a.b", type=U8), Member(name="a.c", type=nested(2, 2)))
    describe(Member(name="E2E", type=U8))
