"""Rules of the committer, each left out: the model of test_model.py must find rows lost or doubled without it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.lake.commit import committable_files
from pcaplake.lake.commit.committable_files import CommittableFiles
from pcaplake.lake.commit.committer import Committer
from pcaplake.lake.commit.compose import Composer
from pcaplake.lake.commit.overwrite import overwrite_record_path
from pcaplake.lake.commit.progress import Progress
from pcaplake.lake.commit.table_commits import TableCommits
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.delta.publish import Finish, PutIfAbsent
from pcaplake.lake.identity import CurrentIdentity
from pcaplake.lake.ledger import Ledger, StageItem
from pcaplake.lake.records import Capture, Manifest, Stage
from pcaplake.lake.staging import stage_files as files
from pcaplake.lake.store.store import Store
from tests.lake.commit.committer_model import World
from tests.mutants import ALWAYS, DROP, NEVER, Mutant
from tests.worker.adapters.memory_ledger import MemoryLedger
from tests.worker.adapters.memory_store import MemoryStore

MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {}


def mutant(patch: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
    MUTANTS[patch.__name__] = patch
    return patch


@mutant
def stages_are_marked_when_they_are_flagged(patch: pytest.MonkeyPatch) -> None:
    """3b left out: the next batch is composed before."""
    real_mark, real_flag = MemoryLedger.mark_batch_stages, MemoryLedger.flag_batch_committed

    async def mark(self: MemoryLedger, manifest: Manifest, *, rebuild: bool = False) -> None: ...

    async def flag(self: MemoryLedger, manifest: Manifest) -> None:
        await real_mark(self, manifest)
        await real_flag(self, manifest)

    patch.setattr(MemoryLedger, "mark_batch_stages", mark)
    patch.setattr(MemoryLedger, "flag_batch_committed", flag)


@mutant
def no_txn_in_the_log(patch: pytest.MonkeyPatch) -> None:
    real = LogStore.commit

    async def commit(self: LogStore, table: str, adds: Any, **options: Any) -> Any:
        return await real(self, table, adds, **{**options, "txn": None})

    patch.setattr(LogStore, "commit", commit)


@mutant
def the_last_stager_wins(patch: pytest.MonkeyPatch) -> None:
    async def stage(self: MemoryLedger, stage: Stage) -> dict[str, str]:
        def effect() -> dict[str, str]:
            key = (stage.generation, stage.stage_id)
            self.shared.stages.setdefault(key, StageItem(stage=stage))
            self.shared.pending.setdefault(key)
            self._put_captures(stage, stage.captures)
            return {}

        return await self._run_operation(f"stage {stage.stage_id}", effect)

    patch.setattr(MemoryLedger, "put_stage_if_absent", stage)


@mutant
def head_does_not_wait_for_all_tables(patch: pytest.MonkeyPatch) -> None:
    def landed(self: Progress, batch: int, touched: frozenset[str]) -> bool:
        return any(self.done.get(table, -1) >= batch for table in touched)

    patch.setattr(Progress, "is_in_all_tables", landed)


@mutant
def returned_captures_are_taken_from_whoever_has_them(patch: pytest.MonkeyPatch) -> None:
    async def unstage(self: MemoryLedger, manifest: Manifest) -> list[Capture]:
        def effect() -> list[Capture]:
            gone = [c for stage in manifest.returned for c in stage.captures]
            for stage in manifest.returned:
                for capture in stage.captures:
                    self.shared.captures.pop((stage.generation, capture.capture_id), None)
            return gone

        return await self._run_operation(f"unstage {manifest.batch}", effect)

    patch.setattr(MemoryLedger, "unstage_returned_captures", unstage)


@mutant
def returned_captures_are_not_replayed(patch: pytest.MonkeyPatch) -> None:
    async def replay(self: World, captures: Sequence[Capture]) -> None: ...

    patch.setattr(World, "replay_captures", replay)


@mutant
def overwriting_appends(patch: pytest.MonkeyPatch) -> None:
    real = LogStore.commit

    async def commit(self: LogStore, table: str, adds: Any, **options: Any) -> Any:
        return await real(self, table, adds, **{**options, "overwrite": False})

    patch.setattr(LogStore, "commit", commit)


@mutant
def a_generation_is_opened_by_nothing(patch: pytest.MonkeyPatch) -> None:
    """Old rows go before new ones are there."""
    real = Composer.compose_batch

    async def compose(self: Composer, *, after: int, generation: int, **given: Any) -> Manifest | None:
        found = await real(self, after=after, generation=generation, **given)
        if found is None and self._current.generation > generation and not self.has_waiting_stages:
            tables = tuple(sorted(given["tables"]))
            return Manifest(batch=after + 1, generation=self._current.generation, opens=True, tables=tables, stages=())
        return found

    patch.setattr(Composer, "compose_batch", compose)


@mutant
def what_the_ledger_lost_of_an_overwrite_is_not_staged_again(patch: pytest.MonkeyPatch) -> None:
    async def recorded_stages(store: Store, ledger: Ledger, generation: int, *, after: int) -> frozenset[str]:
        found = await store.get(overwrite_record_path(generation))
        return frozenset() if found is None else frozenset(one["stage_id"] for one in json.loads(found[0])["stages"])

    patch.setattr("pcaplake.lake.commit.compose.restore_recorded_stages", recorded_stages)


@mutant
def old_files_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(files, "CHECK_AFTER_MS", 10**15)


@mutant
def what_a_capture_raises_ends_the_committer(patch: pytest.MonkeyPatch) -> None:
    """Whatever is neither Fatal nor Retryable."""
    patch.setattr(committable_files, "Exception", (Fatal, Retryable), raising=False)


@mutant
def the_generation_is_not_read_again(patch: pytest.MonkeyPatch) -> None:
    async def reload(self: CurrentIdentity) -> int:
        return self.generation

    patch.setattr(CurrentIdentity, "reload_generation", reload)


@mutant
def a_lost_manifest_is_driven_all_the_same(patch: pytest.MonkeyPatch) -> None:
    """3a lost: what was composed goes on instead of being thrown away."""
    real = MemoryStore.put_if_absent

    async def put_if_absent(self: MemoryStore, path: str, data: bytes) -> bool:
        return await real(self, path, data) or "/batches/" in path

    patch.setattr(MemoryStore, "put_if_absent", put_if_absent)


@mutant
def a_version_of_somebody_else_is_taken_for_ours(patch: pytest.MonkeyPatch) -> None:
    """What a conditional put says is not asked; nor is `txnId`."""
    real = PutIfAbsent.publish_version

    async def publish(self: PutIfAbsent, table: str, version: int, data: bytes, *uploads: Any) -> Finish | None:
        await real(self, table, version, data, *uploads)
        return lambda: asyncio.sleep(0)

    patch.setattr(PutIfAbsent, "publish_version", publish)


MUTANTS |= {
    "head_does_not_wait_for_captures_that_are_owed": Mutant(
        Committer._commit_open_batches, "head waits until returned captures are announced or staged again", DROP
    ),
    "a_generation_is_opened_by_what_it_gives_back": Mutant(
        Composer.compose_batch, "old rows are removed in the transactions that add new ones", DROP
    ),
    "a_generation_is_opened_without_all_that_was_recorded": Mutant(
        Composer._require_recorded_stages, "a generation opens with every stage that its overwrite recorded", ALWAYS
    ),
    "young_files_are_not_looked_at_after_a_recovery": Mutant(
        CommittableFiles._may_lack_files, "files written before the table was last seen may be gone", DROP
    ),
    "files_are_made_again_with_another_number_of_rows": Mutant(
        CommittableFiles._rebuild_stage_files, "files are rebuilt with as many rows as they had", ALWAYS
    ),
    "a_table_that_lost_rows_is_committed_to_all_the_same": Mutant(
        LogStore._judge_before_commit, "a table from which another program has removed rows gets no batch", NEVER
    ),
    "a_table_that_lacks_a_batch_is_committed_to_all_the_same": Mutant(
        TableCommits._reread_transaction, "a table that lacks a batch is blocked", NEVER
    ),
}
