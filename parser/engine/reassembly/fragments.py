"""Fragments: each says at which byte of its message it begins."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

from pcaplake.parser.engine.pieces import Fragments

from .assembler import ENTRY_BYTES, GAP, MOST_PIECES, PIECE_BYTES, TOO_LONG, Assembler, Gap, Message, PieceRows

MOST_WHOLE, MOST_HASHES = 1024, 64  # whole messages, and fragments of each, that are remembered


@dataclass(slots=True)
class Fragmented:
    """A message of fragments that is not whole."""

    time: int
    starts: list[int] = field(default_factory=list)  # sorted
    parts: list[bytes] = field(default_factory=list)  # they do not overlap
    total: int = -1  # bytes, when the last fragment is known
    size: int = 0  # bytes of the parts
    pieces: int = 0
    value: int = 0
    offset: int = 0
    cost: int = 0

    def gap(self, piece: int) -> Gap | None:
        return Gap(piece, GAP, self.offset, max(self.total, 0), self.size)

    @property
    def end(self) -> int:
        return self.starts[-1] + len(self.parts[-1])

    def repeats(self, start: int, body: bytes) -> bool:
        """Whether all bytes of this span are there and the same."""
        at, end = start, start + len(body)
        for i in range(max(bisect_right(self.starts, start) - 1, 0), len(self.starts)):
            first = self.starts[i]
            stop = min(first + len(self.parts[i]), end)
            if first > at or at >= end:
                break
            if at < stop:
                if self.parts[i][at - first : stop - first] != body[at - start : stop - start]:
                    return False
                at = stop
        return at == end

    def insert(self, start: int, body: bytes) -> None:
        """Keep the bytes of the span that are not there yet."""
        end = start + len(body)
        i = bisect_right(self.starts, start)
        # rule: what came first counts
        at = start if i == 0 else max(start, self.starts[i - 1] + len(self.parts[i - 1]))
        while at < end:
            stop = min(end, self.starts[i]) if i < len(self.starts) else end
            if at < stop:
                self.starts.insert(i, at)
                self.parts.insert(i, bytes(body[at - start : stop - start]))
                self.size += stop - at
                i += 1
            if i == len(self.starts):
                break
            at = max(at, self.starts[i] + len(self.parts[i]))
            i += 1


class FragmentAssembler(Assembler[Fragmented]):
    def __init__(self, declaration: Fragments, room: int) -> None:
        super().__init__(declaration, room)
        self.whole: OrderedDict[Hashable, dict[int, int]] = OrderedDict()  # hashes of fragments by their starts

    def add_piece(self, piece: int, rows: PieceRows) -> None:
        key, time, body, values = rows.keys[piece], rows.times[piece], rows.bodies[piece], rows.values
        start, end = values["start"][piece], values["start"][piece] + len(body)
        entry = self.entries.get(key)
        if entry is not None and self._begins_anew(entry, start, body, time, values["unique"][piece]):
            self.drop(key, piece)
            entry = None
        # rule: no length is trusted
        if end > self.longest:
            self.gaps.append(Gap(piece, TOO_LONG, rows.offsets[piece], end, self.longest))
            if entry is not None:
                self.forget(key)
            return
        if entry is None:
            # rule: a fragment that repeats a part of a whole message is ignored, unless it is its beginning
            if start > 0 and self.whole.get(key, {}).get(start) == hash(body):
                return
            entry = Fragmented(time)
        before = entry.cost
        entry.time, entry.offset = time, rows.offsets[piece]
        if start == 0:
            # rule: the first fragment tells what the message is
            entry.value = values["value"][piece]
        size = entry.size
        entry.insert(start, body)
        # rule: a fragment that comes twice counts once
        entry.pieces += entry.size > size
        # rule: the first last fragment tells the length
        if not values["more"][piece] and entry.total < 0:
            entry.total = end
        # rule: a message is whole when its last fragment and all before it are there
        if entry.total == entry.size == entry.end:
            self.messages.append(Message(piece, b"".join(entry.parts), entry.pieces, entry.value))
            self._remember(key, entry)
            if before:
                self.forget(key)
            return
        entry.cost = ENTRY_BYTES + PIECE_BYTES * len(entry.starts) + entry.size
        self.keep(key, entry, before)
        # rule: the pieces of a message are bounded
        if len(entry.starts) > MOST_PIECES:
            self.drop(key, piece)

    def _begins_anew(self, entry: Fragmented, start: int, body: bytes, time: int, unique: int) -> bool:
        """Whether this fragment begins a new message, although its key has an incomplete one."""
        # rule: a fragment that comes too late begins a new message
        if self.is_late(time, entry.time):
            return True
        if unique:
            return False
        same = entry.repeats(start, body)
        if start == 0:
            # rule: the beginning begins a new message, unless it repeats the only fragment
            return len(entry.starts) != 1 or not same
        # rule: without a name, fragments come in order
        return not same and start != entry.end

    def _remember(self, key: Hashable, entry: Fragmented) -> None:
        self.whole.pop(key, None)
        self.whole[key] = {
            start: hash(part)
            for start, part in zip(entry.starts[-MOST_HASHES:], entry.parts[-MOST_HASHES:], strict=True)
        }
        if len(self.whole) > MOST_WHOLE:
            self.whole.popitem(last=False)
