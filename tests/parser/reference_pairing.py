"""How the reference finds the request of a response: it keeps every request, and looks at them from the last one on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pcaplake.parser.engine.layer import Layer
from pcaplake.parser.engine.pairing import Pairing
from tests.parser.reference_values import Met, buses, piece_value

MOST_OPEN = 4096


@dataclass
class Asked:
    """An open request."""

    about: tuple[Any, ...]  # interface, buses, subject
    ends: tuple[Any, ...]  # sender, receiver and channel; the sender alone of a request to a group
    packet_no: int
    time: int | None
    seen: int | None


class PlainRequests:
    def __init__(self, pairing: Pairing, partners: Mapping[int, int]) -> None:
        self.pairing, self.partners = pairing, partners
        self.open: list[Asked] = []

    def columns(self, path: Mapping[Layer, Met], packet: Any) -> dict[str, int | None]:
        """The columns of a row that is below these headers."""
        pairing = self.pairing
        subject, channel = piece_value(pairing.subject, path), piece_value(pairing.channel, path)
        channel = self.partners.get(channel, channel)
        sender, receiver = ([piece_value(c, path) for c in end] for end in (pairing.sender, pairing.receiver))
        about = packet.wire, buses(path), subject
        if not piece_value(pairing.response, path):
            group = piece_value(pairing.group, path) or channel < 0
            ends = (sender,) if group else (sender, receiver, channel)
            self.open = [asked for asked in self.open if (asked.about, asked.ends) != (about, ends)]
            self.open.append(Asked(about, ends, packet.no, packet.time, packet.time))
            del self.open[:-MOST_OPEN]
            return {pairing.packet_no: None, pairing.latency_us: None}
        for ends in ((receiver, sender, channel), (receiver,)):
            for asked in [asked for asked in self.open if (asked.about, asked.ends) == (about, ends)]:
                if None not in (packet.time, asked.seen) and packet.time - asked.seen > pairing.timeout_ns:
                    self.open.remove(asked)
                    continue
                if piece_value(pairing.pending, path):
                    asked.seen = packet.time
                elif len(ends) == 3:
                    self.open.remove(asked)
                known = None not in (packet.time, asked.time) and packet.time >= asked.time
                latency = (packet.time - asked.time) // 1000 if known else None
                return {pairing.packet_no: asked.packet_no, pairing.latency_us: latency}
        return {pairing.packet_no: None, pairing.latency_us: None}
