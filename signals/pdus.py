"""PDUs in frames as messages: positions of PDUs and signals, update bits, multiplexers. The same for FIBEX and ARXML.

Positions count bits as a DBC does: 8 for each byte, and in a byte from the least significant; of a big-endian signal it is the
most significant bit. An update bit of 0 means that the sender has not written the PDU or signal: it has no value then.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from .assemble import DeclaredSignal, assemble_signals
from .model import Container, Kind, Message, Schedule, Signal


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalInPdu:
    """`signal`: with its position in the PDU. `reason`: why it cannot be decoded."""

    signal: Signal
    update_bit: int | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A PDU that a multiplexed PDU holds if its selector has this value; its bit 0 is at `position`."""

    selector: int
    pdu: Pdu
    position: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Headers:
    """Of a container PDU: headers of 8 bytes or 4; `contained`: header id -> PDU."""

    long: bool
    big_endian: bool
    contained: tuple[tuple[int, Pdu], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pdu:
    """`static`: PDUs that a multiplexed PDU always holds, and their positions. `headers`: of a container.

    `selector`: without a name, it is that of the frame with `_selector1` and so on. `footer`: signals that are named after the
    message, with `_` between. `cycle_ms`: None if it is not sent in cycles, or if the file does not say.
    """

    name: str
    length: int
    signals: tuple[SignalInPdu, ...] = ()
    selector: Signal | None = None
    static: tuple[tuple[Pdu, int], ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    headers: Headers | None = None
    footer: tuple[Signal, ...] = ()
    cycle_ms: float | None = None

    @property
    def holds_signals(self) -> bool:
        return bool(self.signals or self.static or self.selector or self.headers or self.footer)

    @property
    def holds_headers(self) -> bool:
        """Whether it is a container with headers, or holds one."""
        return self.headers is not None or any(pdu.holds_headers for pdu in self.inner)

    def count_signals(self) -> int:
        """Signals and selectors, without those behind headers."""
        return len(self.signals) + (self.selector is not None) + sum(pdu.count_signals() for pdu in self.inner)

    @property
    def inner(self) -> tuple[Pdu, ...]:
        """The PDUs in it, without those behind headers."""
        return (*(pdu for pdu, _ in self.static), *(each.pdu for each in self.alternatives))


@dataclass(frozen=True, slots=True, kw_only=True)
class PduInFrame:
    """`position` of its bit 0 in the frame, a multiple of 8."""

    pdu: Pdu
    position: int = 0
    update_bit: int | None = None


def message_of(
    kind: Kind,
    number: int,
    name: str,
    length: int,
    placed: Sequence[PduInFrame],
    database: str,
    schedule: Schedule | None = None,
    *,
    extended: bool = False,
) -> Message:
    """The message of a frame. A signal name that several of its PDUs have becomes `Pdu.Signal`."""
    empty = Message(
        kind=kind,
        id=number,
        extended=extended,
        name=name,
        length=length,
        signals=(),
        database=database,
        schedule=schedule,
    )
    return _build_message(empty, placed, (f"{name}_selector{n}" for n in itertools.count(1)))


def _build_message(empty: Message, placed: Sequence[PduInFrame], selectors: Iterator[str]) -> Message:
    """A message with its signals. `selectors`: names for those that have none."""
    declarations = _Declarations(empty.name, selectors, placed)
    declared = [one for each in placed for one in declarations.of_placed(each)]
    owners = Counter(name for name, _ in {(one.signal.name, owner) for owner, one in declared})
    renamed = [
        one if owners[one.signal.name] == 1 else _rename(one, f"{owner}.{one.signal.name}") for owner, one in declared
    ]
    signals, unreadable = assemble_signals(empty.kind, empty.length, renamed)
    cycles = [each.pdu.cycle_ms for each in placed if each.pdu.cycle_ms is not None]
    message = replace(
        empty,
        signals=signals,
        unreadable=unreadable,
        cycle_ms=min(cycles) if cycles and empty.schedule is None else None,
    )
    containers = [_container_in(message, *found, selectors) for each in placed for found in _find_headers(each)]
    return replace(message, containers=tuple(containers))


def _container_in(
    frame: Message, pdu: Pdu, headers: Headers, position: int, update_bit: int | None, selectors: Iterator[str]
) -> Container:
    contained = tuple(
        (
            header_id,
            _build_message(
                replace(frame, name=one.name, length=one.length, contained=True), [PduInFrame(pdu=one)], selectors
            ),
        )
        for header_id, one in headers.contained
    )
    return Container(
        name=pdu.name,
        start=position // 8,
        length=pdu.length,
        long_header=headers.long,
        big_endian=headers.big_endian,
        contained=contained,
        update_bit=update_bit,
    )


def _find_headers(placed: PduInFrame) -> Iterator[tuple[Pdu, Headers, int, int | None]]:
    """The containers with headers that a PDU in a frame is or always holds: container, headers, position, update bit."""
    pdu = placed.pdu
    if pdu.headers is not None:
        yield pdu, pdu.headers, placed.position, placed.update_bit
    for inner, at in pdu.static:
        yield from _find_headers(replace(placed, pdu=inner, position=placed.position + at))


def _rename(declared: DeclaredSignal, name: str) -> DeclaredSignal:
    return replace(declared, signal=replace(declared.signal, name=name))


_Condition = tuple[int | None, frozenset[int] | None]  # key of the multiplexer, and its values
_Owned = tuple[str, DeclaredSignal]  # name of the PDU, and its signal


class _Declarations:
    """The signals of PDUs as those of their message, whose name is `message`."""

    def __init__(self, message: str, selectors: Iterator[str], placed: Iterable[PduInFrame]) -> None:
        self._message, self._selectors = message, selectors
        self._keys = itertools.count()
        self._names = {name for each in placed for name in _signal_names(each.pdu)}

    def of_placed(self, placed: PduInFrame) -> Iterator[_Owned]:
        condition: _Condition = (None, None)
        if placed.update_bit is not None:
            bit, condition = self._update_bit(placed.pdu.name, placed.update_bit, condition)
            yield placed.pdu.name, bit
        yield from self._of_pdu(placed.pdu, placed.pdu.name, placed.position, condition)

    def _of_pdu(self, pdu: Pdu, owner: str, position: int, condition: _Condition) -> Iterator[_Owned]:
        aligned = (
            None
            if position % 8 == 0
            else f"its PDU {pdu.name} begins at bit {position}, which is not the start of a byte"
        )
        for each in pdu.signals:
            above = condition
            if each.update_bit is not None:
                bit, above = self._update_bit(each.signal.name, each.update_bit + position, condition)
                yield owner, replace(bit, reason=aligned)
            yield owner, _declare(each.signal, position, above, each.reason or aligned)
        if pdu.selector is not None:
            named = replace(pdu.selector, name=pdu.selector.name or next(self._selectors))
            key = next(self._keys)
            yield owner, replace(_declare(named, position, condition, aligned), key=key)
            for alternative in pdu.alternatives:
                held = key, frozenset({alternative.selector})
                yield from self._of_pdu(alternative.pdu, owner, position + alternative.position, held)
        for inner, at in pdu.static:
            yield from self._of_pdu(inner, inner.name, position + at, condition)
        for one in pdu.footer:
            yield owner, _declare(replace(one, name=f"{self._message}_{one.name}"), position, condition, aligned)

    def _update_bit(self, name: str, start: int, condition: _Condition) -> tuple[DeclaredSignal, _Condition]:
        """The update bit of a PDU or signal, and the condition that it is 1."""
        name = f"{name}_UpdateBit"
        while name in self._names:  # a signal may have this name
            name += "_"
        key = next(self._keys)
        bit = _declare(Signal(name=name, start=start, length=1), 0, condition, None)
        return replace(bit, key=key), (key, frozenset({1}))


def _declare(signal: Signal, position: int, condition: _Condition, reason: str | None) -> DeclaredSignal:
    moved = replace(signal, start=signal.start + position)
    return DeclaredSignal(signal=moved, multiplexer=condition[0], ids=condition[1], reason=reason)


def _signal_names(pdu: Pdu) -> Iterator[str]:
    yield from (each.signal.name for each in pdu.signals)
    for inner in pdu.inner:
        yield from _signal_names(inner)
