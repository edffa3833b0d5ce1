"""Checkpoints and clean-up of a log, beside the commits and never in their way.

`deltalake` writes the checkpoint, in a process of its own: it reads the whole table, and must not hold this one up.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Mapping
from datetime import timedelta

from worker.errors import Retryable

from ..store import Store
from .tail import log_path

_INTERVAL = re.compile(r"(?:interval\s+)?(\d+)\s+(week|day|hour|minute|second)s?", re.IGNORECASE)
_DEFAULT_RETENTION = timedelta(days=7)
_PROGRAM = """
import json, sys
from deltalake import DeltaTable
said = json.load(sys.stdin)
DeltaTable(said["uri"], storage_options=said["options"], without_files=False).create_checkpoint()
"""


async def write(store: Store, table: str) -> bool:
    """A checkpoint of the newest version and `_last_checkpoint`. Raises Retryable when the process fails."""
    if store.uri.startswith("memory:"):
        return False
    uri = str(store.local / table) if store.local is not None else f"{store.uri}/{table}"
    said = json.dumps({"uri": uri, "options": dict(store.options or {})})
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
        raise
    if process.returncode:
        last = errors.decode("utf-8", "replace").strip().rsplit("\n", 1)[-1]
        raise Retryable(f"{table}: no checkpoint: {last}")
    return True


def retention(configuration: Mapping[str, str]) -> timedelta:
    """`delta.logRetentionDuration` of a table; seven days when it is unset or beyond us."""
    match = _INTERVAL.fullmatch(configuration.get("delta.logRetentionDuration", "").strip())
    return timedelta(**{f"{match[2].lower()}s": int(match[1])}) if match else _DEFAULT_RETENTION


async def clean(store: Store, table: str, configuration: Mapping[str, str]) -> int:
    """Delete N.json and checkpoints below the newest checkpoint that are older than the retention, oldest first.

    Age is by the store's own clock: its newest object in the log against the others.
    """
    listed = await store.list(log_path(table))
    names = {meta.path.rsplit("/", 1)[1]: meta for meta in listed}
    checkpoints = [int(name[:20]) for name in names if re.fullmatch(r"\d{20}\.checkpoint\.parquet", name)]
    if not checkpoints or not listed:
        return 0
    newest, horizon = max(checkpoints), max(meta.last_modified for meta in listed) - retention(configuration)
    count = 0
    for name in sorted(names):
        meta = names[name]
        if not re.fullmatch(r"\d{20}\.(json|checkpoint\.(\d{10}\.\d{10}\.)?parquet)", name) or int(name[:20]) >= newest:
            continue
        if meta.last_modified >= horizon:
            break  # a gap in the middle of the log would look like its end
        await store.delete(meta.path)
        count += 1
    return count
