"""Creates checkpoints of a Delta log and deletes its expired versions, in the background of commits.

`deltalake` writes the checkpoint in a process of its own, because it reads the whole table.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from pcaplake.common.child_python import python_command
from pcaplake.common.errors import Retryable
from pcaplake.lake.store import durable
from pcaplake.lake.store.store import Listing, Store

from .checkpoint_repair import repair_last_checkpoint_hint
from .log_state import (
    Checkpoint,
    delta_log_path,
    json_versions,
    name_in_log,
    newest_complete_checkpoint,
    read_last_checkpoint_hint,
)
from .properties import parse_interval

# Settings come by stdin: arguments are visible to all users of the machine, and options may hold keys.
_PROGRAM = """
import json, os, sys
os.nice(10)
from deltalake import DeltaTable
settings = json.load(sys.stdin)
DeltaTable(settings["uri"], storage_options=settings["options"] or None).create_checkpoint()
"""
_NUMBERED = re.compile(r"(\d{20})\.(?:json|crc|checkpoint\..*)")
_TEMPORARY = re.compile(r"(\d{20})\.json\..+")


async def create_checkpoint(store: Store, table: str) -> int | None:
    """Create a checkpoint of the newest version and `_last_checkpoint`, both durable, and return its version; None in
    memory.

    Raises Retryable when the process failed.
    """
    if store.uri.startswith("memory:"):
        return None
    await repair_last_checkpoint_hint(store, table)  # deltalake does not open a table that names a missing checkpoint
    await _run_checkpoint_process(store, table)
    await repair_last_checkpoint_hint(store, table)  # the process may have been frozen, and have set it back
    checkpoint = await read_last_checkpoint_hint(store, table)
    if checkpoint is None:
        raise Retryable(f"{table}: a checkpoint was created, and _last_checkpoint does not name it")
    await _sync_local_files(store, [*checkpoint.part_paths(table), delta_log_path(table, "_last_checkpoint")])
    return checkpoint.version


async def _run_checkpoint_process(store: Store, table: str) -> None:
    settings = json.dumps(
        {"uri": store.external_location(table), "options": await asyncio.to_thread(store.current_options)}
    )
    process = await asyncio.create_subprocess_exec(
        *python_command("-c", _PROGRAM),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, errors = await process.communicate(settings.encode())
    except BaseException:
        if process.returncode is None:
            process.kill()
            await process.wait()
        raise
    if process.returncode:
        last = errors.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise Retryable(f"{table}: creating a checkpoint failed: {last}")


async def _sync_local_files(store: Store, paths: Sequence[str]) -> None:
    """fsync local files that another library wrote; objects of a remote store are durable."""
    if store.local is not None:
        await asyncio.to_thread(_sync_files_and_folder, [store.local / path for path in paths])


def _sync_files_and_folder(files: Sequence[Path]) -> None:
    for file in files:
        durable.sync_file(file)
    durable.sync_folder(files[0].parent)


async def delete_expired_log(
    store: Store,
    table: str,
    configuration: Mapping[str, str],
    *,
    temporary: bool = False,
    at_most: int | None = None,
) -> int:
    """Delete the expired part of a log, in ascending order, one by one, and return how many objects were deleted.

    An object expires when it is older than `delta.logRetentionDuration`; the time of the newest log object counts as now.
    The newest checkpoint that is not above the first version to keep stays, so every remaining version can be read.
    Commits rely on two rules: versions are deleted in ascending order, so where N-1 exists N was never deleted; and
    nothing above the checkpoint that `_last_checkpoint` names is deleted, so a writer behind it notices.

    `delta.enableExpiredLogCleanup` is ignored: tables are created with false, so that Spark and other writers leave the
    clean-up to pcaplake. To keep a log longer, set its retention.

    `at_most`: this version stays readable, and later ones; None: no limit.

    `temporary`: also delete temp objects of a log store with a lock table; all their versions must be settled. They are
    deleted before their N.json, which says that they are not needed.
    """
    last = await read_last_checkpoint_hint(store, table)
    if last is None:
        return 0
    listing = await store.list(delta_log_path(table))
    doomed = _list_unneeded_temp_objects(table, listing, last.version) if temporary else []
    newest = last.version if at_most is None else min(last.version, at_most)
    expired, checkpoint = _select_expired_objects(listing, configuration, newest, table)
    if checkpoint is not None:
        await _sync_local_files(store, checkpoint.part_paths(table))
    for path in [*doomed, *expired]:
        await store.delete(path)
    return len(doomed) + len(expired)


def _list_unneeded_temp_objects(table: str, listing: Listing, below: int) -> list[str]:
    """Temp objects whose N.json exists and is covered by a checkpoint; no age alone makes one safe to delete.

    When N.json exists no process needs the temp object; above the checkpoint a writer may still use it.
    """
    versions = set(json_versions(listing))
    folder = f"{delta_log_path(table, '.tmp')}/"
    numbered = [
        (int(match[1]), meta.path)
        for meta in listing
        if meta.path.startswith(folder) and (match := _TEMPORARY.fullmatch(_file_name(meta.path)))
    ]
    return [path for version, path in numbered if version in versions and version < below]


def _select_expired_objects(
    listing: Listing, configuration: Mapping[str, str], at_most: int, table: str
) -> tuple[list[str], Checkpoint | None]:
    """Objects to delete, oldest first, and the checkpoint that replaces them."""
    keep = _log_retention(configuration)
    if keep is None or not listing:
        return [], None
    numbered = [(int(match[1]), meta) for meta in listing if (match := _NUMBERED.fullmatch(name_in_log(meta)))]
    expired_before = max(meta.last_modified for meta in listing) - keep
    first_kept = min((version for version, meta in numbered if meta.last_modified >= expired_before), default=-1)
    checkpoint = newest_complete_checkpoint(table, listing, at_most=min(first_kept, at_most))
    if checkpoint is None:
        return [], None
    doomed = [meta.path for version, meta in sorted(numbered, key=lambda pair: pair[0]) if version < checkpoint.version]
    return doomed, checkpoint if doomed else None


def _file_name(path: str) -> str:
    return path.rpartition("/")[2]


def _log_retention(configuration: Mapping[str, str]) -> timedelta | None:
    """None: the value cannot be parsed, so nothing expires. Default: Delta's 30 days."""
    return parse_interval(configuration.get("delta.logRetentionDuration", "interval 30 days"))
