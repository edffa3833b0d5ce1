"""Turns the declared signals of a message into signals that can be decoded, and unreadable ones with their reasons."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from .model import Kind, Parent, Signal, Unreadable, limit_to_float64

MOST_BYTES = 2048
"""The longest message that is read: the size of a CAN XL frame, and more than J1939's transport protocol (1,785)."""


_DEEPEST = 64  # most multiplexers above a signal


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredSignal:
    """A signal without its `parents`. A frame holds it when the signal `multiplexer` has one of the values `ids`.

    `key`: what `multiplexer` of other signals calls it; None: its name. `reason`: why it cannot be decoded, if the reader of
    the file already knows.
    """

    signal: Signal
    multiplexer: str | int | None = None
    ids: frozenset[int] | None = None
    reason: str | None = None
    key: int | None = None

    @property
    def identity(self) -> str | int:
        return self.signal.name if self.key is None else self.key


def assemble_signals(
    kind: Kind, length: int, declared: Iterable[DeclaredSignal]
) -> tuple[tuple[Signal, ...], tuple[Unreadable, ...]]:
    """The signals of a message of `length` bytes: readable ones in the order of their bits, and the others."""
    ordered = sorted(declared, key=lambda declaration: declaration.signal.first_bit)
    if length < 0 or length > MOST_BYTES:
        why = f"its message has {length:,} bytes, and no frame has more than {MOST_BYTES:,}"
        return (), tuple(Unreadable(signal=declaration.signal, reason=why) for declaration in ordered)
    places = {declaration.identity: place for place, declaration in enumerate(ordered)}
    signals = []
    reasons: dict[int, str] = {}
    for place, declaration in enumerate(ordered):
        signal, reason = declaration.signal, declaration.reason or declaration.signal.undecodable_reason(kind)
        if reason is None:
            try:
                signal = replace(signal, parents=_resolve_parents(kind, declaration, ordered, places))
            except _UnknownMultiplexer as error:
                reason = str(error)
        if reason is not None:
            reasons[place] = reason
        signals.append(signal)
    # a frame has one value for each name: of two signals that it may hold at once, the later one counts, as in cantools
    named: dict[str, list[int]] = {}
    for place, signal in enumerate(signals):
        if place not in reasons:
            named.setdefault(signal.name, []).append(place)
    overlapped = {place for places_of_name in named.values() for place in _overlapped(places_of_name, signals)}
    reasons |= dict.fromkeys(overlapped, "a later signal of the message has its name, and is read instead")
    kept = [place for place in range(len(signals)) if place not in reasons]
    named_once = frozenset(kept)
    for place in kept:
        for parent in signals[place].parents:
            if parent.signal not in named_once:
                reasons[place] = f"another signal has the name of its multiplexer {signals[parent.signal].name}"
    kept = [place for place in kept if place not in reasons]
    moved = {place: new for new, place in enumerate(kept)}
    return tuple(
        replace(
            signals[place],
            parents=tuple(replace(parent, signal=moved[parent.signal]) for parent in signals[place].parents),
        )
        for place in kept
    ), tuple(Unreadable(signal=signals[place], reason=reason) for place, reason in reasons.items())


def _overlapped(places: Sequence[int], signals: Sequence[Signal], level: int = 0) -> set[int]:
    """Those of these signals that a frame may hold together with a later one; they share all multiplexers above `level`."""
    if len(places) < 2:
        return set()
    groups: dict[int | None, list[int]] = {}  # multiplexer at this level, None: without -> its signals
    held: dict[tuple[int, int], list[int]] = {}  # multiplexer and value
    for place in places:
        parents = signals[place].parents  # the innermost one is the first
        if level == len(parents):
            groups.setdefault(None, []).append(place)
            continue
        parent = parents[-1 - level]
        groups.setdefault(parent.signal, []).append(place)
        for value in parent.ids:
            held.setdefault((parent.signal, value), []).append(place)
    found = set(groups.get(None, ())[:-1])
    for multiplexer, group in groups.items():
        later = max((others[-1] for other, others in groups.items() if other != multiplexer), default=-1)
        found.update(place for place in group if place < later)
    for together in set(map(tuple, held.values())):
        found |= _overlapped(together, signals, level + 1)
    return found


class _UnknownMultiplexer(Exception):
    """It is unknown which frames hold a signal; the text says why."""


def _resolve_parents(
    kind: Kind, declared: DeclaredSignal, ordered: Sequence[DeclaredSignal], places: Mapping[str | int, int]
) -> tuple[Parent, ...]:
    parents: list[Parent] = []
    seen = {declared.identity}
    while declared.multiplexer is not None and declared.ids is not None:
        identity = declared.multiplexer
        if identity in seen:
            raise _UnknownMultiplexer(f"its multiplexer {identity} depends on itself")
        if identity not in places:
            raise _UnknownMultiplexer(f"its multiplexer {identity} is not a signal of the message")
        seen.add(identity)
        place = places[identity]
        above = ordered[place]
        name = above.signal.name
        if (reason := above.reason or above.signal.undecodable_reason(kind)) is not None:
            raise _UnknownMultiplexer(f"its multiplexer {name} cannot be decoded: {reason}")
        if above.signal.coding != "integer" or above.signal.length > 64:
            raise _UnknownMultiplexer(f"its multiplexer {name} is not an integer of at most 64 bits")
        if len(parents) == _DEEPEST:
            raise _UnknownMultiplexer(f"it is nested below more than {_DEEPEST} multiplexers")
        parents.append(Parent(signal=place, ids=declared.ids))
        declared = above
    return tuple(parents)


def normalize_bound(value: float | None) -> float | None:
    """A bound of the value; None if it is missing or NaN."""
    number = None if value is None else float(limit_to_float64(value))
    return None if number is None or math.isnan(number) else number


def cycle_time(milliseconds: float | None) -> float | None:
    """A cycle time, or None if there is none: databases write 0 for a message that is not cyclic."""
    number = normalize_bound(milliseconds)
    return number if number is not None and 0 < number < math.inf else None
