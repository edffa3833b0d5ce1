"""Reads from a Delta log what a writer needs before its next commit: protocol, metaData and transactions.

It reads N.json, classic checkpoints and `_last_checkpoint`, never the list of live files, so the cost does not grow with
the table.

Versions below the newest checkpoint may be cleaned up, in ascending order. A writer that was frozen with an old state can
then create an N.json that no reader looks at. So a state counts only if, after it was read, the version it started from
is still the same object (`is_still_settled`): then nothing above that version was deleted.

`_last_checkpoint` is a hint. A checkpointer that was frozen may set it back while everything between it and a newer
checkpoint is gone. So the newest checkpoint is found by listing; the hint only says where to begin.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pcaplake.lake.store.store import Listing, ObjectMeta, Store

from .actions import Metadata, Protocol, Txn, parse_table_action
from .checkpoint_reader import read_columns
from .errors import TableBlocked

LAKE = "pcaplake"
"""The application whose transactions in a table are batch numbers; `pcaplake-...` are other transactions of pcaplake."""
OWN = f"{LAKE}-own"
"""The application whose transaction is a version of the table itself: the program that makes the table has not yet checked what
other programs did from this version on."""
_JSON = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")
_V2_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.[0-9a-f-]{36}\.(?:json|parquet)")
_CHECKPOINT_KEYS = {"txn": "txn.appId", "protocol": "protocol.minReaderVersion", "metaData": "metaData.id"}
ADD_COLUMNS = ("add.path", "add.size", "add.partitionValues", "add.stats", "add.modificationTime", "add.tags")
"""The columns of a checkpoint that describe live files."""
_FILE_ACTIONS = (b'{"add"', b'{"remove"', b'{"cdc"')
_MOST_AT_ONCE = 16
_MOST_PARTS = 10_000
_MARK_BYTES = 512  # that identify an N.json: its commitInfo with time and id, or names of files


def delta_log_path(table: str, name: str = "") -> str:
    return f"{table}/_delta_log/{name}".rstrip("/")


def version_file_path(table: str, version: int) -> str:
    return delta_log_path(table, f"{version:020d}.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A classic checkpoint: one file, or several parts."""

    version: int
    parts: int | None = None

    def part_paths(self, table: str) -> list[str]:
        name = f"{self.version:020d}.checkpoint"
        if self.parts is None:
            return [delta_log_path(table, f"{name}.parquet")]
        return [delta_log_path(table, f"{name}.{i:010d}.{self.parts:010d}.parquet") for i in range(1, self.parts + 1)]


@dataclass(slots=True, kw_only=True)
class LogState:
    """The state of a Delta log at `version` (-1: no table): protocol, metaData, and the last transaction of each application.

    `checkpoint`: the one it was read from, None when it was read from the first version on. `sure`: the version up to
    which it is settled, and `mark` the first bytes of that N.json. `begins`: the first bytes of `version`.
    `attempts`: txnId of the commits that were read from JSON -> version; a caller that looks for its own clears it first.

    `foreign`: versions in which another program removed files with `dataChange`, or that it calls a RESTORE. `emptied`: the
    last one in which pcaplake removed all files with a batch. Both of the versions from `hides_from` on (-1: after the
    checkpoint).
    """

    version: int = -1
    checkpoint: Checkpoint | None = None
    sure: int = -1
    begins: bytes | None = None
    mark: bytes | None = None
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    txns: dict[str, int] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    foreign: set[int] = field(default_factory=set)
    emptied: int = -1
    hides_from: int = -1

    @property
    def checkpoint_version(self) -> int:
        """The version of the checkpoint; -1 without one."""
        return -1 if self.checkpoint is None else self.checkpoint.version

    def apply_action(self, line: Mapping[str, Any]) -> None:
        """Apply an action of a version or a checkpoint that is about the whole table."""
        match parse_table_action(line):
            case Txn() as txn:
                self.txns[txn.app_id] = txn.version
            case Protocol() as protocol:
                self.protocol = protocol
            case Metadata() as metadata:
                self.metadata = metadata

    def apply_version(self, version: int, data: bytes) -> None:
        """Apply the next N.json. Lines about files are not parsed, except those that another program removes."""
        lines = _parse_table_lines(data)
        for parsed in lines:
            if attempt := (parsed.get("commitInfo") or {}).get("txnId"):
                self.attempts[attempt] = version
            self.apply_action(parsed)
        self._note_row_changes(version, lines, data)
        self.move_to_version(version, data)

    def note_row_changes(self, version: int, data: bytes) -> None:
        """Note what a version did to the rows, in `foreign` or `emptied`, without applying it."""
        self._note_row_changes(version, _parse_table_lines(data), data)

    def _note_row_changes(self, version: int, lines: Sequence[Mapping[str, Any]], data: bytes) -> None:
        if any(is_written_by_pcaplake(line) for line in lines):
            # also when the table was empty, so that nothing was removed
            if _is_overwrite(lines) and any((line.get("txn") or {}).get("appId") == LAKE for line in lines):
                self.emptied = max(self.emptied, version)
        elif (
            any((line.get("commitInfo") or {}).get("operation") == "RESTORE" for line in lines)
            # rule: a version of another program that removes files is judged
            or (b'"remove"' in data and _removes_rows(data))
        ):
            self.foreign.add(version)

    def move_to_version(self, version: int, data: bytes) -> None:
        """Move to a version; `data`: the content of its N.json."""
        self.version, self.begins = version, data[:_MARK_BYTES]

    def mark_settled(self) -> None:
        """The current version is known to be settled."""
        self.sure, self.mark = self.version, self.begins


def _parse_table_lines(data: bytes) -> list[dict[str, Any]]:
    """The actions of an N.json that are about the whole table."""
    return [json.loads(line) for line in data.split(b"\n") if line.strip() and not line.startswith(_FILE_ACTIONS)]


def is_written_by_pcaplake(action: Mapping[str, Any]) -> bool:
    """Whether this action of a version says that pcaplake wrote it: a transaction, which no other program writes or copies."""
    return str((action.get("txn") or {}).get("appId")).startswith(LAKE)


def _is_overwrite(lines: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a version of pcaplake says that it replaced all files."""
    infos = (line.get("commitInfo") or {} for line in lines)
    return any((info.get("operationParameters") or {}).get("mode") == "Overwrite" for info in infos)


def _removes_rows(data: bytes) -> bool:
    """Whether an N.json removes files, and not only to write the same rows in another way."""
    removes = (json.loads(line).get("remove") for line in data.split(b"\n") if b'"remove"' in line)
    return any(remove and remove.get("dataChange", True) for remove in removes)


async def read_new_versions(store: Store, table: str, tail: LogState) -> None:
    """Apply each N.json after the state until one is missing; the further behind it is, the more are read at once."""
    width = 1
    while True:
        versions = range(tail.version + 1, tail.version + 1 + width)
        for version, version_object in zip(
            versions, await asyncio.gather(*(store.get(version_file_path(table, v)) for v in versions)), strict=True
        ):
            if version_object is None:
                return
            try:
                tail.apply_version(version, version_object[0])
            except (ValueError, KeyError, TypeError) as error:
                raise TableBlocked(f"{version_file_path(table, version)} is damaged: {error}; restore it") from error
        width = min(2 * width, _MOST_AT_ONCE)


async def is_still_settled(store: Store, table: str, tail: LogState) -> bool:
    """Whether the version that the state is sure of is still the same object. If not, later versions may have been
    cleaned up.

    A hint that names a newer checkpoint is a second sign, since a late writer can put the same bytes again.
    """
    begins, hint = await asyncio.gather(
        _read_version_start(store, table, tail.sure), read_last_checkpoint_hint(store, table)
    )
    return begins is not None and begins == tail.mark and (hint is None or hint.version <= tail.sure)


async def _read_version_start(store: Store, table: str, version: int) -> bytes | None:
    try:
        return await store.get_range(version_file_path(table, version), 0, _MARK_BYTES)
    except FileNotFoundError:
        return None


async def update_log_state(store: Store, table: str, tail: LogState | None, newest: int = -1) -> LogState:
    """The state of the log now: the same object, read on, or a new one when it was too old.

    `newest`: a version that the log is known to have; -1: none.

    Raises TableBlocked when the log cannot be read, Retryable when the store does not answer.
    """
    if tail is not None and tail.version >= 0:
        await read_new_versions(store, table, tail)
        if tail.version >= newest and await is_still_settled(store, table, tail):
            tail.mark_settled()
            return tail
    tail = await read_log_state(store, table)
    if tail.version < newest:
        raise TableBlocked(
            f"{table}: the lock table has version {newest}, and the log ends at {tail.version}. If N.json files were "
            "deleted, restore them; if the table was deleted or created again, delete its items from the lock table: `pcaplake "
            "doctor` says how"
        )
    return tail


async def read_log_state(store: Store, table: str) -> LogState:
    """Read the newest checkpoint and the JSON after it; again if a newer checkpoint was created meanwhile."""
    listing, checkpoint = await _find_newest_checkpoint(store, table)
    while True:
        tail = LogState()
        problem = None if checkpoint is None else await _read_checkpoint(store, table, tail, checkpoint)
        if problem is None:
            await read_new_versions(store, table, tail)
            if tail.begins is None and tail.version >= 0:
                tail.begins = await _read_version_start(store, table, tail.version)
        after = await _list_log_from(store, table, checkpoint)
        newer = newest_complete_checkpoint(table, after)
        if newer is not None and (checkpoint is None or newer.version > checkpoint.version):
            listing, checkpoint = after, newer  # and what was read may have been deleted and created again
            continue
        if problem is None:
            problem = await _find_version_gap(store, table, tail, listing)
        if problem is None and tail.version >= 0 and (tail.metadata is None or tail.protocol is None):
            problem = (
                f"{table}: its log has no metaData or no protocol; restore the files that were deleted from _delta_log"
            )
        if problem is not None:
            raise TableBlocked(problem)
        tail.mark_settled()
        return tail


async def read_log_state_at(store: Store, table: str, version: int) -> LogState | None:
    """The state of the log at an older version; None: the log no longer has it."""
    state = LogState()
    checkpoint = newest_complete_checkpoint(table, await _list_log_from(store, table, None), at_most=version)
    if checkpoint is not None and await _read_checkpoint(store, table, state, checkpoint) is not None:
        return None
    for start in range(state.version + 1, version + 1, _MOST_AT_ONCE):
        numbers = range(start, min(start + _MOST_AT_ONCE, version + 1))
        objects = await asyncio.gather(*(store.get(version_file_path(table, number)) for number in numbers))
        for number, version_object in zip(numbers, objects, strict=True):
            if version_object is None:
                return None
            state.apply_version(number, version_object[0])
    return state


async def _find_newest_checkpoint(store: Store, table: str) -> tuple[Listing, Checkpoint | None]:
    """The newest complete checkpoint and the listing that shows it: from the hint on, or else of the whole log."""
    hint = await read_last_checkpoint_hint(store, table)
    if hint is not None and (
        checkpoint := newest_complete_checkpoint(table, listing := await _list_log_from(store, table, hint))
    ):
        return listing, checkpoint
    listing = await _list_log_from(store, table, None)
    return listing, newest_complete_checkpoint(table, listing)


async def _list_log_from(store: Store, table: str, since: Checkpoint | None) -> Listing:
    """Lists the log, from the files of a checkpoint on."""
    return await store.list(
        delta_log_path(table), None if since is None else delta_log_path(table, f"{since.version:020d}")
    )


async def is_covered_by_checkpoint(store: Store, table: str, version: int) -> bool:
    """Whether a checkpoint covers this version. Then its N.json may have been cleaned up. Found by listing, not by the
    hint.
    """
    listing = await _list_log_from(store, table, Checkpoint(version=version))
    return newest_complete_checkpoint(table, listing) is not None


async def read_last_checkpoint_hint(store: Store, table: str) -> Checkpoint | None:
    """The checkpoint that `_last_checkpoint` names; None without it, or when it cannot be parsed."""
    hint_object = await store.get(delta_log_path(table, "_last_checkpoint"))
    return None if hint_object is None else parse_checkpoint_hint(hint_object[0])


def parse_checkpoint_hint(data: bytes) -> Checkpoint | None:
    """The checkpoint that the content of `_last_checkpoint` names; None when it cannot be parsed."""
    try:
        hint = json.loads(data)
        version, parts = hint["version"], hint.get("parts")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    whole = (
        type(version) is int and version >= 0 and (parts is None or (type(parts) is int and 0 < parts <= _MOST_PARTS))
    )
    return Checkpoint(version=version, parts=parts) if whole else None


def name_in_log(meta: ObjectMeta) -> str:
    """The path below `_delta_log/`. A listing also has subfolders, whose files are not versions or checkpoints."""
    return meta.path.rpartition("_delta_log/")[2]


def newest_complete_checkpoint(table: str, listing: Listing, at_most: int | None = None) -> Checkpoint | None:
    """The newest complete classic checkpoint in a listing. Raises TableBlocked when a V2 checkpoint is newer."""
    whole = [one for one in complete_checkpoints(listing) if at_most is None or one.version <= at_most]
    newest = max(whole, key=lambda checkpoint: checkpoint.version, default=None)
    matches = (_V2_CHECKPOINT.fullmatch(name_in_log(meta)) for meta in listing)
    newest_v2 = max((int(match[1]) for match in matches if match), default=-1)
    if newest_v2 > (newest.version if newest else -1):
        raise TableBlocked(
            f"{table}: checkpoint {newest_v2} is a V2 checkpoint, which is not supported. In Spark, ALTER TABLE ... DROP FEATURE "
            "v2Checkpoint writes a classic one; a day later, DROP FEATURE checkpointProtection TRUNCATE HISTORY unblocks it"
        )
    return newest


def complete_checkpoints(listing: Listing) -> list[Checkpoint]:
    """The classic checkpoints of which a listing has each part."""
    seen: dict[Checkpoint, int] = {}
    for meta in listing:
        if match := _CHECKPOINT.fullmatch(name_in_log(meta)):
            candidate = Checkpoint(version=int(match[1]), parts=int(match[3]) if match[3] else None)
            seen[candidate] = seen.get(candidate, 0) + 1
    return [checkpoint for checkpoint, count in seen.items() if count == (checkpoint.parts or 1)]


def json_versions(listing: Listing) -> Sequence[int]:
    """Versions of the N.json in a listing, ascending."""
    matches = (_JSON.fullmatch(name_in_log(meta)) for meta in listing)
    return sorted(int(match[1]) for match in matches if match)


async def check_checkpoint(store: Store, table: str, checkpoint: Checkpoint, *, files: bool) -> str | None:
    """Why a checkpoint cannot be read; None: it can. `files`: read its list of live files, too."""
    state = LogState()
    problem = await _read_checkpoint(store, table, state, checkpoint, ADD_COLUMNS if files else ())
    if problem is None and (state.metadata is None or state.protocol is None):
        return f"{checkpoint.part_paths(table)[0]} is damaged (it has no metaData or no protocol)"
    return problem


async def _read_checkpoint(
    store: Store, table: str, tail: LogState, checkpoint: Checkpoint, only_read: Sequence[str] = ()
) -> str | None:
    """None, or why it cannot be read: missing (perhaps cleaned up a moment ago) or damaged. `only_read`: columns of `add`."""
    keys = {**_CHECKPOINT_KEYS, "add": "add.path"} if only_read else _CHECKPOINT_KEYS
    for path in checkpoint.part_paths(table):
        try:
            async for root, values in read_columns(store, path, keys, (*_CHECKPOINT_KEYS, *only_read)):
                for value in () if root == "add" else values.to_pylist(maps_as_pydicts="strict"):
                    tail.apply_action({root: value})
        except FileNotFoundError:
            return f"{path} is missing; restore it, or delete _last_checkpoint if an older checkpoint is complete"
        except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
            return f"{path} is damaged ({error}); delete it and _last_checkpoint: older versions are read instead"
    tail.version, tail.checkpoint = checkpoint.version, checkpoint
    return None


async def _find_version_gap(store: Store, table: str, tail: LogState, listing: Listing) -> str | None:
    """A version that is missing below an existing one: it was deleted, or the table was created again while in use."""
    above = [version for version in json_versions(listing) if version > tail.version]
    if not above or await store.head(version_file_path(table, tail.version + 1)) is not None:
        return None  # no version follows, or the missing one was written since
    return (
        f"{table}: version {tail.version + 1} is missing and version {above[0]} is there. Restore the files that were deleted "
        "from _delta_log; if the table was created again while a program wrote to it, delete the versions after the gap"
    )
