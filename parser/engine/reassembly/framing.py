"""Finds where messages begin and end in a stream of bytes, by what a layer declares of its header."""

from __future__ import annotations

import re
from collections.abc import Callable

from pcaplake.parser.engine.layer import Layer, Range, Term
from pcaplake.parser.engine.pieces import Stream
from pcaplake.parser.errors import CannotCompile

Read = Callable[[bytes | bytearray, int], int]


def compile_term(layer: Layer, value: object) -> Read:
    """The value of a term of `layer`, whose header begins at a position of some bytes."""
    if isinstance(value, int):
        constant = value
        return lambda data, at: constant
    if not isinstance(value, Term) or value.layer is not layer:
        raise CannotCompile(f"a stream of {layer.name} can read its header only, not {value!r}")
    mask, mul, add, order = value.mask & (1 << 64) - 1, value.mul, value.add, "big" if value.big else "little"
    bits = 64 - value.shift if value.big else value.shift + mask.bit_length()
    size = min((bits + 7) // 8, 8)
    shift = value.shift - (64 - 8 * size) if value.big else value.shift
    first, last = value.offset, value.offset + size

    def read(data: bytes | bytearray, at: int) -> int:
        return (int.from_bytes(data[at + first : at + last], order) >> shift & mask) * mul + add  # type: ignore[arg-type]

    return read


class Check:
    """A `Range` over the header of a layer."""

    def __init__(self, layer: Layer, condition: Range | None) -> None:
        self.groups: list[list[tuple[Read, int, int]]] = []
        self.terms: list[list[tuple[Term, int, int]]] = []
        terms = iter(condition.terms if condition is not None else ())
        for count in condition.alternatives if condition is not None else ():
            self.terms.append([next(terms) for _ in range(count)])
            self.groups.append([(compile_term(layer, term), least, most) for term, least, most in self.terms[-1]])

    def holds(self, data: bytes | bytearray, at: int) -> bool:
        return all(any(least <= read(data, at) <= most for read, least, most in group) for group in self.groups)

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
    width, mask = (64 - term.shift + 7) // 8 if term.big else 0, term.mask & (1 << 64) - 1
    if width == 1:
        return {b for b in range(256) if least <= (b >> term.shift - 56 & mask) * term.mul + term.add <= most}
    if width and (term.mul, term.add, term.shift) == (1, 0, 64 - 8 * width) and mask >> 8 * width - 1:
        return {b for b in range(256) if b << 8 * width - 8 <= most}
    return set(range(256))


class Framing:
    """Where the messages of a stream begin and end. longest: bytes of a message."""

    def __init__(self, declaration: Stream, longest: int) -> None:
        frame = declaration.frame
        self.least, self.longest = frame.least, longest
        self._head = compile_term(frame, frame.header(frame))
        self._total = declaration.length or compile_term(frame, frame.total(frame))
        self._check = Check(frame, frame.check(frame) if frame.check is not None else None)
        self._plausible = Check(frame, declaration.plausible(frame))
        self._pattern = self._plausible.pattern(frame.least)
        self._marked = declaration.marked

    def length(self, data: bytes | bytearray, at: int) -> int:
        """Bytes of the message whose header is at `at`, 0 if it is none. The header is there."""
        if not self._check.holds(data, at):
            return 0
        total = self._total(data, at)
        return total if total >= max(self.least, self._head(data, at)) else 0

    def is_start(self, data: bytes | bytearray, at: int) -> bool:
        """Whether a message seems to begin at `at`. The header is there."""
        size = self.length(data, at)
        if not 0 < size <= self.longest or not self._plausible.holds(data, at):
            return False
        after = at + size
        # rule: another header follows a message that was found
        return after + self.least > len(data) or self.length(data, after) > 0

    def is_filled(self, data: bytes) -> bool:
        """Whether whole messages fill the data, of which the first one is plausible."""
        at = 0
        while at + self.least <= len(data) and 0 < (size := self.length(data, at)) <= self.longest:
            at += size
        return 0 < at == len(data) and self._plausible.holds(data, 0)

    def find(self, data: bytes | bytearray, at: int) -> tuple[int, bool]:
        """The first start of a message from `at` on, and True; or the first byte that cannot be judged yet, and False."""
        # rule: without a mark, no message is found among other bytes
        for match in self._pattern.finditer(data, at) if self._marked else ():
            if self.is_start(data, match.start()):
                return match.start(), True
        return max(at, len(data) - self.least + 1), False
