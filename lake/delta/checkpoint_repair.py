"""Finds checkpoints that readers rely on and cannot read, and corrects `_last_checkpoint`.

Delta's kernel readers (deltalake, DuckDB, Polars) cannot open a table whose `_last_checkpoint` names a checkpoint that is
not there, or whose newest checkpoint is cut, and take one that lost its files for that of an empty table. rsync of a lake in
use, and a copy that was interrupted, leave such tables.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.lake.store.store import Listing, ObjectMeta, Store

from .checkpoint_reader import read_footer
from .live_files import find_file_without_checkpoint
from .log_state import (
    Checkpoint,
    check_checkpoint,
    complete_checkpoints,
    delta_log_path,
    json_versions,
    newest_complete_checkpoint,
    parse_checkpoint_hint,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointState:
    """The checkpoints of a log. `good`: the newest that can be read. `unreadable`: newer ones, with the reasons.

    `hint`: what `_last_checkpoint` names, None without it or if it cannot be parsed; `hint_object`: the object.
    """

    table: str
    listing: Listing
    good: Checkpoint | None
    unreadable: dict[Checkpoint, str]
    hint: Checkpoint | None
    hint_object: tuple[bytes, ObjectMeta] | None

    @property
    def missing_parts(self) -> list[str]:
        """The files of the checkpoint that `_last_checkpoint` names, of those that do not exist."""
        if self.hint is None:
            return []
        present = {meta.path for meta in self.listing}
        return [path for path in self.hint.part_paths(self.table) if path not in present]

    @property
    def is_hint_wrong(self) -> bool:
        """Whether `_last_checkpoint` should be replaced or deleted."""
        return self.hint_object is not None and (
            self.hint is None
            or bool(self.missing_parts)
            or self.hint in self.unreadable
            or (self.good is not None and self.hint.version < self.good.version)
        )

    @property
    def is_whole_without_unreadable(self) -> bool:
        """Whether all versions after the checkpoint that can be read still have their N.json."""
        versions = set(json_versions(self.listing))
        first = 0 if self.good is None else self.good.version + 1
        last = max([*versions, *(checkpoint.version for checkpoint in self.unreadable)], default=-1)
        return versions >= set(range(first, last + 1))


async def read_checkpoint_state(store: Store, table: str, *, files: bool = True) -> CheckpointState:
    """Read the state of the checkpoints; `files`: with their lists of live files, which may be long.

    Raises TableBlocked when a V2 checkpoint is the newest.
    """
    hint_object = await store.get(delta_log_path(table, "_last_checkpoint"))
    listing = await store.list(delta_log_path(table))
    newest_complete_checkpoint(table, listing)
    good, unreadable = None, {}
    for checkpoint in sorted(complete_checkpoints(listing), key=lambda one: one.version, reverse=True):
        reason = await check_checkpoint(store, table, checkpoint, files=files)
        if reason is None and files:
            lost = await find_file_without_checkpoint(store, table, checkpoint, listing)
            # rule: a checkpoint without the files of its table is damaged
            if lost is not None:
                reason = f"{checkpoint.part_paths(table)[0]} is damaged (it lists no file, but the table has {lost})"
        if reason is None:
            good = checkpoint
            break
        unreadable[checkpoint] = reason
    hint = None if hint_object is None else parse_checkpoint_hint(hint_object[0])
    return CheckpointState(
        table=table, listing=listing, good=good, unreadable=unreadable, hint=hint, hint_object=hint_object
    )


async def repair_last_checkpoint_hint(store: Store, table: str, *, files: bool = False) -> bool:
    """Make `_last_checkpoint` name the newest checkpoint that can be read, and return whether it was corrected.

    Without such a checkpoint it is deleted: readers then list the log. A newer hint that another writer puts meanwhile
    stays. Raises Retryable when the checkpoint has just been deleted.
    """
    state = await read_checkpoint_state(store, table, files=files)
    if not state.is_hint_wrong or state.hint_object is None:
        return False
    path = delta_log_path(table, "_last_checkpoint")
    if state.good is None:
        await store.delete(path)
        return True
    try:
        rows = [(await read_footer(store, part)).metadata.num_rows for part in state.good.part_paths(table)]
    except FileNotFoundError as error:
        raise Retryable(f"{error}: a newer checkpoint was created meanwhile") from error
    parts = {} if state.good.parts is None else {"parts": state.good.parts}
    content = {"version": state.good.version, "size": sum(rows), **parts}
    await store.replace(path, json.dumps(content).encode(), state.hint_object[1])
    return True


async def repair_checkpoints(store: Store, table: str) -> str:
    """Correct `_last_checkpoint`, and delete checkpoints that cannot be read. Idempotent; returns what was done.

    Raises Fatal, and changes nothing, if versions that only such a checkpoint has would be lost.
    """
    state = await read_checkpoint_state(store, table)
    if state.unreadable and not state.is_whole_without_unreadable:
        raise Fatal(f"{table}: {'; '.join(state.unreadable.values())}, and the versions before it were cleaned up")
    # the hint first: no reader may be sent to what is deleted
    repaired = await repair_last_checkpoint_hint(store, table, files=True)
    for checkpoint in state.unreadable:
        for part in checkpoint.part_paths(table):
            await store.delete(part)
    names = "the log" if state.good is None else f"checkpoint {state.good.version}"
    deleted = (
        f"; deleted {', '.join(f'checkpoint {one.version}' for one in state.unreadable)}" if state.unreadable else ""
    )
    return f"{table}: readers now begin with {names}{deleted}" if repaired or deleted else f"{table}: nothing to repair"
