"""Rules of the lock table, each left out: the model of test_lock_table_model.py must tell each."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from pcaplake.lake.delta import checkpoint as checkpoint_module
from pcaplake.lake.delta import log_state as tail_module
from pcaplake.lake.delta import log_store as log_module
from pcaplake.lake.delta.lock_table import Entry
from pcaplake.lake.delta.log_state import Checkpoint, LogState
from pcaplake.lake.delta.publish import LockTablePublisher
from pcaplake.lake.store.store import Listing, ObjectMeta, Store
from tests.lake.delta.lock_table_scene import LOG, WEEK
from tests.worker.adapters.lock_table import MemoryLockTable

MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {}


def mutant(patch: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
    MUTANTS[patch.__name__] = patch
    return patch


@mutant
def a_commit_below_the_horizon_counts(patch: pytest.MonkeyPatch) -> None:
    """3b left out."""

    async def settled(store: Store, table: str, tail: LogState) -> bool:
        return True

    patch.setattr(log_module, "is_still_settled", settled)


@mutant
def no_checkpoint_is_newer_than_the_hint(patch: pytest.MonkeyPatch) -> None:
    real = tail_module.newest_complete_checkpoint

    async def newest(store: Store, table: str) -> tuple[Listing, Checkpoint | None]:
        listing = await store.list(tail_module.delta_log_path(table))
        hint = await tail_module.read_last_checkpoint_hint(store, table)
        return listing, hint or real(table, listing)

    patch.setattr(tail_module, "_find_newest_checkpoint", newest)
    patch.setattr(tail_module, "newest_complete_checkpoint", lambda table, listing: None)


@mutant
def an_incomplete_entry_is_passed_over(patch: pytest.MonkeyPatch) -> None:
    async def repair(self: LockTablePublisher, table: str, entry: Entry) -> None: ...

    patch.setattr(LockTablePublisher, "_repair_version", repair)


@mutant
def catching_up_does_not_ask_the_lock_table(patch: pytest.MonkeyPatch) -> None:
    async def newest(self: LockTablePublisher, table: str) -> int:
        return -1

    patch.setattr(LockTablePublisher, "find_newest_version", newest)


@mutant
def who_lost_the_entry_goes_on(patch: pytest.MonkeyPatch) -> None:
    real = MemoryLockTable.put_entry_if_absent

    async def put(self: MemoryLockTable, entry: Entry) -> Entry | None:
        await real(self, entry)
        return None

    patch.setattr(MemoryLockTable, "put_entry_if_absent", put)


@mutant
def the_entry_is_completed_before_the_version(patch: pytest.MonkeyPatch) -> None:
    real = LockTablePublisher._put_version_file

    async def make(self: LockTablePublisher, table: str, entry: Entry, data: bytes) -> bytes:
        await self._complete_entry(entry)
        return await real(self, table, entry, data)

    patch.setattr(LockTablePublisher, "_put_version_file", make)


@mutant
def clean_up_leaves_incomplete_entries(patch: pytest.MonkeyPatch) -> None:
    async def settle(self: LockTablePublisher, table: str) -> int:
        return 0

    patch.setattr(LockTablePublisher, "settle_versions", settle)


def _temporary(listing: Listing) -> list[ObjectMeta]:
    return [meta for meta in listing if meta.path.startswith(f"{LOG}.tmp/")]


@mutant
def temp_objects_go_by_age(patch: pytest.MonkeyPatch) -> None:
    def temporary(table: str, listing: Listing, below: int) -> list[str]:
        newest = max(meta.last_modified for meta in listing)
        old = newest - timedelta(seconds=WEEK)
        return [meta.path for meta in _temporary(listing) if meta.last_modified <= old]

    patch.setattr(checkpoint_module, "_list_unneeded_temp_objects", temporary)


@mutant
def temp_objects_go_before_their_version_is_there(patch: pytest.MonkeyPatch) -> None:
    def temporary(table: str, listing: Listing, below: int) -> list[str]:
        return [meta.path for meta in _temporary(listing)]

    patch.setattr(checkpoint_module, "_list_unneeded_temp_objects", temporary)


@mutant
def a_version_of_somebody_else_is_taken_for_ours(patch: pytest.MonkeyPatch) -> None:
    """What N.json holds after a refusal is not compared with what was to be put."""
    real = LockTablePublisher._put_version_file

    async def make(self: LockTablePublisher, table: str, entry: Entry, data: bytes) -> bytes:
        await real(self, table, entry, data)
        return data

    patch.setattr(LockTablePublisher, "_put_version_file", make)


@mutant
def the_log_is_not_asked_what_became_of_an_attempt(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log_module, "find_committed", lambda request, state, unresolved: None)
