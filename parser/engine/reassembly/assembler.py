"""What all assemblers share: their pieces and results, and the bound on the memory of incomplete messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from pcaplake.parser.engine.pieces import Reassembly

from .piece_rows import PieceRows
from .runs import NO_RUNS, Run, Runs

GAP, TOO_LONG, BAD_CHECKSUM, BAD_LENGTH = "gap", "too_long", "bad_checksum", "bad_length"
PIECE_BYTES, ENTRY_BYTES = 128, 512  # what a piece and an incomplete message need beside their bytes, about
MOST_PIECES = 16_384  # pieces of one message that have not been joined
NO_TIME = -(2**63)
LEAST_TOGETHER = 16  # pieces; to look for runs among fewer takes longer than to add them


class Message(NamedTuple):
    """A message that is whole with piece number `piece`."""

    piece: int
    body: bytes | memoryview
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
        for pieces in self._parts(rows):
            runs = self.find_runs(pieces, rows) if len(pieces) >= LEAST_TOGETHER else NO_RUNS
            if runs.by_first:
                self._add_runs(runs, rows)
                continue
            for piece in pieces:
                self._add(piece, rows)
        return self.messages, self.gaps

    def _add(self, piece: int, rows: PieceRows) -> None:
        self.add_piece(piece, rows)
        self.make_room(piece)

    def _add_runs(self, runs: Runs, rows: PieceRows) -> None:
        """Add runs, and the pieces among them, in order."""
        begun: dict[int, Run] = {}  # by last piece
        alone: list[int] = []  # a heap: pieces of runs that cannot be added as such
        for piece in runs.events:
            while alone and alone[0] < piece:
                self._add(heappop(alone), rows)
            if run := begun.pop(piece, None):
                self.end_run(run, rows)
            elif (run := runs.by_first.get(piece)) and self.begin_run(run, rows):
                begun[run.pieces[-1]] = run
            elif run:
                alone += run.pieces
                heapify(alone)
            elif not alone or alone[0] != piece:
                self._add(piece, rows)
        while alone:
            self._add(heappop(alone), rows)

    def _parts(self, rows: PieceRows) -> Iterator[range]:
        """Ranges of pieces that have room, so that keys have nothing to do with each other; or one piece if there is no room."""
        most = np.cumsum(self.most_costs(rows))
        first, n = 0, len(most)
        while first < n:
            # rule: messages are independent of each other only while none is dropped to make room
            used = (
                (most[first - 1] if first else 0) + self.room - 2 * self.held
            )  # holes that are known may all be filled
            last = max(int(np.searchsorted(most, used, side="right")), first + 1)
            yield range(first, last)
            first = last

    def most_costs(self, rows: PieceRows) -> Any:
        """int64[n]: bytes that each piece may cost, and each key with its first one."""
        return ENTRY_BYTES * rows.are_new + PIECE_BYTES + rows.ends - rows.begins

    def find_runs(self, pieces: range, rows: PieceRows) -> Runs:
        """Whole messages among these pieces that `begin_run` and `end_run` may add at once."""
        return NO_RUNS

    def begin_run(self, run: Run, rows: PieceRows) -> bool:
        """Whether a run can be added, whose first piece comes now. No other piece of its key comes before its last one."""
        return False

    def end_run(self, run: Run, rows: PieceRows) -> None:
        """Add a run, whose last piece comes now."""

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
