"""What the `.txt` beside each pcapng conformance file says a reader must find (hadrielk/pcapng-test-generator)."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

PACKETS = {"EPB": True, "SPB": False, "PB": True}  # block: whether it carries a time and an interface


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The blocks of a file in their order: SHB, IDB, EPB, SPB, PB, NRB, ISB, CB, DCB."""

    blocks: tuple[str, ...]

    @property
    def sections(self) -> int:
        return self.blocks.count("SHB")

    @property
    def interfaces(self) -> int:
        return self.blocks.count("IDB")

    @property
    def timed(self) -> list[bool]:
        """For each packet, whether it has a time."""
        return [PACKETS[block] for block in self.blocks if block in PACKETS]

    @property
    def declared(self) -> list[tuple[int, int]]:
        """For each packet, the sections begun and the interfaces declared in its section before it."""
        found, section, interfaces = [], 0, 0
        for block in self.blocks:
            if block == "SHB":
                section, interfaces = section + 1, 0
            interfaces += block == "IDB"
            if block in PACKETS:
                found.append((section, interfaces))
        return found


def expected(path: Path) -> Expected:
    """The file's sequence of blocks, checked against its own counts."""
    text = path.read_text(encoding="utf-8")
    (sequence,) = re.findall(r"^Block sequence: (.+)$", text, re.MULTILINE)
    blocks = tuple(sequence.split(", "))
    counts = {name: int(count) for name, count in re.findall(r"^\t(\w+): (\d+)$", text, re.MULTILINE)}
    if Counter(blocks) != Counter(counts):
        raise ValueError(f"{path}: the sequence and the counts disagree: {Counter(blocks)}, {counts}")
    return Expected(blocks=blocks)
