"""Decides whether this writer supports a table: its protocol, properties and columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .actions import Metadata, Protocol
from .log_state import LogState
from .properties import CONSTRAINT, TXN_RETENTION
from .schema import find_incompatibility, list_computed_columns

READER, WRITER = 1, 2
_UNDO = (
    "`pcaplake doctor` prints the statements of Spark that undo that: ALTER TABLE ... DROP FEATURE, or RESTORE TABLE"
)
_LISTS = 7  # the writer version that lists its features
_OURS = frozenset({"appendOnly", "invariants"})  # what writer version 2 implies
_IMPLIED: Mapping[int, Sequence[str]] = {  # by the writer versions that have no list of features
    3: ("checkConstraints",),
    4: ("changeDataFeed", "generatedColumns"),
    5: ("columnMapping",),
    6: ("identityColumns",),
}


def list_unsupported_features(protocol: Protocol) -> list[str]:
    """Features that pcaplake does not support, listed in a protocol action or implied by its versions."""
    implied = [name for version, names in _IMPLIED.items() if version <= protocol.writer < _LISTS for name in names]
    return sorted({*protocol.features, *implied} - _OURS)


def unsupported_protocol_reason(table: str, protocol: Protocol | None) -> str | None:
    """Which features of a protocol pcaplake does not support; None: it supports all, or there is no table."""
    if protocol is None or (protocol.reader <= READER and protocol.writer <= WRITER):
        return None
    features = ", ".join(list_unsupported_features(protocol))
    return (
        f"{table}: its protocol is reader {protocol.reader}, writer {protocol.writer}{features and f' ({features})'}; "
        f"pcaplake supports {READER} and {WRITER}. {_UNDO}"
    )


def unsupported_reason(table: str, tail: LogState, accepted: Metadata | None) -> str | None:
    """Why the table cannot be written and what to do about it; None: it can. `accepted`: the metaData of our last commit."""
    metadata = tail.metadata
    if reason := unsupported_protocol_reason(table, tail.protocol):
        return reason
    if metadata is None:
        return None
    if metadata.provider != "parquet":
        return f"{table}: its files are {metadata.provider}; pcaplake writes parquet"
    for key in metadata.configuration:
        if key == TXN_RETENTION or key.startswith(CONSTRAINT):
            undo = (
                f"DROP CONSTRAINT {key.removeprefix(CONSTRAINT)}"
                if key != TXN_RETENTION
                else f"UNSET TBLPROPERTIES ('{key}')"
            )
            return f"{table}: {key} is set. ALTER TABLE ... {undo}"
    if metadata.configuration.get("delta.columnMapping.mode", "none") != "none":
        return f"{table}: delta.columnMapping.mode is on, and pcaplake writes files by column name. {_UNDO}"
    for column, key in list_computed_columns(metadata.schema):
        return f"{table}: column {column} has {key}, which pcaplake does not support. {_UNDO}"
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
