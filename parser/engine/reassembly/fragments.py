"""Fragments: each says at which byte of its message it begins."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pcaplake.parser.engine.kernels import pieces as kernels
from pcaplake.parser.engine.pieces import Fragments

from .assembler import (
    BAD_CHECKSUM,
    ENTRY_BYTES,
    GAP,
    MOST_PIECES,
    NO_TIME,
    PIECE_BYTES,
    TOO_LONG,
    Assembler,
    Gap,
    Message,
)
from .piece_rows import PieceRows, hash_parts
from .runs import Run, Runs, find_runs

MOST_WHOLE, MOST_HASHES = 1024, 64  # whole messages, and fragments of each, that are remembered
MOST_NAMES = 1 << 16  # keys of whole messages that are remembered: every IPv4 identification


@dataclass(slots=True)
class Fragmented:
    """A message of fragments that is not whole.

    ordered   each fragment began where the ones before it ended, the first one at 0
    begun     the first fragment was the beginning
    cut       a fragment was cut when it was captured
    next      what came since the last beginning, if other fragments were there before: perhaps another message
    told      a gap was told of all its fragments: they may be the end of that message
    """

    time: int
    starts: list[int] = field(default_factory=list)  # sorted
    parts: list[bytes] = field(default_factory=list)  # they do not overlap
    total: int = -1  # bytes, when the last fragment is known
    size: int = 0  # bytes of the parts
    pieces: int = 0
    value: int = 0
    ordered: bool = True
    begun: bool = False
    cut: bool = False
    offset: int = 0
    cost: int = 0
    next: Fragmented | None = None
    told: bool = False

    def gap(self, piece: int, reason: str = GAP) -> Gap | None:
        return None if self.told else Gap(piece, reason, self.offset, max(self.total, 0), self.size)

    @property
    def end(self) -> int:
        return self.starts[-1] + len(self.parts[-1]) if self.starts else 0

    @property
    def is_whole(self) -> bool:
        # rule: a message is whole when its last fragment and all before it are there
        return self.total == self.size == self.end

    def _known(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """The index of each part that has bytes of the span, and the span of these bytes."""
        for i in range(max(bisect_right(self.starts, start) - 1, 0), len(self.starts)):
            first = self.starts[i]
            if first >= end:
                return
            if (last := first + len(self.parts[i])) > start:
                yield i, max(first, start), min(last, end)

    def contradicts(self, start: int, body: bytes, more: int) -> bool:
        """Whether this is no fragment of the message."""
        end = start + len(body)
        # rule: fragments of a message agree on its length
        if end > self.total >= 0 or (not more and (end < self.end or self.total not in (-1, end))):
            return True
        # rule: bytes of two fragments of a message are the same where they overlap
        return start < self.end and any(
            self.parts[i][a - self.starts[i] : b - self.starts[i]] != body[a - start : b - start]
            for i, a, b in self._known(start, end)
        )

    def add(self, start: int, body: bytes, more: int) -> None:
        """Add a fragment that does not contradict."""
        end, size, last = start + len(body), self.size, self.end
        # rule: fragments come in order if none begins behind the end
        self.ordered = self.ordered and start <= last
        # rule: the beginning comes first
        self.begun = self.begun or not (start or self.starts)
        if start >= last:  # as most do
            self.starts.append(start)
            self.parts.append(body)
            self.size += len(body)
        else:
            self._fill_holes(start, body)
        # rule: a fragment that comes twice counts once
        self.pieces += self.size > size
        if not more:
            self.total = end

    def _fill_holes(self, start: int, body: bytes) -> None:
        at, end = start, start + len(body)
        for _, known, until in [*self._known(start, end), (0, end, end)]:
            if at < known:
                i = bisect_right(self.starts, at)
                self.starts.insert(i, at)
                self.parts.insert(i, body[at - start : known - start])
                self.size += known - at
            at = until


class FragmentAssembler(Assembler[Fragmented]):
    declaration: Fragments

    def __init__(self, declaration: Fragments, room: int) -> None:
        super().__init__(declaration, room)
        # of each whole message its time, where its fragments began, and hashes of these
        self.whole: OrderedDict[Hashable, tuple[int, Sequence[int], Sequence[int]]] = OrderedDict()
        # hashes of keys -> time when a message was whole, or another one began
        self.names: OrderedDict[int, int] = OrderedDict()
        self.stated = [name for name in declaration.values() if name.startswith("stated")]
        self.covered = [name for name in declaration.values() if name.startswith("covered")]

    def add_piece(self, piece: int, rows: PieceRows) -> None:
        key, time, body, values = rows.keys[piece], rows.times[piece], rows.body(piece), rows.values
        start, more = values["start"][piece], values["more"][piece]
        entry = self.entries.get(key)
        # rule: a fragment that comes too late begins a new message
        if entry is not None and self.is_late(time, entry.time):
            self.drop(key, piece)
            entry = None
        # rule: no length is trusted
        if start + len(body) > self.longest:
            self.gaps.append(Gap(piece, TOO_LONG, rows.offsets[piece], start + len(body), self.longest))
            self._forget(key)
            return
        while entry is not None and entry.contradicts(start, body, more):
            self._lose(key, entry, GAP, piece)
            # rule: a key under which fragments contradict is not that of one message
            self._name(key, time)
            entry = entry.next
        if entry is None:
            before, starts, hashes = self.whole.get(key, (NO_TIME, (), ()))
            # rule: a fragment that repeats a part of a whole message is ignored, unless it is its beginning
            if (
                start > 0
                and start in starts
                and hashes[starts.index(start)] == rows.hash(piece)
                # rule: what comes later than the time-out repeats nothing
                and not self.is_late(time, before)
            ):
                return
            entry = Fragmented(time)
        # rule: a beginning may be that of another message
        elif start == 0 and entry.end > len(body):
            entry.next = Fragmented(time)
        message: Fragmented | None = entry
        while message is not None:
            message.add(start, body, more)
            message.time, message.offset, message.told = time, rows.offsets[piece], False
            if self.stated:
                message.cut = message.cut or len(body) < sum([values[name][piece] for name in self.stated])
            if start == 0:
                # rule: the first fragment tells what the message is
                message.value = values["value"][piece]
            message = message.next
        left = self._end_messages(key, entry, piece, rows)
        if left is None:
            return
        entry, before = left, left.cost
        entry.cost = ENTRY_BYTES + PIECE_BYTES * len(entry.starts) + entry.size
        if entry.next is not None:
            entry.cost += ENTRY_BYTES + PIECE_BYTES * len(entry.next.starts) + entry.next.size
        self.keep(key, entry, before)
        # rule: the pieces of a message are bounded
        if len(entry.starts) > MOST_PIECES:
            self.drop(key, piece)

    def _end_messages(self, key: Hashable, entry: Fragmented, piece: int, rows: PieceRows) -> Fragmented | None:
        """Give the message of an entry if it is whole with this piece. Returns what is left of the entry."""
        while entry.is_whole:
            if self._end_message(key, entry, b"".join(entry.parts), piece, rows) or entry.next is None:
                return None
            # rule: a message that ends with its beginning is one gap
            entry.next.told = not entry.begun
            entry = entry.next
        return entry

    def _end_message(
        self,
        key: Hashable,
        entry: Fragmented,
        whole: bytes | memoryview,
        piece: int,
        rows: PieceRows,
        hashes: Sequence[int] = (),
    ) -> bool:
        """Give the message of an entry, or note why it is none. Returns whether it is one. hashes: of its parts, if known."""
        reason = self._distrust(key, entry, whole, piece, rows.values)
        if reason:
            self._lose(key, entry, reason, piece)
            return False
        self._forget(key)
        self.messages.append(Message(piece, whole, entry.pieces, entry.value))
        self._remember(key, entry, hashes or self._hashes(entry, whole))
        return True

    def most_costs(self, rows: PieceRows) -> Any:
        # a piece may be part of two messages, and leave a hole that another one fills
        return 2 * (ENTRY_BYTES * rows.are_new + 2 * PIECE_BYTES + rows.ends - rows.begins)

    def find_runs(self, pieces: range, rows: PieceRows) -> Runs:
        columns, n = rows.columns, len(rows.keys)
        stated = sum((columns[name] for name in self.stated), np.zeros(n, np.int64))
        given = (rows.groups, rows.packet_times, rows.begins, rows.ends, columns["start"], columns["more"], stated)

        def find(latest: Any, before: Any, counts: Any, *found: Any) -> int:
            limits = pieces.start, pieces.stop, self.longest, MOST_PIECES, self.declaration.timeout_ns
            return kernels.find_fragment_runs(*given, *limits, latest, before, counts, np.empty(n, np.int64), *found)

        return find_runs(rows, pieces, find, hashed=True)

    def begin_run(self, run: Run, rows: PieceRows) -> bool:
        # rule: a run of fragments continues nothing
        return rows.keys[run.pieces[0]] not in self.entries

    def end_run(self, run: Run, rows: PieceRows) -> None:
        first, last, size = run.pieces[0], run.pieces[-1], len(run.body)
        value = rows.values["value"][first]
        entry = Fragmented(rows.times[last], run.starts, [], size, size, len(run.pieces), value, begun=True)
        entry.offset = rows.offsets[last]
        self._end_message(rows.keys[last], entry, run.body, last, rows, run.hashes)

    def _distrust(
        self,
        key: Hashable,
        entry: Fragmented,
        whole: bytes | memoryview,
        piece: int,
        values: Mapping[str, Sequence[int]],
    ) -> str | None:
        """Why these bytes may not be a message that was sent, as the reason of a fault; None if they are."""
        # rule: the checksum of a message tells
        if (
            self.declaration.checksum is not None
            # rule: a message with a fragment that was cut when it was captured is not checked
            and not entry.cut
        ):
            covered = [values[name][piece] for name in self.covered]
            good = self.declaration.checksum(whole, entry.value, covered)
            if good is not None:
                return None if good else BAD_CHECKSUM
        # rule: if a fragment was cut, only a message that states its length is not taken for a whole one
        elif self.declaration.checksum is None and entry.cut:
            return GAP
        if values["unique"][piece] and not self._is_known(key, entry.time):
            # rule: without a checksum, the beginning comes first if the key is that of one message
            return None if entry.begun else GAP
        fits = (
            # rule: without a checksum, fragments come in order if another message may have the key
            entry.ordered
            # rule: without a checksum, a beginning that comes again is that of another message if the key may be
            and entry.next is None
        )
        return None if fits else GAP

    def _is_known(self, key: Hashable, time: int) -> bool:
        """Whether another message had this key within the time-out."""
        before = self.names.get(hash(key))
        # rule: a key that another message had within the time-out is not that of one message
        return before is not None and not self.is_late(time, before)

    def _forget(self, key: Hashable) -> None:
        if key in self.entries:
            self.forget(key)

    def _lose(self, key: Hashable, entry: Fragmented, reason: str, piece: int) -> None:
        gap = entry.gap(piece, reason)
        if gap is not None:
            self.gaps.append(gap)
        self._forget(key)

    @staticmethod
    def _hashes(entry: Fragmented, whole: bytes | memoryview) -> Sequence[int]:
        begins, ends = np.array(entry.starts, np.int64), np.array([*entry.starts[1:], len(whole)], np.int64)
        return hash_parts(np.frombuffer(whole, np.uint8), begins, ends)

    def _remember(self, key: Hashable, entry: Fragmented, hashes: Sequence[int]) -> None:
        self.whole.pop(key, None)
        self.whole[key] = entry.time, entry.starts[-MOST_HASHES:], hashes[-MOST_HASHES:]
        if len(self.whole) > MOST_WHOLE:
            self.whole.popitem(last=False)
        self._name(key, entry.time)

    def _name(self, key: Hashable, time: int) -> None:
        self.names.pop(hash(key), None)
        self.names[hash(key)] = time
        if len(self.names) > MOST_NAMES:
            self.names.popitem(last=False)
