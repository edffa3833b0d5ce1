"""What a protocol declares: a dpkt header, where it is carried, how long it is, what it selects, which rows it gives.

The few facts that `__hdr__` cannot say are lambdas over the header. A lambda is called twice. With a dpkt object it
computes (that is how the one-packet reference in the tests uses it). With the layer itself it describes: `SOMEIP.length`
is a `Term`, and `h.length + 8` is another. What cannot describe itself as `((field >> shift) & mask) * mul + add` is
refused with `CannotCompile` when the module is imported.

This module knows no protocol and no machine.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import dpkt
import numpy as np

from .errors import CannotCompile

Claim = tuple["Keys", Sequence[int]]
Select = tuple["Keys", Callable[[Any], Any]]
START, FIRST, RUN_END, BODY, BODY_END, PACKET, LATEST = range(7)  # which position of a layer a term reads from


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """((word >> shift) & mask) * mul + add, where word is the 8 bytes at `offset` of `layer`.

    `place` says which occurrence is read: the latest start (START), the first in the packet (FIRST), the last of the
    first run of stacked headers (RUN_END); with PACKET `offset` is a field of the packet's record and no bytes are read.
    """

    layer: Layer | None
    offset: int
    shift: int = 0
    mask: int = -1
    big: bool = True
    mul: int = 1
    add: int = 0
    place: int = START

    def _plain(self, what: str, number: object) -> Term:
        _number(number)
        if (self.mul, self.add) != (1, 0):
            raise CannotCompile(f"{what} after * or +: put the mask first")
        return self

    def __and__(self, mask: int) -> Term:
        return dataclasses.replace(self._plain("&", mask), mask=self.mask & mask)

    def __rshift__(self, bits: int) -> Term:
        plain = self._plain(">>", bits)
        # the mask is over 64 unsigned bits, so the shift of an all-ones mask must not copy its sign
        return dataclasses.replace(plain, shift=self.shift + bits, mask=(self.mask & (1 << 64) - 1) >> bits)

    def __mul__(self, factor: int) -> Term:
        return dataclasses.replace(self, mul=self.mul * _number(factor), add=self.add * factor)

    def __add__(self, value: int) -> Term:
        return dataclasses.replace(self, add=self.add + _number(value))

    def __sub__(self, value: int) -> Term:
        return self + -_number(value)

    def __ge__(self, least: int) -> Range:
        return Range(((self, _number(least), 2**62),))

    def __le__(self, most: int) -> Range:
        return Range(((self, -(2**62), _number(most)),))

    def __eq__(self, value: object) -> Range:  # type: ignore[override]
        if not isinstance(value, int):
            raise CannotCompile(f"a field can be compared with a number, not with {value!r}")
        return Range(((self, value, value),))

    def between(self, least: int, most: int) -> Range:
        return Range(((self, least, most),))

    def __bool__(self) -> bool:
        raise CannotCompile("a branch on a header value: declare a key or a check instead")

    @property
    def little(self) -> Term:
        """The same whole field read in little-endian order, for headers that mix both."""
        return dataclasses.replace(self, big=False, shift=0) if self.big else self

    @property
    def bigger(self) -> Term:
        """The same whole field read in big-endian order."""
        bits = self.mask.bit_length()
        return self if self.big else dataclasses.replace(self, big=True, shift=64 - bits)

    @property
    def latest(self) -> Term:
        """The field of the last such header of a packet, for rows of whole packets (which else read the first)."""
        return dataclasses.replace(self, place=LATEST)

    @property
    def run(self) -> Run:
        """The field of each of a run of stacked headers, for a list column."""
        return Run(self)

    @property
    def last(self) -> Term:
        """The field of the last of a run of stacked headers (VLAN tags)."""
        return dataclasses.replace(self, place=RUN_END)

    def where(self, condition: Range) -> Case:
        """This value, and null where the condition does not hold."""
        return Case(self).where(condition)

    def via(self, table: Mapping[int, int]) -> Case:
        """table[value], and null where the table has no such value; values below 65,536."""
        return Case(self, table=dict(table))

    def names(self, table: Mapping[int, str]) -> Case:
        """The name of the value, for a string column; null where it has none; values below 65,536."""
        return Case(self, names=dict(table))

    def text(self, kind: Literal["mac", "ipv4", "ipv6", "decimal", "interface", "tecmp"]) -> Case:
        """The value as text, for a string column: one text for each distinct value of a batch."""
        return Case(self, kind=kind)

    def only(self, value: int | bool | str) -> Case:
        """A constant, where the term's layer is present."""
        constant = dataclasses.replace(self, mask=0, mul=0, add=0 if isinstance(value, str) else int(value))
        return Case(constant, names={0: value}) if isinstance(value, str) else Case(constant)


def _number(value: Any) -> int:
    if not isinstance(value, int):
        raise CannotCompile(f"one field and numbers make a term, not {value!r}")
    return value


@dataclass(frozen=True, slots=True)
class Range:
    """Conditions that must all hold: least <= term <= most."""

    terms: tuple[tuple[Term, int, int], ...]

    def __and__(self, other: Range) -> Range:
        return Range(self.terms + other.terms)

    def __bool__(self) -> bool:
        raise CannotCompile("`and`/`or` between checks: use &")


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One way to fill a column. A column is a tuple of cases: the first whose layer is there and whose condition holds."""

    term: Term
    table: Mapping[int, int] | None = None
    names: Mapping[int, str] | None = None
    kind: str | None = None
    when: Range | None = None

    def where(self, condition: Range) -> Case:
        if self.when is not None or len(condition.terms) != 1:
            raise CannotCompile("a case has one condition over one term")
        return dataclasses.replace(self, when=condition)


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One value for each header of a run of stacked headers; the layer must be declared `stacks`."""

    term: Term


Column = Term | Case | tuple["Term | Case", ...]


def packet(field: int) -> Term:
    """A field of the packet's record (kernels.TIME and its neighbours); below 0 it is null."""
    return Term(None, field, place=PACKET)


def cases(column: Column) -> tuple[Case, ...]:
    """A column as the tuple of its cases."""
    parts = column if isinstance(column, tuple) else (column,)
    return tuple(Case(part) if isinstance(part, Term) else part for part in parts)


@dataclass(frozen=True, slots=True, eq=False)
class Keys:
    """A number space that carriers select from and children claim: ethertype, IP protocol, port.

    `stands_for`: claimed while decoding by the layers of another space (interface -> link type).
    """

    name: str
    bits: int = 16
    stands_for: Keys | None = None

    def __getitem__(self, value: int | slice) -> Claim:
        if isinstance(value, int) and not 0 <= value < 2**self.bits:
            raise CannotCompile(f"{self.name} has {self.bits} bits, {value:#x} has more")
        return self, range(2**self.bits)[value] if isinstance(value, slice) else range(value, value + 1)

    def where(self, holds: Callable[[Any], Any]) -> Claim:
        """The values for which `holds`, called once with an int array of all of them, is true."""
        return self, np.flatnonzero(holds(np.arange(2**self.bits))).tolist()

    def __call__(self, expression: Callable[[Any], Any]) -> Select:
        return self, expression


def SPAN(header: Any) -> Any:
    """As a key: how many bytes the layer was given. Only the walk knows it, so no lambda can compute it."""
    raise CannotCompile("the length of a span is a key, not a value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The facts of one captured packet, as lambdas over its record header; lengths in bytes."""

    high: Callable[[Any], Any]
    low: Callable[[Any], Any]
    interface: Callable[[Any], Any]
    captured: Callable[[Any], Any]
    original: Callable[[Any], Any]
    timed: bool = True
    options: bool = False  # pcapng options follow the packet's bytes


class Layer:
    """A header class and what the walk must know of it.

    name, protocol           in the table `faults`; in the column `protocol` of `packets` (by default the name)
    header, total, trailer   bytes of the header, of the whole layer (-1: all that the carrier holds), behind the body
    check, expect            ranges that must hold; a broken `check` ends the path, a broken `expect` is only a fault
    selects                  key spaces tried in order; the first that is claimed names the child
    repeats                  siblings follow until the carrier's span ends; "padded": zero bytes may follow them
    then                     the layer that follows this one within the same carrier, once
    tail                     the header that stands in the trailer, for columns
    record                   this layer is a captured packet
    pauses                   a record of this kind is handed back to the capture reader unread
    stacks                   headers of this kind stand one behind the other (VLAN tags)
    measured                 columns ask for the length of its body
    """

    def __init__(
        self,
        packet: type[dpkt.Packet],
        *,
        under: Sequence[Claim] = (),
        name: str | None = None,
        protocol: str | None = None,
        header: Callable[[Any], Any] | None = None,
        total: Callable[[Any], Any] | None = None,
        trailer: Callable[[Any], Any] | None = None,
        check: Callable[[Any], Any] | None = None,
        expect: Callable[[Any], Any] | None = None,
        selects: Sequence[Select] = (),
        repeats: bool | Literal["padded"] = False,
        then: Layer | None = None,
        align: int = 1,
        tail: Layer | None = None,
        record: Record | None = None,
        pauses: bool = False,
        stacks: bool = False,
        measured: bool = False,
    ) -> None:
        self.packet, self.name = packet, name or packet.__name__.lower()
        self.protocol = protocol or self.name
        self.under, self.selects = tuple(under), tuple(selects)
        self.least: int = packet.__hdr_len__  # proved present before any field is read
        self.header = header or (lambda h: packet.__hdr_len__)
        self.total = total or (lambda h: -1)
        self.trailer = trailer or (lambda h: 0)
        self.check, self.expect = check, expect
        self.repeats, self.then, self.align, self.tail = repeats, then, align, tail
        self.record, self.pauses, self.stacks, self.measured = record, pauses, stacks, measured
        for field, _, _ in packet.__hdr__:
            for part in (field, *dict((getattr(packet, "__bit_fields__", None) or {}).get(field, ()))):
                if hasattr(type(self), part) or part in vars(self) or part == "data":  # dpkt's word for what follows
                    raise CannotCompile(f"{self.name}: a field cannot be called {part!r} here, rename it")
        parts = (getattr(packet, "__bit_fields__", None) or {}).values()
        fields = [field for field, _, _ in packet.__hdr__] + [field for part in parts for field, _ in part]
        if taken := [field for field in fields if hasattr(Layer, field) or field in self.__dict__]:
            raise CannotCompile(f"{self.name}: a header field cannot be called {taken[0]!r}, a layer is")

    def __repr__(self) -> str:
        return self.name

    def __getattr__(self, field: str) -> Term:
        """The declared field as a term: `SOMEIP.length` means the bytes of that field."""
        if field.startswith("__"):
            raise AttributeError(field)
        at, order = 0, self.packet.__hdr_fmt__[0]
        for name, code, _ in self.packet.__hdr__:
            size = struct.calcsize(order + code)
            parts = tuple((getattr(self.packet, "__bit_fields__", None) or {}).get(name, ()))
            if field == name or field in dict(parts):
                return self._term(field, name, at, size, parts, big=order in ">!" or code.endswith("s"))
            at += size
        raise AttributeError(f"{self.packet.__name__} declares no field {field!r}")

    def _term(
        self, field: str, name: str, at: int, size: int, parts: tuple[tuple[str, int], ...], *, big: bool
    ) -> Term:
        if size == 16:  # two words, read by the text kinds alone
            return Term(self, at)
        if size > 8:
            raise CannotCompile(f"{self.name}.{field}: {size} bytes are a payload, not a number")
        shift, bits = (64 - 8 * size if big else 0), 8 * size
        if field != name:
            left = bits
            for part, width in parts:
                left -= width
                if part == field:
                    shift, bits = shift + left, width
                    break
        return Term(self, at, shift, (1 << bits) - 1 if bits < 64 else -1, big)

    def __call__(self, value: int | bool | str) -> Case:
        """A constant where this layer is present."""
        return Term(self, 0).only(value)

    @property
    def body_len(self) -> Term:
        """The bytes of the body that were captured; the layer must be `measured`."""
        if not self.measured:
            raise CannotCompile(f"{self.name} is not declared `measured`")
        return Term(self, 0, place=BODY)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The rows that a layer gives to a table: column name -> how to fill it; what is not named is null.

    A table's `payload` is what the layer carries.

    layer     None: one row per captured packet, written when the whole packet has been walked
    finish    finish(data, starts, begins, ends) -> {column: list}, in plain Python, for what is rare and has no
              columnar shape (SOME/IP-SD options): the starts of the rows' layer and the bodies of `within` in `data`
    """

    table: str
    layer: Layer | None
    columns: Mapping[str, Column | Run]
    within: Layer | None = None
    finish: Callable[..., Mapping[str, list[Any]]] | None = None
