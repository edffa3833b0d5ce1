"""Converts Arrow schemas to Delta's JSON and back, and merges schemas.

The JSON is that of the Delta transaction protocol, section "Schema Serialization Format".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from pcaplake.lake.store.store import is_utf8

from .errors import SchemaConflict

Json = dict[str, Any]
Struct = Mapping[str, Any]

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
DECIMAL = re.compile(r"decimal\(([0-9]{1,2}),\s*([0-9]{1,2})\)")
INTEGER_BITS: Mapping[str, int] = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_PARTS: Mapping[str, Mapping[str, str]] = {
    "array": {"elementType": "element"},
    "map": {"keyType": "key", "valueType": "value"},
}
_MOST_DIGITS = 38  # of a decimal
_COMPUTED = ("delta.invariants", "delta.generationExpression", "delta.identity.", "delta.columnMapping.")


def to_delta_struct(schema: pa.Schema, table: str = "table") -> Json:
    """The struct for the schemaString of a metaData action; every field is nullable, and keeps its comment.

    Raises SchemaConflict for a type that Delta (reader 1, writer 2) does not have.
    """
    return _delta_struct(schema, table, "")


def check_struct(struct: Struct, table: str) -> Struct:
    """The struct itself. Raises SchemaConflict for a column that no table of Delta (reader 1, writer 2) can have."""
    if not struct["fields"]:
        raise SchemaConflict(f"{table}: its schema has no columns")
    for problem in _list_struct_problems(struct, ""):
        raise SchemaConflict(f"{table}: {problem}")
    return struct


def as_struct(table: str, schema: pa.Schema | Struct) -> Struct:
    """A schema as the log has it. Raises SchemaConflict for a column that Delta cannot have."""
    return check_struct(to_delta_struct(schema, table) if isinstance(schema, pa.Schema) else schema, table)


def check_partition_columns(table: str, struct: Struct, columns: Sequence[str]) -> None:
    """Raise ValueError for columns that cannot partition a table of this schema."""
    types = {column["name"]: column["type"] for column in struct["fields"]}
    if missing := set(columns) - types.keys():
        raise ValueError(f"{table}: no column {', '.join(sorted(missing))} to partition by")
    if nested := [name for name in columns if not isinstance(types[name], str)]:
        raise ValueError(f"{table}: column {nested[0]} is a {types[nested[0]]['type']}, which cannot be partitioned by")
    if twice := [name for name in columns if list(columns).count(name) > 1]:
        raise ValueError(f"{table}: column {twice[0]} is there twice to partition by")


def list_computed_columns(kind: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(column, key) of field metadata that a writer must obey, at any depth."""
    if not isinstance(kind, Mapping):
        return
    for field in kind.get("fields", ()):
        for key in field.get("metadata", {}):
            if key.startswith(_COMPUTED):
                yield prefix + field["name"], key
        yield from list_computed_columns(field["type"], f"{prefix}{field['name']}.")
    for part in ("elementType", "keyType", "valueType"):
        yield from list_computed_columns(kind.get(part), prefix)


def to_arrow_schema(struct: Mapping[str, Any]) -> pa.Schema:
    """The Arrow schema of a Delta struct. Raises ValueError for a type of a newer protocol."""
    return pa.schema([_arrow_field(field) for field in struct["fields"]])


def evolve_schema(table: str, have: Mapping[str, Any], want: Mapping[str, Any]) -> Json | None:
    """`have` (the table's struct) with the missing fields of `want` added at the end, nullable; None when none is missing.

    Fields of nested structs are added, too. Raises SchemaConflict for any other difference.
    """
    merged = _merge_structs(table, "", have, want)
    return merged if merged != have else None


def find_incompatibility(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """A column that was dropped or got another type between two schemas of a table; None when none was."""
    try:
        _merge_structs("", "", after, before, may_add=False)
    except SchemaConflict as conflict:
        return str(conflict).removeprefix(": ")
    return None


def _list_struct_problems(struct: Mapping[str, Any], prefix: str) -> Iterator[str]:
    names: dict[str, str] = {}
    for field in struct["fields"]:
        name = field["name"]
        if not isinstance(name, str) or not name.strip() or not is_utf8(name):
            yield f"{name!r} is no name of a column"
            continue
        column = prefix + name
        if (other := names.setdefault(name.lower(), name)) is not name:
            yield f"column {column} appears twice, also as {other}"
        if not isinstance(field["nullable"], bool):
            yield f"nullable of column {column} is {field['nullable']!r}; it is true or false"
        yield from _list_type_problems(field["type"], column)
    for column, key in list_computed_columns({"fields": struct["fields"]}):
        yield f"column {column} has {key}, which pcaplake does not support"


def _list_type_problems(kind: Any, column: str) -> Iterator[str]:
    if isinstance(kind, str):
        decimal = DECIMAL.fullmatch(kind)
        if decimal is None and kind not in _TO_ARROW:
            yield f"column {column} is {kind}, which Delta (reader 1, writer 2) cannot hold"
        elif decimal is not None and not (
            0 <= int(decimal[2]) <= int(decimal[1]) and 1 <= int(decimal[1]) <= _MOST_DIGITS
        ):
            yield f"column {column} is {kind}: a decimal has 1 to {_MOST_DIGITS} digits, and at most all of them are a fraction"
    elif kind["type"] == "struct":
        if not kind["fields"]:
            yield f"column {column} is a struct without fields, which Parquet cannot hold"
        yield from _list_struct_problems(kind, f"{column}.")
    elif kind["type"] in _PARTS:
        for key, name in _PARTS[kind["type"]].items():
            yield from _list_type_problems(kind[key], f"{column}.{name}")
    else:
        yield f"column {column} is {kind['type']}, which Delta (reader 1, writer 2) cannot hold"


def _delta_struct(fields: Iterable[pa.Field], table: str, prefix: str) -> Json:
    fields_by_name: dict[str, Json] = {}
    for field in fields:
        if (other := fields_by_name.get(field.name.lower())) is not None:
            raise SchemaConflict(f"{table}: column {prefix}{field.name} appears twice, also as {other['name']}")
        fields_by_name[field.name.lower()] = _delta_field(field, table, prefix + field.name)
    return {"type": "struct", "fields": list(fields_by_name.values())}


def _delta_field(field: pa.Field, table: str, column: str) -> Json:
    comment = (field.metadata or {}).get(b"comment")
    return {
        "name": field.name,
        "type": _delta_type(field.type, table, column),
        "nullable": True,
        "metadata": {} if comment is None else {"comment": comment.decode()},
    }


def _delta_type(kind: pa.DataType, table: str, column: str) -> str | Json:
    if kind in _TO_DELTA:
        return _TO_DELTA[kind]
    if pa.types.is_dictionary(kind):
        return _delta_type(kind.value_type, table, column)
    if pa.types.is_fixed_size_binary(kind):
        return "binary"
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        element = _delta_type(kind.value_type, table, f"{column}.element")
        return {"type": "array", "elementType": element, "containsNull": True}
    if pa.types.is_map(kind):
        return {
            "type": "map",
            "keyType": _delta_type(kind.key_type, table, f"{column}.key"),
            "valueType": _delta_type(kind.item_type, table, f"{column}.value"),
            "valueContainsNull": True,
        }
    if pa.types.is_struct(kind):
        return _delta_struct(kind, table, f"{column}.")
    raise SchemaConflict(f"{table}: column {column} is {kind}, which Delta (reader 1, writer 2) cannot hold")


def _arrow_field(field: Mapping[str, Any]) -> pa.Field:
    return pa.field(field["name"], _arrow_type(field["type"]), nullable=field["nullable"])


def _arrow_type(kind: Any) -> pa.DataType:
    if isinstance(kind, str):
        decimal = DECIMAL.fullmatch(kind)
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


def _merge_structs(
    table: str, prefix: str, have: Mapping[str, Any], want: Mapping[str, Any], may_add: bool = True
) -> Json:
    """Names that differ only in case conflict: query engines ignore case, so `Bus` and `bus` would be one column."""
    fields_by_name = {field["name"].lower(): field for field in want["fields"]}
    fields = []
    for field in have["fields"]:
        column, other = prefix + field["name"], fields_by_name.pop(field["name"].lower(), None)
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
        fields.append({**field, "type": _merge_types(table, column, field["type"], other["type"], may_add)})
    if fields_by_name and not may_add:
        raise SchemaConflict(f"{table}: column {prefix}{next(iter(fields_by_name.values()))['name']} was dropped")
    return {**have, "fields": [*fields, *({**field, "nullable": True} for field in fields_by_name.values())]}


def _merge_types(table: str, column: str, have: Any, want: Any, may_add: bool) -> Any:
    if isinstance(have, str) or isinstance(want, str) or have["type"] != want["type"]:
        if have != want:
            raise SchemaConflict(
                f"{table}: column {column} is {_describe_type(have)} in the table and {_describe_type(want)} in the rows"
            )
        return have
    if have["type"] == "struct":
        return _merge_structs(table, f"{column}.", have, want, may_add)
    parts = _PARTS[have["type"]]
    return {
        **have,
        **{key: _merge_types(table, f"{column}.{name}", have[key], want[key], may_add) for key, name in parts.items()},
    }


def _describe_type(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(_arrow_type(kind))
