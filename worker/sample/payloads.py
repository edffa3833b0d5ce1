"""Payloads as the control units of a vehicle send them: few bytes of a message change, and each in its own way.

The shares follow 23 public recordings of CAN traffic (25 cars and batteries of nine makers, 0.56 M frames): of all payload
bytes 47 % are constant, 19 % change in fewer than 2 of 100 frames, 10 % count, 9 % move in small steps, 13 % jump among few
values, 2 % look random. A quarter of the payloads equals the last one of the same message; the others differ in 2.3 bytes.
`tools/traffic.py` prints these figures for any capture.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_STATES = (0x00, 0x01, 0x02, 0x03, 0x10, 0x40, 0x80, 0xF0, 0xFE, 0xFF)
_COMMON_CONSTANTS = (0x00, 0x00, 0x00, 0x00, 0xFF, 0xFF)  # unused bytes; the others have any value
_KINDS = {"counted": 61, "counted value": 3, "value": 23, "state": 13}  # of messages, in percent
_CHECKED, _MULTIPLEXED = 0.6, 0.35  # shares of the messages with a counter
_EVENT, _STATE, _PAGE = 0.33, 0.35, 0.45  # shares of the bytes that no counter, checksum or value takes


class _Signal(Protocol):
    """Writes its bytes into a matrix of payloads: uint8, one row for each payload, in the order of time."""

    def fill(self, payloads: Bytes) -> None: ...


def draw_uniform(rng: random.Random, count: int) -> NDArray[np.float64]:
    """`count` numbers of 0 to 1, the same for a seed in every version of numpy."""
    return np.frombuffer(rng.randbytes(4 * count), "<u4") / 2**32


class _Counter:
    """Counts payloads in the low four bits, or in the whole byte."""

    def __init__(self, rng: random.Random, at: int) -> None:
        self._at, self._count = at, rng.randrange(256)
        self._bits, self._fixed = rng.choice(((0x0F, 0x00), (0x0F, 0x00), (0x0F, rng.randrange(16) << 4), (0xFF, 0x00)))

    def fill(self, payloads: Bytes) -> None:
        numbers = np.arange(self._count, self._count + len(payloads))
        payloads[:, self._at] = numbers & self._bits | self._fixed
        self._count += len(payloads)


class _State:
    """Bytes that each have one of a few values. Events change them together, in the share `changes` of the payloads."""

    def __init__(self, rng: random.Random, places: list[int], changes: float, values: int) -> None:
        self._rng, self._places, self._changes = rng, places, changes
        self._values = np.array([rng.sample(_STATES, values) for _ in places], np.uint8).T
        self._now = rng.randrange(values)

    def fill(self, payloads: Bytes) -> None:
        drawn, others = draw_uniform(self._rng, len(payloads)), len(self._values) - 1
        steps = np.where(drawn < self._changes, 1 + (drawn / self._changes * others).astype(np.int64), 0)
        states = self._now + np.cumsum(steps)
        self._now = int(states[-1])
        payloads[:, self._places] = self._values[states % len(self._values)]


class _Multiplex:
    """Bytes that show a few pages in turn."""

    def __init__(self, rng: random.Random, places: list[int]) -> None:
        self._places, self._count = places, rng.randrange(256)
        self._pages = np.array(
            [[rng.choice((*_STATES, rng.randrange(16))) for _ in places] for _ in range(rng.choice((2, 4, 4, 8)))],
            np.uint8,
        )

    def fill(self, payloads: Bytes) -> None:
        numbers = np.arange(self._count, self._count + len(payloads))
        payloads[:, self._places] = self._pages[numbers % len(self._pages)]
        self._count += len(payloads)


class _Value:
    """A measured value of one or two bytes. It moves in small steps, and turns at the ends of its range."""

    def __init__(self, rng: random.Random, at: int, width: int) -> None:
        self._rng, self._at, self._width = rng, at, width
        self._order = rng.choice((1, -1))  # of the bytes
        self._moves, self._step = rng.uniform(0.01, 0.25), rng.choice((1, 1, 1, 2))
        self._low, self._range = rng.randrange(40), rng.randrange(20, 90) if width == 1 else rng.randrange(60, 3000)
        if width == 2:
            self._low += rng.randrange(0x10, 0x90) << 8
        self._now, self._trend = rng.randrange(self._range), rng.choice((-1, 1))

    def fill(self, payloads: Bytes) -> None:
        drawn = draw_uniform(self._rng, len(payloads))
        size = 1 + (drawn / self._moves * self._step).astype(np.int64)
        against = draw_uniform(self._rng, len(payloads)) < 0.3
        steps = np.where(drawn < self._moves, np.where(against, -self._trend, self._trend) * size, 0)
        places = self._now + np.cumsum(steps)
        self._now = int(places[-1]) % (2 * self._range)
        folded = np.abs((places + self._range) % (2 * self._range) - self._range)
        octets = (self._low + folded).astype("<u2").view(np.uint8).reshape(-1, 2)[:, : self._width]
        payloads[:, self._at : self._at + self._width] = octets[:, :: self._order]


class _Checksum:
    """A byte that depends on all others, as the CRC of AUTOSAR's end-to-end protection does."""

    _FACTORS = np.arange(64) * 2 % 251 + 3

    def __init__(self, at: int) -> None:
        self._at = at

    def fill(self, payloads: Bytes) -> None:
        payloads[:, self._at] = 0
        sums = payloads @ np.resize(self._FACTORS, payloads.shape[1])
        payloads[:, self._at] = (sums * 0x9E37 >> 7) & 0xFF


class PayloadGenerator:
    """The payloads of one message over time, all of `length` bytes. `rng` decides what each byte does, and draws the values."""

    def __init__(self, rng: random.Random, length: int) -> None:
        self._base = np.frombuffer(
            bytes(rng.choice((*_COMMON_CONSTANTS, rng.randrange(256))) for _ in range(length)), np.uint8
        )
        self._signals: list[_Signal] = []
        (kind,) = rng.choices(list(_KINDS), list(_KINDS.values()))
        free = list(range(length))
        checksum = None
        if "counted" in kind and length >= 2:
            checksum, counter = (0, length - 1) if rng.random() < 0.5 else (length - 1, length - 2)
            self._signals.append(_Counter(rng, counter))
            free.remove(counter)
            if length >= 4 and rng.random() < _CHECKED:
                free.remove(checksum)
            else:
                checksum = None
        for part in range(0, len(free), 8):
            self._fill_part(rng, free[part : part + 8], kind)
        if checksum is not None:
            self._signals.append(_Checksum(checksum))

    def _fill_part(self, rng: random.Random, free: list[int], kind: str) -> None:
        """Choose what about eight free bytes do."""
        at, more = 0, "value" in kind
        while more and at <= 4:
            width = rng.choice((1, 2, 2))
            if at + width <= len(free) and free[at + width - 1] == free[at] + width - 1:
                self._signals.append(_Value(rng, free[at], width))
            at, more = at + width, rng.random() < 0.6
        multiplexed = kind == "counted" and rng.random() < _MULTIPLEXED
        events, states, pages = list[int](), list[int](), list[int]()
        for place in free[at:]:
            drawn = rng.random()
            if drawn < _EVENT:
                events.append(place)
            elif kind == "state" and drawn < _EVENT + _STATE:
                states.append(place)
            elif multiplexed and drawn < _EVENT + _PAGE:
                pages.append(place)
        if pages:
            self._signals.append(_Multiplex(rng, pages))
        if states:
            self._signals.append(_State(rng, states, rng.uniform(0.03, 0.4), rng.choice((2, 3, 4, 8))))
        if events:
            self._signals.append(_State(rng, events, rng.uniform(0.0004, 0.003), rng.choice((2, 2, 3, 4))))

    def draw(self, count: int) -> Bytes:
        """The next `count` payloads: uint8, `count` rows of `length` bytes."""
        payloads = np.tile(self._base, (count, 1))
        if count:
            for signal in self._signals:
                signal.fill(payloads)
        return payloads


def payload_source(rng: random.Random, length: int) -> Callable[[], bytes]:
    """A function that returns the next payload of one message."""
    generator, waiting = PayloadGenerator(rng, length), list[bytes]()

    def next_payload() -> bytes:
        if not waiting:
            waiting.extend(map(bytes, generator.draw(64)[::-1]))
        return waiting.pop()

    return next_payload
