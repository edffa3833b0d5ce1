"""Reading database files: DBC, KCD, SYM and ARXML through cantools, LDF through ldfparser.

Knows what those libraries give, and turns it into messages. Must not know buses of a lake, numpy or Spark.

What nobody can decode from one frame alone is left out and counted: container messages (AUTOSAR), messages without
signals. The secured messages of AUTOSAR are authenticated and not encrypted: their signals are read like any others.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from worker.errors import Fatal

from .model import Message, Parent, Scale, Signal

CANTOOLS = (".dbc", ".kcd", ".sym", ".arxml")
LDF = ".ldf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a file holds. `skipped`: reason -> messages that are left out."""

    messages: tuple[Message, ...]
    skipped: Mapping[str, int]


def load(path: str | Path, network: str | None = None) -> Loaded:
    """The messages of a file; `network` names one of the buses in it (KCD, ARXML). Fatal says what to do."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in (*CANTOOLS, LDF):
        raise Fatal(f"{path} is no signal database: give a file that ends in {', '.join((*CANTOOLS, LDF))}")
    if not path.is_file():
        raise Fatal(f"there is no signal database {path}: name the path of a file")
    try:
        with _quiet():
            return _ldf(path, network) if suffix == LDF else _cantools(path, network)
    except Fatal:
        raise
    except Exception as error:  # every parser below it has exceptions of its own
        raise Fatal(f"cannot read the signal database {path}: {error}") from error


@contextmanager
def _quiet() -> Any:
    """cantools logs what it overwrites by name or id; by those nobody looks here."""
    log = logging.getLogger("cantools")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


# -- CAN --------------------------------------------------------------------------------------------------------------
def _cantools(path: Path, network: str | None) -> Loaded:
    import cantools

    # strict would refuse a whole file for one signal that overlaps another or ends behind its message
    database = cantools.database.load_file(path, strict=False)
    if not hasattr(database, "messages"):
        raise Fatal(f"{path} describes diagnostics, not messages: give a file of messages")
    return convert(database.messages, path.name, network)


def convert(found: Iterable[Any], source: str, network: str | None = None) -> Loaded:
    """Messages of cantools -> ours. Fatal when `network` is none of their buses."""
    found = list(found)
    if network is not None:
        names = sorted({one.bus_name for one in found if one.bus_name})
        found = [one for one in found if one.bus_name == network]
        if not found:
            raise Fatal(f"{source} has no messages of the network {network!r}; it has {', '.join(names) or 'no names'}")
    skipped: Counter[str] = Counter()
    messages = []
    for one in found:
        if one.is_container:
            skipped["container"] += 1
        elif not one.signals:
            skipped["no signals"] += 1
        else:
            messages.append(
                Message(
                    kind="can",
                    id=one.frame_id,
                    extended=bool(one.is_extended_frame),
                    name=one.name,
                    length=one.length,
                    signals=_signals(one.signals),
                    database=source,
                )
            )
    return Loaded(messages=tuple(messages), skipped=dict(skipped))


def _signals(found: list[Any]) -> tuple[Signal, ...]:
    places = {one.name: place for place, one in enumerate(found)}
    signals = [replace(_signal(one), parents=_parents(one, found, places)) for one in found]
    # a frame has one value by name: of two signals that it could hold at once the later one counts, as in cantools
    kept = [
        place
        for place, one in enumerate(signals)
        if not any(other.name == one.name and not _apart(one, other) for other in signals[place + 1 :])
    ]
    moved = {place: new for new, place in enumerate(kept)}
    return tuple(
        replace(signals[place], parents=tuple(replace(one, signal=moved[one.signal]) for one in signals[place].parents))
        for place in kept
    )


def _apart(one: Signal, other: Signal) -> bool:
    """No frame can hold both."""
    return any(mine.signal == its.signal and not mine.ids & its.ids for mine in one.parents for its in other.parents)


def _parents(one: Any, found: list[Any], places: Mapping[str, int]) -> tuple[Parent, ...]:
    parents: list[Parent] = []
    seen = {one.name}
    while one.multiplexer_signal is not None and one.multiplexer_ids is not None:
        if one.multiplexer_signal in seen or one.multiplexer_signal not in places:
            raise ValueError(f"signal {one.name} has no multiplexer {one.multiplexer_signal}")
        seen.add(one.multiplexer_signal)
        place = places[one.multiplexer_signal]
        parents.append(Parent(signal=place, ids=frozenset(one.multiplexer_ids)))
        one = found[place]
    return tuple(parents)


def _signal(one: Any) -> Signal:
    choices = one.conversion.choices or {}
    return Signal(
        name=one.name,
        start=one.start,
        length=one.length,
        big_endian=one.byte_order == "big_endian",
        signed=bool(one.is_signed),
        coding="float" if one.conversion.is_float else "integer",
        scales=(Scale(factor=one.conversion.scale, offset=one.conversion.offset, unit=one.unit or None),),
        minimum=None if one.minimum is None else float(one.minimum),
        maximum=None if one.maximum is None else float(one.maximum),
        invalid=one.raw_invalid,
        choices=tuple(sorted((int(raw), str(label)) for raw, label in choices.items())),
    )


# -- LIN --------------------------------------------------------------------------------------------------------------
def _ldf(path: Path, network: str | None) -> Loaded:
    import ldfparser

    if network is not None:
        raise Fatal(f"{path} describes one LIN network: leave `#{network}` away")
    found = ldfparser.parse_ldf(str(path))
    messages = tuple(
        Message(
            kind="lin",
            id=frame.frame_id,
            extended=False,
            name=frame.name,
            length=frame.length,
            signals=tuple(_lin_signal(start, one) for start, one in frame.signal_map),
            database=path.name,
        )
        for frame in found.get_unconditional_frames()
        if frame.signal_map
    )
    others = len(found.get_event_triggered_frames())
    return Loaded(messages=messages, skipped={"event triggered": others} if others else {})


def _lin_signal(start: int, one: Any) -> Signal:
    """LIN 2.1, section 9.2.6.1: an encoding is a list of converters of which the first that fits counts."""
    from ldfparser.encoding import ASCIIValue, BCDValue, LogicalValue, PhysicalValue

    scales: list[Scale] = []
    choices: dict[int, str] = {}
    plain = Signal(name=one.name, start=start, length=one.width)
    for converter in one.encoding_type.get_converters() if one.encoding_type is not None else ():
        if isinstance(converter, BCDValue):
            return replace(plain, coding="bcd")
        if isinstance(converter, ASCIIValue):
            return replace(plain, coding="ascii")
        if isinstance(converter, LogicalValue):
            choices.setdefault(converter.phy_value, converter.info or str(converter.phy_value))
        elif isinstance(converter, PhysicalValue):
            scales.append(
                Scale(
                    factor=converter.scale,
                    offset=converter.offset,
                    unit=converter.unit or None,
                    low=int(converter.phy_min),
                    high=int(converter.phy_max),
                )
            )
    return replace(plain, scales=tuple(scales) or (Scale(),), choices=tuple(sorted(choices.items())))
