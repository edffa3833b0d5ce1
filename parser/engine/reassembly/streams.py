"""Streams of bytes in which messages follow each other, decoded as early as possible.

What is known of a stream are *islands*: spans without a hole. A segment behind a hole begins a new island. If a message
begins with it, or a plausible one inside it, the island is decoded at once, so nothing waits for a segment that the capture
may lack. When the hole is filled, the message that ends in the island on its right is whole. Of messages without a mark, all
islands but the first one wait until the hole on their left is filled.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from pcaplake.parser.engine.kernels.encoding import LONGEST_PACKET
from pcaplake.parser.engine.pieces import Stream

from .assembler import ENTRY_BYTES, GAP, TOO_LONG, Assembler, Gap, Message, PieceRows
from .framing import Framing

WINDOW = 1 << 20  # bytes of a stream in which repeated segments are recognized
MOST_ISLANDS = 64  # of one stream


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


@dataclass(slots=True)
class Flow:
    """One direction of a connection."""

    time: int
    last: int  # position of the last byte that was seen
    origin: int | None  # position of the first byte, if its beginning has been seen
    islands: list[Island] = field(default_factory=list)
    lost: int = 0  # bytes of the islands that are in no message yet
    offset: int = 0
    cost: int = 0

    def has(self, first: int, last: int) -> bool:
        return any(island.start <= first and last <= island.end for island in self.islands)

    def gap(self, piece: int) -> Gap | None:
        return Gap(piece, GAP, self.offset, 0, self.lost) if self.lost else None


class StreamAssembler(Assembler[Flow]):
    declaration: Stream

    def __init__(self, declaration: Stream, room: int) -> None:
        super().__init__(declaration, room)
        self.framing = Framing(declaration, self.longest)
        self.value = 0  # of the piece that is added now
        self.stated = [name for name in declaration.values() if name.startswith("stated")]
        self.lengths: list[int] = []  # of the pieces, as stated

    def add_pieces(self, rows: PieceRows) -> tuple[list[Message], list[Gap]]:
        stated = [rows.values[name] for name in self.stated]
        self.lengths = list(map(sum, zip(*stated, strict=True))) if stated else [0] * len(rows.keys)
        return super().add_pieces(rows)

    def add_piece(self, piece: int, rows: PieceRows) -> None:
        key, time, body, values = rows.keys[piece], rows.times[piece], rows.bodies[piece], rows.values
        starts, sequence = values["starts"][piece], values["sequence"][piece]
        # rule: what a stream tells of its messages is what its pieces say
        self.value = values["value"][piece]
        flow = self.entries.get(key)
        ends = values["ends"][piece]
        if not body and not starts and not ends:
            return
        # rule: sequence numbers wrap
        at = sequence if flow is None else flow.last + ((sequence - flow.last + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)
        if starts:
            # rule: the first byte follows the number of the beginning
            at += 1
            # rule: another beginning is another stream
            if flow is not None and flow.origin != at:
                self.drop(key, piece)
                flow = None
        # rule: known bytes that come too late are another stream; a byte may be a keep-alive
        elif flow is not None and len(body) > 1 and self.is_late(time, flow.time) and flow.has(at, at + len(body)):
            self.drop(key, piece)
            flow = None
        if flow is None:
            flow = Flow(time, at, at if starts else None)
            # rule: messages without a mark begin with the stream, or fill the first segment that was captured
            if starts or (not self.declaration.marked and self.framing.is_filled(body)):
                flow.islands.append(Island(at, at, synced=True, sure=True, joined=True))
        before = flow.cost
        flow.time = time
        if body:
            flow.offset = rows.offsets[piece]
            self._add_bytes(flow, at, body, piece)
            flow.last = at + len(body)
            # rule: a segment that was cut when it was captured gives what it has of a message
            if self.lengths[piece] > len(body):
                self._end_island(flow, at + len(body), piece, clipped=True)
        if ends:
            # rule: a message ends before its stream
            self._end_island(flow, at + len(body), piece, clipped=False)
        # rule: the islands of a stream are bounded
        while len(flow.islands) > MOST_ISLANDS:
            lost = flow.islands.pop(0).lost
            flow.lost -= lost
            self._note_gap(flow, lost, piece)
        flow.cost = ENTRY_BYTES * (1 + len(flow.islands)) + flow.lost
        self.keep(key, flow, before)
        self.entries.move_to_end(key)

    def _add_bytes(self, flow: Flow, at: int, body: bytes, piece: int) -> None:
        """Add the bytes from position `at` on that are not known."""
        islands, end, position = flow.islands, at + len(body), at
        while position < end:
            # most segments follow the one before them
            i = len(islands) if islands and islands[-1].end == position else self._next_island(islands, position)
            left = islands[i - 1] if i else None
            # rule: the bytes that came first count
            if left is not None and position < left.end:
                position = left.end
                continue
            stop = min(end, islands[i].start) if i < len(islands) else end
            part = body if stop - position == len(body) else body[position - at : stop - at]
            if left is None or left.end != position:
                left = Island(position, position, synced=False, sure=False, joined=False)
                islands.insert(i, left)
                i += 1
            left.end = stop
            flow.lost -= left.lost
            # rule: a message that is whole in its segment is believed more than a guess
            if (
                not left.sure
                # rule: without a mark, bytes behind a hole are believed to be nothing
                and self.declaration.marked
                and self.framing.is_whole(part)
            ):
                self._leave_data(flow, left, piece)
                left.synced = True
            self._decode(flow, left, part, piece)
            if i < len(islands) and islands[i].start == stop:
                flow.lost -= islands[i].lost
                self._join(flow, left, islands.pop(i), piece)
            flow.lost += left.lost
            # rule: repeated bytes are recognized within a window
            if left.end - left.start > WINDOW:
                left.start = max(left.start, left.end - max(WINDOW, left.lost))
            position = stop

    @staticmethod
    def _next_island(islands: list[Island], position: int) -> int:
        """The index of the first island that begins behind `position`."""
        return bisect_right(islands, position, key=lambda island: island.start)

    def _length(self, data: bytes | bytearray) -> int:
        return self.framing.length(data, 0) if len(data) >= self.framing.least else 0

    def _join(self, flow: Flow, left: Island, right: Island, piece: int) -> None:
        """Append an island that begins where another one ends."""
        self._decode(flow, left, right.lead, piece)
        # rule: what was decoded right of a hole stays, whatever ends there
        if right.sure or right.joined:
            self._leave_data(flow, left, piece)
            left.synced, left.sure, left.data = right.synced, right.sure, right.data
            left.joined = left.joined or right.joined
        else:
            self._decode(flow, left, right.data, piece)
        left.end = right.end

    def _leave_data(self, flow: Flow, island: Island, piece: int) -> None:
        """Go on behind the data: it is lost, or belongs to a message that begins left of the island."""
        if island.sure or island.joined:
            self._note_gap(flow, len(island.data), piece)
        else:
            island.lead += island.data
        island.data = bytearray()

    def _decode(self, flow: Flow, island: Island, part: bytes | bytearray, piece: int) -> None:
        """Append a part to the island, and give the messages that are whole now."""
        framing = self.framing
        if island.synced and not island.data:
            at, wrong = self._give_messages(part, piece)  # most segments begin with a message
            island.data += part[at:] if at else part
        else:
            island.data += part
            at, wrong = self._find_messages(flow, island, piece)
        while wrong is not None:
            if wrong > framing.longest:
                # rule: no length is trusted
                self.gaps.append(Gap(piece, TOO_LONG, flow.offset, wrong, framing.longest))
            island.synced = island.sure = False
            island.joined = True
            at, wrong = self._find_messages(flow, island, piece)
        island.sure = island.sure or at > 0

    def _find_messages(self, flow: Flow, island: Island, piece: int) -> tuple[int, int | None]:
        """Call `_give_messages` for the island's data, from the first message on, and cut what was given off."""
        data = island.data
        if not island.synced:
            found, island.synced = self.framing.find(data, 0)
            # rule: bytes before the first message may belong to one that begins left of the island
            if not island.joined:
                island.lead += data[:found]
                if len(island.lead) > WINDOW:
                    self._note_gap(flow, len(island.lead), piece)
                    island.lead, island.joined = bytearray(), True
            del data[:found]
            if not island.synced:
                return 0, None
        at, wrong = self._give_messages(data, piece)
        del data[:at]
        return at, wrong

    def _give_messages(self, data: bytes | bytearray, piece: int) -> tuple[int, int | None]:
        """Give the whole messages at the beginning of the data.

        Returns where they end, and the length in the header that follows if it cannot be true, else None.
        """
        length, least, longest, size = self.framing.length, self.framing.least, self.framing.longest, len(data)
        first = at = 0
        wrong = None
        while size - at >= least:
            stated = length(data, at)
            # rule: a message is given when it is whole
            if not 0 < stated <= min(longest, size - at):
                wrong = None if 0 < stated <= longest else stated
                break
            at += stated
            if (
                at - first > LONGEST_PACKET
                # rule: messages that do not repeat are decoded one by one
                or not self.declaration.frame.repeats
            ):
                self._give(piece, data[first:at])
                first = at
        # rule: the decoder says what is wrong with a header
        self._give(piece, data[first : at + least if wrong == 0 else at])
        return at, wrong

    def _give(self, piece: int, run: bytes | bytearray) -> None:
        if run:
            self.messages.append(Message(piece, bytes(run), 1, self.value))

    def _end_island(self, flow: Flow, end: int, piece: int, *, clipped: bool) -> None:
        """Nothing continues the message that is incomplete at `end`."""
        for island in flow.islands:
            if island.end == end and island.synced and island.data:
                flow.lost -= island.lost
                if clipped and self._length(island.data):
                    self._give(piece, island.data)
                    island.data, island.sure = bytearray(), True
                elif island.sure:
                    self._leave_data(flow, island, piece)
                flow.lost += island.lost
                # rule: without a mark, nothing follows a message that was cut
                island.synced = self.declaration.marked

    def _note_gap(self, flow: Flow, lost: int, piece: int) -> None:
        if lost:
            self.gaps.append(Gap(piece, GAP, flow.offset, 0, lost))
