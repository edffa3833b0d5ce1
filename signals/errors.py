"""The error of this package, and reasons why something is not read."""

from __future__ import annotations

from collections.abc import Mapping


class DatabaseError(ValueError):
    """A signal database, or the file that assigns databases to buses, cannot be used. The message says what to do."""


_LONGEST = 2000  # characters of all reasons for one place


def add_reason(lost: dict[str, str], place: str, reason: str) -> None:
    """Add why what is at a place is not read, behind the reasons that are known for it."""
    before = lost.get(place)
    if before is None:
        lost[place] = reason
    elif f"; {reason};" not in f"; {before};" and len(before) < _LONGEST:
        lost[place] = f"{before}; {reason}"


def add_reasons(lost: dict[str, str], others: Mapping[str, str]) -> None:
    """Add the reasons of several places."""
    for place, reason in others.items():
        add_reason(lost, place, reason)
