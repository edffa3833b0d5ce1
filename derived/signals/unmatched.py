"""Explains a run that decoded no signal: the frames by bus, the ids that no database names, and the likely cause."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pcaplake.common.plain_text import counted
from pcaplake.signals.database import OTHERS, Databases
from pcaplake.signals.j1939 import GROUP_KEYS, parameter_group
from pcaplake.signals.model import Key, Kind
from pcaplake.signals.tables import SOURCES

NO_BUS = "(no bus)"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameCount:
    """The frames of one id on one bus."""

    kind: Kind
    bus: str | None
    id: int
    extended: bool
    frames: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmatchedFrames:
    """`frames`: source table -> bus -> number of frames. `unknown_ids`: ids that no database of their bus names; an id counts
    once on each bus. `hints`: likely causes, and what to do."""

    frames: Mapping[str, Mapping[str, int]]
    unknown_ids: int
    hints: tuple[str, ...]

    def __str__(self) -> str:
        buses = [f"{table} {bus} {count:,}" for table, by_bus in self.frames.items() for bus, count in by_bus.items()]
        unknown = counted(self.unknown_ids, "id")
        return f"no signal is decoded; frames: {', '.join(buses)}; no database of their bus names {unknown}"


def explain_unmatched(counts: Iterable[FrameCount], databases: Databases) -> UnmatchedFrames | None:
    """None if there are no frames."""
    frames: dict[str, Counter[str]] = defaultdict(Counter)
    ids = unknown = 0
    causes: Counter[str] = Counter()
    groups = {bus: _parameter_groups(network.messages) for bus, network in databases.networks.items()}
    for count in counts:
        frames[SOURCES[count.kind]][NO_BUS if count.bus is None else count.bus] += count.frames
        network, ids = databases.network_of_bus(count.bus), ids + 1
        if network is None or network.find_message(count.kind, count.id, count.extended) is None:
            unknown += 1
            causes.update(_find_causes(count, databases, groups))
    if not frames:
        return None
    hints = [f"{counted(number, 'id')} {cause}" for cause, number in causes.most_common()]
    if not unknown:
        hints = ["the databases name all ids, but the payloads are too short, or their signals cannot be decoded"]
    elif not hints and unknown < ids:
        known = f"the databases name {ids - unknown:,} of the {counted(ids, 'id')}"
        hints = [f"{known}, but their payloads are too short, or their signals cannot be decoded"]
    elif not hints:
        hints = ["the databases name none of these ids: they may describe other buses, or another vehicle"]
    by_table = {table: dict(sorted(by_bus.items())) for table, by_bus in sorted(frames.items())}
    return UnmatchedFrames(frames=by_table, unknown_ids=unknown, hints=tuple(hints))


def _find_causes(count: FrameCount, databases: Databases, groups: Mapping[str, set[int]]) -> Iterator[str]:
    """Why the database of its bus may not name an id; each text follows the number of ids."""
    others = [
        bus
        for bus, network in sorted(databases.networks.items())
        if network.find_message(count.kind, count.id, count.extended) is not None
    ]
    if others:
        bus = "frames without a bus" if count.bus is None else f"bus {count.bus}"
        where = ", ".join("all other buses" if other == OTHERS else f"bus {other}" for other in others)
        yield f"found in the databases of {where}, not of {bus}: correct `buses` in the file of --databases, or the profile"
        return
    network = databases.network_of_bus(count.bus)
    if network is None or count.kind != "can":
        return
    if ("can", count.id, not count.extended) in network.messages:
        yield "found with the other length: a message has 11 bits where the frames have 29, or the reverse"
    elif ("can", _swap_bytes(count), count.extended) in network.messages:
        yield "found with the bytes in the other order: the program that wrote the captures swapped them"
    elif count.extended and parameter_group(count.id) in groups[_name_of_network(count.bus, databases)]:
        yield (
            "found with another J1939 priority or address: the database does not say that its messages are those of J1939 "
            "(VFrameFormat), or names another sender, so add one for each sender to it"
        )


def _name_of_network(bus: str | None, databases: Databases) -> str:
    return bus if bus is not None and bus in databases.networks else OTHERS


def _swap_bytes(count: FrameCount) -> int:
    size = 4 if count.extended else 2
    return int.from_bytes(count.id.to_bytes(4, "little")[:size], "big")


def _parameter_groups(keys: Iterable[Key]) -> set[int]:
    return {
        number >> 9 & 0x3FFFF if number >= GROUP_KEYS else parameter_group(number)
        for kind, number, extended in keys
        if kind == "can" and extended
    }
