"""How the reference puts messages together: bytes by their positions, piece by piece, without any bound on memory.

`add` takes one piece and returns (messages, gaps): (body, pieces, value) and (reason, offset, need, have).
"""

from __future__ import annotations

import struct
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import dpkt

from pcaplake.parser.engine.pieces import Fragments, Reassembly, Segments, Stream

MEMORY = 64 << 20
Messages = list[tuple[bytes, int, int]]
Gaps = list[tuple[str, int, int, int]]


def plain_assembler(kind: Reassembly, kinds: int) -> Any:
    longest = min(kind.longest, MEMORY // kinds // 2)
    for declared, made in ((Fragments, PlainFragments), (Segments, PlainSegments), (Stream, PlainStream)):
        if isinstance(kind, declared):
            return made(kind, longest)
    raise TypeError(kind)


def late(kind: Reassembly, time: int | None, before: int | None) -> bool:
    return None not in (time, before) and abs(time - before) > kind.timeout_ns  # type: ignore[operator]


@dataclass(eq=False)
class Partial:
    """A message: its bytes by position, the spans in which they came, the end, how many pieces gave something."""

    known: dict[int, int] = field(default_factory=dict)
    spans: dict[int, int] = field(default_factory=dict)
    came: list[tuple[int, int]] = field(default_factory=list)  # the spans of all pieces that gave something
    total: int | None = None
    value: int = 0
    time: int | None = None
    offset: int = 0
    cut: bool = False
    told: bool = False  # a gap was told of all its pieces

    def text(self, start: int, end: int) -> bytes:
        return bytes(self.known[i] for i in range(start, end))

    def fits(self, start: int, body: bytes, last: bool) -> bool:
        end = start + len(body)
        if any(self.known.get(start + i, byte) != byte for i, byte in enumerate(body)):
            return False
        if self.total is not None:
            return end == self.total if last else end <= self.total
        return not last or max(self.known) < end

    def take(self, start: int, body: bytes, last: bool) -> None:
        fresh = [start + i for i in range(len(body)) if start + i not in self.known]
        first = start
        for i in fresh:
            if i - 1 not in fresh:
                first = i
            self.spans[first] = i + 1
        self.known |= {i: body[i - start] for i in fresh}
        if fresh:
            self.came.append((start, start + len(body)))
        if last:
            self.total = start + len(body)

    @property
    def is_whole(self) -> bool:
        return self.total is not None and set(self.known) == set(range(self.total))

    @property
    def came_in_order(self) -> bool:
        ends = [0, *(end for _, end in self.came)]
        return all(start <= max(ends[: i + 1]) for i, (start, _) in enumerate(self.came))


class PlainFragments:
    def __init__(self, kind: Fragments, longest: int) -> None:
        self.kind, self.longest = kind, longest
        self.open: dict[
            Hashable, list[Partial]
        ] = {}  # what all pieces make, and what those since the last beginning make
        self.whole: dict[Hashable, tuple[int | None, dict[int, bytes]]] = {}
        self.named: dict[Hashable, int | None] = {}  # when a message was whole, or one ended because another had begun

    def add(self, key: Hashable, time: int | None, body: bytes, offset: int, values: Any) -> tuple[Messages, Gaps]:
        ways = self.open.get(key, [])
        messages, gaps, left = self._add(ways, key, time, body, offset, values)
        if not left or left[:1] != ways[:1]:
            self.open.pop(key, None)  # a new message comes after those that are open
        if left:
            self.open[key] = left
        return messages, gaps

    def _add(
        self, ways: list[Partial], key: Hashable, time: int | None, body: bytes, offset: int, values: Any
    ) -> tuple[Messages, Gaps, list[Partial]]:
        gaps: Gaps = []
        start, last = values["start"], not values["more"]
        if ways and late(self.kind, time, ways[0].time):
            gaps += [self._gap(way) for way in ways[:1] if not way.told]
            ways = []
        if start + len(body) > self.longest:
            return [], [*gaps, ("too_long", offset, start + len(body), self.longest)], []
        unfit = self._unfit(ways, start, body, last)
        gaps += [self._gap(way) for way in unfit if not way.told]
        if unfit:
            self.named[key] = time
        ways = ways[len(unfit) :]
        if not ways:
            before, known = self.whole.get(key, (None, {}))
            if start > 0 and known.get(start) == body and not late(self.kind, time, before):
                return [], gaps, []
            ways = [Partial()]
        elif start == 0 and max(ways[0].known) >= len(body):
            ways = [ways[0], Partial()]
        for way in ways:
            way.take(start, body, last)
            way.time, way.offset, way.told = time, offset, False
            way.cut |= sum(v for name, v in values.items() if name.startswith("stated")) > len(body)
            if start == 0:
                way.value = values["value"]
        while ways and ways[0].is_whole:
            way, *ways = ways
            whole = way.text(0, way.total or 0)
            covered = [v for name, v in values.items() if name.startswith("covered")]
            good = None if way.cut or self.kind.checksum is None else right_checksum(whole, way.value, covered)
            once = values["unique"] and (key not in self.named or late(self.kind, time, self.named[key]))
            begun = way.came[0][0] == 0
            unsure = not begun if once else not way.came_in_order or ways
            for other in ways:
                other.told = not begun
            if good is None and (unsure or (way.cut and self.kind.checksum is None)):
                gaps.append(self._gap(way))
            elif good is False:
                gaps.append(("bad_checksum", *self._gap(way)[1:]))
            else:
                self.whole[key] = time, {first: way.text(first, end) for first, end in way.spans.items()}
                self.named[key] = time
                return [(whole, len(way.came), way.value)], gaps, []
        return [], gaps, ways

    @staticmethod
    def _unfit(ways: list[Partial], start: int, body: bytes, last: bool) -> list[Partial]:
        return [way for i, way in enumerate(ways) if not any(w.fits(start, body, last) for w in ways[: i + 1])]

    @staticmethod
    def _gap(partial: Partial) -> tuple[str, int, int, int]:
        return "gap", partial.offset, partial.total or 0, len(partial.known)

    def finish(self) -> Gaps:
        return [self._gap(ways[0]) for ways in self.open.values() if not ways[0].told]


def right_checksum(datagram: bytes, protocol: int, addresses: list[int]) -> bool | None:
    """RFC 1071, word by word; None if there is no checksum."""
    *addresses, routed = addresses
    if protocol not in (6, 17) or len(datagram) < (18 if protocol == 6 else 8):
        return None
    found = datagram[16:18] if protocol == 6 else datagram[6:8]
    size = len(datagram)
    if protocol == 17 and datagram[4:6] != bytes(2):
        (size,) = struct.unpack(">H", datagram[4:6])
    width = 4 if len(addresses) == 2 else 8
    before = b"".join((word % 2 ** (8 * width)).to_bytes(width, "big") for word in addresses)
    before += struct.pack(">II", protocol, size)
    if int.from_bytes(found, "big") in (0, folded(before)):
        return None
    if size > len(datagram):
        return False
    return folded(before + datagram[:size]) == 0xFFFF or (None if routed else False)


def folded(data: bytes) -> int:
    total = sum(struct.unpack(f">{(len(data) + 1) // 2}H", data + bytes(len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


@dataclass
class Counted:
    bodies: dict[int, bytes]  # by place
    number: int
    total: int
    places: int
    asked: int
    offset: int
    late: int | None = None  # the place that the message before lacks

    @property
    def lacking(self) -> int | None:
        return min(set(range(len(self.bodies) + 1)) - set(self.bodies)) if self.places else None

    @property
    def size(self) -> int:
        return sum(map(len, self.bodies.values()))


class PlainSegments:
    def __init__(self, kind: Segments, longest: int) -> None:
        self.kind, self.longest = kind, longest
        self.open: dict[Hashable, Counted | None] = {}  # None: lost, until a first segment comes; or whole
        self.times: dict[Hashable, int | None] = {}
        self.named: dict[Hashable, int] = {}  # the values of the messages in `open`
        # the last pieces of messages that are whole and have no places, until another piece comes: number, body, time
        self.ended: dict[Hashable, tuple[int, bytes, int | None]] = {}

    def add(self, key: Hashable, time: int | None, body: bytes, offset: int, values: Any) -> tuple[Messages, Gaps]:
        gaps: Gaps = []
        number = values["number"]
        if key in self.open and late(self.kind, time, self.times[key]):
            gaps += self._gap(self.open.pop(key))
        known, now = key in self.open, self.open.get(key)
        if values["ends"]:
            if known and self.named[key] == values["value"]:
                gaps += self._gap(self.open.pop(key))
            return [], gaps
        if now is not None and now.number == number and now.bodies[max(now.bodies)] == body:
            return [], gaps
        ended = self.ended.pop(key, None)
        if (
            ended is not None
            and not values["first"]
            and ended[:2] == (number, body)
            and not late(self.kind, time, ended[2])
        ):
            self.ended[key] = ended
            return [], gaps
        if now is not None and now.places and not values["first"]:
            if number not in range(1, now.places) or (now.asked and now.bodies.get(number) == body):
                return [], gaps
            if len(now.bodies) == 1 and number == now.late != now.number + 1:
                now.late += 1
                return [], gaps
        if values["first"]:
            gaps += self._gap(now)
            self.open.pop(key, None)  # a new message comes after those that are open
            before = None if now is None else now.lacking
            now = Counted({}, number, values["total"], values["places"], values["asked"], offset, before)
            self.named[key] = values["value"]
            if 0 < now.total <= len(body):
                gaps.append(("bad_length", offset, now.total, len(body)))
                now = None
        elif not known:
            gaps.append(("gap", offset, 0, len(body)))
            self.named[key] = 0
        elif now is not None:
            follows = self.kind.wraps_to if now.number + 1 >= self.kind.modulus else now.number + 1
            if number in now.bodies if now.asked else number != follows:
                gaps += self._gap(now)
                now = None
        self.times[key] = time
        self.open[key] = now
        if now is None:
            return [], gaps
        now.bodies[number if now.asked else len(now.bodies)] = body
        now.number, now.offset = number, offset
        if (now.total or now.size) > self.longest:
            self.open[key] = None
            return [], [*gaps, ("too_long", offset, now.total or now.size, self.longest)]
        in_order = [now.bodies[place] for place in sorted(now.bodies)]
        whole = len(in_order) == max(now.bodies) + 1 and now.size >= now.total
        if whole if now.total else values["last"]:
            if now.asked:
                self.open[key] = None
            else:
                del self.open[key]
                self.ended[key] = number, body, time
            joined = b"".join(in_order)
            return [(joined[: now.total] if now.total else joined, len(in_order), self.named[key])], gaps
        return [], gaps

    @staticmethod
    def _gap(now: Counted | None) -> Gaps:
        return [] if now is None else [("gap", now.offset, now.total, now.size)]

    def finish(self) -> Gaps:
        return [gap for now in self.open.values() for gap in self._gap(now)]


@dataclass
class Run:
    """Known bytes from `start` to `end`. Up to `first` they may belong to a message that begins left of the run, unless it is
    `joined` to what is there; up to `next` they are decoded; `found`: a message begins at `next`, and that is `sure`
    if a message was given or the bytes on the left lead there."""

    start: int
    end: int
    first: int
    next: int
    found: bool
    joined: bool = False
    sure: bool = False

    @property
    def pending(self) -> int:
        return self.first - self.start + self.end - self.next


@dataclass
class Direction:
    time: int | None
    last: int
    origin: int | None
    known: dict[int, int] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    offset: int = 0
    ended: bool = False
    begun: int | None = None  # time of its first packet
    has_messages: bool = True  # as far as is known


class PlainStream:
    def __init__(self, kind: Stream, longest: int) -> None:
        self.kind, self.longest = kind, longest
        self.open: dict[Hashable, Direction] = {}

    # -- headers ----------------------------------------------------------------------------------------------------
    def _header(self, d: Direction, at: int, end: int) -> Any:
        frame = self.kind.frame
        if end - at < frame.least:
            return None
        header = frame.packet.__new__(frame.packet)
        dpkt.Packet.unpack(header, bytes(d.known[i] for i in range(at, at + frame.least)))
        return header

    def _length(self, d: Direction, at: int, end: int) -> int | None:
        """Bytes of the message at `at`; 0 if there is none; None if its header is not there."""
        header, frame = self._header(d, at, end), self.kind.frame
        if header is None:
            return None
        if self.kind.length is not None:
            total = self.kind.length(bytes(d.known[i] for i in range(at, end)), 0)
        else:
            total = int(frame.total(header))
        least = max(frame.least, int(frame.header(header)))
        return total if (frame.check is None or frame.check(header)) and total >= least else 0

    def _begins(self, d: Direction, at: int, end: int) -> bool:
        size = self._length(d, at, end)
        if self.kind.resumes != "anywhere" or not size or size > self.longest:
            return False
        if not self.kind.plausible(self._header(d, at, end)):
            return False
        return self._length(d, at + size, end) != 0

    def _is_filled(self, body: bytes, whole: int) -> bool:
        """Whether the bytes are whole messages, of which the first or all are plausible."""
        d, at, end = Direction(None, 0, None, dict(enumerate(body))), 0, len(body)
        headers = []
        while at < end and (size := self._length(d, at, end)) and size <= self.longest:
            headers.append(self._header(d, at, end))
            at += size
        needed = headers if self.kind.resumes == "filled_segment" else headers[:1]
        return at == whole > 0 and all(self.kind.plausible(header) for header in needed)

    # -- pieces -----------------------------------------------------------------------------------------------------
    def add(self, key: Hashable, time: int | None, body: bytes, offset: int, values: Any) -> tuple[Messages, Gaps]:
        self.messages: Messages = []
        self.gaps: Gaps = []
        self.value: int = values["value"]
        self.stated = sum(v for name, v in values.items() if name.startswith("stated"))
        if not body and not values["starts"] and not values["ends"]:
            return [], []
        d, at = self.open.get(key), values["sequence"]
        if d is not None:
            ahead = (at - d.last) % 2**32
            at = d.last + (ahead if ahead < 2**31 else ahead - 2**32)
        at += bool(values["starts"])
        end = at + len(body)
        again = values["starts"] and d is not None and (d.origin != at or d.ended)
        if d is not None and values["starts"] and d.last != at and None not in (time, d.begun):
            again = again or time - d.begun > 10**9  # type: ignore[operator]
        if d is not None and not values["starts"] and len(body) > 1:
            again = late(self.kind, time, d.time) and all(i in d.known for i in range(at, end))
            # in no message yet: before the first one of a run, and behind the last one
            left = {i for run in d.runs for span in ((run.start, run.first), (run.next, run.end)) for i in range(*span)}
            again = again or any(d.known[i] != body[i - at] for i in range(at, end) if i in left)
        if d is not None and again:
            self.gaps += self._lost(self.open.pop(key))
            d = None
        if d is None:
            d = Direction(time, at, at if values["starts"] else None, begun=time, has_messages=not self.kind.mixed)
            if values["starts"] or self._is_filled(body, max(self.stated, len(body))):
                d.runs.append(Run(at, at, at, at, found=True, joined=True, sure=True))
        self.open.pop(key, None)
        self.open[key] = d
        d.time = time
        if body:
            d.offset, d.last = offset, end
            i = at
            while i < end:
                if i in d.known:
                    i += 1
                    continue
                stop = i
                while stop < end and stop not in d.known and (stop == i or all(run.start != stop for run in d.runs)):
                    d.known[stop] = body[stop - at]
                    stop += 1
                self._add_run(d, i, stop, max(self.stated - len(body), 0) if stop == end else 0)
                i = stop
            if self.stated > len(body):
                self._end(d, end, clipped=True)
        if values["ends"]:
            self._end(d, end, clipped=False)
            d.ended = True
        return self.messages, self.gaps

    def _add_run(self, d: Direction, start: int, end: int, cut: int) -> None:
        left = next((run for run in d.runs if run.end == start), None)
        right = next((run for run in d.runs if run.start == end), None)
        if left is None:
            left = Run(start, end, start, start, found=False)
            d.runs.append(left)
            d.runs.sort(key=lambda run: run.start)
        size = self._length(d, start, end)
        begins = size and size <= end - start and self.kind.plausible(self._header(d, start, end))
        if self.kind.resumes == "filled_segment":
            begins = self._is_filled(bytes(d.known[i] for i in range(start, end)), end - start + cut)
        if begins and self.kind.resumes != "first_segment" and not left.sure:
            left.end = start
            self._leave(d, left)
            left.next, left.found = start, True
        left.end = end
        self._decode(d, left)
        if right is None or right is left:
            return
        d.runs.remove(right)
        left.end = right.first
        self._decode(d, left, before=end)
        if not right.sure and not right.joined:
            left.end = right.end
            self._decode(d, left)
            return
        self._leave(d, left)
        left.end, left.next, left.found, left.sure = right.end, right.next, right.found, right.sure
        left.joined = left.joined or right.joined

    def _leave(self, d: Direction, run: Run) -> None:
        if run.sure or run.joined:
            self._note_gap(d, run.end - run.next)
        else:
            run.first = run.end

    def _note_gap(self, d: Direction, lost: int) -> None:
        if lost and d.has_messages:
            self.gaps.append(("gap", d.offset, 0, lost))

    def _decode(self, d: Direction, run: Run, before: int | None = None) -> None:
        """Search, up to the position `before`, and give what is whole."""
        least = self.kind.frame.least
        while True:
            if not run.found:
                at = run.next
                while at + least <= run.end and (at == before or not self._begins(d, at, run.end)):
                    at = run.end - least + 1 if at == before else at + 1
                run.found, run.next = at + least <= run.end, at
                if not run.joined:
                    run.first = at
                if not run.found:
                    return
            at = run.next
            while (size := self._length(d, at, run.end)) and at + size <= run.end and size <= self.longest:
                at += size
                if not self.kind.frame.repeats:
                    self.messages.append((bytes(d.known[i] for i in range(at - size, at)), 1, 0))
                    run.sure, run.next = True, at
            d.has_messages = d.has_messages or at > run.next
            if size and self.kind.plausible(self._header(d, at, run.end)):
                d.has_messages = True
            bad = size is not None and not 0 < size <= self.longest
            if bad and size and d.has_messages:
                self.gaps.append(("too_long", d.offset, size, self.longest))
            stop = at + least if bad and not size and d.has_messages else at
            if stop > run.next:
                self.messages.append((bytes(d.known[i] for i in range(run.next, stop)), 1, self.value))
            run.sure = run.sure or at > run.next
            run.next = at
            if not bad:
                return
            run.found, run.joined, run.sure, before = False, True, False, None

    def _end(self, d: Direction, end: int, *, clipped: bool) -> None:
        for run in d.runs:
            if run.end == end and run.found and run.next < end:
                if clipped and self._length(d, run.next, end):
                    self.messages.append((bytes(d.known[i] for i in range(run.next, end)), 1, self.value))
                    run.next, run.sure = end, True
                elif run.sure:
                    self._note_gap(d, end - run.next)
                    run.next = end
                if self.kind.resumes != "anywhere":
                    run.found, run.sure, run.joined = False, False, True

    def _lost(self, d: Direction) -> Gaps:
        lost = sum(run.pending for run in d.runs)
        return [("gap", d.offset, 0, lost)] if lost and d.has_messages else []

    def finish(self) -> Gaps:
        return [gap for d in self.open.values() for gap in self._lost(d)]
