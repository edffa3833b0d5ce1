"""Thrift's compact protocol, as far as a Parquet footer needs it: writing only.

Source: thrift-compact-protocol.md of Apache Thrift. A struct is a tuple of (field id, type, value) in ascending order of
ids; a value of None leaves the field out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

BOOL, BYTE, I16, I32, I64, BINARY, LIST, STRUCT = 1, 3, 4, 5, 6, 8, 9, 12

Field = tuple[int, int, Any]
Struct = Sequence[Field]


def varint(value: int) -> bytes:
    """An unsigned integer in groups of 7 bits, the lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _zigzag(out: bytearray, value: int) -> None:
    """Append a signed integer: 0, -1, 1, -2, ... as 0, 1, 2, 3, ..."""
    value = value << 1 if value >= 0 else (-value << 1) - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def encode(struct: Struct) -> bytes:
    """The bytes of a struct, its stop byte included."""
    out = bytearray()
    _struct(out, struct)
    return bytes(out)


def _struct(out: bytearray, struct: Struct) -> None:
    last = 0
    for number, kind, value in struct:
        if value is None:
            continue
        head = (1 if value else 2) if kind == BOOL else kind
        if number - last <= 15:
            out.append((number - last) << 4 | head)
        else:
            out.append(head)
            _zigzag(out, number)
        if kind != BOOL:
            _value(out, kind, value)
        last = number
    out.append(0)


def _value(out: bytearray, kind: int, value: Any) -> None:
    if kind in (I16, I32, I64):
        _zigzag(out, value)
    elif kind == STRUCT:
        _struct(out, value)
    elif kind == BINARY:
        data = value.encode() if isinstance(value, str) else value
        out += varint(len(data))
        out += data
    elif kind == LIST:
        _list(out, value)
    elif kind == BYTE:
        out.append(value & 0xFF)
    else:
        raise TypeError(f"no Thrift type: {kind}")


def _list(out: bytearray, values: Sequence[Any]) -> None:
    """A list of ints (i32), of texts (binary) or of structs, told by its first item."""
    first = values[0] if values else 0
    kind = I32 if isinstance(first, int) else BINARY if isinstance(first, (str, bytes)) else STRUCT
    if len(values) < 15:
        out.append(len(values) << 4 | kind)
    else:
        out.append(0xF0 | kind)
        out += varint(len(values))
    for value in values:
        _value(out, kind, value)
