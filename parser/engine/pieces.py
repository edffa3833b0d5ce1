"""What a protocol declares so that messages are put together from several packets.

A *piece* is the body of a layer that carries a part of a message: an IP fragment, a TCP segment, a SOME/IP-TP segment. One
declaration names the layers of the pieces and what tells their messages apart, and, by its class, how the pieces are ordered:

    Fragments   each piece says at which byte of the message it begins, and whether more follow (IP, SOME/IP-TP)
    Segments    pieces are numbered; the first one begins a message (ISO-TP, ASAM CMP, J1939 TP)
    Stream      pieces have a sequence number of a byte stream, in which messages follow each other (TCP)

To plug in: declare the layer of the piece as any other layer (its body is the piece; `bare=True` if a piece without bytes
counts), make one of these objects, and list it in `protocols.REASSEMBLIES`. A message that is whole is decoded as the body of
the layer `message` of the declaration: the layers that `selects` finds are its children, or `Rows` read `message` itself. Rows
below it read the headers above the last piece as if they were in its packet (`IPV4.src`, `UDP.sport`), but keys, lengths and
checks of the layers below cannot: what they need of these headers must be `value`. Rows read `message.pieces` and
`message.length` (bytes) as any header.

Order of `protocols.REASSEMBLIES`: a kind comes after those that carry its pieces (IP fragments before TCP before SOME/IP-TP).
Pieces inside a message of a later kind, or of the same kind, are rows at most; so nothing contains itself without end.

Values of a declaration are columns as in `Rows`: a term, a case, or a tuple of them, of which a piece takes the first one whose
layer is present; an int is a constant. If none is present the value is 0. They are int64: 8-byte fields have all their bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

import dpkt
import pyarrow as pa

from pcaplake.parser.table_spec import TableSpec

from .key_spaces import Select
from .layer import Case, Column, Layer, Record, column_cases

Value = Column | int
SECOND = 1_000_000_000  # ns
LONGEST_MESSAGE = 16 << 20  # bytes; no message is longer, whatever its pieces claim
LONGEST_DATAGRAM = 65_535


class MessageHeader(dpkt.Packet):  # type: ignore[misc]
    """Precedes each message in the buffer in which the walk finds it. No capture contains it."""

    __hdr__ = (("length", "I", 0), ("value", "I", 0), ("pieces", "I", 0), ("reserved", "I", 0))


@dataclass(frozen=True, eq=False)
class Reassembly:
    """One kind of message that is put together.

    name, protocol   of the layer `message`: in the table `faults`; in the column `protocol` of `packets`
    layers       the layers whose bodies are the pieces
    key          pieces of one interface, and of one bus of a capture module, with the same values belong together
    selects      key spaces, tried in order, that lead to the content of `message`, as `Layer.selects`
    value        of the first piece, in a stream of the last one; layers below `message` read it as `h.value` (32 bits)
    longest      bytes of a message; a longer one is a fault `too_long`
    timeout_ns   a piece that comes so much later than the one before it begins a new message
    message      the layer of a message that is whole; its body is the message
    """

    name: str
    _: KW_ONLY
    protocol: str
    layers: Sequence[Layer]
    key: Sequence[Value]
    selects: Sequence[Select] = ()
    value: Value = 0
    longest: int = LONGEST_MESSAGE
    timeout_ns: int = 30 * SECOND
    message: Layer = field(init=False)

    def __post_init__(self) -> None:
        size = MessageHeader.__hdr_len__
        record = Record(
            high=lambda h: 0,
            low=lambda h: 0,
            interface=lambda h: 0,
            captured=lambda h: h.length,
            original=lambda h: h.length,
            timed=False,
        )
        message = Layer(
            MessageHeader,
            name=self.name,
            protocol=self.protocol,
            total=lambda h: h.length + size,
            record=record,
            selects=self.selects,
        )
        object.__setattr__(self, "message", message)

    def values(self) -> Mapping[str, Value]:
        """What is read of each piece, by name."""
        return {**{f"key{i}": value for i, value in enumerate(self.key)}, "value": self.value}

    def columns(self, layer: Layer) -> dict[str, Column]:
        """`values` as columns of the rows of one layer of pieces. They read nothing of the other ones, so the walk need not
        forget where these were.
        """
        others = {*self.layers} - {layer}
        columns: dict[str, Column] = {}
        for name, value in self.values().items():
            cases = column_cases(layer(value) if isinstance(value, int) else value)
            own = tuple(case for case in cases if not others & _layers_of(case))
            if own:
                columns[name] = own
        return columns


@dataclass(frozen=True, eq=False)
class Fragments(Reassembly):
    """Pieces that say at which byte of their message they begin.

    start     that byte
    more      not 0: more pieces follow
    unique    not 0: the key names one message (IP identification). 0: it names one message after the other (SOME/IP without
              session handling), as does a key that another message had within the time-out
    checksum  checksum(message, value, covered): whether the checksum in the message is right, None if it has none; None also
              says that messages do not state their length
    covered   values that this checksum covers beside the message (addresses)
    stated    as for `Stream`; the checksum of a message with a piece that was cut is not checked. If there can be none, the
              message is not whole

    Pieces that overlap with other bytes, or another length, are those of two messages. Without a checksum the pieces must come
    in order, or begin with the beginning if the key names one message; with one they may come in any order. So a piece that
    is lost does not join two messages. What comes after a beginning counts for the message before it and for a new one,
    until one of them is whole; if the key may be that of another message, the one before it then needs a checksum. A piece
    that repeats a part of a message that was whole within the time-out is ignored, unless it is its beginning.
    """

    _: KW_ONLY
    start: Value
    more: Value
    unique: Value = 1
    checksum: Callable[[bytes | memoryview, int, Sequence[int]], bool | None] | None = None
    covered: Sequence[Value] = ()
    stated: Sequence[Value] = ()

    def values(self) -> Mapping[str, Value]:
        numbered = {**_numbered("covered", self.covered), **_numbered("stated", self.stated)}
        return {**super().values(), "start": self.start, "more": self.more, "unique": self.unique, **numbered}


@dataclass(frozen=True, eq=False)
class Segments(Reassembly):
    """Pieces that are numbered. They must come in order; the last one may come again, also when the message is whole. The piece
    that a message with places still lacks when the next one begins may come late, and changes nothing.

    first     not 0: this piece begins a message
    last      not 0: this piece ends a message
    number    of the piece; that of the next one is one higher, modulo `modulus` (0 follows modulus - 1)
    total     bytes of the message, known from its first piece: the message ends with them, and what follows is padding;
              0: `last` tells the end
    wraps_to  the number that follows modulus - 1
    places    not 0: the message has as many pieces, as its first one says, and the number of each is its place, from 0
    asked     not 0: the receiver asks for pieces of a message with places, so that one may come later, and again (J1939 RTS)
    ends      not 0: this piece is none of a message, it ends the one that has its `value`, whole or not
    """

    _: KW_ONLY
    first: Value
    number: Value
    modulus: int
    last: Value = 0
    total: Value = 0
    wraps_to: int = 0
    places: Value = 0
    asked: Value = 0
    ends: Value = 0

    def values(self) -> Mapping[str, Value]:
        names = "first", "last", "number", "total", "places", "asked", "ends"
        return {**super().values(), **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True, eq=False)
class Stream(Reassembly):
    """Pieces of a stream of bytes, in which messages follow each other. The length of a message is that of `frame`.

    sequence    of the first byte of the piece, modulo 2**32
    starts      not 0: a new stream begins; its first byte has the number `sequence` + 1 (SYN)
    ends        not 0: the stream is at its end after this piece (FIN, RST)
    stated      values whose sum is the length of the piece as the headers above it state it; if that is more than there is,
                the packet was cut when it was captured. By default no piece counts as cut
    frame       the layer of a message in the stream: its declared header, `total` and `check` are used, and must read nothing
                but this header
    length      length(data, at): bytes of the message at a position, if no term tells it; more than there are if its header is
                not complete. By default the `total` of `frame`
    plausible   a stricter check, to find a message in the middle of a stream
    resumes     where messages are found behind a hole before it is filled, and in a stream whose beginning is missing:
                "anywhere", by the stricter check; at a "filled_segment", a piece that whole messages fill, all of which
                pass the stricter check, if other bytes often pass it too; or, because any bytes pass, at the "first_segment" of
                the capture only, if whole messages fill it
    mixed       streams of other protocols may have the same key: no fault tells of one in which no message begins

    The messages that each piece completes are decoded as one chain, or each for itself if `frame` does not repeat. So `selects`
    must lead to `frame`.
    """

    _: KW_ONLY
    sequence: Value
    frame: Layer
    plausible: Callable[[Any], Any]
    resumes: Literal["anywhere", "filled_segment", "first_segment"] = "anywhere"
    mixed: bool = False
    length: Callable[[bytes | bytearray, int], int] | None = None
    starts: Value = 0
    ends: Value = 0
    stated: Sequence[Value] = ()

    def values(self) -> Mapping[str, Value]:
        own = {"sequence": self.sequence, "starts": self.starts, "ends": self.ends}
        return {**super().values(), **own, **_numbered("stated", self.stated)}


def _numbered(name: str, values: Sequence[Value]) -> dict[str, Value]:
    return {f"{name}{i}": value for i, value in enumerate(values)}


def _layers_of(case: Case) -> set[Layer | None]:
    return {case.term.layer, *(term.layer for term, _, _ in (() if case.when is None else case.when.terms))}


def spec_of_pieces(reassembly: Reassembly) -> TableSpec:
    """The internal table of the pieces of a reassembly: an int64 column for each of its values."""
    return TableSpec(
        name=reassembly.name, schema=pa.schema([pa.field(name, pa.int64()) for name in reassembly.values()])
    )
