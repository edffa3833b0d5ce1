"""What a database says of a message, in one form for all file formats: plain data that pickles and hashes.

Must not know numpy, files or Spark.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Literal

DECODER_REVISION = 1
"""Part of every hash: raised when the same definition gives other rows, so that history is decoded again."""

Kind = Literal["can", "lin"]
Coding = Literal["integer", "float", "bcd", "ascii"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """value = raw * factor + offset, for raw values from `low` to `high` (both included; None: no bound)."""

    factor: float = 1
    offset: float = 0
    unit: str | None = None
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """The signal is there when the multiplexer with this place in the message has one of these raw values."""

    signal: int
    ids: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """One signal of a message.

    `start`, `big_endian`: as a DBC counts bits (little endian: the least significant, big endian: the most).
    `length` in bits. `scales`: the first that holds a raw value counts; none does: the value is null.
    `minimum`, `maximum`: bounds of the value outside which it is not `valid`; `invalid`: raw value that says so itself.
    `choices`: (raw value, label). `parents`: all must hold.
    """

    name: str
    start: int
    length: int
    big_endian: bool = False
    signed: bool = False
    coding: Coding = "integer"
    scales: tuple[Scale, ...] = (Scale(),)
    minimum: float | None = None
    maximum: float | None = None
    invalid: float | None = None
    choices: tuple[tuple[int, str], ...] = ()
    parents: tuple[Parent, ...] = ()

    @property
    def first_bit(self) -> int:
        """Where it begins, counted as bits are sent in big endian, from the first bit of the first byte."""
        return 8 * (self.start // 8) + 7 - self.start % 8 if self.big_endian else self.start

    @property
    def needs_bytes(self) -> int:
        """Shortest payload that holds the whole signal."""
        return -(-(self.first_bit + self.length) // 8)


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message. `length` in bytes; `id` of a LIN frame is its 6 bits."""

    kind: Kind
    id: int
    extended: bool
    name: str
    length: int
    signals: tuple[Signal, ...]
    database: str = ""

    @cached_property
    def hash(self) -> str:
        """16 hex digits that change when its rows do; which file it came from does not count."""
        said = asdict(self)
        del said["database"]
        text = json.dumps([DECODER_REVISION, said], sort_keys=True, default=sorted)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
