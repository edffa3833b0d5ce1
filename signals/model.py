"""Messages and signals as plain data, the same for all database formats; it can be pickled and hashed."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Final, Literal, TypeAlias

from .j1939 import group_key

DECODER_REVISION = 1
"""Part of every hash; increased when the same definition gives other rows, so that frames are decoded again."""
_INFINITE_IS_NOT_VALID = 2  # revision of definitions whose values may be infinite
_WIDE_OR_RANGES = 3  # of those with signed signals of more than 64 bits, or with several scales and bounds

Kind = Literal["can", "lin", "flexray", "pdu", "j1939"]
"""What carries messages; `j1939`: the transport protocol of SAE J1939, for messages of kind `can` that are parameter groups."""
Channel = Literal["A", "B"]
Coding = Literal["integer", "float", "bcd", "ascii"]
FRAME_BYTES: Final[dict[Kind, int]] = {"can": 64, "lin": 8, "flexray": 254, "pdu": 2048, "j1939": 1785}
"""The longest payload of a frame, or of a message that is put together from several, bytes."""
_CLASSIC_BYTES: Final = 8  # of a frame of J1939-21
_FLOATS: Final = (16, 32, 64)
FLEXRAY_CYCLES: Final = 64
CAN_CARRIERS: Final[frozenset[Kind]] = frozenset({"can", "j1939"})
"""Kinds that carry messages of kind `can`."""
BUSLESS: Final[frozenset[Kind]] = frozenset({"pdu"})
"""Kinds whose frames do not say a bus."""
Key: TypeAlias = tuple[Kind, int, bool]
"""The key of a message on a bus: kind, id, extended. Of FlexRay: slot * 64 + cycle, and whether the channel is B. Of J1939:
`j1939.group_key`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The cycles of a FlexRay frame: `base`, `base` + `repetition` and so on, below 64; `channels`: where it is sent."""

    base: int = 0
    repetition: int = 1
    channels: tuple[Channel, ...] = ("A", "B")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """value = raw * factor + offset, for raw values from `low` to `high` (both included; None: no bound)."""

    factor: float = 1
    offset: float = 0
    unit: str | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """A frame holds the signal when the multiplexer at this index of the message's signals has one of these raw values."""

    signal: int
    ids: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """One signal of a message.

    `start`, `big_endian`: as a DBC counts bits (little endian: the least significant, big endian: the most).
    `length` in bits. `scales`: the first that contains a raw value applies; if none does, the value is null.
    `minimum`, `maximum`: outside of these bounds a value is not `valid`; `invalid`: the raw value that means invalid.
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
        """Its first bit in big-endian order, counted from the first bit of the first byte."""
        return 8 * (self.start // 8) + 7 - self.start % 8 if self.big_endian else self.start

    @property
    def needs_bytes(self) -> int:
        """The length of the shortest payload that holds the whole signal."""
        return -(-(self.first_bit + self.length) // 8)

    @property
    def raw_value_range(self) -> tuple[int, int]:
        """The lowest and highest raw value of its bits."""
        if self.signed:
            return -(1 << (self.length - 1)), (1 << (self.length - 1)) - 1
        return 0, (1 << self.length) - 1

    @property
    def may_be_infinite(self) -> bool:
        """Whether an integer signal has a raw value whose physical value exceeds float64."""
        return self.coding == "integer" and not all(
            math.isfinite(limit_to_float64(raw) * float(scale.factor) + float(scale.offset))
            for raw in self.raw_value_range
            for scale in self.scales
        )

    @property
    def has_bounded_ranges(self) -> bool:
        """Whether it has several scales, and is a float or more than 64 bits, or its values have bounds."""
        bounded = self.minimum is not None or self.maximum is not None
        return len(self.scales) > 1 and (self.coding == "float" or self.length >= 64 or bounded)

    def undecodable_reason(self, kind: Kind) -> str | None:
        """Why it cannot be decoded from a frame of this kind; None: it can."""
        most = FRAME_BYTES[kind]
        if self.length < 1 or self.start < 0:
            return f"its length is {self.length} bits from bit {self.start} on: it has no bits in a frame"
        if self.needs_bytes > most:
            return f"it ends in byte {self.needs_bytes}, and a frame has at most {most}"
        if self.coding == "float" and self.length not in _FLOATS:
            return f"it is a float of {self.length} bits, and floats have 16, 32 or 64"
        if self.coding in ("bcd", "ascii") and self.length % 8:
            return f"its characters have {self.length} bits, which are not whole bytes"
        if not all(math.isfinite(scale.factor) and math.isfinite(scale.offset) for scale in self.scales):
            return "its factor or offset is not a finite number"
        return None


def limit_to_float64(number: float) -> float:
    """The number itself, or infinity for an integer beyond float64."""
    try:
        float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A signal that cannot be decoded, and why. Its `parents` are empty."""

    signal: Signal
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """An AUTOSAR container PDU with headers, from byte `start` of a frame on, `length` bytes at most (0: to its end).

    A header of 4 bytes (short: id of 24 bits, length of 8) or 8 (long: 32 bits each) is before each contained PDU. `contained`:
    header id -> message. `update_bit`: the container is valid if this bit of the frame is 1.
    """

    name: str
    start: int
    length: int
    long_header: bool
    big_endian: bool
    contained: tuple[tuple[int, Message], ...]
    update_bit: int | None = None


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message. `length` in bytes; `id` of a LIN frame is its 6 bits, of a FlexRay frame its slot, which has a `schedule`.
    `j1939`: its frames are found by the parameter group of `id`.
    `containers`: PDUs that hold other messages, of the same kind and id, which are `contained`.

    `signals` are those that can be decoded; `unreadable`: the others, which give no rows. `cycle_ms`: None if it is not cyclic,
    or if the database does not say.
    """

    kind: Kind
    id: int
    extended: bool
    name: str
    length: int
    signals: tuple[Signal, ...]
    unreadable: tuple[Unreadable, ...] = ()
    database: str = ""
    cycle_ms: float | None = None
    schedule: Schedule | None = None
    j1939: bool = False
    containers: tuple[Container, ...] = ()
    contained: bool = False

    @property
    def parts(self) -> tuple[Message, ...]:
        """Itself, and the messages of its containers: those whose signals its frames may hold."""
        return (self, *(message for one in self.containers for _, message in one.contained))

    @property
    def carriers(self) -> tuple[Kind, ...]:
        """What may carry it; the last one carries the longest payloads."""
        return (self.kind, "j1939") if self.j1939 else (self.kind,)

    @property
    def wide_carrier(self) -> Kind:
        """What carries all of it, so that a wide table has its rows."""
        return self.carriers[-1] if self.length > _CLASSIC_BYTES else self.kind

    @property
    def keys(self) -> tuple[Key, ...]:
        """What frames of the message have, in a stable order."""
        if self.j1939:
            return ((self.kind, group_key(self.id), True),)
        if self.schedule is None:
            return ((self.kind, self.id, self.extended),)
        cycles = range(self.schedule.base, FLEXRAY_CYCLES, self.schedule.repetition)
        return tuple(
            (self.kind, self.id * FLEXRAY_CYCLES + cycle, channel == "B")
            for channel in self.schedule.channels
            for cycle in cycles
        )

    @cached_property
    def definition_hash(self) -> str:
        """A hash (16 hex digits) that changes when its rows change; independent of the file."""
        definition = asdict(replace(self, containers=()))
        definition["containers"] = [
            asdict(replace(one, contained=()))
            | {"contained": [(header_id, message.definition_hash) for header_id, message in one.contained]}
            for one in self.containers
        ]
        if not self.containers:
            del definition["containers"]
        if not self.contained:
            del definition["contained"]
        del definition["database"], definition["unreadable"], definition["cycle_ms"]
        if self.schedule is None:
            del definition["schedule"]
        if not self.j1939:
            del definition["j1939"]
        infinite = any(signal.may_be_infinite for signal in self.signals)
        revision = _INFINITE_IS_NOT_VALID if infinite else DECODER_REVISION
        if any(one.has_bounded_ranges or (one.signed and one.length > 64) for one in self.signals):
            revision = _WIDE_OR_RANGES
        text = json.dumps([revision, definition], sort_keys=True, default=sorted)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
