"""Elements of a FIBEX file about frames, until all are known: where frames are sent, what PDUs they hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from pcaplake.signals.computations import whole_number
from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.model import FLEXRAY_CYCLES, Channel
from pcaplake.signals.xml_elements import XmlElement

_TIMING: Final = "TIMINGS/ABSOLUTELY-SCHEDULED-TIMING"


@dataclass(frozen=True, slots=True, kw_only=True)
class Triggering:
    """Where a frame is sent. `channel` None: CAN."""

    frame: str
    number: int
    extended: bool = False
    channel: Channel | None = None
    base: int = 0
    repetition: int = 1


@dataclass(slots=True, kw_only=True)
class FrameElements:
    """Elements of CHANNEL, FRAME and PDU, until all are known; their signals become records of `FibexFile`."""

    triggerings: list[Triggering] = field(default_factory=list)
    frames: dict[str, XmlElement] = field(default_factory=dict)
    pdus: dict[str, XmlElement] = field(default_factory=dict)
    monotone: bool = False

    def add_element(self, element: XmlElement) -> None:
        """Raises `DatabaseError` for an element that cannot be read."""
        if element.name == "CLUSTER":
            self.monotone |= element.text_at("BIT-COUNTING-POLICY") == "MONOTONE"
        elif element.name == "CHANNEL":
            self.triggerings += _triggerings(element)
        else:
            found = self.frames if element.name == "FRAME" else self.pdus
            found[element.attributes.get("ID", "")] = element


def _triggerings(channel: XmlElement) -> Iterator[Triggering]:
    letter = channel.text_at("FLEXRAY-CHANNEL-NAME")
    for each in channel.children_at("FRAME-TRIGGERINGS/FRAME-TRIGGERING"):
        frame = each.reference("FRAME-REF")
        if frame is None:
            continue
        for timing in each.children_at(_TIMING):
            slot = timing.text_at("SLOT-ID")
            if slot is None:
                continue
            counter, base = timing.text_at("CYCLE-COUNTER"), timing.text_at("BASE-CYCLE")
            repetition = timing.text_at("CYCLE-REPETITION")
            first = whole_number(counter or base or "0", "BASE-CYCLE")
            every = FLEXRAY_CYCLES if counter is not None else whole_number(repetition or "1", "CYCLE-REPETITION")
            if not 0 <= first < FLEXRAY_CYCLES or not 1 <= every <= FLEXRAY_CYCLES:
                raise DatabaseError(
                    f"a frame is sent in cycle {first} and every {every} cycles: there are cycles 0 to 63"
                )
            for name in ("A", "B") if letter not in ("A", "B") else (letter,):
                channel_name: Channel = "A" if name == "A" else "B"
                number = whole_number(slot, "SLOT-ID")
                yield Triggering(frame=frame, number=number, channel=channel_name, base=first, repetition=every)
        value = each.child("IDENTIFIER/IDENTIFIER-VALUE")
        if value is not None and value.text:
            extended = value.attributes.get("EXTENDED-ADDRESSING", "").lower() == "true"
            yield Triggering(frame=frame, number=whole_number(value.text, "IDENTIFIER-VALUE"), extended=extended)
