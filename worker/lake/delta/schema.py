"""Arrow schemas and the JSON of Delta's, and what a newer schema may add.

Knows the Delta transaction protocol, section "Schema Serialization Format". Must not know stores or versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from .errors import SchemaConflict

Json = dict[str, Any]

_TO_DELTA: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.binary_view(): "binary",
    pa.date32(): "date",
    pa.timestamp("us", tz="UTC"): "timestamp",
}
_TO_ARROW: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")


def to_delta(schema: pa.Schema, table: str = "table") -> Json:
    """The struct that a metaData's schemaString holds; every field is nullable, whatever Arrow says.

    Raises SchemaConflict for a type that Delta (reader 1, writer 2) has not.
    """
    return _struct(schema, table, "")


def to_arrow(struct: Mapping[str, Any]) -> pa.Schema:
    """The Arrow schema of a Delta struct. Raises ValueError for a type of a newer protocol."""
    return pa.schema([_arrow_field(field) for field in struct["fields"]])


def evolve(table: str, have: Mapping[str, Any], want: Mapping[str, Any]) -> Json | None:
    """`have` (the table's struct) with the fields of `want` that it lacks added at the end, nullable; None: none is.

    Fields within structs too, also within lists and maps. Raises SchemaConflict for anything else that differs.
    """
    merged = _merge_struct(table, "", have, want)
    return merged if merged != have else None


def incompatible(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """What somebody dropped or retyped between two schemas of a table, or None."""
    try:
        _merge_struct("", "", after, before, may_add=False)
    except SchemaConflict as conflict:
        return str(conflict).removeprefix(": ")
    return None


def _struct(fields: Iterable[pa.Field], table: str, prefix: str) -> Json:
    made: dict[str, Json] = {}
    for field in fields:
        if (other := made.get(field.name.lower())) is not None:
            raise SchemaConflict(f"{table}: column {prefix}{field.name} is there twice, also as {other['name']}")
        made[field.name.lower()] = _field(field, table, prefix + field.name)
    return {"type": "struct", "fields": list(made.values())}


def _field(field: pa.Field, table: str, column: str) -> Json:
    return {"name": field.name, "type": _type(field.type, table, column), "nullable": True, "metadata": {}}


def _type(kind: pa.DataType, table: str, column: str) -> str | Json:
    if kind in _TO_DELTA:
        return _TO_DELTA[kind]
    if pa.types.is_dictionary(kind):
        return _type(kind.value_type, table, column)
    if pa.types.is_fixed_size_binary(kind):
        return "binary"
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        element = _type(kind.value_type, table, f"{column}.element")
        return {"type": "array", "elementType": element, "containsNull": True}
    if pa.types.is_map(kind):
        return {
            "type": "map",
            "keyType": _type(kind.key_type, table, f"{column}.key"),
            "valueType": _type(kind.item_type, table, f"{column}.value"),
            "valueContainsNull": True,
        }
    if pa.types.is_struct(kind):
        return _struct(kind, table, f"{column}.")
    raise SchemaConflict(f"{table}: column {column} is {kind}, which Delta (reader 1, writer 2) cannot hold")


def _arrow_field(field: Mapping[str, Any]) -> pa.Field:
    return pa.field(field["name"], _arrow_type(field["type"]), nullable=field["nullable"])


def _arrow_type(kind: Any) -> pa.DataType:
    if isinstance(kind, str):
        decimal = _DECIMAL.fullmatch(kind)
        if decimal:
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
        if kind in _TO_ARROW:
            return _TO_ARROW[kind]
    elif kind["type"] == "struct":
        return pa.struct([_arrow_field(field) for field in kind["fields"]])
    elif kind["type"] == "array":
        return pa.list_(pa.field("element", _arrow_type(kind["elementType"]), nullable=kind["containsNull"]))
    elif kind["type"] == "map":
        value = pa.field("value", _arrow_type(kind["valueType"]), nullable=kind["valueContainsNull"])
        return pa.map_(_arrow_type(kind["keyType"]), value)
    raise ValueError(f"no Arrow type for the Delta type {kind}")


def _merge_struct(
    table: str, prefix: str, have: Mapping[str, Any], want: Mapping[str, Any], may_add: bool = True
) -> Json:
    """Names differ only by more than case: engines fold it, so `Bus` beside `bus` would be one column to them."""
    wanted = {field["name"].lower(): field for field in want["fields"]}
    fields = []
    for field in have["fields"]:
        column, other = prefix + field["name"], wanted.pop(field["name"].lower(), None)
        if other is None:
            if not field["nullable"] and may_add:
                raise SchemaConflict(f"{table}: column {column} is NOT NULL in the table and missing in the rows")
            fields.append(field)
            continue
        if other["name"] != field["name"]:
            raise SchemaConflict(f"{table}: column {column} of the table is called {other['name']} in the rows")
        if not field["nullable"] and other["nullable"]:
            raise SchemaConflict(
                f"{table}: column {column} is NOT NULL in the table and may be null in the rows; "
                f"ALTER TABLE ... ALTER COLUMN {column} DROP NOT NULL"
            )
        fields.append({**field, "type": _merge(table, column, field["type"], other["type"], may_add)})
    if wanted and not may_add:
        raise SchemaConflict(f"{table}: column {prefix}{next(iter(wanted.values()))['name']} was dropped")
    return {**have, "fields": [*fields, *({**field, "nullable": True} for field in wanted.values())]}


def _merge(table: str, column: str, have: Any, want: Any, may_add: bool) -> Any:
    if isinstance(have, str) or isinstance(want, str) or have["type"] != want["type"]:
        if have != want:
            raise SchemaConflict(f"{table}: column {column} is {_say(have)} in the table and {_say(want)} in the rows")
        return have
    if have["type"] == "struct":
        return _merge_struct(table, f"{column}.", have, want, may_add)
    parts = {"elementType": "element"} if have["type"] == "array" else {"keyType": "key", "valueType": "value"}
    return {
        **have,
        **{key: _merge(table, f"{column}.{name}", have[key], want[key], may_add) for key, name in parts.items()},
    }


def _say(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(_arrow_type(kind))
