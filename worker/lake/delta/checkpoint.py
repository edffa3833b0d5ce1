"""Checkpoints and clean-up of a log: beside the commits, never in their way.

Knows `deltalake`, which writes the checkpoint in a process of its own, because it reads the whole table. Must not know
how a commit is made.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from worker.errors import Retryable

from .. import durable
from ..store import Store
from .tail import last_checkpoint, log_path, newest_checkpoint

# Settings come by stdin: an argument would show a key to everybody on the machine.
_PROGRAM = """
import json, os, sys
os.nice(10)
from deltalake import DeltaTable
said = json.load(sys.stdin)
DeltaTable(said["uri"], storage_options=said["options"] or None).create_checkpoint()
"""
_INTERVAL = re.compile(
    r"(?:interval\s+)?(\d+)\s+(week|day|hour|minute|second|millisecond|microsecond)s?", re.IGNORECASE
)
_NUMBERED = re.compile(r"(\d{20})\.(?:json|crc|checkpoint\..*)")


async def make(store: Store, table: str) -> int | None:
    """A checkpoint of the newest version and `_last_checkpoint`, both durable; its version. None: the store is memory.

    Raises Retryable when the process failed.
    """
    if store.uri.startswith("memory:"):
        return None
    said = json.dumps({"uri": store.location(table), "options": dict(store.options)})
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _PROGRAM,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, errors = await process.communicate(said.encode())
    except BaseException:
        if process.returncode is None:
            process.kill()
            await process.wait()
        raise
    if process.returncode:
        last = errors.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise Retryable(f"{table}: no checkpoint was made: {last}")
    checkpoint = await last_checkpoint(store, table)
    if checkpoint is None:
        raise Retryable(f"{table}: a checkpoint was made, and _last_checkpoint does not name it")
    await _settle(store, [*checkpoint.paths(table), log_path(table, "_last_checkpoint")])
    return checkpoint.version


async def _settle(store: Store, paths: Sequence[str]) -> None:
    """Local files that somebody wrote without fsync are on disk; a remote store has no others."""
    if store.local is not None:
        await asyncio.to_thread(_sync, [store.local / path for path in paths])


def _sync(files: Sequence[Path]) -> None:
    for file in files:
        durable.sync_file(file)
    durable.sync_folder(files[0].parent)


async def clean(store: Store, table: str, configuration: Mapping[str, str]) -> int:
    """Delete what has expired of the log, in ascending order, one by one; how many objects.

    Expired is what is older than `delta.logRetentionDuration`, by the store's clock: its newest log object is now. The
    newest checkpoint that is not above the first version to be kept stays, so every version that stays can be read.
    The order is what commits rely on: where N-1 is, N was never deleted. So is that nothing goes above the checkpoint
    that `_last_checkpoint` names: who read on from an older one finds out by it.
    """
    keep = _retention(configuration)
    last = await last_checkpoint(store, table)
    listing = await store.list(log_path(table))
    if (
        keep is None
        or last is None
        or not listing
        or configuration.get("delta.enableExpiredLogCleanup", "true").lower() == "false"
    ):
        return 0
    numbered = [(int(match[1]), meta) for meta in listing if (match := _NUMBERED.fullmatch(_name(meta.path)))]
    expired_before = max(meta.last_modified for meta in listing) - keep
    first_kept = min((version for version, meta in numbered if meta.last_modified >= expired_before), default=-1)
    checkpoint = newest_checkpoint(table, listing, at_most=min(first_kept, last.version))
    if checkpoint is None:
        return 0
    doomed = [meta.path for version, meta in sorted(numbered, key=lambda each: each[0]) if version < checkpoint.version]
    if doomed:
        await _settle(store, checkpoint.paths(table))
    for path in doomed:
        await store.delete(path)
    return len(doomed)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _retention(configuration: Mapping[str, str]) -> timedelta | None:
    """None: it is written in a way that we cannot read, so nothing expires. Unset is Delta's own 30 days."""
    match = _INTERVAL.fullmatch(configuration.get("delta.logRetentionDuration", "interval 30 days").strip())
    return timedelta(**{f"{match[2].lower()}s": int(match[1])}) if match else None
