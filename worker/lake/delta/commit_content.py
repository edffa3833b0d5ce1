"""What one version says: its actions, from what somebody asked for and the table as it is.

Must not know stores, arbiters, or which version it will be.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .actions import Action, AddFile, CommitInfo, Metadata, Protocol, RemoveFile, Txn, to_lines
from .errors import SchemaConflict, TableBlocked
from .guard import READER, WRITER
from .schema import evolve

Struct = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What `LogStore.commit` was asked for."""

    table: str
    adds: Sequence[AddFile]
    txn: Txn | None
    struct: Struct | None
    overwrite: bool
    operation: str


def creation(
    struct: Struct,
    partition_columns: Sequence[str],
    properties: Mapping[str, str],
    *,
    engine_info: str,
    millis: int,
) -> tuple[Metadata, bytes]:
    """Version 0, and the metaData in it."""
    metadata = Metadata(
        id=str(uuid.uuid4()),
        schema=struct,
        partition_columns=tuple(partition_columns),
        configuration=properties,
        created_time=millis,
    )
    info = CommitInfo(
        txn_id=str(uuid.uuid4()),
        timestamp=millis,
        operation="CREATE TABLE",
        engine_info=engine_info,
        parameters={"partitionBy": json.dumps(list(partition_columns)), "isManaged": "false"},
    )
    return metadata, to_lines([info, Protocol(reader=READER, writer=WRITER), metadata])


def addition(
    request: Request,
    metadata: Metadata,
    removes: Sequence[RemoveFile],
    *,
    txn_id: str,
    engine_info: str,
    millis: int,
) -> tuple[Metadata, bytes]:
    """The version after one with this metaData, and the metaData that holds after it."""
    table, adds = request.table, request.adds
    for add in adds:
        if add.partition_values.keys() != set(metadata.partition_columns):
            raise SchemaConflict(
                f"{table}: it is partitioned by {list(metadata.partition_columns)}, and the file {add.path} by "
                f"{list(add.partition_values)}"
            )
    if removes and metadata.configuration.get("delta.appendOnly") == "true":
        raise TableBlocked(f"{table}: delta.appendOnly is set, so nothing can be overwritten; unset it")
    grown = None if request.struct is None else evolve(table, metadata.schema, request.struct)
    if grown is not None:
        metadata = replace(metadata, schema=grown)
    info = CommitInfo(
        txn_id=txn_id,
        timestamp=millis,
        operation=request.operation,
        engine_info=engine_info,
        parameters={
            "mode": "Overwrite" if request.overwrite else "Append",
            "partitionBy": json.dumps(list(metadata.partition_columns)),
        },
        metrics=_metrics(adds, removes),
        blind_append=not request.overwrite,
    )
    actions: list[Action] = [info]
    if grown is not None:
        actions.append(metadata)
    if request.txn is not None:
        actions.append(request.txn)
    return metadata, to_lines([*actions, *removes, *adds])


def _metrics(adds: Sequence[AddFile], removes: Sequence[RemoveFile]) -> dict[str, str]:
    """As Spark names them; all are strings in the protocol. Rows only when every file says how many it has."""
    metrics = {"numFiles": len(adds), "numOutputBytes": sum(add.size for add in adds)}
    rows = [add.rows for add in adds]
    if None not in rows:
        metrics["numOutputRows"] = sum(row for row in rows if row is not None)
    if removes:
        metrics["numRemovedFiles"] = len(removes)
    return {name: str(value) for name, value in metrics.items()}
