"""Numbered segments: the first one begins a message, the others follow in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pcaplake.parser.engine.kernels import pieces as kernels
from pcaplake.parser.engine.pieces import Segments

from .assembler import BAD_LENGTH, ENTRY_BYTES, GAP, PIECE_BYTES, TOO_LONG, Assembler, Gap, Message
from .piece_rows import PieceRows
from .runs import Run, Runs, find_runs


@dataclass(slots=True)
class Numbered:
    """A message of numbered segments.

    late     the number that the message before lacks, 0 if none
    lost     a segment is missing, so all up to the next first segment are useless; or a message whose segments are asked for is
             whole, and they come again
    whole    another message is; only its last segment may come again
    parts    of a message with places, b"" stands for a segment that is missing; of a whole one, the last segment
    """

    number: int = 0  # of the last segment
    total: int = 0  # bytes, 0 if the last segment tells the end
    value: int = 0
    places: int = 0
    asked: int = 0
    late: int = 0
    lost: bool = False
    whole: bool = False
    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    time: int = 0
    offset: int = 0
    cost: int = 0

    def gap(self, piece: int) -> Gap | None:
        return None if self.lost or self.whole else Gap(piece, GAP, self.offset, self.total, self.size)

    def ends_with(self, number: int, body: bytes) -> bool:
        """Whether this is the last segment that came."""
        return bool(self.parts) and number == self.number and self.parts[-1] == body


class SegmentAssembler(Assembler[Numbered]):
    declaration: Segments

    def add_piece(self, piece: int, rows: PieceRows) -> None:
        key, time, body, values = rows.keys[piece], rows.times[piece], rows.body(piece), rows.values
        number, entry = values["number"][piece], self.entries.get(key)
        # rule: a segment that comes too late does not continue a message
        if entry is not None and self.is_late(time, entry.time):
            self.drop(key, piece)
            entry = None
        if values["ends"][piece]:
            # rule: a message is ended by its own value
            if entry is not None and entry.value == values["value"][piece]:
                self.drop(key, piece)
            return
        # rule: a segment that comes twice counts once
        if (
            entry is not None
            and entry.ends_with(number, body)
            # rule: a first segment is none of the message before it
            and not (entry.whole and values["first"][piece])
        ):
            return
        # rule: nothing else belongs to a whole message
        if entry is not None and entry.whole:
            self.forget(key)
            entry = None
        if values["first"][piece]:
            late = 0 if entry is None else self._lacking(entry)
            # rule: a first segment begins a new message
            if entry is not None:
                self.drop(key, piece)
            total, value, places, asked = (values[name][piece] for name in ("total", "value", "places", "asked"))
            entry = Numbered(number, total, value, places, asked, late)
            # rule: a first segment does not hold the whole message
            if 0 < total <= len(body):
                self.gaps.append(Gap(piece, BAD_LENGTH, rows.offsets[piece], total, len(body)))
                self._lose(entry)
        elif entry is None:
            # rule: a message without its first segment is lost
            self.gaps.append(Gap(piece, GAP, rows.offsets[piece], 0, len(body)))
            entry = Numbered(lost=True)
        elif not entry.lost:
            if self._is_none_of(entry, number, body):
                return
            # rule: a missing segment ends the message
            if not self._continues(entry, number):
                self.gaps.append(Gap(piece, GAP, entry.offset, entry.total, entry.size))
                self._lose(entry)
        before = entry.cost
        entry.time = time
        if not entry.lost:
            entry.number, entry.offset = number, rows.offsets[piece]
            place = number if entry.asked else len(entry.parts)
            entry.parts += [b""] * (place + 1 - len(entry.parts))
            entry.parts[place] = body
            entry.size += len(body)
            # rule: no length is trusted
            if (entry.total or entry.size) > self.longest:
                self.gaps.append(Gap(piece, TOO_LONG, entry.offset, entry.total or entry.size, self.longest))
                self._lose(entry)
            # rule: the total, or the last segment, ends a message
            elif self._is_whole(entry) if entry.total else values["last"][piece]:
                message = b"".join(entry.parts)[: entry.total or None]
                self.messages.append(Message(piece, message, len(entry.parts), entry.value))
                # rule: segments of a whole message may come again, if they are asked for
                if entry.asked:
                    self._lose(entry)
                else:
                    entry.whole, entry.parts, entry.size = True, entry.parts[-1:], len(body)
        entry.cost = ENTRY_BYTES + PIECE_BYTES * len(entry.parts) + entry.size
        self.keep(key, entry, before)

    def find_runs(self, pieces: range, rows: PieceRows) -> Runs:
        columns, n, declared = rows.columns, len(rows.keys), self.declaration
        # rule: a segment of a run has no place, and ends no other message
        others = columns["places"] | columns["asked"] | columns["ends"]
        given = (rows.groups, rows.packet_times, rows.begins, rows.ends)
        said = columns["first"], columns["number"], columns["last"], columns["total"], others

        def find(latest: Any, before: Any, counts: Any, *found: Any) -> int:
            limits = pieces.start, pieces.stop, self.longest, declared.modulus, declared.wraps_to, declared.timeout_ns
            memory: Any = (
                latest,
                before,
                counts,
                *np.empty((2, n), np.int64),
            )  # mypy does not follow so many groups of arguments
            return kernels.find_segment_runs(*given, *said, *limits, *memory, *found)

        return find_runs(rows, pieces, find)

    def begin_run(self, run: Run, rows: PieceRows) -> bool:
        key, first, last = rows.keys[run.pieces[0]], run.pieces[0], run.pieces[-1]
        if before := self.entries.get(key):
            # rule: a run of segments does not begin with a segment that comes twice
            if not before.whole and before.ends_with(rows.values["number"][first], rows.body(first)):
                return False
            self.drop(key, first)
        # what `add_piece` leaves of a whole message; nothing sees it before its last piece
        entry = Numbered(
            rows.values["number"][last], rows.values["total"][first], rows.values["value"][first], whole=True
        )
        body = rows.body(last)
        entry.parts, entry.size, entry.time, entry.offset = [body], len(body), rows.times[last], rows.offsets[last]
        entry.cost = ENTRY_BYTES + PIECE_BYTES + len(body)
        self.keep(key, entry, 0)
        return True

    def end_run(self, run: Run, rows: PieceRows) -> None:
        total, value = (rows.values[name][run.pieces[0]] for name in ("total", "value"))
        self.messages.append(Message(run.pieces[-1], run.body[: total or None], len(run.pieces), value))

    @staticmethod
    def _lose(entry: Numbered) -> None:
        entry.lost, entry.parts, entry.size = True, [], 0

    def _is_none_of(self, entry: Numbered, number: int, body: bytes) -> bool:
        """Whether a segment changes nothing of the message."""
        if not entry.places:
            return False
        # rule: a number beyond the places is none
        if not number or number >= entry.places:
            return True
        # rule: the segment that the message before lacks may come late
        if number == entry.late and len(entry.parts) == 1 and number != self._next_number(entry.number):
            entry.late += 1
            return True
        # rule: a segment that is asked for may come again
        return bool(entry.asked) and entry.parts[number : number + 1] == [body]

    def _continues(self, entry: Numbered, number: int) -> bool:
        """Whether the segment with this number may follow."""
        # rule: a segment that is asked for may come later
        if entry.asked:
            # rule: a segment that comes again is the same
            return not any(entry.parts[number : number + 1])
        return number == self._next_number(entry.number)

    def _lacking(self, entry: Numbered) -> int:
        """The number that an incomplete message with places lacks, 0 if there is none."""
        if entry.lost or entry.whole or not entry.places:
            return 0
        return entry.parts.index(b"") if b"" in entry.parts else len(entry.parts)

    @staticmethod
    def _is_whole(entry: Numbered) -> bool:
        return (
            entry.size >= entry.total
            # rule: a message with places has no empty one
            and (not entry.asked or all(entry.parts))
        )

    def _next_number(self, number: int) -> int:
        # rule: numbers wrap
        return number + 1 if number + 1 < self.declaration.modulus else self.declaration.wraps_to
