"""Arrow schemas of the tables that only `signals` writes: `signals`, `signal_catalog` and `signals_<message>`.

`can_id`, `lin_id`, `service_id`, `slot_id` or `pdu_id` tells where a row comes from: exactly one of them is not null. Rows with
a `can_id` whose message came in several frames, by J1939's transport protocol, have `tp_packets` too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import pyarrow as pa

from pcaplake.parser.schemas import TABLES
from pcaplake.parser.table_spec import BOOL, INT16, INT32, INT64, STRING

from .descriptions import with_comments
from .model import Kind, Message

SIGNALS, CATALOG = "signals", "signal_catalog"
SOURCES: Final[Mapping[Kind, str]] = {
    "can": "can_frames",
    "lin": "lin_frames",
    "flexray": "flexray_frames",
    "pdu": "pdus",
    "j1939": "j1939_messages",
}
"""The tables of frames that are decoded."""
FRAME_IDS: Final[Mapping[Kind, str]] = {
    "can": "can_id",
    "lin": "lin_id",
    "flexray": "frame_id",
    "pdu": "pdu_id",
    "j1939": "pgn",
}
"""The column of a frame that has its id; of J1939's transport protocol, the parameter group of the message."""
ROW_IDS: Final[Mapping[Kind, str]] = {**FRAME_IDS, "flexray": "slot_id", "j1939": "can_id"}
"""The column of `signals` that has the id of the frame."""
FLOAT64: Final = pa.float64()

KEYS: Final[tuple[str, ...]] = tuple(
    name for name in TABLES["can_frames"].schema.names[: TABLES["can_frames"].schema.get_field_index("source") + 1]
)
"""The key columns of a frame, and of each of its signals."""

INPUT: Final[Mapping[Kind, tuple[str, ...]]] = {
    "can": (*KEYS, "can_id", "extended", "rtr", "payload"),
    "lin": (*KEYS, "lin_id", "errors", "payload"),
    "flexray": (*KEYS, "channel", "frame_id", "cycle", "null_frame", "errors", "payload"),
    "pdu": (*(name for name in KEYS if name in TABLES["pdus"].schema.names), "pdu_id", "payload"),
    "j1939": (*KEYS, "priority", "pgn", "source_address", "destination_address", "tp_packets", "payload"),
}
"""The columns of a frame that are read."""

_KEY_FIELDS: Final = [
    field.with_nullable(True) if field.name == "source" else field  # SOME/IP messages have none
    for field in map(TABLES["can_frames"].schema.field, KEYS)
]

SIGNALS_SCHEMA: Final = with_comments(
    pa.schema(
        [
            *_KEY_FIELDS,
            pa.field("message", STRING, nullable=False),
            pa.field("signal", STRING, nullable=False),
            pa.field("can_id", INT64),
            pa.field("lin_id", INT16),
            pa.field("value", FLOAT64),
            pa.field("label", STRING),
            pa.field("raw_value", INT64),
            pa.field("unit", STRING),
            pa.field("valid", BOOL, nullable=False),
            pa.field("service_id", INT32),
            pa.field("method_id", INT32),
            pa.field("values", pa.list_(FLOAT64)),
            pa.field("slot_id", INT32),
            pa.field("pdu_id", INT64),
            pa.field("tp_packets", INT16),
            pa.field("contained_no", INT32),
        ]
    )
)
CATALOG_SCHEMA: Final = with_comments(
    pa.schema(
        [
            pa.field("database", STRING, nullable=False),
            pa.field("database_hash", STRING, nullable=False),
            pa.field("bus", STRING),
            pa.field("message", STRING, nullable=False),
            pa.field("signal", STRING, nullable=False),
            pa.field("message_hash", STRING, nullable=False),
            pa.field("can_id", INT64),
            pa.field("lin_id", INT16),
            pa.field("extended", BOOL),
            pa.field("message_bytes", INT32),
            pa.field("start_bit", INT32),
            pa.field("length", INT32),
            pa.field("byte_order", STRING),
            pa.field("coding", STRING),
            pa.field("signed", BOOL),
            pa.field("factor", FLOAT64),
            pa.field("offset", FLOAT64),
            pa.field("minimum", FLOAT64),
            pa.field("maximum", FLOAT64),
            pa.field("unit", STRING),
            pa.field("choices", pa.map_(INT64, STRING)),
            pa.field("multiplexer", STRING),
            pa.field("unreadable", STRING),
            pa.field("slot_id", INT32),
            pa.field("base_cycle", INT16),
            pa.field("cycle_repetition", INT16),
            pa.field("channels", STRING),
            pa.field("pdu_id", INT64),
            pa.field("service_id", INT32),
            pa.field("method_id", INT32),
        ]
    )
)
_UNSAFE = re.compile(r"[^A-Za-z0-9_]")


def wide_table_name(message: str) -> str:
    """The name of the table of one message."""
    return f"signals_{_UNSAFE.sub('_', message)}"


def wide_columns(messages: Iterable[Message]) -> dict[str, str]:
    """signal -> column, in the order of the definitions."""
    messages = list(messages)
    names = ColumnNames([*KEYS, *_wide_ids(messages)])
    signals = dict.fromkeys(signal.name for message in messages for signal in message.signals)
    return {signal: names.choose(signal) for signal in signals}


class ColumnNames:
    """Names of columns, and of those with their labels. No two differ in case alone, because engines ignore case."""

    def __init__(self, used: Iterable[str]) -> None:
        self._used = {name.lower() for name in used}

    def choose(self, text: str) -> str:
        """A new name, like the text."""
        name = base = _UNSAFE.sub("_", text)
        number = 2
        while name.lower() in self._used or f"{name}_label".lower() in self._used:
            name, number = f"{base}_{number}", number + 1
        self._used |= {name.lower(), f"{name}_label".lower()}
        return name


def wide_schema(messages: Sequence[Message]) -> pa.Schema:
    """Keys, id, then `<signal>` (value) for each signal, and `<signal>_label` where one of the messages has labels."""
    columns = wide_columns(messages)
    labeled = {
        message_signal.name
        for message in messages
        for message_signal in message.signals
        if message_signal.choices or message_signal.coding == "ascii"
    }
    fields = []
    for signal, column in columns.items():
        fields.append(pa.field(column, FLOAT64))
        if signal in labeled:
            fields.append(pa.field(f"{column}_label", STRING))
    return wide_schema_of(_wide_ids(messages), fields)


def wide_schema_of(ids: Iterable[str], fields: Iterable[pa.Field]) -> pa.Schema:
    """Keys, these columns of `signals`, then `fields`."""
    return pa.schema([*_KEY_FIELDS, *(SIGNALS_SCHEMA.field(name).remove_metadata() for name in ids), *fields])


def _wide_ids(messages: Iterable[Message]) -> list[str]:
    """The id columns of a wide table: those of CAN and LIN in each, and those of the messages."""
    messages = list(messages)
    ids = {ROW_IDS[message.wide_carrier] for message in messages}
    places = ["contained_no"] if any(message.contained for message in messages) else []
    return ["can_id", "lin_id", *sorted(ids - {"can_id", "lin_id"}), *places]
