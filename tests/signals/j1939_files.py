"""DBC files of J1939 messages."""

from __future__ import annotations

from random import Random
from typing import Any

ANY, ENGINE, TRANSMISSION, TO_ONE = 0x18FEF1FE, 0x0CF00400, 0x0CF00403, 0x0C00FEFE
FORMATS = '"StandardCAN","ExtendedCAN","reserved","J1939PG"'


def dbc(*messages: tuple[str, int], more: str = "", formats: bool = True) -> str:
    attributes = (
        f'BA_DEF_ BO_ "VFrameFormat" ENUM {FORMATS};\nBA_DEF_DEF_ "VFrameFormat" "J1939PG";\n' if formats else ""
    )
    body = "".join(
        f'BO_ {0x80000000 | can_id} {name}: 8 Vector__XXX\n SG_ {name}Value : 0|16@1+ (0.5,-10) [0|0] "rpm" Vector__XXX\n'
        for name, can_id in messages
    )
    return f'VERSION ""\nBU_:\n{body}{attributes}{more}'


LONG: dict[str, int] = {"Component": 0x18FEB0FE, "Answer": 0x18DF00FE, "Product": 0x19F801FE, "Torque": 0x0C0000FE}
"""Messages that may be longer than a frame: those of the groups that `tests.parser.j1939_frames` sends."""
PLAIN = LONG["Component"] & 0x3FFFF00
_STARTS = {"Head": "0|16@1+", "Across": "60|12@1-", "Far": "519|32@0+", "Last": "14264|16@1+"}


def long_dbc(*names: str, factor: float = 0.5, signals: dict[str, str] = _STARTS) -> str:
    """Messages of 1,785 bytes. Their last signal ends with the last byte."""
    body = ""
    for name in names or LONG:
        body += f"BO_ {0x80000000 | LONG[name]} {name}: 1785 Vector__XXX\n"
        for signal, place in signals.items():
            body += f' SG_ {signal} : {place} ({factor},-10) [0|0] "rpm" Vector__XXX\n'
    return (
        f'VERSION ""\nBU_:\n{body}BA_DEF_ BO_ "VFrameFormat" ENUM {FORMATS};\nBA_DEF_DEF_ "VFrameFormat" "J1939PG";\n'
    )


def with_plain_message(factor: int) -> str:
    """Those messages, and `Plain`, which is no group; a message of `transported` has its identifier, too."""
    plain = f'BO_ {0x80000000 | PLAIN} Plain: 8 Vector__XXX\n SG_ Value : 0|8@1+ ({factor},0) [0|0] "" Vector__XXX\n'
    format_ = f'BA_ "VFrameFormat" BO_ {0x80000000 | PLAIN} 1;\n'
    return long_dbc().replace("BA_DEF_ ", f"{plain}BA_DEF_ ", 1) + format_


def transported(count: int, *, packets: int | None = 9) -> list[dict[str, Any]]:
    """Rows of `j1939_messages`: of several groups, destinations, senders and lengths."""
    r = Random(count)
    rows = []
    for n in range(count):
        can_id = list(LONG.values())[n % len(LONG)]
        to_one = can_id >> 16 & 0xFF < 240
        head = {"can_id": 0x18EBFF00 | n, "priority": n % 8, "source_address": n, "tp_packets": packets}
        where = {"pgn": can_id >> 8 & (0x3FF00 if to_one else 0x3FFFF), "destination_address": n if to_one else 255}
        rows.append(head | where | {"payload": r.randbytes(r.choice((9, 70, 1785))), "bus": r.choice(("truck", None))})
    return rows
