"""Numbered segments: the first one begins a message, the others follow in order."""

from __future__ import annotations

from dataclasses import dataclass, field

from pcaplake.parser.engine.pieces import Segments

from .assembler import ENTRY_BYTES, GAP, PIECE_BYTES, TOO_LONG, Assembler, Gap, Message, PieceRows


@dataclass(slots=True)
class Numbered:
    """A message of numbered segments. `lost`: a segment is missing, so all up to the next first segment are useless."""

    number: int = 0  # of the last segment
    total: int = 0  # bytes, 0 if the last segment tells the end
    value: int = 0
    lost: bool = False
    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    time: int = 0
    offset: int = 0
    cost: int = 0

    def gap(self, piece: int) -> Gap | None:
        return None if self.lost else Gap(piece, GAP, self.offset, self.total, self.size)


class SegmentAssembler(Assembler[Numbered]):
    declaration: Segments

    def add_piece(self, piece: int, rows: PieceRows) -> None:
        key, time, body, values = rows.keys[piece], rows.times[piece], rows.bodies[piece], rows.values
        number, entry = values["number"][piece], self.entries.get(key)
        # rule: a segment that comes too late does not continue a message
        if entry is not None and self.is_late(time, entry.time):
            self.drop(key, piece)
            entry = None
        # rule: a segment that comes twice counts once
        if entry is not None and not entry.lost and number == entry.number and entry.parts[-1] == body:
            return
        if values["first"][piece]:
            # rule: a first segment begins a new message
            if entry is not None:
                self.drop(key, piece)
            entry = Numbered(number, values["total"][piece], values["value"][piece])
        elif entry is None:
            # rule: a message without its first segment is lost
            self.gaps.append(Gap(piece, GAP, rows.offsets[piece], 0, len(body)))
            entry = Numbered(lost=True)
        # rule: a missing segment ends the message
        elif not entry.lost and number != self._next_number(entry.number):
            self.gaps.append(Gap(piece, GAP, entry.offset, entry.total, entry.size))
            self._lose(entry)
        before = entry.cost
        entry.time = time
        if not entry.lost:
            entry.number, entry.offset = number, rows.offsets[piece]
            entry.parts.append(bytes(body))
            entry.size += len(body)
            # rule: no length is trusted
            if (entry.total or entry.size) > self.longest:
                self.gaps.append(Gap(piece, TOO_LONG, entry.offset, entry.total or entry.size, self.longest))
                self._lose(entry)
            # rule: the total, or the last segment, ends a message
            elif entry.size >= entry.total if entry.total else values["last"][piece]:
                message = b"".join(entry.parts)[: entry.total or None]
                self.messages.append(Message(piece, message, len(entry.parts), entry.value))
                if before:
                    self.forget(key)
                return
        entry.cost = ENTRY_BYTES + PIECE_BYTES * len(entry.parts) + entry.size
        self.keep(key, entry, before)

    @staticmethod
    def _lose(entry: Numbered) -> None:
        entry.lost, entry.parts, entry.size = True, [], 0

    def _next_number(self, number: int) -> int:
        # rule: numbers wrap
        return number + 1 if number + 1 < self.declaration.modulus else self.declaration.wraps_to
