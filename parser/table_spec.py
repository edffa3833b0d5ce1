"""The Arrow types of the tables, and what a table is: a name, a schema and a key.

Column order is keys, then identifiers, then payloads, because Delta keeps statistics for the first 32 leaf columns.
`nullable=False` means that a value is never missing, so the Parquet files have no definition levels for the column. The
Delta schema declares every column nullable, so that later versions can write nulls. Each field has its description as
metadata `comment`, which becomes the column's comment in the Delta table.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from .descriptions import describe_column

INT16, INT32, INT64, BOOL = pa.int16(), pa.int32(), pa.int64(), pa.bool_()
STRING, BINARY, DATE = pa.string(), pa.binary(), pa.date32()
TIMESTAMP = pa.timestamp("us", tz="UTC")
_PACKET_KEY = ("capture_id", "packet_no", "sub_no")


def required_field(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


def fields_of_type(kind: pa.DataType, names: str) -> list[pa.Field]:
    return [pa.field(name, kind) for name in names.split()]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """One Delta table: its name, its Arrow schema and the columns that make a row unique.

    `order`: columns by which compaction sorts the rows of one vehicle and ten minutes, before `ts`.
    """

    name: str
    schema: pa.Schema
    key: tuple[str, ...] = _PACKET_KEY
    order: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        """The names of all columns, in the order of the schema."""
        return list(self.schema.names)


def define_table(name: str, *fields: list[pa.Field], key: tuple[str, ...] = _PACKET_KEY, order: str = "") -> TableSpec:
    """`order`: names of columns, separated by spaces."""
    schema = pa.schema(
        [field.with_metadata({"comment": describe_column(name, field.name)}) for group in fields for field in group]
    )
    return TableSpec(name=name, schema=schema, key=key, order=tuple(order.split()))
