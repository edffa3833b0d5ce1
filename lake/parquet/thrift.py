"""Writes Thrift's compact protocol, as far as a Parquet footer needs it.

Source: thrift-compact-protocol.md of Apache Thrift. A struct is a tuple of (field id, type, value) in ascending order of
ids; a value of None leaves the field out. The type of a list includes that of its items, because an empty list has it too, and
readers in Rust refuse a wrong one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

BOOL, BYTE, I16, I32, I64, BINARY, _LIST, STRUCT = 1, 3, 4, 5, 6, 8, 9, 12
INTS, TEXTS, STRUCTS = (_LIST | item << 4 for item in (I32, BINARY, STRUCT))

Field = tuple[int, int, Any]
Struct = Sequence[Field] | bytes  # bytes: it is encoded already


def encode_varint(value: int) -> bytes:
    """An unsigned integer in groups of 7 bits, the lowest first."""
    out = bytearray()
    _append_varint(out, value)
    return bytes(out)


def _append_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _append_zigzag(out: bytearray, value: int) -> None:
    """Append a signed integer: 0, -1, 1, -2, ... as 0, 1, 2, 3, ..."""
    value = value << 1 if value >= 0 else (-value << 1) - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def encode_struct(struct: Struct) -> bytes:
    """The bytes of a struct, including its stop byte. Raises `TypeError` for an unknown type."""
    out = bytearray()
    _append_struct(out, struct)
    return bytes(out)


def _append_struct(out: bytearray, struct: Struct) -> None:
    if isinstance(struct, bytes):
        out += struct
        return
    last = 0
    for number, kind, value in struct:
        if value is None:
            continue
        head = (1 if value else 2) if kind == BOOL else kind & 15
        if number - last <= 15:
            out.append((number - last) << 4 | head)
        else:
            out.append(head)
            _append_zigzag(out, number)
        if kind != BOOL:
            _append_value(out, kind, value)
        last = number
    out.append(0)


def _append_value(out: bytearray, kind: int, value: Any) -> None:
    if kind in (I16, I32, I64):
        _append_zigzag(out, value)
    elif kind == STRUCT:
        _append_struct(out, value)
    elif kind == BINARY:
        data = value.encode() if isinstance(value, str) else value
        _append_varint(out, len(data))
        out += data
    elif kind & 15 == _LIST:
        _append_list(out, kind >> 4, value)
    elif kind == BYTE:
        out.append(value & 0xFF)
    else:
        raise TypeError(f"unknown Thrift type {kind}")


def _append_list(out: bytearray, kind: int, values: Sequence[Any]) -> None:
    if len(values) < 15:
        out.append(len(values) << 4 | kind)
    else:
        out.append(0xF0 | kind)
        _append_varint(out, len(values))
    for value in values:
        _append_value(out, kind, value)
