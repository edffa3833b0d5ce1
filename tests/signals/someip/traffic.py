"""SOME/IP messages of a lake, and Wireshark's tables that describe the first of them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from pcaplake.signals import Databases
from pcaplake.signals.someip.description import PayloadMessage
from tests.signals.databases import TWO_BUSES, databases
from tests.signals.lakes import SignalLake

from .generator import draw_payloads
from .wireshark_tables import TableWriter

MESSAGES = 4
PAYLOADS = 5
"""Of each message."""
YAML = TWO_BUSES.replace("databases: {", "databases: {services: tables, ")
Drawn = list[tuple[PayloadMessage, list[bytes]]]


def draw_messages() -> Drawn:
    rng = random.Random(5)
    drawn = [draw_payloads(rng, number, PAYLOADS, plain=True) for number in range(MESSAGES)]
    return [(message, [content for content, _ in payloads]) for message, payloads in drawn]


@dataclass
class Traffic:
    """Messages and their payloads; `folder`: where the tables are."""

    folder: Path
    drawn: Drawn

    def write_tables(self, count: int) -> None:
        """Tables of the first messages."""
        for path in (self.folder / "tables").glob("*"):
            path.unlink()
        TableWriter().write(self.folder / "tables", [message for message, _ in self.drawn[:count]])

    def describe(self, count: int = MESSAGES) -> Databases:
        """Databases with tables of the first messages."""
        self.write_tables(count)
        return databases(self.folder, YAML)

    def fill(self, lake: SignalLake) -> None:
        for message, payloads in self.drawn:
            lake.someip(message, payloads)
