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
from ..store import Listing, Store
from .tail import Checkpoint, json_versions, last_checkpoint, log_path, newest_checkpoint

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
_TEMPORARY = re.compile(r"(\d{20})\.json\..+")


async def make(store: Store, table: str) -> int | None:
    """A checkpoint of the newest version and `_last_checkpoint`, both durable; its version. None: the store is memory.

    Raises Retryable when the process failed.
    """
    if store.uri.startswith("memory:"):
        return None
    said = json.dumps({"uri": store.location(table), "options": await asyncio.to_thread(store.options_now)})
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


async def clean(store: Store, table: str, configuration: Mapping[str, str], *, temporary: bool = False) -> int:
    """Delete what has expired of the log, in ascending order, one by one; how many objects.

    Expired is what is older than `delta.logRetentionDuration`, by the store's clock: its newest log object is now. The
    newest checkpoint that is not above the first version to be kept stays, so every version that stays can be read.
    The order is what commits rely on: where N-1 is, N was never deleted. So is that nothing goes above the checkpoint
    that `_last_checkpoint` names: who read on from an older one finds out by it.

    `delta.enableExpiredLogCleanup` is not asked: tables are made with false, so that Spark and other writers leave the
    log to us. Who wants to keep a log for ever sets its retention.

    `temporary`: also the temp objects of a log store with an arbiter, all whose versions are settled. They go before
    their N.json, after which nobody could tell.
    """
    last = await last_checkpoint(store, table)
    if last is None:
        return 0
    listing = await store.list(log_path(table))
    doomed = _temporary(table, listing, last.version) if temporary else []
    expired, checkpoint = _expired(listing, configuration, last.version, table)
    if checkpoint is not None:
        await _settle(store, checkpoint.paths(table))
    for path in [*doomed, *expired]:
        await store.delete(path)
    return len(doomed) + len(expired)


def _temporary(table: str, listing: Listing, below: int) -> list[str]:
    """Temp objects whose N.json is there and is covered by a checkpoint: no age makes one safe to delete.

    Where N.json is there nobody needs the temp object; above the checkpoint a writer may still be at it.
    """
    there = set(json_versions(listing))
    folder = f"{log_path(table, '.tmp')}/"
    numbered = [
        (int(match[1]), meta.path)
        for meta in listing
        if meta.path.startswith(folder) and (match := _TEMPORARY.fullmatch(_name(meta.path)))
    ]
    return [path for version, path in numbered if version in there and version < below]


def _expired(
    listing: Listing, configuration: Mapping[str, str], at_most: int, table: str
) -> tuple[list[str], Checkpoint | None]:
    """What may go, oldest first, and the checkpoint that stands for it."""
    keep = _retention(configuration)
    if keep is None or not listing:
        return [], None
    numbered = [(int(match[1]), meta) for meta in listing if (match := _NUMBERED.fullmatch(_name(meta.path)))]
    expired_before = max(meta.last_modified for meta in listing) - keep
    first_kept = min((version for version, meta in numbered if meta.last_modified >= expired_before), default=-1)
    checkpoint = newest_checkpoint(table, listing, at_most=min(first_kept, at_most))
    if checkpoint is None:
        return [], None
    doomed = [meta.path for version, meta in sorted(numbered, key=lambda each: each[0]) if version < checkpoint.version]
    return doomed, checkpoint if doomed else None


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _retention(configuration: Mapping[str, str]) -> timedelta | None:
    """None: it is written in a way that we cannot read, so nothing expires. Unset is Delta's own 30 days."""
    return interval(configuration.get("delta.logRetentionDuration", "interval 30 days"))


def interval(text: str) -> timedelta | None:
    """A time as table properties have it, `interval 7 days`; None: it is written in a way that we cannot read."""
    match = _INTERVAL.fullmatch(text.strip())
    return timedelta(**{f"{match[2].lower()}s": int(match[1])}) if match else None
