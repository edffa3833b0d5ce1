"""The ledger: the durable map capture -> stage -> batch, as a port.

`stage`, `hold`, `bind`, `advance` and `take` are one transaction each: all of it happens or nothing. So are the others
where the adapter can (SQLite, memory). Where a manifest is too large for that (DynamoDB) they are steps, in an order in
which a crash between any two does no harm: the caller calls again, or whoever recovers does, before anything is built
on it. What an adapter cannot do now is `Retryable`; when it cannot know whether it did it, `OutcomeUnknown`. Every
method may be called again with the same arguments. It compares no clocks and asks no object store about captures.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from ...errors import Fatal
from ..manifest import Capture, Manifest, Stage

STAGED: Literal["STAGED"] = "STAGED"
COMMITTED: Literal["COMMITTED"] = "COMMITTED"


class LedgerLost(Fatal):
    """A manifest names a stage that the ledger has never heard of: one of the two was lost or is an old copy."""

    def __init__(self, batch: int, stage_id: str) -> None:
        super().__init__(
            f"batch {batch} names the stage {stage_id}, which this ledger does not know: the ledger was lost or "
            "restored from an old copy. Stop all processes on this lake, put the right ledger back, or let this one "
            "be rebuilt from the manifests with --adopt"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureItem:
    """What the ledger holds of one capture."""

    capture: Capture
    stage_id: str
    state: Literal["STAGED", "COMMITTED"]
    batch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageItem:
    """What the ledger holds of one stage. `stage` is None once it is flagged, or when somebody else deleted what it
    holds; `displaced`: a capture was taken away from it by a manifest, so its files must never be committed."""

    stage: Stage | None
    batch: int | None = None
    displaced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Who composes. Liveness only; `beat` grows while the owner lives."""

    owner: str = ""
    beat: int = 0


class Ledger(Protocol):
    """`generation` scopes captures, stages, the work list and what is held; head, marks and lease are of the lake."""

    @property
    def kind(self) -> str: ...

    @property
    def name(self) -> str: ...

    async def identity(self) -> str:
        """Made once with the ledger and never again: another ledger has another identity."""

    async def bind(self, lake_id: str) -> str:
        """Belong to this lake if to none yet -> the lake it belongs to.

        Where the durable ledger keeps many lakes apart, it is the opened one that belongs to a lake.
        """

    async def captures(self, generation: int, capture_ids: Collection[str]) -> dict[str, CaptureItem]:
        """The items of those that are there."""

    async def stage(self, stage: Stage) -> dict[str, str]:
        """Create the stage, its pending item and its captures' items, only if all of them are absent.

        {} -> it is staged (also when an earlier request for it had done so). Else nothing was written, and the answer
        is capture_id -> stage_id of who has it; "" where the stage had been given back, so that its repeat is too late.
        """

    async def pending(self, generation: int, limit: int) -> list[str]:
        """The oldest stages on the work list, oldest first; more or less, where it is in shards."""

    async def stages(self, generation: int, stage_ids: Collection[str]) -> dict[str, StageItem]:
        """The items of those that are there."""

    async def unpend(self, generation: int, stage_ids: Collection[str]) -> None:
        """Take stages off the work list."""

    async def hold(self, generation: int, stage_id: str, reason: str) -> bool:
        """Move a stage from the work list to the held ones -> False when it is in a batch (then nothing happens)."""

    async def held(self, generation: int) -> dict[str, str]:
        """stage_id -> reason."""

    async def release(self, generation: int) -> None:
        """Everything held goes back on the work list."""

    async def mark(self, manifest: Manifest, *, rebuild: bool = False) -> None:
        """Mark every stage of a manifest, returned ones too, with its batch, and raise the watermark to it.

        A stage that is absent is created when rebuilding, passed over when the batch is not above head (it has
        expired), else `LedgerLost`. Above head, or when rebuilding: a capture of one of its stages that is absent is
        created; one that another stage has is given to the manifest's, and the other is displaced.
        """

    async def marked(self) -> int:
        """All manifests up to here are marked; -1 at first."""

    async def unstage(self, manifest: Manifest) -> list[Capture]:
        """Delete each capture of the returned stages that is still theirs -> those that nobody has now."""

    async def flag(self, manifest: Manifest) -> None:
        """Captures of its stages, where still theirs, are COMMITTED in this batch; its stages leave the work list."""

    async def head(self) -> int:
        """The last batch that is in every table and flagged; -1 at first."""

    async def advance(self, batch: int) -> bool:
        """head = batch if head = batch - 1."""

    async def lease(self) -> Lease: ...

    async def take(self, seen: Lease, owner: str) -> bool:
        """The lease goes to `owner`, with the next beat, if it is still as seen."""

    async def close(self) -> None: ...


def taken(stage: Stage, holders: Mapping[str, str], *, known: bool) -> dict[str, str]:
    """The answer of `Ledger.stage`, from who holds its captures now and whether the stage item exists."""
    return {
        capture.capture_id: holders.get(capture.capture_id, "")
        for capture in stage.captures
        if holders.get(capture.capture_id) != stage.stage_id and (known or capture.capture_id in holders)
    }
