"""Frames in hex whose rows are known from the standards (golden.yaml names them), read and compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from pcaplake.parser import Profile, Summary
from tests.parser.captures import pcap
from tests.parser.compare import read

_FILES = [
    yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    for path in sorted(Path(__file__).parent.glob("golden*.yaml"))
]
GOLDEN: dict[str, list[dict[str, Any]]] = {
    kind: [case for file in _FILES for case in file[kind]] for kind in ("good", "faulty")
}


def read_golden(golden: dict[str, Any], *before: bytes) -> tuple[dict[str, list[dict[str, Any]]], Summary]:
    """The rows of the frame, which may come after others, and what was in the capture."""
    choice = {"profile": Profile.parse(golden["profile"])} if "profile" in golden else {}
    frames = [*before, bytes.fromhex(golden["frame"])]
    return read(pcap(frames, golden["link_type"], order=golden.get("order", "<")), **choice)


def plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex(" ")
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def check_rows(golden: dict[str, Any], rows: dict[str, list[dict[str, Any]]], packet: int = 1) -> None:
    for table, wanted in golden.get("rows", {}).items():
        found = [row for row in rows.get(table, []) if row["packet_no"] == packet]
        assert len(found) == len(wanted), table
        for want, row in zip(wanted, found, strict=True):
            assert {column: plain(row[column]) for column in want} == want, table
