"""`pcaplake doctor --repair --accept-loss TABLE`: continue without rows that cannot be recovered.

A repair first records the loss in the table `quarantine`, then lets the committer continue. The record is a stage with a
marker capture, whose fixed URI ensures that a repeated repair writes it only once.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from pcaplake.common.errors import Retryable
from pcaplake.common.plain_text import counted
from pcaplake.lake.commit import losses
from pcaplake.lake.commit.history import accept_removed_rows, accept_table_loss
from pcaplake.lake.config import LakeConfig, table_partition_columns
from pcaplake.lake.delta.lock_table_upkeep import delete_entries_of_gone_tables
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.missing_rows import MissingRows, describe_missing
from pcaplake.lake.records import Capture, Manifest, Stage, compute_capture_id, list_uris
from pcaplake.lake.staging.window import Window
from pcaplake.parser.schemas import TABLES
from pcaplake.worker.admin.case import Case

from .findings import Repair

ERROR = "accepted_loss"
RETURNED = "returned-captures"  # instead of a table: captures that a batch returned, in all tables


def count_lost_rows(stage: Stage, table: str, gone: Sequence[str]) -> int:
    """Rows of these files (paths below the lake's root); files without a row count add 0."""
    return sum(add.num_records or 0 for add in stage.adds.get(table, ()) if f"{table}/{add.path}" in gone)


def build_file_loss_repair(case: Case, stage: Stage, table: str, gone: Sequence[str]) -> Repair:
    """Commit the stage to the table without these files."""
    rows = count_lost_rows(stage, table, gone)

    async def give_up_files() -> str:
        _, ledger = case.require_identity_and_ledger()
        detail = f"{counted(len(gone), 'missing file')} of {table} with {counted(rows, 'row')}: {', '.join(gone)}"
        await _quarantine_captures(
            case, f"{stage.stage_id}/{table}", {capture.capture_id: capture.uri for capture in stage.captures}, detail
        )
        await losses.accept_file_loss(case.store, stage.stage_id, table, gone)
        await ledger.release_held_stages(stage.generation)
        return f"{table}: gave up {counted(rows, 'row')} of stage {stage.stage_id}; `quarantine` lists its captures"

    return Repair(
        what=f"give up {counted(rows, 'row')} of {table} in {counted(len(gone), 'file')} of "
        f"stage {stage.stage_id}, of {list_uris(stage.captures)}",
        make=give_up_files,
        accepts_loss=True,
    )


def build_table_loss_repair(case: Case, table: str, batch: int, rows: str) -> Repair:
    """Make a table that was dropped or restored to an older version writable again, without its lost rows.

    `batch`: its last batch up to head. `rows`: a text that says which rows are lost.
    """

    async def give_up_table_rows() -> str:
        lake, _ = case.require_identity_and_ledger()
        detail = (
            f"the table was dropped or restored to an older version; its missing rows are given up: {rows} of the batches up "
            f"to {batch}"
        )
        name = f"{table}/{batch}"
        await _quarantine_captures(
            case, name, {_create_marker_capture(case, name).capture_id: f"{case.store.uri}/{table}"}, detail
        )
        schema = case.schemas[table]
        columns = table_partition_columns(schema, lake.partition_columns)
        if case.lock_table is not None:  # those of a table that was dropped would keep it from being created
            await delete_entries_of_gone_tables(case.store, case.lock_table, only=table)
        await accept_table_loss(LogStore(case.store, lock_table=case.lock_table), table, schema, columns, batch)
        return f"{table} can be written again; {rows} of the batches up to {batch} are given up"

    return Repair(
        what=f"make {table} writable again without {rows}, lost of the batches up to {batch}",
        make=give_up_table_rows,
        accepts_loss=True,
    )


def build_removed_rows_repair(case: Case, table: str, version: int, missing: Sequence[MissingRows]) -> Repair:
    """Accept that another program removed rows of a table, up to this version of it."""
    lost = describe_missing(missing)

    async def give_up_removed_rows() -> str:
        detail = f"another program removed rows from {table}, up to its version {version}: {lost}"
        await _quarantine_captures(
            case, f"{table}/version-{version}", {one.capture_id: one.uri for one in missing}, detail
        )
        await accept_removed_rows(LogStore(case.store, lock_table=case.lock_table), table, version)
        return f"{table} can be written again; {lost} are given up"

    return Repair(
        what=f"continue without rows that another program removed from {table}: {lost}",
        make=give_up_removed_rows,
        accepts_loss=True,
    )


def build_complete_table_repair(case: Case, table: str, version: int) -> Repair:
    """Record that no capture lacks rows in this version of a table."""

    async def record_complete_table() -> str:
        log_store = LogStore(case.store, lock_table=case.lock_table)
        await accept_removed_rows(log_store, table, version, "ROWS COUNTED")
        return f"{table}: recorded that no capture lacks rows in version {version}"

    return Repair(what=f"record that no capture lacks rows in {table}", make=record_complete_table)


def build_capture_loss_repair(case: Case, manifest: Manifest, lost: Sequence[Capture]) -> Repair:
    """Continue without captures that a batch returned and that cannot be read again.

    They are staged as quarantined, so that head no longer waits for them.
    """
    rows = sum(capture.rows for capture in lost)

    async def give_up_captures() -> str:
        _, ledger = case.require_identity_and_ledger()
        await ledger.unstage_returned_captures(manifest)  # as the committer does before it has them read again
        known = await ledger.get_capture_items(manifest.generation, [capture.capture_id for capture in lost])
        given_up = [replace(capture, rows=0) for capture in lost if capture.capture_id not in known]
        details = {
            capture.capture_id: f"all {capture.rows} rows: files with them were missing before they were committed, and the "
            "capture cannot be read again"
            for capture in lost
        }
        if given_up and await _stage_quarantine_rows(
            case, given_up, [_quarantine_row(capture, details[capture.capture_id], -1) for capture in given_up]
        ):
            raise Retryable("another process staged some of these captures meanwhile; run the command again")
        return f"gave up {counted(len(given_up), 'capture')} with {counted(rows, 'row')}; `quarantine` lists them"

    return Repair(
        what=f"give up {counted(rows, 'row')} of {counted(len(lost), 'capture')} that cannot be read again: {list_uris(lost)}",
        make=give_up_captures,
        accepts_loss=True,
    )


def _create_marker_capture(case: Case, name: str) -> Capture:
    uri = f"pcaplake:accepted-loss/{name}"
    return Capture(capture_id=compute_capture_id(uri, ERROR), uri=uri, etag=ERROR, size=0)


async def _quarantine_captures(case: Case, name: str, captures: Mapping[str, str], detail: str) -> None:
    """Stage a row of `quarantine` for each of these captures (id -> URI), once for this name in the lake's generation."""
    lake, ledger = case.require_identity_and_ledger()
    mark = _create_marker_capture(case, name)
    if await ledger.get_capture_items(lake.generation, [mark.capture_id]):
        return
    offset = -1 - zlib.crc32(name.encode())
    given_up = [Capture(capture_id=capture_id, uri=uri, etag="", size=0) for capture_id, uri in captures.items()]
    # if another process is faster, it stages the same rows
    await _stage_quarantine_rows(case, [mark], [_quarantine_row(capture, detail, offset) for capture in given_up])


def _quarantine_row(capture: Capture, detail: str, offset: int) -> dict[str, Any]:
    return {
        "capture_id": capture.capture_id,
        "vehicle_id": None,
        "date": None,
        "uri": capture.uri,
        "stage": "commit",
        "error": ERROR,
        "detail": detail,
        "offset": offset,
        "raw": b"",
        "first_seen": datetime.fromtimestamp(time.time(), UTC),
    }


async def _stage_quarantine_rows(
    case: Case, captures: Sequence[Capture], rows: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """Stage rows of `quarantine` with these captures; returns as `Ledger.put_stage_if_absent`."""
    lake, ledger = case.require_identity_and_ledger()
    schema = TABLES["quarantine"].schema

    def write_stage() -> Stage | None:
        window = Window(
            case.store,
            {"quarantine": schema},
            lake_config=LakeConfig(),
            generation=lake.generation,
            partition_columns=lake.partition_columns,
        )
        try:
            for number, capture in enumerate(captures):
                window.begin(capture)
                if number == 0:
                    window.write("quarantine", pa.RecordBatch.from_pylist(list(rows), schema))
                window.end("quarantined")
            return window.close()
        finally:
            window.abandon()

    stage = await asyncio.to_thread(write_stage)
    assert stage is not None
    return await ledger.put_stage_if_absent(stage)
