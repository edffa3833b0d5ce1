"""The position of a run in the log of a table that it follows, as transactions of the table that it writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_DONE: Final = 1 << 32
UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class OpenRange:
    """A range of versions that a run has begun: up to version `until` - 1, which stays the end until all of it is done.

    `whole`: all rows are made again, one partition after the other, and `done` is the ordinal of the last partition that is done.
    Otherwise, what was replaced is done, and `done` of the appended files.
    """

    until: int
    whole: bool = False
    done: int = 0

    def to_number(self) -> int:
        """As the version of a transaction; it grows as the run proceeds. `until` below 2^30, `done` below 2^32."""
        return (2 * self.until + self.whole) * _DONE + self.done

    @classmethod
    def from_number(cls, number: int) -> OpenRange:
        half, done = divmod(number, _DONE)
        return cls(until=half // 2, whole=bool(half % 2), done=done)


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The versions below `followed` are done; UNKNOWN: it is not known, 0: none. `range`: the range that is begun after them."""

    followed: int = UNKNOWN
    range: OpenRange | None = None

    @classmethod
    def from_numbers(cls, followed: int, begun: int) -> Position:
        """From the versions of the two transactions; -1: there is none. 0 and no range: it was forgotten."""
        known = OpenRange.from_number(begun) if begun >= 0 else None
        if known is not None and known.until > followed:
            return cls(followed=followed, range=known)
        return cls(followed=followed or UNKNOWN)
