"""What the columns of the signal tables contain. The key columns of a frame are described in `pcaplake.parser.descriptions`."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

TABLES: Final[dict[str, str]] = {
    "signals": "One row per signal of each frame that a database describes.",
    "signal_catalog": "One row per bus, message and signal of the databases.",
}
COLUMNS: Final[dict[str, str]] = {
    "message": "Name of the message in the database.",
    "signal": "Name of the signal in the database.",
    "can_id": "Identifier of the CAN frame; of a J1939 message of several, that which one frame would have; otherwise null.",
    "lin_id": "Identifier of the LIN frame; otherwise null.",
    "service_id": "Service id of the SOME/IP message; otherwise null.",
    "method_id": "Method or event id of the SOME/IP message; otherwise null.",
    "slot_id": "Frame id of the FlexRay frame, which is the number of its slot; otherwise null.",
    "pdu_id": "Id of the PDU of PDU transport; otherwise null.",
    "tp_packets": "Number of packets of J1939's transport protocol that the message was put together from; otherwise null.",
    "contained_no": "Place of the PDU among those of its AUTOSAR container, from 0; null outside of containers with headers.",
    "base_cycle": "First cycle of the FlexRay frame; otherwise null.",
    "cycle_repetition": "The FlexRay frame is sent every so many cycles; otherwise null.",
    "channels": "Channels of the FlexRay frame: `A`, `B` or `AB`; otherwise null.",
    "values": "The numbers of an array that is one row: SOME/IP arrays that may have more than 32 numbers. Otherwise null.",
    "value": "Physical value: raw value times factor plus offset. Null if the database assigns no number to the raw value.",
    "label": "Text of the value table for the raw value; for a LIN signal that is text, its characters.",
    "raw_value": "The raw bits, sign-extended if the signal is signed; null for more than 64 bits.",
    "unit": "Unit in the database.",
    "valid": "True if the value is a finite number within the database's range and is not its invalid value.",
    "database": "File name of the database.",
    "database_hash": "Hash of the content of the database.",
    "bus": "Name of the bus; null stands for every bus that is not listed.",
    "message_hash": "Hash of the message's definition: if it changes, the message's frames are decoded again.",
    "extended": "True for a CAN identifier of 29 bits.",
    "message_bytes": "Length of the message in bytes.",
    "start_bit": "Position of the signal's first bit, as in the database.",
    "length": "Length of the signal in bits.",
    "byte_order": "`little_endian` or `big_endian`.",
    "coding": "How the raw bits encode the value: an integer, a float, text or BCD digits.",
    "signed": "True if the raw value is signed.",
    "factor": "The raw value is multiplied by this factor.",
    "offset": "This is added to the raw value times the factor.",
    "minimum": "Smallest valid value.",
    "maximum": "Largest valid value.",
    "choices": "Value table: raw value and its text.",
    "multiplexer": "Values of the multiplexers for which the signal is present; null if it always is.",
    "unreadable": "Why the signal cannot be decoded; null if it can.",
}


def with_comments(schema: pa.Schema) -> pa.Schema:
    """The schema with a comment for each column that has none yet and is described here."""
    return pa.schema(
        [
            field
            if field.metadata or field.name not in COLUMNS
            else field.with_metadata({"comment": COLUMNS[field.name]})
            for field in schema
        ]
    )
