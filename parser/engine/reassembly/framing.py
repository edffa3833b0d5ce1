"""Finds where messages begin and end in a stream of bytes, by what a layer declares of its header."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import numpy as np

from pcaplake.parser.engine.layer import Layer, Range, Term
from pcaplake.parser.engine.pieces import Stream
from pcaplake.parser.errors import CannotCompile

LARGEST = (1 << 63) - 1
Read = Callable[[bytes | bytearray, int], int]


def expression(layer: Layer, value: object) -> str:
    """A term of `layer` as Python: its value in `data`, if the header is at `at`."""
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, Term) or value.layer is not layer:
        raise CannotCompile(f"a stream of {layer.name} can read its header only, not {value!r}")
    mask, mul, add, order = value.mask & (1 << 64) - 1, value.mul, value.add, "big" if value.big else "little"
    bits = 64 - value.shift if value.big else value.shift + mask.bit_length()
    size = min((bits + 7) // 8, 8)
    shift = value.shift - (64 - 8 * size) if value.big else value.shift
    first, last = value.offset, value.offset + size
    read = f"data[at + {first}]" if size == 1 else f"from_bytes(data[at + {first} : at + {last}], {order!r})"
    if shift or mask < (1 << 8 * size) - 1:
        read = f"({read} >> {shift} & {mask})"
    return f"({read} * {mul} + {add})" if (mul, add) != (1, 0) else read


def compile_expression(text: str, **names: object) -> Read:
    """The function of `data` and `at` that has this value, as one call, because it is called for each message."""
    function: Read = eval(f"lambda data, at: {text}", {"from_bytes": int.from_bytes, **names})
    return function


class Check:
    """A `Range` over the header of a layer."""

    def __init__(self, layer: Layer, condition: Range | None) -> None:
        self.terms: list[list[tuple[Term, int, int]]] = []
        terms = iter(condition.terms if condition is not None else ())
        for count in condition.alternatives if condition is not None else ():
            self.terms.append([next(terms) for _ in range(count)])
        groups = (
            " or ".join(f"{least} <= {expression(layer, term)} <= {most}" for term, least, most in group)
            for group in self.terms
        )
        self.text = " and ".join(f"({group})" for group in groups) or "True"
        self.holds = compile_expression(self.text)

    def pattern(self, size: int) -> re.Pattern[bytes]:
        """Matches, without consuming a byte, where headers of `size` bytes may pass: a quick search before `holds`."""
        allowed = [set(range(256)) for _ in range(size)]
        for group in self.terms:
            if len({term.offset for term, _, _ in group}) == 1:
                allowed[group[0][0].offset] &= set[int]().union(*(_first_bytes(*condition) for condition in group))
        classes = (
            b"." if len(c) == 256 else b"[" + b"".join(b"\\x%02x" % b for b in sorted(c)) + b"]" for c in allowed
        )
        return re.compile(b"(?=" + b"".join(classes) + b")", re.DOTALL)


def _first_bytes(term: Term, least: int, most: int) -> set[int]:
    """The bytes with which a field may begin whose term is in this range, and perhaps others."""
    if not term.big or term.mul < 0:
        return set(range(256))
    shift, mask, mul, add, rest = term.shift, term.mask & (1 << 64) - 1, term.mul, term.add, (1 << 56) - 1
    return {  # the term grows with each bit of the word
        b
        for b in range(256)
        if (b << 56 >> shift & mask) * mul + add <= most and ((b << 56 | rest) >> shift & mask) * mul + add >= least
    }


def _term_row(value: object, least: int = 0, most: int = 0, *, more: bool = False) -> list[int]:
    """A term of the header, and bounds, for `find_message_ends`."""
    least, most = max(least, -LARGEST - 1), min(most, LARGEST)
    if isinstance(value, int):
        return [0, 0, 0, 0, value, 0, least, most, more]
    assert isinstance(value, Term)
    mask = value.mask & (1 << 64) - 1
    mask = mask if mask <= LARGEST else mask - (1 << 64)
    return [value.offset, value.shift, mask, value.mul, value.add, value.big, least, most, more]


class Framing:
    """Where the messages of a stream begin and end. longest: bytes of a message."""

    def __init__(self, declaration: Stream, longest: int) -> None:
        frame = declaration.frame
        self.least, self.longest = frame.least, longest
        check, head = Check(frame, frame.check(frame) if frame.check is not None else None), frame.header(frame)
        total = "length(data, at)" if declaration.length else expression(frame, frame.total(frame))
        valid = f"total if (total := {total}) >= max({self.least}, {expression(frame, head)}) else 0"
        # bytes of the message whose header is at a position of the data, 0 if it is none
        self.length = compile_expression(f"({valid}) if {check.text} else 0", length=declaration.length)
        # the same for `find_message_ends`
        self.terms = None
        if not declaration.length:
            rows = [_term_row(frame.total(frame)), _term_row(head)]
            for group in check.terms:
                rows += [_term_row(*condition, more=i < len(group)) for i, condition in enumerate(group, 1)]
            self.terms = np.array(rows, np.int64)
        self._plausible = Check(frame, declaration.plausible(frame))
        self._pattern = self._plausible.pattern(frame.least)
        self._resumes = declaration.resumes

    def is_start(self, data: bytes | bytearray, at: int) -> bool:
        """Whether a message seems to begin at `at`. The header is there."""
        size = self.length(data, at)
        if not 0 < size <= self.longest or not self._plausible.holds(data, at):
            return False
        after = at + size
        # rule: another header follows a message that was found
        return after + self.least > len(data) or self.length(data, after) > 0

    def may_begin(self, data: bytes | bytearray) -> bool:
        """Whether the data begin with a plausible header."""
        return len(data) >= self.least and self.length(data, 0) > 0 and bool(self._plausible.holds(data, 0))

    def resumes_with(self, segment: bytes, size: int) -> bool:
        """Whether messages begin with this segment, whatever the bytes before it were taken for. size: as for `is_filled`."""
        # rule: a segment behind a hole may begin with a message, if that is seldom wrong
        if self._resumes == "first_segment":
            return False
        # rule: messages that resemble other bytes must fill the segment
        return self._is_whole(segment) if self._resumes == "anywhere" else self.is_filled(segment, size)

    def _is_whole(self, data: bytes) -> bool:
        """Whether a plausible message begins with the data, and ends in it."""
        if len(data) < self.least or not 0 < self.length(data, 0) <= len(data):
            return False
        # rule: zero bytes may be a header, but not one by which a message is found
        return bool(self._plausible.holds(data, 0))

    def is_filled(self, data: bytes, size: int) -> bool:
        """Whether whole messages fill the `size` bytes of a segment, of which `data` was captured. The first one is plausible, or
        all are if other segments may be filled too.
        """
        # rule: a message among others may be empty, unless any segment may be taken for messages
        each, at = self._resumes == "filled_segment", 0
        while at + self.least <= len(data) and 0 < (stated := self.length(data, at)) <= self.longest:
            if (each or at == 0) and not self._plausible.holds(data, at):
                return False
            at += stated
        # rule: a segment that was cut when it was captured counts as if it were whole
        return 0 < at == size

    def find(self, data: bytes | bytearray, stop: int | None = None) -> tuple[int, bool]:
        """The first start of a message, and True; or the first byte that cannot be judged yet, and False.

        stop: no message is known to begin from here on.
        """
        end = len(data) if stop is None else min(stop + self.least - 1, len(data))
        # rule: messages that resemble other bytes are not searched
        for match in self._pattern.finditer(data, 0, end) if self._resumes == "anywhere" else ():
            if self.is_start(data, match.start()):
                return match.start(), True
        return max(0, len(data) - self.least + 1), False


@functools.lru_cache(maxsize=64)
def framing_of(declaration: Stream, longest: int) -> Framing:
    """The framing of a stream, which all captures share: to compile it takes longer than to decode a small one."""
    return Framing(declaration, longest)
