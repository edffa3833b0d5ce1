"""The actions of a Delta log, to and from JSON lines (Delta transaction protocol, section "Actions").

Paths here are file names; in the log they are URIs (RFC 2396), percent-encoded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote, unquote

from pcaplake.lake.formats import unknown_fields

Json = dict[str, Any]

# RFC 2396: `unreserved`, and the part of `reserved` that a path may have. ":" is encoded, or the first part of a
# relative path could be read as a scheme.
_BARE = "/-_.!~*'()@&=+$,"
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
NO_TAGS: Final[Mapping[str, str]] = MappingProxyType({})
_NUM_RECORDS = re.compile(r'"numRecords"\s*:\s*(\d+)')


def encode_path(path: str) -> str:
    """The URI in the log of a file name below the table's folder."""
    return quote(path, safe=_BARE)


def decode_path(uri: str) -> str:
    """The file name that a URI in the log has."""
    return unquote(uri)


def parse_num_records(stats: str) -> int | None:
    """numRecords of a file's statistics (the protocol's JSON text); None if they lack it."""
    match = _NUM_RECORDS.search(stats)
    return int(match[1]) if match else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddFile:
    """Adds a Parquet file to the table.

    `path`: relative to the table, not encoded. `size`: bytes. `partition_values`: one entry per partition column, as
    the protocol's strings (a date is `2026-11-21`), None for null. `modification_time`: ms since 1970, of the store.
    `stats`: the protocol's JSON text (numRecords, minValues, maxValues, nullCount), "" for none. `unknown`: fields
    that a newer pcaplake wrote into a stage or manifest; they are not part of the log.
    """

    path: str
    size: int
    partition_values: Mapping[str, str | None]
    modification_time: int
    stats: str
    data_change: bool = True
    unknown: Mapping[str, Any] = unknown_fields()

    @property
    def num_records(self) -> int | None:
        """numRecords of the statistics, None without it."""
        return parse_num_records(self.stats)

    def to_json(self) -> Json:
        return {
            "path": encode_path(self.path),
            "partitionValues": dict(self.partition_values),
            "size": self.size,
            "modificationTime": self.modification_time,
            "dataChange": self.data_change,
        } | ({"stats": self.stats} if self.stats else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile(AddFile):
    """A file that pcaplake wrote: its statistics count the nulls of all of its columns, or of the first 32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedFile(AddFile):
    """A file that says something of itself in the log, as `tags`."""

    tags: Mapping[str, str] = field(default_factory=lambda: NO_TAGS)

    def to_json(self) -> Json:
        return AddFile.to_json(self) | ({"tags": dict(self.tags)} if self.tags else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveFile:
    """Removes a file from the table; VACUUM deletes it when the retention after `deletion_timestamp` (ms) is over.

    `uri` is the path as the Add spells it, encoded: another spelling may not match it.
    """

    uri: str
    deletion_timestamp: int
    partition_values: Mapping[str, str | None] = field(default_factory=dict)
    size: int | None = None
    data_change: bool = True

    def to_json(self) -> Json:
        return {
            "path": self.uri,
            "deletionTimestamp": self.deletion_timestamp,
            "dataChange": self.data_change,
            "extendedFileMetadata": True,
            "partitionValues": dict(self.partition_values),
            "size": self.size,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Txn:
    """The last transaction of an application, atomic with the other actions of its version."""

    app_id: str
    version: int

    def to_json(self) -> Json:
        return {"appId": self.app_id, "version": self.version}

    @classmethod
    def from_json(cls, action: Mapping[str, Any]) -> Txn:
        return cls(app_id=action["appId"], version=action["version"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """The protocol versions that readers and writers must support, and the features that versions 3 and 7 list."""

    reader: int
    writer: int
    features: Sequence[str] = ()

    def to_json(self) -> Json:
        return {"minReaderVersion": self.reader, "minWriterVersion": self.writer}

    @classmethod
    def from_json(cls, action: Mapping[str, Any]) -> Protocol:
        features = {name for key in ("readerFeatures", "writerFeatures") for name in action.get(key) or ()}
        return cls(
            reader=action["minReaderVersion"], writer=action["minWriterVersion"], features=tuple(sorted(features))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """A metaData action. `schema` is the parsed schemaString, unknown fields included."""

    id: str
    schema: Mapping[str, Any]
    partition_columns: Sequence[str]
    configuration: Mapping[str, str]
    created_time: int | None = None
    name: str | None = None
    description: str | None = None
    provider: str = "parquet"

    def to_json(self) -> Json:
        optional = {"name": self.name, "description": self.description, "createdTime": self.created_time}
        return {
            "id": self.id,
            "format": {"provider": self.provider, "options": {}},
            "schemaString": _encode(self.schema),
            "partitionColumns": list(self.partition_columns),
            "configuration": dict(self.configuration),
        } | {key: value for key, value in optional.items() if value is not None}

    @classmethod
    def from_json(cls, action: Mapping[str, Any]) -> Metadata:
        return cls(
            id=action["id"],
            schema=json.loads(action["schemaString"]),
            partition_columns=tuple(action.get("partitionColumns") or ()),
            configuration=dict(action.get("configuration") or {}),
            created_time=action.get("createdTime"),
            name=action.get("name"),
            description=action.get("description"),
            provider=action["format"]["provider"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitInfo:
    """Describes a commit. `txn_id` names the attempt, so that a writer recognises its own N.json. `timestamp`: ms."""

    txn_id: str
    timestamp: int
    operation: str
    engine_info: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)
    blind_append: bool = False

    def to_json(self) -> Json:
        return {
            "timestamp": self.timestamp,
            "operation": self.operation,
            "operationParameters": dict(self.parameters),
            "isBlindAppend": self.blind_append,
            "operationMetrics": dict(self.metrics),
            "engineInfo": self.engine_info,
            "txnId": self.txn_id,
        }


Action = AddFile | RemoveFile | Txn | Protocol | Metadata | CommitInfo

_NAMES: dict[type[Action], str] = {
    AddFile: "add",
    StagedFile: "add",
    TaggedFile: "add",
    RemoveFile: "remove",
    Txn: "txn",
    Protocol: "protocol",
    Metadata: "metaData",
    CommitInfo: "commitInfo",
}


def serialize_actions(actions: Iterable[Action]) -> bytes:
    """The content of one N.json: a JSON object per line."""
    return "".join(_encode({_NAMES[type(action)]: action.to_json()}) + "\n" for action in actions).encode()


def parse_table_action(line: Mapping[str, Any]) -> Txn | Protocol | Metadata | None:
    """The action of one JSON object if it is about the whole table; None for files and other kinds."""
    for kind in (Txn, Protocol, Metadata):
        if action := line.get(_NAMES[kind]):
            return kind.from_json(action)
    return None


def parse_json_lines(data: bytes) -> list[Json]:
    """The JSON objects of one N.json. Raises ValueError when a line is not JSON."""
    return [json.loads(line) for line in data.split(b"\n") if line.strip()]
