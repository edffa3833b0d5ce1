"""What the compiler refuses, and that what it accepts cannot read a stale or a foreign byte."""

from __future__ import annotations

import ast
import dataclasses
import struct
from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_
from random import Random
from typing import Any

import dpkt
import pytest

from pcaplake.parser import CannotCompile, protocols
from pcaplake.parser.engine import decoder
from pcaplake.parser.engine.kernels import encoding
from pcaplake.parser.engine.key_spaces import LINKTYPE, Claim, KeySpace
from pcaplake.parser.engine.layer import Layer, Rows
from pcaplake.parser.engine.program import Program
from pcaplake.parser.engine.specialize import program_tables, specialize_walk, walk_source
from tests.parser import captures, nested
from tests.parser.checked import checked_kernels, in_place
from tests.parser.compare import difference, read
from tests.parser.nested import IDENTIFIER, KIND, LEAF, NEXT, USER0, box, entry, inner, leaf
from tests.parser.nested import frame as identified
from tests.parser.reference import Reference


class Head(dpkt.Packet):
    __hdr__ = (("length", "I", 0), ("pad", "I", 0))


class Nothing(dpkt.Packet):
    __hdr__ = (("first", "B", 0),)


OTHER, LOWER = KeySpace("other", 8), KeySpace("lower", 8)


def build(*layers: Layer, rows: Sequence[Rows] = ()) -> Program:
    return Program((*protocols.containers.LAYERS, *layers), rows)


def frame_rows(layer: Layer, **columns: Any) -> Rows:
    return Rows("can_frames", layer, {"source": layer("tecmp"), "data_len": layer(0), **columns})


def head(**facts: Any) -> Layer:
    return Layer(Head, **{"name": "head", "under": [LINKTYPE[USER0]], **facts})


# -- expressions that are no term -------------------------------------------------------------------------------------
UNREADABLE: dict[str, tuple[dict[str, Callable[[Any], Any]], str]] = {
    "two fields in one expression": ({"total": lambda h: h.length + h.pad}, "one field and of numbers"),
    "a product of two fields": ({"total": lambda h: h.length * h.pad}, "one field and of numbers"),
    "a mask by a field": ({"total": lambda h: h.length & h.pad}, "one field and of numbers"),
    "if": ({"total": lambda h: 8 if h.length else 9}, "branch"),
    "and": ({"check": lambda h: h.length >= 1 and h.pad >= 1}, "`and` and `or` cannot join"),
    "or": ({"check": lambda h: h.length >= 1 or h.pad >= 1}, "`and` and `or` cannot join"),
    "not": ({"check": lambda h: not h.length}, "branch"),
    "an interval in Python's way": ({"check": lambda h: 1 <= h.length <= 2}, "`and` and `or` cannot join"),
    "a check that compares nothing": ({"check": lambda h: h.length}, "check must compare"),
    "an expectation that compares nothing": ({"expect": lambda h: True}, "check must compare"),
    "a comparison of two fields": ({"check": lambda h: h.length == h.pad}, "number"),
    "an order of two fields": ({"check": lambda h: h.length >= h.pad}, "one field and of numbers"),
    "a shift by a field": ({"total": lambda h: h.length >> h.pad}, "one field and of numbers"),
    "a mask after a sum": ({"total": lambda h: (h.length + 8) & 0xFF}, "mask first"),
    "a shift after a product": ({"total": lambda h: h.length * 4 >> 1}, "mask first"),
    "a text": ({"total": lambda h: "8"}, "not a single term"),
    "a truth value": ({"total": lambda h: True}, "not a single term"),
    "another occurrence": ({"total": lambda h: h.length.last}, "only read the header it is in"),
    "division": ({"total": lambda h: h.length // 2}, "unsupported operand"),
    "a length": ({"total": lambda h: len(h)}, "has no len"),
    "a field that is not declared": ({"total": lambda h: h.size}, "declares no field"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_is_no_term_is_refused(name: str) -> None:
    facts, message = UNREADABLE[name]
    with pytest.raises((CannotCompile, TypeError, AttributeError), match=message):
        build(head(**facts))


# -- layers that are not there ----------------------------------------------------------------------------------------
def test_a_carrier_that_is_not_on_every_path() -> None:
    """`leaf` is also carried without `inner`: its header may not be read there."""
    bad = Layer(nested.Leaf, name="leaf", under=[KIND[2], NEXT[2]], total=lambda h: nested.INNER.id)
    with pytest.raises(CannotCompile, match="inner, which is not on every path"):
        build(nested.ENTRY, nested.INNER, nested.BOX, bad)


def test_a_carrier_on_every_path_may_be_read() -> None:
    good = Layer(nested.Leaf, name="leaf", under=[KIND[2], NEXT[2]], total=lambda h: nested.ENTRY.length & 3)
    build(nested.ENTRY, nested.INNER, nested.BOX, good)


def test_a_layer_behind_another_is_not_carried_by_it() -> None:
    """What follows by `then` has the carriers of its forerunner, not the forerunner itself."""
    bad = Layer(Head, name="second", total=lambda h: LOWERED.length)
    LOWERED = head(then=bad, selects=[OTHER(lambda h: h.length)])
    with pytest.raises(CannotCompile, match="not on every path"):
        build(LOWERED, bad)


def test_a_claim_makes_a_new_path() -> None:
    """A port that a profile gives to a protocol counts as a path to it."""
    carrier = head(selects=[OTHER(lambda h: h.length)])
    port = Layer(Head, name="port", under=[OTHER[1]], selects=[LOWER(lambda h: h.length)])
    child = Layer(Head, name="child", under=[LOWER[1]], total=lambda h: port.length)
    layers = (*protocols.containers.LAYERS, carrier, port, child)
    Program(layers, ())
    with pytest.raises(CannotCompile, match="not on every path"):
        Program(layers, (), claims=[(OTHER[2], child)])


def test_a_layer_that_is_not_listed() -> None:
    with pytest.raises(CannotCompile, match="leaf gives rows, but it is not in the list of layers"):
        build(nested.ENTRY, rows=[frame_rows(LEAF)])
    with pytest.raises(CannotCompile, match="inner is read, but it is not in the list of layers"):
        build(nested.ENTRY, nested.BOX, LEAF, rows=[frame_rows(LEAF, can_id=nested.INNER.id)])


# -- loops without end ------------------------------------------------------------------------------------------------
def test_a_chain_without_a_header() -> None:
    with pytest.raises(CannotCompile, match="never ends"):
        build(Layer(Nothing, name="chain", under=[LINKTYPE[USER0]], header=lambda h: 0, repeats=True))


def test_a_layer_that_carries_itself_without_a_byte() -> None:
    with pytest.raises(CannotCompile, match="carry itself"):
        build(
            Layer(
                Nothing,
                name="loop",
                under=[LINKTYPE[USER0], OTHER[1]],
                header=lambda h: 0,
                selects=[OTHER(lambda h: h.first)],
            )
        )


def test_a_cycle_of_layers_without_headers() -> None:
    there = Layer(
        Nothing, name="there", under=[LINKTYPE[USER0], OTHER[1]], header=lambda h: 0, selects=[LOWER(lambda h: h.first)]
    )
    back = Layer(Nothing, name="back", under=[LOWER[1]], header=lambda h: 0, selects=[OTHER(lambda h: h.first)])
    with pytest.raises(CannotCompile, match="carry itself"):
        build(there, back)
    solid = Layer(Nothing, name="back", under=[LOWER[1]], selects=[OTHER(lambda h: h.first)])
    build(there, solid)


def test_a_chain_of_small_elements_gives_no_rows() -> None:
    """The rooms of the walk are measured by it: a record of 262,144 bytes gives at most 65,536 rows."""
    small = Layer(nested.Leaf, name="small", under=[LINKTYPE[USER0]], repeats=True)
    build(small)
    with pytest.raises(CannotCompile, match="4 bytes"):
        build(small, rows=[frame_rows(small)])


def test_either_a_chain_or_a_follower() -> None:
    follower = Layer(Head, name="follower")
    with pytest.raises(CannotCompile, match="both repeat and be followed"):
        build(head(repeats=True, then=follower), follower)


def test_another_layer_reads_the_bytes_only_where_a_check_fails() -> None:
    last = Layer(Head, name="last")
    other = Layer(Head, name="other", check=lambda h: h.pad == 1, otherwise=last)
    build(head(check=lambda h: h.pad == 1, otherwise=last), last)
    for declared in (dict(otherwise=last), dict(check=lambda h: h.pad == 1, otherwise=other)):
        with pytest.raises(CannotCompile, match="`otherwise` needs a check"):
            build(head(**declared), other, last)


def test_too_many_keys_and_checks() -> None:
    with pytest.raises(CannotCompile, match="key spaces"):
        build(head(selects=[KeySpace(f"k{i}", 4)(lambda h: h.length) for i in range(encoding.MAX_KEYS + 1)]))
    with pytest.raises(CannotCompile, match="checks"):
        build(head(check=lambda h: reduce(and_, [h.pad >= n for n in range(encoding.MAX_CHECKS + 1)])))


def test_alternatives_come_before_what_must_hold_beside_them() -> None:
    build(head(check=lambda h: (h.pad == 0) | (h.pad == 2) | (h.pad >= 4), expect=lambda h: h.length >= 8))
    with pytest.raises(CannotCompile, match="write the alternatives first"):
        build(head(check=lambda h: ((h.pad == 0) & (h.length == 8)) | (h.pad == 2)))
    with pytest.raises(CannotCompile, match="one condition"):
        head().length.where((head().length == 0) | (head().length == 2))


# -- columns ----------------------------------------------------------------------------------------------------------
def test_columns_that_cannot_be() -> None:
    source = head(measured=False)
    for columns, message in (
        ({"colour": source.length}, "no column 'colour'"),
        ({"packet_no": source.length}, "no column 'packet_no'"),
        ({"can_id": source.length.names({1: "one"})}, "is not a string column"),
        ({"direction": source.length}, "string column"),
        ({"can_id": source.length.run}, "stacks"),
        ({"direction": (source.length.names({1: "in"}), source.pad.text("decimal"))}, "mixes"),
    ):
        with pytest.raises(CannotCompile, match=message):
            build(source, rows=[frame_rows(source, **columns)])
    with pytest.raises(CannotCompile, match="measured"):
        source.body_len  # noqa: B018
    with pytest.raises(CannotCompile, match="measured"):
        build(source, rows=[dataclasses.replace(frame_rows(source), within=source)])
    with pytest.raises(CannotCompile, match="one condition"):
        source.length.where(source.length >= 1).where(source.length >= 2)
    with pytest.raises(CannotCompile, match="one condition"):
        source.length.where((source.length >= 1) & (source.pad >= 1))


def test_a_required_column_is_filled() -> None:
    source = head()
    with pytest.raises(CannotCompile, match="need the column source"):
        build(source, rows=[Rows("can_frames", source, {"can_id": source.length})])


def test_a_layer_gives_rows_once() -> None:
    source = head()
    with pytest.raises(CannotCompile, match="once"):
        build(source, rows=[frame_rows(source), Rows("lin_frames", source, {"source": source("tecmp")})])
    with pytest.raises(CannotCompile, match="once"):
        build(rows=[nested.PACKETS, nested.PACKETS])


def test_a_value_is_claimed_once() -> None:
    with pytest.raises(CannotCompile, match="entry claims values of link type that head has claimed"):
        build(head(), nested.ENTRY)
    with pytest.raises(CannotCompile, match="8 bits"):
        OTHER[256]
    with pytest.raises(CannotCompile, match="8 bits"):
        OTHER[-1]


def test_a_name_is_listed_once() -> None:
    with pytest.raises(CannotCompile, match="twice"):
        build(nested.ENTRY, nested.ENTRY)
    with pytest.raises(CannotCompile, match="twice"):
        build(nested.ENTRY, head(name="entry", under=[]))


@pytest.mark.parametrize("name", ["header", "name", "total", "data", "body_len"])
def test_a_field_hides_no_fact_of_its_layer(name: str) -> None:
    """`h.total` would be the layer's own length, and dpkt calls what follows a header `data`."""
    hidden = type("Hidden", (dpkt.Packet,), {"__hdr__": ((name, "I", 0),)})
    with pytest.raises(CannotCompile, match="rename"):
        Layer(hidden)


def test_bytes_are_no_number() -> None:
    source = head()
    with pytest.raises(CannotCompile, match=r"can_frames\.can_id takes bytes of the layer that gives its rows"):
        build(source, rows=[frame_rows(source, can_id=source.fixed_bytes("pad"))])
    with pytest.raises(AttributeError, match="declares no field 'size'"):
        source.fixed_bytes("size")


def test_a_payload_is_no_number() -> None:
    class Long(dpkt.Packet):
        __hdr__ = (("blob", "9s", bytes(9)),)

    with pytest.raises(CannotCompile, match="payload"):
        Layer(Long, name="long").blob  # noqa: B018


# -- what runs --------------------------------------------------------------------------------------------------------
def entries(r: Random) -> bytes:
    made = b""
    for _ in range(r.choice((1, 2, 3, 5))):
        body = leaf(r.getrandbits(16)) + bytes(r.choice((0, 3)))
        kind = r.choice((1, 1, 2, 2, 3, 8, 9))
        if kind == 3:
            body = box(r.choice((4, 6, 7, 3, 2, 0, 9)), 2, body + b"zz")
        elif kind == 1:
            for depth in range(r.choice((1, 1, 2, 40))):
                body = inner(r.getrandbits(16), 1 if depth else r.choice((2, 2, 2, 9)), body)
        elif kind >= 8:
            body = identified(r.choice((3, 5, 5, 7, 8, 15, 16, 31, 32, 0x9FFFFFFF, 0xFFFFFFFF)), body, r.choice("><"))
        made += entry(r.choice((1, 2, 3, 7)) if r.random() < 0.2 else kind, body)
    return made


def test_an_optional_carrier_under_a_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lay inside one sibling is not read for the next one."""
    nested.use(monkeypatch)
    frame = entry(1, inner(0x77, 2, leaf(5))) + entry(2, leaf(6)) + entry(1, inner(0x78, 2, leaf(7)))
    rows, _ = read(captures.pcap([frame, entry(2, leaf(8))], USER0))
    assert [(row["can_id"], row["error_class"]) for row in rows["can_frames"]] == [
        (5, 0x77),
        (6, None),
        (7, 0x78),
        (8, None),
    ]
    assert [row["sub_no"] for row in rows["can_frames"]] == [0, 1, 2, 0]


def test_nested_declarations_equal_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    nested.use(monkeypatch)
    reference = Reference(layers=nested.LAYERS, rows=(*nested.ROWS, nested.PACKETS))
    r = Random(3)
    data = captures.pcap([entries(r)[: r.choice((None, r.randrange(60)))] for _ in range(400)], USER0)
    rows, summary = read(data)
    assert (unlike := difference(reference.read(data).rows, rows)) is None, unlike
    assert {"too_deep", "short_header", "overrun", "bad_length"} <= set(summary.faults)


@pytest.mark.slow
def test_a_specialized_walk_of_sparse_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreted: a walk is compiled for the program of all tables only."""
    program = nested.use(monkeypatch)
    r = Random(5)
    data = captures.pcap([entries(r)[: r.choice((None, r.randrange(60)))] for _ in range(100)], USER0)
    rows, _ = read(data)
    program.frequent = tuple(program.number.values())
    functions = specialize_walk(walk_source(), program_tables(program), program.frequent)
    kernels = checked_kernels()
    exec(compile(ast.fix_missing_locations(ast.Module([*functions], [])), "walk", "exec"), vars(kernels))
    with in_place(kernels):
        monkeypatch.setattr(decoder, "choose_walk", lambda program: vars(kernels)["walk_records"])
        found, _ = read(data)
    assert (unlike := difference(rows, found)) is None, unlike


def test_values_of_sparse_key_spaces_change_no_table() -> None:
    """Identifiers of a profile are data, so programs with and without them share a specialized walk."""
    one, two = (Program(nested.LAYERS, nested.ROWS, claims=[(IDENTIFIER[n], LEAF)]) for n in (5, 0x12345678))
    assert (one.program == two.program).all()
    assert one.sparse.size < two.sparse.size


def test_a_layer_that_is_not_listed_gives_no_key() -> None:
    other = Layer(Head, name="other")
    with pytest.raises(CannotCompile, match="head reads other, which is not in the list of layers"):
        build(head(selects=[OTHER(lambda h: other.length.here)]))


def test_the_last_claim_of_a_value_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim of all values of a sparse key space costs no more than that of one; a later one may take some of them."""
    claims = [(IDENTIFIER[:], LEAF), (IDENTIFIER[100:200], nested.BOX), (IDENTIFIER[150], LEAF)]
    program = nested.use(monkeypatch, claims=claims)
    identifiers = (0, 6, 99, 100, 149, 150, 151, 199, 200, 0xFFFFFFFF)
    read_as = [
        name
        for n in identifiers
        for name in {
            row["protocol"]
            for row in read(captures.pcap([entry(8, identified(n, box(6, 9, bytes(4))))], USER0))[0]["packets"]
        }
    ]
    assert read_as == [*["leaf"] * 3, "box", "box", "leaf", "box", "box", "leaf", "leaf"]
    assert program.sparse.size < 50


@pytest.mark.parametrize("claim", [IDENTIFIER[5], IDENTIFIER[31:40], IDENTIFIER[:17]])
def test_a_value_of_a_sparse_key_space_is_claimed_once(claim: Claim) -> None:
    with pytest.raises(CannotCompile, match="other claims values of identifier that leaf has claimed"):
        Program((*nested.LAYERS, Layer(Head, name="other", under=[claim])), ())


def test_too_deep_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """32 layers inside a record are read, the 33rd is a fault; its siblings are read all the same."""
    nested.use(monkeypatch)

    def deep(layers: int) -> bytes:
        body = leaf(1)
        for i in range(layers):
            body = inner(i, 1 if i else 2, body)
        return entry(1, body)

    # below the record: entry 1, the inner ones, leaf
    for layers, faults in (
        (encoding.DEPTH - 2, []),
        (encoding.DEPTH - 1, ["leaf"]),
        (encoding.DEPTH, ["inner"]),
        (200, ["inner"]),
    ):
        rows, _ = read(captures.pcap([deep(layers) + entry(2, leaf(9))], USER0))
        assert [f["layer"] for f in rows.get("faults", []) if f["reason"] == "too_deep"] == faults
        assert [row["can_id"] for row in rows["can_frames"]] == ([9] if faults else [1, 9])


@pytest.mark.slow
def test_a_chain_of_the_most_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record of the greatest length, full of the smallest elements: no row is lost."""
    nested.use(
        monkeypatch,
        rows=[*nested.ROWS, Rows("lin_frames", nested.ENTRY, {"source": nested.ENTRY("tecmp")}), nested.PACKETS],
    )
    frame = entry(5, b"") * (encoding.LONGEST_PACKET // 8)
    rows, _ = read(captures.pcap([frame, frame], USER0))
    assert len(rows["lin_frames"]) == 2 * (encoding.LONGEST_PACKET // 8)
    assert rows["lin_frames"][-1]["sub_no"] == encoding.LONGEST_PACKET // 8 - 1
    cut = struct.pack(">II", 5, 1) * (encoding.LONGEST_PACKET // 8)
    rows, summary = read(captures.pcap([cut, frame], USER0))
    assert summary.packets == 2
    assert len(rows["lin_frames"]) > encoding.LONGEST_PACKET // 8


def test_all_64_bits_of_a_field(monkeypatch: pytest.MonkeyPatch) -> None:
    """The upper bits of a word of ones are ones, not its sign."""

    class Wide(dpkt.Packet):
        __hdr__ = (("q", "Q", 0),)

    wide = Layer(Wide, name="wide", under=[LINKTYPE[USER0]])
    columns = {"can_id": wide.q >> 1, "error_class": wide.q, "xl_acceptance": wide.q >> 60, "dlc": wide.q & 1 << 63}
    nested.use(monkeypatch, [*protocols.containers.LAYERS, wide], [frame_rows(wide, **columns)])
    rows, _ = read(captures.pcap([b"\xff" * 8], USER0))
    (row,) = rows["can_frames"]
    assert [row[name] for name in columns] == [2**63 - 1, -1, 15, 0]
