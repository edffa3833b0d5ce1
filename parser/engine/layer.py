"""What a protocol declares: a dpkt header, its carriers, its length, the keys of its children, and the rows it gives.

What `__hdr__` cannot express is declared by lambdas over the header. Each is called in two ways. With a dpkt object it computes a
value; the one-packet reference in the tests does that. With the layer itself it returns a description: `SOMEIP.length` is a
`Term`, and so is `h.length + 8`. An expression that is not `((field >> shift) & mask) * mul + add` raises `CannotCompile`
when the module is imported.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import dpkt

from pcaplake.parser.errors import CannotCompile

from .key_spaces import Claim, Select
from .learned import Learned
from .pairing import Pairing

START, FIRST, RUN_END, BODY, BODY_END, PACKET, LATEST, HERE = range(8)  # which position of a layer a term reads from


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """((word >> shift) & mask) * mul + add, where word is the 8 bytes at `offset` of `layer`.

    `place` says which occurrence is read: the latest start (START), the first in the packet (FIRST), the last of the
    first run of stacked headers (RUN_END); with PACKET `offset` is a field of the packet's record and no bytes are read.
    HERE is for keys: the layer's start, if it is that of the layer that selects.
    """

    layer: Layer | None
    offset: int
    shift: int = 0
    mask: int = -1
    big: bool = True
    mul: int = 1
    add: int = 0
    place: int = START

    def _require_plain_term(self, what: str, number: object) -> Term:
        _constant_number(number)
        if (self.mul, self.add) != (1, 0):
            raise CannotCompile(f"{what} after * or +: put the mask first")
        return self

    def __and__(self, mask: int) -> Term:
        return self._require_plain_term("&", mask)._with_bits(self.shift, self.mask & mask)

    def __rshift__(self, bits: int) -> Term:
        plain = self._require_plain_term(">>", bits)
        # the mask is over 64 unsigned bits, so the shift of an all-ones mask must not copy its sign
        return plain._with_bits(self.shift + bits, (self.mask & (1 << 64) - 1) >> bits)

    def _with_bits(self, shift: int, mask: int) -> Term:
        """Other bits of a plain term. `dataclasses.replace` takes three times as long, and there are two thousand."""
        return Term(self.layer, self.offset, shift, mask, self.big, place=self.place)

    def __mul__(self, factor: int) -> Term:
        return dataclasses.replace(self, mul=self.mul * _constant_number(factor), add=self.add * factor)

    def __add__(self, value: int) -> Term:
        return dataclasses.replace(self, add=self.add + _constant_number(value))

    def __sub__(self, value: int) -> Term:
        return self + -_constant_number(value)

    def __ge__(self, least: int) -> Range:
        return Range(((self, _constant_number(least), 2**62),))

    def __le__(self, most: int) -> Range:
        return Range(((self, -(2**62), _constant_number(most)),))

    def __eq__(self, value: object) -> Range:  # type: ignore[override]
        if not isinstance(value, int):
            raise CannotCompile(f"a field can be compared with a number, not with {value!r}")
        return Range(((self, value, value),))

    def between(self, least: int, most: int) -> Range:
        return Range(((self, least, most),))

    def __bool__(self) -> bool:
        raise CannotCompile("a lambda cannot branch on a header value: declare a key or a check instead")

    @property
    def signed_mask(self) -> int:
        """The mask as the int64 with the same bits."""
        mask = self.mask & (1 << 64) - 1
        return mask - (1 << 64) if mask >> 63 else mask

    @property
    def latest(self) -> Term:
        """The field in the packet's last header of this layer. Rows of whole packets read the first one by default."""
        return dataclasses.replace(self, place=LATEST)

    @property
    def here(self) -> Term:
        """For a key: the field of a layer that begins at the same byte. Without such a layer the key is not tried."""
        return dataclasses.replace(self, place=HERE)

    @property
    def run(self) -> Run:
        """The field of each of a run of stacked headers, for a list column."""
        return Run(self)

    @property
    def last(self) -> Term:
        """The field of the last of a run of stacked headers (VLAN tags)."""
        return dataclasses.replace(self, place=RUN_END)

    def where(self, condition: Range) -> Case:
        """This value, or null where the condition does not hold."""
        return Case(self).where(condition)

    def via(self, table: Mapping[int, int]) -> Case:
        """table[value], or null if the table has no such value. Keys are below 65,536."""
        return Case(self, table=dict(table))

    def names(self, table: Mapping[int, str]) -> Case:
        """The name of the value, for a string column; null if it has none. Keys are below 65,536."""
        return Case(self, names=dict(table))

    def text(
        self, kind: Literal["mac", "ipv4", "ipv6", "decimal", "interface", "tecmp", "cmp", "acf", "pdu", "characters"]
    ) -> Case:
        """The value as text, for a string column. Each distinct value of a batch is formatted once."""
        return Case(self, kind=kind)

    def only(self, value: int | bool | str) -> Case:
        """A constant, where the term's layer is present."""
        constant = dataclasses.replace(self, mask=0, mul=0, add=0 if isinstance(value, str) else int(value))
        return Case(constant, names={0: value}) if isinstance(value, str) else Case(constant)


def _constant_number(value: Any) -> int:
    if not isinstance(value, int):
        raise CannotCompile(f"a term consists of one field and of numbers, not of {value!r}")
    return value


@dataclass(frozen=True, slots=True)
class Range:
    """Conditions least <= term <= most. All must hold, but of the conditions that `alternatives` groups, one is enough."""

    terms: tuple[tuple[Term, int, int], ...]
    alternatives: tuple[int, ...] = (1,)

    def __and__(self, other: Range) -> Range:
        return Range(self.terms + other.terms, self.alternatives + other.alternatives)

    def __or__(self, other: Range) -> Range:
        if len(self.alternatives) != 1 or len(other.alternatives) != 1:
            raise CannotCompile("`|` cannot join checks that `&` has joined: write the alternatives first")
        return Range(self.terms + other.terms, (len(self.terms) + len(other.terms),))

    def __bool__(self) -> bool:
        raise CannotCompile("`and` and `or` cannot join checks: use `&` and `|`")


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One way to fill a column. A row takes the first case whose layer is present and whose condition holds."""

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


@dataclass(frozen=True, slots=True, eq=False)
class FixedBytes:
    """`size` bytes at `offset` of the layer that gives the row.

    In a column of strings they are UTF-8 up to the first zero byte; other bytes become U+FFFD. For a column of numbers,
    read(uint8[n, size]) returns the values of n rows and whether each is known.
    """

    layer: Layer
    offset: int
    size: int
    read: Callable[[Any], tuple[Any, Any]] | None = None


Column = Term | Case | tuple["Term | Case", ...]


def packet_field(field: int) -> Term:
    """A field of the packet's record (encoding.TIME and its neighbors); a negative value is null."""
    return Term(None, field, place=PACKET)


def column_cases(column: Column) -> tuple[Case, ...]:
    """A column as the tuple of its cases."""
    parts = column if isinstance(column, tuple) else (column,)
    return tuple(Case(part) if isinstance(part, Term) else part for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The facts of one captured packet, as lambdas over its record header; lengths in bytes. dropped: packets that the
    recorder lost before this one.
    """

    high: Callable[[Any], Any]
    low: Callable[[Any], Any]
    interface: Callable[[Any], Any]
    captured: Callable[[Any], Any]
    original: Callable[[Any], Any]
    dropped: Callable[[Any], Any] = lambda h: 0
    timed: bool = True
    options: bool = False  # pcapng options follow the packet's bytes


@dataclass(eq=False)
class Layer:
    """One protocol layer: a dpkt header class, and how the walk treats it. Raises `CannotCompile`.

    under                    the keys under which carriers find this layer
    name, protocol           in the table `faults`; in the column `protocol` of `packets` (by default the name)
    header, total, trailer   bytes of the header, of the whole layer, and behind the body
    unsized                  a total of this value means unknown: the layer gets all bytes of the carrier (default if no `total`)
    check, expect            ranges that must hold; if not, there is a fault, and `check` also ends the path
    otherwise                the layer that reads the same bytes where a check does not hold, or where there are too few and it
                             needs fewer; then that is no fault
    lossless                 ranges that hold unless a capture module says that it lost packets before this layer
    selects                  key spaces, tried in order; the first key that a layer claims selects the child
    repeats                  siblings follow until the carrier's span ends; "padded": zero bytes may follow them, and a
                             frame check sequence: no entry begins with 8 zero bytes that has no body or overruns, and
                             what is shorter than a header is padding if its bytes are zero, except for the last 4; 8 bytes
                             are looked at
    then                     the layer that follows this one within the same carrier, once
    align                    siblings of a chain start at multiples of this many bytes
    tail                     the header in the trailer, for columns
    record                   this layer is a captured packet
    pauses                   a record of this kind is returned to the capture reader undecoded
    stacks                   headers of this layer follow each other without a gap (VLAN tags)
    measured                 columns read the length of its body
    bare                     the layer is entered even if its carrier has no body (a segment that only ends a connection)
    new_packet               a packet inside the packet begins: rows below it read no header that is outside of it
    bus                      the number of the bus from which a capture module has what the layer carries, if it says so:
                             pieces and requests of other buses have nothing in common with it, also in a packet inside
    """

    packet: type[dpkt.Packet]
    _: KW_ONLY
    under: Sequence[Claim] = ()
    name: str = ""
    protocol: str = ""
    header: Callable[[Any], Any] = lambda h: (h.packet if isinstance(h, Layer) else h).__hdr_len__
    total: Callable[[Any], Any] = lambda h: -1
    unsized: int = -1
    trailer: Callable[[Any], Any] = lambda h: 0
    check: Callable[[Any], Any] | None = None
    expect: Callable[[Any], Any] | None = None
    otherwise: Layer | None = None
    lossless: Callable[[Any], Any] | None = None
    selects: Sequence[Select] = ()
    repeats: bool | Literal["padded"] = False
    then: Layer | None = None
    align: int = 1
    tail: Layer | None = None
    record: Record | None = None
    pauses: bool = False
    stacks: bool = False
    measured: bool = False
    bare: bool = False
    new_packet: bool = False
    bus: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        self.name = self.name or self.packet.__name__.lower()
        self.protocol = self.protocol or self.name
        self.least: int = self.packet.__hdr_len__  # proved present before any field is read
        for field, _, _ in self.packet.__hdr__:
            for part in (field, *dict((getattr(self.packet, "__bit_fields__", None) or {}).get(field, ()))):
                if hasattr(type(self), part) or part in vars(self) or part == "data":  # dpkt's name of the body
                    raise CannotCompile(f"{self.name}: a field cannot be called {part!r} here, rename it")

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
                return self._field_term(field, name, at, size, parts, big=order in ">!" or code.endswith("s"))
            at += size
        raise AttributeError(f"{self.packet.__name__} declares no field {field!r}")

    def fixed_bytes(self, field: str, read: Callable[[Any], tuple[Any, Any]] | None = None) -> FixedBytes:
        """The bytes of the declared field, for a column of bytes or, as text, of strings; with `read`, of numbers."""
        at, order = 0, self.packet.__hdr_fmt__[0]
        for name, code, _ in self.packet.__hdr__:
            if field == name:
                return FixedBytes(self, at, struct.calcsize(order + code), read)
            at += struct.calcsize(order + code)
        raise AttributeError(f"{self.packet.__name__} declares no field {field!r}")

    def _field_term(
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

    @property
    def beside(self) -> tuple[Layer, ...]:
        """The layers that this one leads to and does not carry."""
        return tuple(layer for layer in (self.then, self.otherwise) if layer is not None)

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
    """The rows that a layer gives to a table: column name -> how to fill it; other columns are null.

    The column `payload` or `data` of a table is the body of the layer.

    layer     None: one row per captured packet, written when the whole packet has been walked
    finish    finish(data, starts, begins, ends) -> {column: list}, in plain Python, for rare values without a columnar
              layout (SOME/IP-SD options). It gets the starts of the rows' layer and the bodies of `within` in `data`,
              and fills the columns `made`. No other layer gives rows to the table
    repeats   repeats(data, starts, begin, end) -> int64[n]: how many bytes of the message data[begin:end] `finish` reads
              for each of its n rows, at most twice its length. Required with `finish`: it limits what all rows of one
              message read to `objects.MOST_REPEATED` times its length
    pairing   how a response finds its request; the same for all layers that give rows to the table
    learned   the keys that the bodies of `within` name for the packets after them
    """

    table: str
    layer: Layer | None
    columns: Mapping[str, Column | Run | FixedBytes]
    within: Layer | None = None
    finish: Callable[..., Mapping[str, list[Any]]] | None = None
    made: tuple[str, ...] = ()
    repeats: Callable[[Any, Any, int, int], Any] | None = None
    pairing: Pairing | None = None
    learned: Learned | None = None
