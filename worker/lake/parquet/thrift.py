"""Thrift's compact protocol, as far as a Parquet footer needs it: writing only.

Source: thrift-compact-protocol.md of Apache Thrift. A struct is a tuple of (field id, type, value) in ascending order of
ids; a value of None leaves the field out.
"""

from __future__ import annotations

from collections.abc import Sequence

BOOL, BYTE, I16, I32, I64, BINARY, LIST, STRUCT = 1, 3, 4, 5, 6, 8, 9, 12

Field = tuple[int, int, object]
Struct = Sequence[Field]


def varint(value: int) -> bytes:
    """An unsigned integer in groups of 7 bits, the lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def zigzag(value: int) -> bytes:
    """A signed integer: 0, -1, 1, -2, ... as 0, 1, 2, 3, ..."""
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)


def encode(struct: Struct) -> bytes:
    """The bytes of a struct, its stop byte included."""
    out, last = bytearray(), 0
    for number, kind, value in struct:
        if value is None:
            continue
        head = (1 if value else 2) if kind == BOOL else kind
        if 0 < number - last <= 15:
            out.append((number - last) << 4 | head)
        else:
            out.append(head)
            out += zigzag(number)
        if kind != BOOL:
            out += _value(kind, value)
        last = number
    out.append(0)
    return bytes(out)


def _value(kind: int, value: object) -> bytes:
    match value:
        case bytes():
            return varint(len(value)) + value
        case str():
            return _value(kind, value.encode())
        case int():
            return bytes([value & 0xFF]) if kind == BYTE else zigzag(value)
        case Sequence() if kind == STRUCT:
            return encode(value)
        case Sequence():
            return _list(value)
    raise TypeError(f"no Thrift value: {value!r}")


def _list(values: Sequence[object]) -> bytes:
    """A list of ints (i32), of texts (binary) or of structs, told by its first item."""
    first = values[0] if values else 0
    kind = I32 if isinstance(first, int) else BINARY if isinstance(first, (str, bytes)) else STRUCT
    head = bytes([len(values) << 4 | kind]) if len(values) < 15 else bytes([0xF0 | kind]) + varint(len(values))
    return head + b"".join(_value(kind, value) for value in values)
