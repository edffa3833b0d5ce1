"""What is known of a stream: spans of bytes without a hole."""

from __future__ import annotations

from dataclasses import dataclass, field

from .assembler import GAP, Gap

WINDOW = 1 << 20  # bytes of a stream in which repeated segments are recognized


@dataclass(slots=True)
class Island:
    """Known bytes of a stream without a hole, from `start` to `end`.

    lead     bytes before the first message that was found: the end of one that begins left of the island
    data     what has not been decoded: it begins with a message if `synced`, else one is searched in it
    sure     `synced` is no guess: a message was given, or what is on the left leads there
    joined   whether the bytes on its left have been there, so that `lead` is of no use
    """

    start: int
    end: int
    synced: bool
    sure: bool
    joined: bool
    lead: bytearray = field(default_factory=bytearray)
    data: bytearray = field(default_factory=bytearray)

    @property
    def lost(self) -> int:
        return len(self.lead) + len(self.data)

    def contradicts(self, at: int, body: bytes) -> bool:
        """Whether bytes differ from the lead or the data where they overlap."""
        parts = [(self.end - len(self.data), self.data)]
        # where the lead was is known until bytes are forgotten
        if self.end - self.start < WINDOW:
            parts.append((self.start, self.lead))
        for start, known in parts:
            first, last = max(at, start), min(at + len(body), start + len(known))
            if first < last and known[first - start : last - start] != body[first - at : last - at]:
                return True
        return False

    def forget(self, lost: int) -> None:
        """Forget bytes that were decoded long ago; `lost` bytes were not."""
        # rule: repeated bytes are recognized within a window
        if self.end - self.start > WINDOW:
            self.start = max(self.start, self.end - max(WINDOW, lost))


@dataclass(slots=True)
class Flow:
    """One direction of a connection."""

    time: int
    last: int  # position behind the last byte that was seen
    origin: int | None  # position of the first byte, if its beginning has been seen
    islands: list[Island] = field(default_factory=list)
    ended: bool = False
    lost: int = 0  # bytes of the islands that are in no message yet
    work: int = 0  # bytes that may be joined
    offset: int = 0
    cost: int = 0
    begun: int = 0  # time of its first packet
    known: bool = True  # to have messages

    def position(self, sequence: int) -> int:
        """Of the byte with this number, which is at most 2**31 from the last one."""
        # rule: sequence numbers wrap
        return self.last + ((sequence - self.last + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)

    def has(self, first: int, last: int) -> bool:
        return any(island.start <= first and last <= island.end for island in self.islands)

    def contradicts(self, at: int, body: bytes) -> bool:
        """Whether bytes differ from those that are known and in no message yet."""
        islands = self.islands
        # most segments follow the one before them
        return bool(islands) and at < islands[-1].end and any(island.contradicts(at, body) for island in islands)

    def gap(self, piece: int) -> Gap | None:
        return Gap(piece, GAP, self.offset, 0, self.lost) if self.lost and self.known else None
