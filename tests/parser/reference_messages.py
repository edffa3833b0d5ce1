"""How the reference puts messages together: bytes by their positions, piece by piece, without any bound on memory.

`add` takes one piece and returns (messages, gaps): (body, pieces, value) and (reason, offset, need, have).
"""

from __future__ import annotations

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


@dataclass
class Partial:
    """A message: its bytes by position, the spans in which they came, the end, how many pieces gave something."""

    known: dict[int, int] = field(default_factory=dict)
    spans: dict[int, int] = field(default_factory=dict)
    total: int | None = None
    pieces: int = 0
    value: int = 0
    time: int | None = None
    offset: int = 0

    def text(self, start: int, end: int) -> bytes:
        return bytes(self.known[i] for i in range(start, end))


class PlainFragments:
    def __init__(self, kind: Fragments, longest: int) -> None:
        self.kind, self.longest = kind, longest
        self.open: dict[Hashable, Partial] = {}
        self.whole: dict[Hashable, dict[int, bytes]] = {}

    def add(self, key: Hashable, time: int | None, body: bytes, offset: int, values: Any) -> tuple[Messages, Gaps]:
        messages: Messages = []
        gaps: Gaps = []
        start, end = values["start"], values["start"] + len(body)
        partial = self.open.get(key)
        if partial is not None and self._anew(partial, start, body, time, values["unique"]):
            gaps.append(self._gap(self.open.pop(key)))
            partial = None
        if end > self.longest:
            self.open.pop(key, None)
            return messages, [*gaps, ("too_long", offset, end, self.longest)]
        if partial is None:
            if start > 0 and self.whole.get(key, {}).get(start) == body:
                return messages, gaps
            partial = self.open[key] = Partial()
        partial.time, partial.offset = time, offset
        if start == 0:
            partial.value = values["value"]
        fresh = [i for i in range(start, end) if i not in partial.known]
        partial.pieces += bool(fresh)
        for i in fresh:
            if i - 1 not in fresh or i == start:
                first = i
                partial.spans[first] = i
            partial.spans[first] = i + 1
        partial.known |= {i: body[i - start] for i in fresh}
        if not values["more"] and partial.total is None:
            partial.total = end
        if partial.total is not None and set(partial.known) == set(range(partial.total)):
            messages.append((partial.text(0, partial.total), partial.pieces, partial.value))
            self.whole[key] = {first: partial.text(first, last) for first, last in partial.spans.items()}
            del self.open[key]
        return messages, gaps

    def _anew(self, partial: Partial, start: int, body: bytes, time: int | None, unique: int) -> bool:
        if late(self.kind, time, partial.time):
            return True
        if unique:
            return False
        same = all(partial.known.get(start + i) == byte for i, byte in enumerate(body))
        if start == 0:
            return not (same and len(partial.spans) == 1)
        return not same and start != max(partial.known) + 1

    @staticmethod
    def _gap(partial: Partial) -> tuple[str, int, int, int]:
        return "gap", partial.offset, partial.total or 0, len(partial.known)

    def finish(self) -> Gaps:
        return [self._gap(partial) for partial in self.open.values()]


@dataclass
class Counted:
    bodies: dict[int, bytes]  # by place
    number: int
    total: int
    places: int
    offset: int

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
            if number in now.bodies or number not in range(1, now.places):
                return [], gaps
        elif values["first"]:
            gaps += self._gap(now)
            self.open.pop(key, None)  # a new message comes after those that are open
            now = Counted({}, number, values["total"], values["places"], offset)
            self.named[key] = values["value"]
        elif not known:
            gaps.append(("gap", offset, 0, len(body)))
            self.named[key] = 0
        elif now is not None:
            follows = self.kind.wraps_to if now.number + 1 >= self.kind.modulus else now.number + 1
            if number != follows:
                gaps += self._gap(now)
                now = None
        self.times[key] = time
        self.open[key] = now
        if now is None:
            return [], gaps
        now.bodies[number if now.places else len(now.bodies)] = body
        now.number, now.offset = number, offset
        if (now.total or now.size) > self.longest:
            self.open[key] = None
            return [], [*gaps, ("too_long", offset, now.total or now.size, self.longest)]
        in_order = [now.bodies[place] for place in sorted(now.bodies)]
        whole = len(in_order) == max(now.bodies) + 1 and now.size >= now.total
        if whole if now.total else values["last"]:
            if now.places:
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
        again = values["starts"] and d is not None and d.origin != at
        if d is not None and not values["starts"] and len(body) > 1 and late(self.kind, time, d.time):
            again = again or all(i in d.known for i in range(at, end))
        if d is not None and again:
            self.gaps += self._lost(self.open.pop(key))
            d = None
        if d is None:
            d = Direction(time, at, at if values["starts"] else None)
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
        self._decode(d, left)
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
        if lost:
            self.gaps.append(("gap", d.offset, 0, lost))

    def _decode(self, d: Direction, run: Run) -> None:
        least = self.kind.frame.least
        while True:
            if not run.found:
                at = run.next
                while at + least <= run.end and not self._begins(d, at, run.end):
                    at += 1
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
            bad = size is not None and not 0 < size <= self.longest
            if bad and size:
                self.gaps.append(("too_long", d.offset, size, self.longest))
            stop = at + least if bad and not size else at
            if stop > run.next:
                self.messages.append((bytes(d.known[i] for i in range(run.next, stop)), 1, self.value))
            run.sure = run.sure or at > run.next
            run.next = at
            if not bad:
                return
            run.found, run.joined, run.sure = False, True, False

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
        return [("gap", d.offset, 0, lost)] if lost else []

    def finish(self) -> Gaps:
        return [gap for d in self.open.values() for gap in self._lost(d)]
