"""What a protocol declares so that messages of a capture name keys for the packets after them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Learned:
    """Keys that messages in packets name, but not those that are put together: the bodies of `Rows.within`, or of the rows.

    source  what the messages are, for a reader
    read    read(body) -> (key space, value) of each key that a body names
    leads   key space -> the layer to which its keys lead
    over    layers whose keys may be learned all the same, as they claim many values of which few are theirs
    least   values below this one are never learned
    """

    source: str
    read: Callable[[bytes], Sequence[tuple[Any, int]]]
    leads: Mapping[Any, Any]
    over: Sequence[Any] = ()
    least: int = 0
