"""Traffic of cyclic senders: each sends one frame again and again, in which a few fields change.

Frames are drawn by numpy, all of a sender's frames of some seconds together, so that a gigabyte of traffic that never
repeats takes less than a minute.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pcaplake.worker.sample.payloads import PayloadGenerator, draw_uniform

MILLISECOND = 10**6
JITTER_NS = 400_000  # by how much a control unit is late at most
CLOCK_NS = 1000  # the resolution of the recorder's clock
# the times that are drawn together: the first, the second, all others
WINDOWS_NS = (100 * MILLISECOND, 1000 * MILLISECOND, 10_000 * MILLISECOND)
Bytes = NDArray[np.uint8]


@dataclass(slots=True, kw_only=True)
class Number:
    """An unsigned big-endian field that grows by `step` with each frame. After its greatest value it is `lowest` again."""

    at: int
    width: int
    value: int
    step: int = 1
    lowest: int = 0


@dataclass(slots=True, kw_only=True)
class Checksum:
    """An inverted sum with carry over the bytes `start` to `stop`, in units of its width.

    Width 2: the Internet checksum (RFC 1071); 1: that of LIN (ISO 17987-3). `other` is the sum of what else it covers.
    """

    at: int
    start: int
    stop: int
    width: int = 2
    other: int = 0


@dataclass(slots=True, kw_only=True)
class Clock:
    """A 64-bit big-endian time in ns, up to `jitter_ns` earlier than `before_ns` before the frame."""

    at: int
    before_ns: int
    jitter_ns: int


@dataclass(slots=True, kw_only=True)
class Sender:
    """A frame that is sent every `period_ns`. Offsets are those in `frame`; `wire_ns` is how long the frame occupies its bus.

    The senders of one control unit (`unit`) send at the same time.
    """

    frame: bytes
    unit: int
    period_ns: int
    interface: int = 0
    wire_ns: int
    payloads: list[tuple[int, PayloadGenerator]] = field(default_factory=list)
    numbers: list[Number] = field(default_factory=list)
    clocks: list[Clock] = field(default_factory=list)
    checksums: list[Checksum] = field(default_factory=list)

    def draw_frames(self, rng: random.Random, times: NDArray[np.int64]) -> Bytes:
        """The next frames: uint8, one row for each of `times` (int64, ns)."""
        count = len(times)
        frames = np.tile(np.frombuffer(self.frame, np.uint8), (count, 1))
        for at, generator in self.payloads:
            payloads = generator.draw(count)
            frames[:, at : at + payloads.shape[1]] = payloads
        for number in self.numbers:
            values = number.value + number.step * np.arange(count, dtype=np.int64)
            number.value += number.step * count
            values = number.lowest + (values - number.lowest) % (256**number.width - number.lowest)
            frames[:, number.at : number.at + number.width] = _big_endian(values)[:, 8 - number.width :]
        for clock in self.clocks:
            early = (draw_uniform(rng, count) * clock.jitter_ns).astype(np.int64)
            frames[:, clock.at : clock.at + 8] = _big_endian(times - clock.before_ns - early)
        for checksum in self.checksums:
            frames[:, checksum.at : checksum.at + checksum.width] = 0
            covered, bits = frames[:, checksum.start : checksum.stop].astype(np.int64), 8 * checksum.width
            sums = checksum.other + covered[:, checksum.width - 1 :: checksum.width].sum(1)
            if checksum.width == 2:
                sums += covered[:, ::2].sum(1) << 8
            for _ in range(2):
                sums = (sums >> bits) + (sums & (1 << bits) - 1)
            frames[:, checksum.at : checksum.at + checksum.width] = _big_endian(~sums)[:, 8 - checksum.width :]
        return frames


def _big_endian(values: NDArray[np.int64]) -> Bytes:
    return values.astype(">i8").view(np.uint8).reshape(-1, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The frames of some seconds, sender by sender: `times` and `senders` (int64), and the `order` in which they are sent."""

    end_ns: int
    times: NDArray[np.int64]
    senders: NDArray[np.int64]
    order: NDArray[np.int64]


def schedule(senders: Sequence[Sender], rng: random.Random, start_ns: int) -> Iterator[Window]:
    """When each sender sends, window by window, without end.

    A control unit has a phase, and is up to JITTER_NS late each time. A bus carries one frame at a time, so frames wait.
    """
    unit_phases = [rng.randrange(10 * MILLISECOND) for _ in range(1 + max(sender.unit for sender in senders))]
    units, periods, wires, interfaces = np.array(
        [(sender.unit, sender.period_ns, sender.wire_ns, sender.interface) for sender in senders], np.int64
    ).T
    phases = np.array(unit_phases, np.int64)[units] + np.array([rng.randrange(10) for _ in senders]) * periods // 10
    salt, sent, latest = rng.getrandbits(63), np.zeros(len(senders), np.int64), 0
    free_at = dict.fromkeys(interfaces.tolist(), 0)
    for end in _window_ends():
        total = np.maximum((end - phases + periods - 1) // periods, 0)
        counts, sent_before, sent = total - sent, sent, total
        of = np.repeat(np.arange(len(senders)), counts)
        numbers = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts) + sent_before[of]
        due = phases[of] + numbers * periods[of]
        times = np.minimum(due + _draw_delays(due, units[of], salt), end - 1)
        for interface, free in free_at.items():
            mine = np.flatnonzero(interfaces[of] == interface)
            mine = mine[np.argsort(times[mine], kind="stable")]
            if len(mine):
                after = np.cumsum(wires[of[mine]])
                before = after - wires[of[mine]]
                times[mine] = before + np.maximum.accumulate(np.maximum(times[mine] - before, free))
                free_at[interface] = int(times[mine[-1]] + wires[of[mine[-1]]])
        times = np.maximum(times, latest) // CLOCK_NS * CLOCK_NS
        latest = int(times.max(initial=latest))
        yield Window(end_ns=start_ns + end, times=times + start_ns, senders=of, order=np.argsort(times, kind="stable"))


def _draw_delays(due: NDArray[np.int64], units: NDArray[np.int64], salt: int) -> NDArray[np.int64]:
    """How late (ns) each unit is at the times `due`: random, and the same for all that it sends at that time."""
    mixed = (due.astype(np.uint64) + units.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) ^ np.uint64(salt)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ mixed >> np.uint64(shift)) * np.uint64(factor)
    return ((mixed >> np.uint64(32)) * np.uint64(JITTER_NS) >> np.uint64(32)).astype(np.int64)


def _window_ends() -> Iterator[int]:
    end, first, rest = 0, list(WINDOWS_NS[:-1]), WINDOWS_NS[-1]
    while True:
        end += first.pop(0) if first else rest
        yield end
