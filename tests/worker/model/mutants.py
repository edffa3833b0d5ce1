"""Mutants of the model of a fleet: each takes out one rule of docs/exactly-once.md, sections 3 and 4 (tests/mutants.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pcaplake.common.errors import Retryable
from pcaplake.ingest.decode_pool import DecodePool, End, _OpenWindow
from pcaplake.ingest.stager import CaptureStager
from pcaplake.lake import formats
from pcaplake.lake.commit import overwrite
from pcaplake.lake.commit.committable_files import CommittableFiles
from pcaplake.lake.commit.committer import Committer
from pcaplake.lake.commit.compose import Composer
from pcaplake.lake.commit.recovery import Recovery
from pcaplake.lake.commit.table_commits import TableCommits
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.lake import Lake
from pcaplake.lake.records import Manifest, Stage
from pcaplake.lake.staging.window import Window
from pcaplake.worker.service import announce
from pcaplake.worker.service.message_stager import MessageStager
from pcaplake.worker.service.service import Service
from tests.mutants import ALWAYS, DROP, FIRST, NEVER, Argument, Becomes, Instead, Mutant, Through
from tests.worker.adapters.memory_ledger import MemoryLedger


class _DeletesInsteadOfRelease:
    """A queue that deletes a message which is released for at once."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    async def release_message(self, delivery: Any, seconds: float) -> None:
        await (self._queue.release_message(delivery, seconds) if seconds else self._queue.delete([delivery]))


def _delete_what_goes_back(work: Any) -> Any:
    async def deleting(self: Any, message: Any) -> None:
        if not isinstance(self._queue, _DeletesInsteadOfRelease):
            self._queue = _DeletesInsteadOfRelease(self._queue)
        await work(self, message)

    return deleting


def _announce_first(give_back: Any) -> Any:
    async def announcing(self: Any, batch: int) -> None:
        manifest = await self._manifests.require(batch)
        if manifest.returned:
            await self._source.replay_captures([capture for stage in manifest.returned for capture in stage.captures])
            await self._ledger.unstage_returned_captures(manifest)
        self._progress.given_back.add(batch)

    return announcing


def _lacks_files_when_old(lacks_files: Any) -> Any:
    async def lacking(self: Any, stage: Stage, now: int, of_record: bool) -> bool:
        return self._files.needs_copy(stage, now) or await lacks_files(self, stage, now, of_record)

    return lacking


def _reserved_too(generation_now: Any) -> Any:
    async def reserved_or_now(self: Any, last: int, flush_now: bool) -> int:
        return max(await generation_now(self, last, flush_now), self._current.identity.reserved)

    return reserved_or_now


def _tables_of_its_rows(compose: Any) -> Any:
    async def composing(self: Any, **given: Any) -> Manifest | None:
        manifest: Manifest | None = await compose(self, **given)
        return manifest and replace(manifest, tables=tuple(sorted(manifest.schemas)))

    return composing


def _none_of_several_failed(ends: list[Any]) -> list[Any]:
    return [None if isinstance(end, Exception) and len(ends) > 1 else end for end in ends]


MUTANTS: Mapping[str, Mutant] = {
    # the service: one message, one capture
    "a message is deleted before its captures are staged": Mutant(
        Service._process_message,
        "a message is deleted after its captures are staged",
        FIRST,
    ),
    "a message is deleted when one of several captures failed": Mutant(
        MessageStager._stage_captures,
        "a message is kept if one of its captures fails",
        Through(_none_of_several_failed),
    ),
    "a message that goes back is deleted": Mutant(
        Service._process_message,
        "a message whose captures are not staged is released",
        Instead(_delete_what_goes_back),
    ),
    "a second message for a capture does not wait for the first": Mutant(
        CaptureStager._resolve_and_stage,
        "a second request for a capture waits for the first",
        NEVER,
    ),
    "a failure is taken for a capture that is gone": Mutant(
        CaptureStager.stage_capture,
        "only a capture that is gone or has changed needs no rows",
        Through(lambda errors: (*errors, Retryable)),
    ),
    "a capture that is gone is tried again": Mutant(
        CaptureStager.stage_capture,
        "only a capture that is gone or has changed needs no rows",
        NEVER,
    ),
    "the ledger is not asked": Mutant(
        CaptureStager._attempt_staging,
        "a capture that the ledger has is not decoded again",
        NEVER,
    ),
    "a capture that must be read again is taken for known": Mutant(
        CaptureStager._attempt_staging,
        "a capture is done only when the ledger has a stage with it",
        Through(lambda end: End.STAGED if end is End.RETRY else end),
    ),
    "a capture that was given up is taken for staged": Mutant(
        CaptureStager._attempt_staging,
        "a capture is done only when the ledger has a stage with it",
        Through(lambda end: End.STAGED if end is End.STOPPED else end),
    ),
    # windows and stages
    "a window is lost, and its captures are said to be staged": Mutant(
        _OpenWindow.give_up_window,
        "the captures of a lost window are decoded again",
        Argument(lambda end: End.STAGED),
    ),
    "what a stage left out is said to be staged": Mutant(
        DecodePool._stage_window,
        "captures of a refused stage are decoded again",
        Argument(lambda end: End.STAGED if end is End.RETRY else end),
    ),
    "what others hold is taken for staged, and the rest with it": Mutant(
        Lake.stage,
        "a stage is accepted with all its captures or not at all",
        NEVER,
    ),
    "the generation is not read again after staging": Mutant(
        Lake.stage,
        "a stage counts only if the generation has not changed meanwhile",
        Becomes(False),
    ),
    "the ledger is asked about the generation of before": Mutant(
        Lake.find_captures,
        "captures are looked up again if the generation has changed meanwhile",
        DROP,
    ),
    "nobody knows how old a file is": Mutant(
        Window.close,
        "a stage records when its first file was written",
        Becomes(10**14),
    ),
    # the ledger
    "a stage is taken whoever has its captures": Mutant(
        MemoryLedger.put_stage_if_absent,
        "a stage is accepted only if no other stage has one of its captures",
        Becomes({}),
    ),
    "a late repeat finds its stage expired, and is taken": Mutant(
        MemoryLedger.put_stage_if_absent,
        "a stage whose item has expired is not accepted again if its captures are known",
        DROP,
    ),
    "what a manifest holds is left to whoever has it": Mutant(
        MemoryLedger.mark_batch_stages,
        "captures belong to the stage that a manifest lists",
        DROP,
    ),
    # back from the committer
    "who lost a capture to a manifest is committed all the same": Mutant(
        Composer.compose_batch,
        "a stage that lost a capture to a manifest is returned",
        DROP,
    ),
    "returned captures are not announced": Mutant(
        announce.announce_captures,
        "returned captures are announced",
        DROP,
    ),
    "returned captures are not driven": Mutant(
        Committer._commit_open_batches,
        "returned captures are announced or staged again",
        DROP,
    ),
    # the committer
    "a stage is composed whatever batch it is in": Mutant(
        Composer._select_unmarked_stages,
        "a stage is in one batch",
        DROP,
    ),
    "a recovery marks nothing": Mutant(
        Recovery.recover_state,
        "a recovery marks the stages that manifests list",
        NEVER,
    ),
    "a recovery goes on with the last manifest only": Mutant(
        Recovery.recover_state,
        "a recovery continues with every manifest above head",
        Through(lambda opened: dict([*opened.items()][-1:])),
    ),
    "the version of a returned capture is forgotten": Mutant(
        announce.announce_captures,
        "a returned capture is announced with its version",
        Argument(lambda ref: replace(ref, version_id=None)),
    ),
    "returned captures are announced before they are forgotten": Mutant(
        Committer._return_captures,
        "returned captures leave the ledger before they are announced",
        Instead(_announce_first),
    ),
    "a table gets the last of its batches first": Mutant(
        TableCommits.commit_table,
        "a table gets its batches in order",
        Through(lambda batches: batches[::-1]),
    ),
    "files are not looked at before a commit, however old": Mutant(
        CommittableFiles.find_committable_files,
        "files that may be gone are checked before they are committed",
        ALWAYS,
    ),
    "an old stage is returned, whatever it has": Mutant(
        Composer._has_missing_files,
        "a stage is returned only when it lacks files",
        Instead(_lacks_files_when_old),
    ),
    "a stage that lacks files is returned, whether its captures can be read again or not": Mutant(
        Composer._can_be_read_again,
        "a stage is returned only when its captures can be read again",
        NEVER,
    ),
    # copies, restores and drops
    "a table that lacks a batch is committed to all the same": Mutant(
        TableCommits._reread_transaction,
        "a table that lacks a batch is blocked",
        NEVER,
    ),
    "a table that lost rows is committed to all the same": Mutant(
        LogStore._judge_before_commit,
        "a table from which another program has removed rows gets no batch",
        NEVER,
    ),
    "what a table must have is known of the tables in the manifest of head only": Mutant(
        Recovery.recover_state,
        "each manifest up to head names the batch that its tables must have",
        Becomes({}),
    ),
    "what does not fit is composed while its table is gone": Mutant(
        Composer._read_table_struct,
        "a stage must also fit a table that does not exist",
        NEVER,
    ),
    "what an overwrite has reserved is committed before it begins": Mutant(
        Composer._read_generation,
        "stages of an overwrite wait until it has begun",
        Instead(_reserved_too),
    ),
    "an overwrite leaves no record": Mutant(
        overwrite.begin_generation,
        "an overwrite is recorded before it begins",
        Argument(lambda path: f"{path}.lost"),
    ),
    "the record of an overwrite is not read": Mutant(
        overwrite.restore_recorded_stages,
        "the record of an overwrite is read",
        ALWAYS,
    ),
    "what the ledger has lost of an overwrite is not staged again": Mutant(
        overwrite.restore_recorded_stages,
        "recorded stages that the ledger has lost are staged again",
        DROP,
    ),
    "an overwrite begins although a newer one has begun": Mutant(
        overwrite.begin_generation,
        "an overwrite does not begin after a newer one",
        NEVER,
    ),
    "what only a newer version knows is not written again": Mutant(
        formats.written_fields,
        "fields that only a newer version knows are kept",
        DROP,
    ),
    "an overwrite leaves alone what it has no rows for": Mutant(
        Composer.compose_batch,
        "an overwrite also replaces tables for which it has no rows",
        Instead(_tables_of_its_rows),
    ),
}
