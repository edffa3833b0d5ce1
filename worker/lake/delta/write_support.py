"""May we write this table? What others can do to a table that we do not understand, and what frees it again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .actions import Metadata
from .schema import incompatible
from .tail import Tail

READER, WRITER = 1, 2
# An application's last transaction is forgotten after this time: a batch that comes back would be committed again.
TXN_RETENTION = "delta.setTransactionRetentionDuration"
_COMPUTED = ("delta.invariants", "delta.generationExpression", "delta.identity.", "delta.columnMapping.")


def refusal(table: str, tail: Tail, accepted: Metadata | None) -> str | None:
    """Why the table is blocked and what to do about it, or None. `accepted`: the metaData of our last commit."""
    protocol, metadata = tail.protocol, tail.metadata
    if protocol is None or metadata is None:
        return None
    if protocol.reader > READER or protocol.writer > WRITER:
        return (
            f"{table}: its protocol is reader {protocol.reader}, writer {protocol.writer}; we write up to "
            f"{READER} and {WRITER}. ALTER TABLE ... DROP FEATURE what raised it, or write to another table"
        )
    if metadata.provider != "parquet":
        return f"{table}: its files are {metadata.provider}, we write parquet"
    for key in metadata.configuration:
        if key == TXN_RETENTION or key.startswith("delta.constraints."):
            return f"{table}: {key} is set. ALTER TABLE ... UNSET TBLPROPERTIES ('{key}')"
    if metadata.configuration.get("delta.columnMapping.mode", "none") != "none":
        return f"{table}: delta.columnMapping.mode is on, and we write files by column name. Set it to 'none'"
    for column, key in _marks("", metadata.schema):
        return f"{table}: column {column} has {key}, which we do not compute or check. Drop the column or its {key}"
    return None if accepted is None else _changed(table, accepted, metadata)


def _changed(table: str, before: Metadata, after: Metadata) -> str | None:
    if before is after:
        return None
    if before.id != after.id:
        return f"{table}: it was made anew by somebody else; start again to accept it"
    if list(before.partition_columns) != list(after.partition_columns):
        return (
            f"{table}: it was partitioned by {list(before.partition_columns)} and is by "
            f"{list(after.partition_columns)} now. Partition it as before, or start again to accept it"
        )
    if what := incompatible(before.schema, after.schema):
        return f"{table}: somebody changed it: {what}. ALTER TABLE it back"
    return None


def _marks(prefix: str, kind: Any) -> Iterator[tuple[str, str]]:
    """(column, key) of the field metadata that a writer would have to obey, at any depth."""
    if not isinstance(kind, Mapping):
        return
    for field in kind.get("fields", ()):
        for key in field.get("metadata", {}):
            if key.startswith(_COMPUTED):
                yield prefix + field["name"], key
        yield from _marks(f"{prefix}{field['name']}.", field["type"])
    for part in ("elementType", "keyType", "valueType"):
        yield from _marks(prefix, kind.get(part))
