"""Builds the actions of one version, from a request to commit and the metaData of the table.

Pure: it reads no store and does not know which version it will be.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from pcaplake.lake.parquet.statistics import count_nulls_of_absent_columns, select_indexed_columns

from .actions import Action, AddFile, CommitInfo, Metadata, Protocol, RemoveFile, StagedFile, Txn, serialize_actions
from .errors import Hidden, RolledBack, SwapConflict, TableBlocked, TransactionLost
from .file_checks import check_files
from .live_files import LiveFile, Snapshot
from .log_state import LogState
from .schema import Struct, evolve_schema, to_arrow_schema
from .write_support import READER, WRITER

CAPTURES = "captures"
"""The parameter of a commit that names the captures whose rows it changes, as a JSON list."""
_MOST_NAMED = 10_000  # captures, which take 350 kB


@dataclass(frozen=True, slots=True, kw_only=True)
class AsRead:
    """What was read of a table to write the same rows in another way: files by their paths, and how they are read."""

    files: Mapping[str, LiveFile]
    protocol: Protocol | None
    metadata: Metadata

    def check(self, table: str, live: Mapping[str, LiveFile], state: LogState) -> None:
        """Raise SwapConflict if a file, the protocol or the metaData is another one in this version."""
        # rule: compaction replaces only files that are as they were read
        if any(live.get(path) != file for path, file in self.files.items()):
            raise SwapConflict(f"{table}: another program has changed the same files at the same time")
        # rule: compaction commits only to the table whose files it has read
        if (state.protocol, state.metadata) != (self.protocol, self.metadata):
            raise SwapConflict(f"{table}: another program has changed the schema, a property or the protocol meanwhile")


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """The files that a commit removes, chosen in a snapshot.

    `kept`: files that must be live, too, and that the commit adds again with other statistics; a version may not have an
    action that removes a file and one that adds it. `fences`: applications whose transactions must be those of the snapshot
    when it is committed. `operation`: its name in the history. `data_change` False: the files that are added have the same
    rows. `captures`: the only captures whose rows it changes; None: it does not say. `as_read`: what must not have changed.
    """

    snapshot: Snapshot
    removed: Collection[str]
    fences: Collection[str]
    operation: str = "WRITE"
    data_change: bool = True
    kept: Collection[str] = ()
    captures: Collection[str] | None = None
    as_read: AsRead | None = None


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
    least: Mapping[str, int] = field(default_factory=dict)
    expected: Mapping[str, int] = field(default_factory=dict)
    other_txns: Sequence[Txn] = ()
    judged: int | None = None
    swap: Swap | None = None
    uploads: asyncio.Future[object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The outcome of a commit. `already`: the transaction was in the table before; `version` is then its newest, `adds` 0."""

    table: str
    version: int
    adds: int
    already: bool


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
    adds = _count_absent_columns(adds, metadata)
    # rule: a file that no reader could use is not committed
    check_files(table, adds, metadata)
    appends = not request.overwrite and request.swap is None
    parameters = {
        "mode": "Append" if appends else "Overwrite",
        "partitionBy": json.dumps(list(metadata.partition_columns)),
    }
    if request.swap is not None and request.swap.captures is not None and len(request.swap.captures) <= _MOST_NAMED:
        parameters[CAPTURES] = json.dumps(sorted(request.swap.captures))
    info = CommitInfo(
        txn_id=txn_id,
        timestamp=millis,
        operation=request.operation,
        engine_info=engine_info,
        parameters=parameters,
        metrics=_operation_metrics(adds, removes),
        blind_append=appends,
    )
    actions: list[Action] = [info]
    if changed is not None:
        actions.append(metadata)
    if request.txn is not None:
        actions.append(request.txn)
    return metadata, serialize_actions([*actions, *other_txns, *removes, *adds])


def _count_absent_columns(adds: Sequence[AddFile], metadata: Metadata) -> Sequence[AddFile]:
    """The files, with statistics of staged files that count each row as null in the columns that only the table has.

    A user added these columns, or a newer version did while an older one still writes. A reader may skip a file that has no
    null count of a column, and miss the rows that a condition `IS NULL` asks for: deltalake's dataset does.
    """
    if not any(isinstance(add, StagedFile) for add in adds):
        return adds
    try:
        schema = to_arrow_schema(metadata.schema)
    except ValueError:  # a type of a newer protocol
        return adds
    columns = pa.schema([field for field in schema if field.name not in metadata.partition_columns])
    indexed = select_indexed_columns(columns, metadata.configuration)
    return [
        replace(add, stats=count_nulls_of_absent_columns(indexed, add.stats)) if isinstance(add, StagedFile) else add
        for add in adds
    ]


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


def find_committed(request: CommitRequest, state: LogState, unresolved: dict[str, int]) -> Commit | None:
    """The commit, if the log has it. Attempts that certainly failed leave `unresolved`."""
    for txn_id in unresolved:
        if txn_id in state.attempts:
            version = state.attempts[txn_id]
            return Commit(table=request.table, version=version, adds=len(request.adds), already=False)
    txn = request.txn
    if txn is not None and state.txns.get(txn.app_id, -1) >= txn.version:
        return Commit(table=request.table, version=state.version, adds=0, already=True)
    if txn is None and any(version <= state.checkpoint_version for version in unresolved.values()):
        raise Hidden(
            f"{request.table}: a checkpoint hides whether these files were committed; look for them in the table "
            "before you commit again, and use a txn, which a checkpoint keeps"
        )
    for txn_id in [txn_id for txn_id, version in unresolved.items() if version <= state.version]:
        del unresolved[txn_id]
    return None


def require_transactions(request: CommitRequest, state: LogState) -> None:
    """Raise RolledBack or TransactionLost if the table lacks a transaction, as `LogStore.commit` says."""
    for app_id, version in request.least.items() if request.txn is not None else ():
        last = state.txns.get(app_id, -1)
        if last >= version or request.txn is None:
            continue
        if app_id == request.txn.app_id:
            raise RolledBack(request.table, version, last, state.version)
        if request.txn.app_id in state.txns:
            raise TransactionLost(
                f"{request.table}: the last transaction of {app_id} was {version}, and its log says {last}"
            )
