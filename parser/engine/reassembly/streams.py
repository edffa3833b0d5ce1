"""Streams of bytes in which messages follow each other, decoded as early as possible.

What is known of a stream are *islands*: spans without a hole. A segment behind a hole begins a new island. If a message
begins with it, or a plausible one inside it, the island is decoded at once, so nothing waits for a segment that the capture
may lack. When the hole is filled, the message that ends in the island on its right is whole. How sure a beginning must be is
declared (`Stream.resumes`): an island in which none is found waits until the hole on its left is filled.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Sequence
from operator import itemgetter

import numpy as np

from pcaplake.parser.engine.kernels import pieces as kernels
from pcaplake.parser.engine.kernels.encoding import LONGEST_PACKET
from pcaplake.parser.engine.kernels.raw_memory import SLACK
from pcaplake.parser.engine.pieces import SECOND, Stream

from .assembler import ENTRY_BYTES, GAP, NO_TIME, TOO_LONG, Assembler, Gap, Message
from .framing import framing_of
from .islands import WINDOW, Flow, Island
from .piece_rows import PieceRows

MOST_ISLANDS = 64  # of one stream
MOST_WORK = 512  # bytes that are joined for each byte of a stream
LATEST_REPEAT = SECOND  # ns after its beginning a stream may begin again as a repeat: a SYN is sent again before data
LONGEST_RUN = 64  # pieces that are added together: if a header is wrong, what follows it is read again
LEAST_BYTES = 256  # of which the kernel finds the messages faster
by_piece = itemgetter(0)  # of messages and gaps


class StreamAssembler(Assembler[Flow]):
    declaration: Stream

    def __init__(self, declaration: Stream, room: int) -> None:
        super().__init__(declaration, room)
        self.framing = framing_of(declaration, self.longest)
        self.stated = [name for name in declaration.values() if name.startswith("stated")]
        # of the pieces that are added now
        self.lengths: Sequence[int] = ()  # as stated
        self.values: Sequence[int] = ()

    def add_pieces(self, rows: PieceRows) -> tuple[list[Message], list[Gap]]:
        self.lengths = (sum(rows.columns[name] for name in self.stated) + np.zeros(len(rows.keys), np.int64)).tolist()
        self.values = rows.values["value"]
        self.messages, self.gaps = [], []
        most = list(itertools.accumulate([2 * ENTRY_BYTES + size for size in rows.sizes]))  # that pieces can cost
        first = 0
        while first < len(most):
            # rule: streams are independent of each other only while none is dropped to make room
            last = bisect_right(most, (most[first - 1] if first else 0) + self.room - self.held)
            if last > first:
                self._add_by_stream(range(first, last), rows)
            else:
                last = first + 1
                self.add_piece(first, rows)
                self.make_room(first)
            first = last
        return sorted(self.messages, key=by_piece), sorted(self.gaps, key=by_piece)

    def _add_by_stream(self, pieces: Iterable[int], rows: PieceRows) -> None:
        """Add pieces, one stream after the other, because most segments of a stream follow the one before them."""
        streams: dict[Hashable, list[int]] = {}
        starts, ends = rows.values["starts"], rows.values["ends"]
        for piece in pieces:
            # a piece that adds nothing does not make its stream a newer one
            if rows.sizes[piece] or starts[piece] or ends[piece]:
                streams.setdefault(rows.keys[piece], []).append(piece)
        for own in sorted(streams.values(), key=lambda own: own[-1]):
            ends, i = self._ends_of_runs(own, rows), 0
            while i < len(own):
                added = self._add_run(own[i : min(ends[i], i + LONGEST_RUN)], rows) if ends[i] - i > 1 else 0
                if not added:
                    self.add_piece(own[i], rows)
                i += added or 1

    def _ends_of_runs(self, own: Sequence[int], rows: PieceRows) -> list[int]:
        """For each piece of a stream the index behind the last one that follows without a gap, and begins and ends nothing."""
        values, sizes, ends = rows.values, rows.sizes, list(range(1, len(own) + 1))
        sequence, starts, closes = values["sequence"], values["starts"], values["ends"]
        following = -1
        for i in range(len(own) - 1, -1, -1):
            piece, size = own[i], sizes[own[i]]
            if not size or starts[piece] or closes[piece] or self.lengths[piece] > size:
                following = -1
                continue
            if following == (sequence[piece] + size) & 0xFFFFFFFF:
                ends[i] = ends[i + 1]
            following = sequence[piece]
        return ends

    def _add_run(self, pieces: Sequence[int], rows: PieceRows) -> int:
        """Add pieces that follow each other, which is what `add_piece` does for each of them, if they follow what is known.

        Returns how many were added: none, all, or those before a header that cannot be true.
        """
        key, sequence = rows.keys[pieces[0]], rows.values["sequence"][pieces[0]]
        flow = self.entries.get(key)
        island = flow.islands[-1] if flow is not None and flow.islands else None
        if flow is None or island is None or not (flow.known and island.sure and island.synced):
            return 0
        # a long message is not copied with each run of its pieces
        if flow.position(sequence) != island.end or len(island.data) > LONGEST_PACKET:
            return 0
        bodies, begin = [rows.view(piece) for piece in pieces], island.end - len(island.data)
        data = b"".join([island.data, *bodies])
        stops = np.cumsum([len(island.data), *map(len, bodies)])[1:]
        ends, wrong = self._ends_of_messages(data)
        count = len(pieces) if wrong is None else int(np.searchsorted(stops, ends[-1] + self.framing.least))
        if not count:
            return 0
        before, given, end = flow.cost, 1, int(stops[count - 1])
        flow.lost -= island.lost
        for piece, whole in zip(pieces, np.searchsorted(ends, stops[:count], side="right").tolist(), strict=False):
            if whole > given:
                self._give_messages(piece, data, ends[given - 1 : whole])
                given = whole
        at, island.end = ends[given - 1], begin + end
        island.forget(len(island.lead) + end - at)
        island.data = bytearray(data[at:end])
        flow.lost += island.lost
        flow.work += MOST_WORK * sum(map(len, bodies[:count]))
        flow.time, flow.offset, flow.last = rows.times[pieces[count - 1]], rows.offsets[pieces[count - 1]], island.end
        flow.cost = ENTRY_BYTES * (1 + len(flow.islands)) + flow.lost
        self.keep(key, flow, before)
        self.entries.move_to_end(key)
        return count

    def add_piece(self, piece: int, rows: PieceRows) -> None:
        key, time, body, values = rows.keys[piece], rows.times[piece], rows.body(piece), rows.values
        starts, sequence = values["starts"][piece], values["sequence"][piece]
        flow = self.entries.get(key)
        ends = values["ends"][piece]
        if not body and not starts and not ends:
            return
        at = sequence if flow is None else flow.position(sequence)
        if starts:
            # rule: the first byte follows the number of the beginning
            at += 1
            # rule: another beginning is another stream
            if flow is not None and (
                flow.origin != at
                # rule: a beginning after the end is another stream
                or flow.ended
                # rule: a beginning that comes again behind data, and not soon, is another stream
                or (flow.last != at and time - flow.begun > LATEST_REPEAT and NO_TIME not in (time, flow.begun))
            ):
                self.drop(key, piece)
                flow = None
        elif (
            flow is not None
            # rule: a byte may be a keep-alive
            and len(body) > 1
            and (
                # rule: known bytes that come too late are another stream
                (self.is_late(time, flow.time) and flow.has(at, at + len(body)))
                # rule: bytes that differ from those of a message that is not whole are another stream
                or flow.contradicts(at, body)
            )
        ):
            self.drop(key, piece)
            flow = None
        if flow is None:
            flow = Flow(time, at, at if starts else None, begun=time, known=not self.declaration.mixed)
            # rule: messages begin with the stream, or fill the first segment that was captured
            if starts or self.framing.is_filled(body, max(self.lengths[piece], len(body))):
                flow.islands.append(Island(at, at, synced=True, sure=True, joined=True))
        before = flow.cost
        flow.time = time
        if body:
            flow.offset = rows.offsets[piece]
            flow.work += MOST_WORK * len(body)
            self._add_bytes(flow, at, body, piece)
            flow.last = at + len(body)
            # rule: a segment that was cut when it was captured gives what it has of a message
            if self.lengths[piece] > len(body):
                self._end_island(flow, at + len(body), piece, clipped=True)
        if ends:
            # rule: a message ends before its stream
            self._end_island(flow, at + len(body), piece, clipped=False)
            flow.ended = True
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
            cut = max(self.lengths[piece] - len(body), 0) if stop == end else 0
            # rule: a message that is whole in its segment is believed more than a guess
            if not left.sure and self.framing.resumes_with(part, len(part) + cut):
                self._leave_data(flow, left, piece)
                left.synced = True
            self._decode(flow, left, part, piece)
            if i < len(islands) and islands[i].start == stop:
                flow.lost -= islands[i].lost
                self._join(flow, left, islands.pop(i), piece)
            flow.lost += left.lost
            left.forget(left.lost)
            position = stop

    @staticmethod
    def _next_island(islands: list[Island], position: int) -> int:
        """The index of the first island that begins behind `position`."""
        return bisect_right(islands, position, key=lambda island: island.start)

    def _length(self, data: bytes | bytearray) -> int:
        return self.framing.length(data, 0) if len(data) >= self.framing.least else 0

    def _join(self, flow: Flow, left: Island, right: Island, piece: int) -> None:
        """Append an island that begins where another one ends."""
        flow.work -= left.lost + right.lost
        # rule: the work for a stream is bounded
        if flow.work < 0:
            self._note_gap(flow, len(right.lead), piece)
            right.lead, right.joined = bytearray(), True
        # no message begins in the lead, because it was searched before
        self._decode(flow, left, right.lead, piece, stop=len(left.data))
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

    def _decode(
        self, flow: Flow, island: Island, part: bytes | bytearray, piece: int, *, stop: int | None = None
    ) -> None:
        """Append a part to the island, and give the messages that are whole now. stop: as for `Framing.find`."""
        framing = self.framing
        if island.synced and not island.data:
            at, wrong = self._give_whole(flow, part, piece)  # most segments begin with a message
            island.data += part[at:] if at else part
        else:
            island.data += part
            at, wrong = self._find_messages(flow, island, piece, stop)
        while wrong is not None:
            if wrong > framing.longest and flow.known:
                # rule: no length is trusted
                self.gaps.append(Gap(piece, TOO_LONG, flow.offset, wrong, framing.longest))
            island.synced = island.sure = False
            island.joined = True
            at, wrong = self._find_messages(flow, island, piece)
        island.sure = island.sure or at > 0

    def _find_messages(self, flow: Flow, island: Island, piece: int, stop: int | None = None) -> tuple[int, int | None]:
        """Call `_give_whole` for the island's data, from the first message on, and cut what was given off."""
        data = island.data
        if not island.synced:
            found, island.synced = self.framing.find(data, stop)
            # rule: bytes before the first message may belong to one that begins left of the island
            if not island.joined:
                island.lead += data[:found]
                if len(island.lead) > WINDOW:
                    self._note_gap(flow, len(island.lead), piece)
                    island.lead, island.joined = bytearray(), True
            del data[:found]
            if not island.synced:
                return 0, None
        at, wrong = self._give_whole(flow, data, piece)
        del data[:at]
        return at, wrong

    def _give_whole(self, flow: Flow, data: bytes | bytearray, piece: int) -> tuple[int, int | None]:
        """Give the whole messages at the beginning of the data. Returns where they end, and `wrong` of `_ends_of_messages`."""
        ends, wrong = self._ends_of_messages(data)
        # rule: a stream that may be of another protocol is known by a whole message, or a plausible header
        if not flow.known:
            flow.known = ends[-1] > 0 or self.framing.may_begin(data)
        # rule: the decoder says what is wrong with a header
        self._give_messages(
            piece, data, ends if wrong != 0 or not flow.known else [*ends, ends[-1] + self.framing.least]
        )
        return ends[-1], wrong

    def _ends_of_messages(self, data: bytes | bytearray) -> tuple[list[int], int | None]:
        """0 and where each whole message at the beginning of the data ends; the length in the header that follows if it cannot
        be true, else None.
        """
        framing, at, ends, size = self.framing, 0, [0], len(data)
        if framing.terms is not None and size >= LEAST_BYTES:
            found = np.empty(size // framing.least + 2, np.int64)
            words = np.frombuffer(b"".join([data, bytes(SLACK)]), np.uint8)
            n = kernels.find_message_ends(words, size, framing.least, framing.longest, framing.terms, found)
            stated = int(found[n])
            return [0, *found[:n].tolist()], None if stated < 0 or 0 < stated <= framing.longest else stated
        length, least, longest = framing.length, framing.least, framing.longest
        while size - at >= least:
            stated = length(data, at)
            # rule: a message is given when it is whole
            if not 0 < stated <= min(longest, size - at):
                return ends, None if 0 < stated <= longest else stated
            at += stated
            ends.append(at)
        return ends, None

    def _give_messages(self, piece: int, data: bytes | bytearray, ends: Sequence[int]) -> None:
        """Give data[ends[0]:ends[-1]], which is cut at one of the ends if it is long."""
        first = ends[0]
        for end in ends[1:]:
            if (
                end - first > LONGEST_PACKET
                # rule: messages that do not repeat are decoded one by one
                or not self.declaration.frame.repeats
            ):
                self._give(piece, data[first:end])
                first = end
        self._give(piece, data[first : ends[-1]])

    def _give(self, piece: int, run: bytes | bytearray) -> None:
        if run:
            # rule: what a stream tells of its messages is what its pieces say
            value = self.values[piece]
            self.messages.append(Message(piece, bytes(run), 1, value))

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
                # rule: only messages that are searched follow one that was cut
                if self.declaration.resumes != "anywhere":
                    island.synced = island.sure = False
                    island.joined = True

    def _note_gap(self, flow: Flow, lost: int, piece: int) -> None:
        # rule: a stream of another protocol loses no messages
        if lost and flow.known:
            self.gaps.append(Gap(piece, GAP, flow.offset, 0, lost))
