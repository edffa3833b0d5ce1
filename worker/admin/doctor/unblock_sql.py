"""The SQL statements that make a blocked table writable again.

worker/lake/delta/write_support.py decides what blocks a table. The list of features that ALTER TABLE can drop is that of
Delta 4.0. Dropping a feature that readers must support also drops the table's history (TRUNCATE HISTORY), because old
versions use the feature; Delta does that only 24 hours after the first attempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pcaplake.worker.lake.delta.actions import Metadata
from pcaplake.worker.lake.delta.write_support import READER, TXN_RETENTION, WRITER

_CONSTRAINT = "delta.constraints."
_MAPPING = "delta.columnMapping.mode"
_OURS = frozenset({"appendOnly", "invariants"})  # what writer version 2 implies
_IMPLIED: Mapping[int, Sequence[str]] = {  # by the writer versions that have no list of features
    3: ("checkConstraints",),
    4: ("changeDataFeed", "generatedColumns"),
    5: ("columnMapping",),
    6: ("identityColumns",),
}
_OF_WRITERS = frozenset({"checkConstraints", "coordinatedCommits-preview", "inCommitTimestamp"})
_OF_READERS = frozenset(
    {"columnMapping", "deletionVectors", "typeWidening", "typeWidening-preview", "v2Checkpoint", "vacuumProtocolCheck"}
)
_LAST = "checkpointProtection"  # Delta adds it when it drops other features
_MAY_DROP = _OF_WRITERS | _OF_READERS | {_LAST}


def build_unblock_statements(
    location: str, metadata: Metadata, protocol: Mapping[str, Any], wanted: Mapping[str, Any]
) -> list[str]:
    """The ALTER TABLE statements, in order. `protocol`: the action in the log; `wanted`: the struct of our rows."""
    table = f"delta.`{location}`"
    changes = [*_metadata_changes(metadata), *_column_changes(metadata.schema, wanted), *_protocol_changes(protocol)]
    return [f"ALTER TABLE {table} {change};" for change in changes]


def list_undroppable_features(protocol: Mapping[str, Any]) -> list[str]:
    """Features that no ALTER TABLE can drop."""
    return [name for name in list_unsupported_features(protocol) if name not in _MAY_DROP]


def list_unsupported_features(protocol: Mapping[str, Any]) -> list[str]:
    """Features that pcaplake does not support, listed in a protocol action or implied by its version."""
    reader, writer = protocol.get("minReaderVersion", READER), protocol.get("minWriterVersion", WRITER)
    listed = [*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())]
    implied = [name for version, names in _IMPLIED.items() if version <= writer < 7 for name in names]
    if reader <= READER and writer <= WRITER:
        return []
    return sorted(set(listed or implied) - _OURS)


def _metadata_changes(metadata: Metadata) -> Iterator[str]:
    for key in metadata.configuration:
        if key.startswith(_CONSTRAINT):
            yield f"DROP CONSTRAINT {key.removeprefix(_CONSTRAINT)}"
    if TXN_RETENTION in metadata.configuration:
        yield f"UNSET TBLPROPERTIES ('{TXN_RETENTION}')"
    if metadata.configuration.get(_MAPPING, "none") != "none":
        yield f"SET TBLPROPERTIES ('{_MAPPING}' = 'none')"


def _column_changes(have: Mapping[str, Any], want: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Changes of columns that are NOT NULL in the table and nullable in our rows, including nested ones."""
    nullable = {field["name"]: field for field in want["fields"] if field["nullable"]}
    for field in have["fields"]:
        name = field["name"]
        if name not in nullable:
            continue
        if not field["nullable"]:
            yield f"ALTER COLUMN {prefix}`{name}` DROP NOT NULL"
        inner, ours = field["type"], nullable[name]["type"]
        if isinstance(inner, Mapping) and isinstance(ours, Mapping) and inner["type"] == ours["type"] == "struct":
            yield from _column_changes(inner, ours, f"{prefix}`{name}`.")


def _protocol_changes(protocol: Mapping[str, Any]) -> Iterator[str]:
    names = list_unsupported_features(protocol)
    for name in names:
        if name in _OF_WRITERS:
            yield f"DROP FEATURE {_quote_feature_name(name)}"
    for name in names:
        if name in _OF_READERS:
            yield f"DROP FEATURE {_quote_feature_name(name)} TRUNCATE HISTORY"
    if _LAST in names:
        yield f"DROP FEATURE {_LAST} TRUNCATE HISTORY"


def _quote_feature_name(name: str) -> str:
    return f"`{name}`" if "-" in name else name
