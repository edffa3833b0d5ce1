"""Decides whether this writer supports a table: its protocol, properties and columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .actions import Metadata
from .log_state import LogState
from .schema import find_incompatibility

READER, WRITER = 1, 2
# After this time Delta drops an application's last transaction, and a batch that is repeated would be committed twice.
TXN_RETENTION = "delta.setTransactionRetentionDuration"
_COMPUTED = ("delta.invariants", "delta.generationExpression", "delta.identity.", "delta.columnMapping.")


def unsupported_reason(table: str, tail: LogState, accepted: Metadata | None) -> str | None:
    """Why the table cannot be written and what to do about it; None: it can. `accepted`: the metaData of our last commit."""
    protocol, metadata = tail.protocol, tail.metadata
    if protocol is None or metadata is None:
        return None
    if protocol.reader > READER or protocol.writer > WRITER:
        return (
            f"{table}: its protocol is reader {protocol.reader}, writer {protocol.writer}; pcaplake supports "
            f"{READER} and {WRITER}. ALTER TABLE ... DROP FEATURE for the feature that raised it, or use another table"
        )
    if metadata.provider != "parquet":
        return f"{table}: its files are {metadata.provider}; pcaplake writes parquet"
    for key in metadata.configuration:
        if key == TXN_RETENTION or key.startswith("delta.constraints."):
            return f"{table}: {key} is set. ALTER TABLE ... UNSET TBLPROPERTIES ('{key}')"
    if metadata.configuration.get("delta.columnMapping.mode", "none") != "none":
        return f"{table}: delta.columnMapping.mode is on, and pcaplake writes files by column name. Set it to 'none'"
    for column, key in _list_computed_columns("", metadata.schema):
        return f"{table}: column {column} has {key}, which pcaplake does not support. Drop the column or its {key}"
    return None if accepted is None else _describe_change(table, accepted, metadata)


def _describe_change(table: str, before: Metadata, after: Metadata) -> str | None:
    if before is after:
        return None
    if before.id != after.id:
        return f"{table}: another program created it again; restart pcaplake to accept that"
    if list(before.partition_columns) != list(after.partition_columns):
        return (
            f"{table}: it was partitioned by {list(before.partition_columns)} and is by "
            f"{list(after.partition_columns)} now. Partition it as before, or restart pcaplake to accept that"
        )
    if what := find_incompatibility(before.schema, after.schema):
        return f"{table}: its schema was changed: {what}. Undo that with ALTER TABLE"
    return None


def _list_computed_columns(prefix: str, kind: Any) -> Iterator[tuple[str, str]]:
    """(column, key) of field metadata that a writer must obey, at any depth."""
    if not isinstance(kind, Mapping):
        return
    for field in kind.get("fields", ()):
        for key in field.get("metadata", {}):
            if key.startswith(_COMPUTED):
                yield prefix + field["name"], key
        yield from _list_computed_columns(f"{prefix}{field['name']}.", field["type"])
    for part in ("elementType", "keyType", "valueType"):
        yield from _list_computed_columns(prefix, kind.get(part))
