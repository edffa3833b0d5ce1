"""Builds the actions of one version, from a request to commit and the metaData of the table.

Pure: it reads no store and does not know which version it will be.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .actions import Action, AddFile, CommitInfo, Metadata, Protocol, RemoveFile, Txn, serialize_actions
from .errors import TableBlocked
from .file_checks import check_files
from .live_files import Snapshot
from .schema import Struct, evolve_schema
from .write_support import READER, WRITER


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """The files that a commit removes, chosen in a snapshot.

    `kept`: files that must be live, too, and that the commit adds again with other statistics; a version may not have an
    action that removes a file and one that adds it. `fences`: applications whose transactions must be those of the snapshot
    when it is committed. `operation`: its name in the history. `data_change` False: the files that are added have the same
    rows.
    """

    snapshot: Snapshot
    removed: Collection[str]
    fences: Collection[str]
    operation: str = "WRITE"
    data_change: bool = True
    kept: Collection[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    """The arguments of `LogStore.commit`. `replace_schema`: the table gets the columns of `struct` and no others.

    `judged`: the commit records that the rows of the table are as they should be at this version.
    """

    table: str
    adds: Sequence[AddFile] = ()
    txn: Txn | None = None
    struct: Struct | None = None
    overwrite: bool = False
    replace_schema: bool = False
    operation: str = "WRITE"
    after: int = -1
    expected: Mapping[str, int] = field(default_factory=dict)
    other_txn: Txn | None = None
    judged: int | None = None
    swap: Swap | None = None
    uploads: asyncio.Future[object] | None = None


def build_create_table_commit(
    struct: Struct, partition_columns: Sequence[str], properties: Mapping[str, str], *, engine_info: str, millis: int
) -> tuple[Metadata, bytes]:
    """The metaData of a new table, and the content of its version 0."""
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
    return metadata, serialize_actions([info, Protocol(reader=READER, writer=WRITER), metadata])


def build_write_commit(
    request: CommitRequest,
    metadata: Metadata,
    removes: Sequence[RemoveFile],
    other_txns: Sequence[Txn],
    *,
    txn_id: str,
    engine_info: str,
    millis: int,
) -> tuple[Metadata, bytes]:
    """The metaData after the commit, and the content of its version. `other_txns`: written beside `txn` of the request."""
    table, adds = request.table, request.adds
    if any(one.data_change for one in removes) and metadata.configuration.get("delta.appendOnly") == "true":
        raise TableBlocked(f"{table}: delta.appendOnly is set, so no row can be removed from the table; unset it")
    changed = _changed_schema(request, metadata)
    if changed is not None:
        metadata = replace(metadata, schema=changed)
    # rule: a file that no reader could use is not committed
    check_files(table, adds, metadata)
    appends = not request.overwrite and request.swap is None
    info = CommitInfo(
        txn_id=txn_id,
        timestamp=millis,
        operation=request.operation,
        engine_info=engine_info,
        parameters={
            "mode": "Append" if appends else "Overwrite",
            "partitionBy": json.dumps(list(metadata.partition_columns)),
        },
        metrics=_operation_metrics(adds, removes),
        blind_append=appends,
    )
    actions: list[Action] = [info]
    if changed is not None:
        actions.append(metadata)
    if request.txn is not None:
        actions.append(request.txn)
    return metadata, serialize_actions([*actions, *other_txns, *removes, *adds])


def _changed_schema(request: CommitRequest, metadata: Metadata) -> Struct | None:
    """The schema after the commit; None if it stays as it is."""
    if request.struct is None:
        return None
    if request.replace_schema:
        return request.struct if request.struct != metadata.schema else None
    return evolve_schema(request.table, metadata.schema, request.struct)


def _operation_metrics(adds: Sequence[AddFile], removes: Sequence[RemoveFile]) -> dict[str, str]:
    """operationMetrics with the names that Spark uses; values are strings. Rows only when every file has a row count."""
    metrics = {"numFiles": len(adds), "numOutputBytes": sum(add.size for add in adds)}
    rows = [add.num_records for add in adds]
    if None not in rows:
        metrics["numOutputRows"] = sum(row for row in rows if row is not None)
    if removes:
        metrics["numRemovedFiles"] = len(removes)
    return {name: str(value) for name, value in metrics.items()}
