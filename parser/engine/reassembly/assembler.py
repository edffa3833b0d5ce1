"""What all assemblers share: their pieces and results, and the bound on the memory of incomplete messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from pcaplake.parser.engine.pieces import Reassembly

GAP, TOO_LONG, BAD_CHECKSUM, BAD_LENGTH = "gap", "too_long", "bad_checksum", "bad_length"
PIECE_BYTES, ENTRY_BYTES = 128, 512  # what a piece and an incomplete message need beside their bytes, about
MOST_PIECES = 16_384  # pieces of one message that have not been joined
NO_TIME = -(2**63)


@dataclass(frozen=True, slots=True)
class PieceRows:
    """The pieces of one kind that a morsel has, in the order of their packets.

    keys      what pieces of one message have in common
    times     of their packets, ns since 1970; NO_TIME if unknown
    bodies    the bytes of the pieces
    offsets   of the pieces in the capture
    values    the values that the declaration reads, by name
    """

    keys: Sequence[Hashable]
    times: Sequence[int]
    bodies: Sequence[bytes]
    offsets: Sequence[int]
    values: Mapping[str, Sequence[int]]


class Message(NamedTuple):
    """A message that is whole with piece number `piece`."""

    piece: int
    body: bytes
    pieces: int
    value: int


class Gap(NamedTuple):
    """A message that cannot be put together. It is noticed at piece number `piece`, -1 at the end of the capture.

    offset   in the capture, of the message's last piece
    need     bytes of the message as far as they are known, or the bytes that are missing
    have     bytes that are there
    """

    piece: int
    reason: str
    offset: int
    need: int
    have: int


class Incomplete(Protocol):
    """An incomplete message or stream, as the memory sees it."""

    cost: int  # bytes of memory, about

    def gap(self, piece: int) -> Gap | None:
        """What is lost if it goes."""


Entry = TypeVar("Entry", bound=Incomplete)


@dataclass(slots=True)
class Assembler(ABC, Generic[Entry]):
    """Base of the assemblers. `add_pieces` returns the messages and gaps of one morsel; `finish` the gaps that are left."""

    declaration: Reassembly
    room: int  # bytes
    entries: OrderedDict[Hashable, Entry] = field(default_factory=OrderedDict)  # the oldest first
    messages: list[Message] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    held: int = 0  # bytes of all entries
    longest: int = field(init=False)  # bytes of the longest message that is put together

    def __post_init__(self) -> None:
        self.longest = min(self.declaration.longest, self.room // 2)

    def add_pieces(self, rows: PieceRows) -> tuple[list[Message], list[Gap]]:
        self.messages, self.gaps = [], []
        for piece in range(len(rows.keys)):
            self.add_piece(piece, rows)
            self.make_room(piece)
        return self.messages, self.gaps

    @abstractmethod
    def add_piece(self, piece: int, rows: PieceRows) -> None:
        """Add the piece of this number."""

    def make_room(self, piece: int) -> None:
        # rule: memory is bounded, the oldest message goes first
        while self.held > self.room and self.entries:
            self.drop(next(iter(self.entries)), piece)

    def keep(self, key: Hashable, entry: Entry, before: int) -> None:
        """Account for what an entry costs now; `before` is what it cost before, 0 for a new one."""
        self.entries[key] = entry
        self.held += entry.cost - before

    def forget(self, key: Hashable) -> None:
        self.held -= self.entries.pop(key).cost

    def drop(self, key: Hashable, piece: int) -> None:
        """Forget an entry and note what is lost."""
        gap = self.entries[key].gap(piece)
        self.forget(key)
        if gap is not None:
            self.gaps.append(gap)

    def is_late(self, time: int, before: int) -> bool:
        """Whether a piece comes too long after the one before it; clocks may jump either way."""
        return abs(time - before) > self.declaration.timeout_ns and NO_TIME not in (time, before)

    def finish(self) -> list[Gap]:
        """The gaps of all that is incomplete at the end of the capture."""
        self.gaps = []
        for key in list(self.entries):
            self.drop(key, -1)
        return self.gaps
