"""The rows of the table `signal_catalog`: one for each bus, message and signal of the databases."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from .database import OTHERS, Databases
from .model import Message, Signal
from .someip.members import list_paths
from .tables import CATALOG_SCHEMA


def holds_catalog(rows: Iterable[Mapping[str, Any]], databases: Databases) -> bool:
    """Whether these rows of the table are what `build_catalog` gives. A row's `choices` are a dictionary."""
    expected = ({**row, "choices": dict(row["choices"])} for row in build_catalog(databases))
    return _comparable_texts(rows) == _comparable_texts(expected)


def _comparable_texts(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Rows as texts, because NaN is not equal to itself."""
    return sorted(repr([row[name] for name in CATALOG_SCHEMA.names]) for row in rows)


def build_catalog(databases: Databases) -> list[dict[str, Any]]:
    """A row for each bus (null: all other buses), message and signal; unreadable signals carry the reason."""
    hashes: dict[str, str] = {}
    rows = []
    for bus, message in databases:
        if message.database not in hashes:
            hashes[message.database] = databases.hash_of_database(message.database)
        where = {"bus": None if bus == OTHERS else bus}
        for part in message.parts:
            signals: list[tuple[Signal, str | None]] = [(signal, None) for signal in part.signals]
            signals += [(unreadable.signal, unreadable.reason) for unreadable in part.unreadable]
            rows += [{**where, **_catalog_row(part, signal, why, hashes[part.database])} for signal, why in signals]
    return rows + _payload_rows(databases)


def _payload_rows(databases: Databases) -> list[dict[str, Any]]:
    """A row for each path of each SOME/IP message; `[]` stands for any index."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    by_database: dict[str, list[str]] = {}
    for message in databases.services:
        by_database.setdefault(message.database, []).append(message.definition_hash)
    for message in databases.services:
        hashes = "".join(sorted(by_database[message.database]))
        for path in list_paths(message):
            row = dict.fromkeys(CATALOG_SCHEMA.names) | {
                "database": message.database,
                "database_hash": hashlib.blake2b(hashes.encode(), digest_size=8).hexdigest(),
                "message": message.name,
                "signal": path.replace("{}", ""),
                "message_hash": message.definition_hash,
                "service_id": message.service_id,
                "method_id": message.method_id,
                "choices": [],
            }
            rows[message.name, message.definition_hash, path] = row
    return list(rows.values())


def _catalog_row(message: Message, signal: Signal, unreadable: str | None, database_hash: str) -> dict[str, Any]:
    scale = signal.scales[0]
    parents = [f"{message.signals[parent.signal].name} = {_format_ranges(parent.ids)}" for parent in signal.parents]
    return {
        "database": message.database,
        "database_hash": database_hash,
        "message": message.name,
        "signal": signal.name,
        "message_hash": message.definition_hash,
        "can_id": message.id if message.kind == "can" else None,
        "lin_id": message.id if message.kind == "lin" else None,
        "extended": message.extended if message.kind == "can" else None,
        "message_bytes": _int32_or_none(message.length),
        "start_bit": _int32_or_none(signal.start),
        "length": _int32_or_none(signal.length),
        "byte_order": "big_endian" if signal.big_endian else "little_endian",
        "coding": signal.coding,
        "signed": signal.signed,
        "factor": float(scale.factor),
        "offset": float(scale.offset),
        "minimum": signal.minimum,
        "maximum": signal.maximum,
        "unit": scale.unit,
        "choices": [(raw, label) for raw, label in signal.choices if -(1 << 63) <= raw < 1 << 63],
        "multiplexer": " and ".join(parents) or None,
        "unreadable": unreadable,
        "slot_id": message.id if message.kind == "flexray" else None,
        "base_cycle": message.schedule.base if message.schedule is not None else None,
        "cycle_repetition": message.schedule.repetition if message.schedule is not None else None,
        "channels": "".join(message.schedule.channels) if message.schedule is not None else None,
        "pdu_id": message.id if message.kind == "pdu" else None,
        "service_id": None,
        "method_id": None,
    }


def _int32_or_none(number: int) -> int | None:
    """None for a number beyond int32, which a broken declaration may have."""
    return number if abs(number) < 1 << 31 else None


def _format_ranges(ids: frozenset[int]) -> str:
    """1, 3-5"""
    runs: list[list[int]] = []
    for number in sorted(ids):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
