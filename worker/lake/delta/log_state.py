"""What a writer must know of a table before its next commit, and how the log tells it.

Knows the Delta transaction protocol: N.json, classic checkpoints, `_last_checkpoint`. Must not know how a commit is
made. The list of live files is never read here, so no cost grows with the table.

A version below the newest checkpoint may have been cleaned up, N.json in ascending order. Who was frozen with an old
tail can then create an N.json that no reader ever looks at. So whatever was read counts only when, afterwards, the
version it started from is still there and no checkpoint is newer (`settled`).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from ..store import Listing, Store
from .actions import CommitInfo, Metadata, Protocol, Txn, from_json
from .columns import read_rows
from .errors import TableBlocked

_JSON = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")
_V2_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.[0-9a-f-]{36}\.(?:json|parquet)")
_CHECKPOINT_KEYS = {"txn": "txn.appId", "protocol": "protocol.minReaderVersion", "metaData": "metaData.id"}
_FILE_ACTIONS = (b'{"add"', b'{"remove"', b'{"cdc"')
_MOST_AT_ONCE = 16
_MOST_PARTS = 10_000


def log_path(table: str, name: str = "") -> str:
    return f"{table}/_delta_log/{name}".rstrip("/")


def version_path(table: str, version: int) -> str:
    return log_path(table, f"{version:020d}.json")


@dataclass(slots=True, kw_only=True)
class Tail:
    """A table at `version` (-1: none): its protocol, its metaData, the last transaction of every application.

    `base`: the checkpoint it was read from, -1 without one. `sure`: the version up to which it is settled.
    `attempts`: txnId of the commits read from JSON -> their version; whoever looks for his own clears it first.
    """

    version: int = -1
    base: int = -1
    sure: int = -1
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    txns: dict[str, int] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)

    def apply(self, version: int, data: bytes) -> None:
        """Go on by one N.json. Lines about files are not even parsed."""
        for line in data.split(b"\n"):
            if not line.strip() or line.startswith(_FILE_ACTIONS):
                continue
            match from_json(json.loads(line)):
                case Txn() as txn:
                    self.txns[txn.app_id] = txn.version
                case Protocol() as protocol:
                    self.protocol = protocol
                case Metadata() as metadata:
                    self.metadata = metadata
                case CommitInfo(txn_id=txn_id) if txn_id:
                    self.attempts[txn_id] = version
        self.version = version


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A classic checkpoint: one file, or several parts."""

    version: int
    parts: int | None = None

    def paths(self, table: str) -> list[str]:
        name = f"{self.version:020d}.checkpoint"
        if self.parts is None:
            return [log_path(table, f"{name}.parquet")]
        return [log_path(table, f"{name}.{i:010d}.{self.parts:010d}.parquet") for i in range(1, self.parts + 1)]


async def read_on(store: Store, table: str, tail: Tail) -> None:
    """Apply every N.json after the tail until one is missing; more at once the further behind it is."""
    width = 1
    while True:
        versions = range(tail.version + 1, tail.version + 1 + width)
        for version, found in zip(
            versions, await asyncio.gather(*(store.get(version_path(table, v)) for v in versions)), strict=True
        ):
            if found is None:
                return
            try:
                tail.apply(version, found[0])
            except (ValueError, KeyError, TypeError) as error:
                raise TableBlocked(f"{version_path(table, version)} is damaged: {error}; restore it") from error
        width = min(2 * width, _MOST_AT_ONCE)


async def settled(store: Store, table: str, version: int) -> bool:
    """Is `version` still there and no checkpoint newer? Else whoever went on from it may stand below the horizon."""
    there, last = await asyncio.gather(store.head(version_path(table, version)), last_checkpoint(store, table))
    return there is not None and (last is None or last.version <= version)


async def catch_up(store: Store, table: str, tail: Tail | None, newest: int = -1) -> Tail:
    """The tail as the log is now; the same object, gone on, or a new one when it was too old.

    `newest`: a version that is known to have been in the log a moment ago; -1: none is.

    Raises TableBlocked when the log cannot be read, Retryable when the store does not answer.
    """
    if tail is not None and tail.version >= 0:
        await read_on(store, table, tail)
        if tail.version >= newest and await settled(store, table, tail.sure):
            tail.sure = tail.version
            return tail
    tail = await first_catch_up(store, table)
    if tail.version < newest:
        raise TableBlocked(
            f"{table}: the lock table knows version {newest}, and the log ends at {tail.version}. If N.json were "
            "deleted, restore them; if the table was deleted or made anew, delete its items from the lock table"
        )
    return tail


async def first_catch_up(store: Store, table: str) -> Tail:
    """Newest checkpoint, JSON after it, and again if a newer checkpoint has come meanwhile."""
    while True:
        hint = await last_checkpoint(store, table)
        tail, listing = Tail(), None
        checkpoint = hint
        if hint is None or None in await asyncio.gather(*map(store.head, hint.paths(table))):
            listing = await store.list(log_path(table))
            checkpoint = newest_checkpoint(table, listing)
        problem = None
        if checkpoint is not None:
            problem = await _read_checkpoint(store, table, tail, checkpoint)
        if problem is None:
            await read_on(store, table, tail)
        again = await last_checkpoint(store, table)
        if again is not None and again != hint and again.version > tail.base:
            continue
        if problem is None and listing is not None:
            problem = await _gap(store, table, tail, listing)
        if problem is None and tail.version >= 0 and (tail.metadata is None or tail.protocol is None):
            problem = f"{table}: its log has no metaData or no protocol; restore what was deleted from _delta_log"
        if problem is not None:
            raise TableBlocked(problem)
        tail.sure = tail.version
        return tail


async def last_checkpoint(store: Store, table: str) -> Checkpoint | None:
    """What `_last_checkpoint` says. A hint: None where there is none, or one that we cannot read."""
    found = await store.get(log_path(table, "_last_checkpoint"))
    if found is None:
        return None
    try:
        said = json.loads(found[0])
        version, parts = said["version"], said.get("parts")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    whole = (
        type(version) is int and version >= 0 and (parts is None or (type(parts) is int and 0 < parts <= _MOST_PARTS))
    )
    return Checkpoint(version=version, parts=parts) if whole else None


def newest_checkpoint(table: str, listing: Listing, at_most: int | None = None) -> Checkpoint | None:
    """The newest whole classic checkpoint of a listing. Raises TableBlocked where a V2 checkpoint is newer."""
    seen: dict[Checkpoint, int] = {}
    newest_v2 = -1
    for meta in listing:
        name = meta.path.rpartition("/")[2]
        if match := _CHECKPOINT.fullmatch(name):
            found = Checkpoint(version=int(match[1]), parts=int(match[3]) if match[3] else None)
            seen[found] = seen.get(found, 0) + 1
        elif match := _V2_CHECKPOINT.fullmatch(name):
            newest_v2 = max(newest_v2, int(match[1]))
    whole = [
        checkpoint
        for checkpoint, count in seen.items()
        if count == (checkpoint.parts or 1) and (at_most is None or checkpoint.version <= at_most)
    ]
    newest = max(whole, key=lambda checkpoint: checkpoint.version, default=None)
    if newest_v2 > (newest.version if newest else -1):
        raise TableBlocked(
            f"{table}: checkpoint {newest_v2} is of the V2 kind, which is not read here. Set the table property "
            "delta.checkpointPolicy to 'classic', drop the feature v2Checkpoint, and make a checkpoint"
        )
    return newest


def json_versions(listing: Listing) -> Sequence[int]:
    """Versions of the N.json in a listing, ascending."""
    matches = (_JSON.fullmatch(meta.path.rpartition("/")[2]) for meta in listing)
    return sorted(int(match[1]) for match in matches if match)


async def _read_checkpoint(store: Store, table: str, tail: Tail, checkpoint: Checkpoint) -> str | None:
    """None, or why it cannot be read: gone (it may have been cleaned up a moment ago) or damaged."""
    for path in checkpoint.paths(table):
        try:
            async for root, value in read_rows(store, path, _CHECKPOINT_KEYS):
                _apply_row(tail, root, value)
        except FileNotFoundError:
            return f"{path} is missing; restore it, or delete _last_checkpoint if an older checkpoint is complete"
        except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
            return f"{path} is damaged ({error}); delete it and _last_checkpoint: older versions are read instead"
    tail.version = tail.base = checkpoint.version
    return None


def _apply_row(tail: Tail, root: str, value: Mapping[str, object]) -> None:
    match from_json({root: value}):
        case Txn() as txn:
            tail.txns[txn.app_id] = txn.version
        case Protocol() as protocol:
            tail.protocol = protocol
        case Metadata() as metadata:
            tail.metadata = metadata


async def _gap(store: Store, table: str, tail: Tail, listing: Listing) -> str | None:
    """A version that is missing below one that is there: somebody deleted it, or made the table anew while in use."""
    above = [version for version in json_versions(listing) if version > tail.version]
    if not above or await store.head(version_path(table, tail.version + 1)) is not None:
        return None  # nothing there, or it was written since
    return (
        f"{table}: version {tail.version + 1} is missing and version {above[0]} is there. Restore what was deleted "
        "from _delta_log; if the table was made anew while somebody wrote to it, delete the versions after the gap"
    )
