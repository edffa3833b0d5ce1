"""The port of the ledger: the durable map capture -> stage -> batch.

Staging, holding, binding, moving head and taking the lease are one transaction each, as all methods in SQLite and memory.
DynamoDB limits the size of a transaction, so there they are several, in an order in which a crash between any two does no
harm: the caller, or the next leader, calls again before anything depends on them. Every method may be called again with
the same arguments. Methods raise Retryable when nothing happened and OutcomeUnknown when a write may have happened.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from pcaplake.common.errors import Fatal, PcaplakeError
from pcaplake.lake.records import Capture, Manifest, Stage

STAGED: Literal["STAGED"] = "STAGED"
COMMITTED: Literal["COMMITTED"] = "COMMITTED"
EVERYTHING = 1_000_000  # a `limit` that means no limit


class LedgerLost(Fatal):
    """A manifest names a stage that the ledger does not know: one of the two was lost or is an old copy."""

    def __init__(self, batch: int, stage_id: str) -> None:
        super().__init__(
            f"batch {batch} names the stage {stage_id}, which this ledger does not know: the ledger was lost or "
            "restored from an old copy. Stop all processes on this lake and put the right ledger back, or rebuild this one "
            "from the manifests with --adopt"
        )


class CaptureLeaves(PcaplakeError):
    """The rows of this content are being removed. When that is done, it can be read again as a new one."""

    def __init__(self, uri: str) -> None:
        super().__init__(
            f"{uri}: the rows of this content are being removed from the lake; it is read again after that"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureItem:
    """A capture in the ledger. `seen`: when it was seen again last (`seen_at`), "" if never. `leaving`: it is being removed.

    Both only in ledgers that have `Removals`.
    """

    capture: Capture
    stage_id: str
    state: Literal["STAGED", "COMMITTED"]
    batch: int | None = None
    seen: str = ""
    leaving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StageItem:
    """A stage in the ledger. `stage` is None once it is flagged, or when its object was deleted.

    `displaced`: a manifest gave one of its captures to another stage, so its files must never be committed.
    """

    stage: Stage | None
    batch: int | None = None
    displaced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Which process leads. Only for liveness; `beat` grows while the owner lives."""

    owner: str = ""
    beat: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrollment:
    """What a ledger knows about its lake: URI, highest generation used, and number of shards of the work list.

    It is recorded before anything is read or staged in a generation, so it reveals an older copy of lake.json.
    """

    uri: str
    generation: int
    shards: int


class Ledger(Protocol):
    """A ledger. Captures, stages, the work list and held stages belong to a generation; head, watermark and lease to the lake.

    The work list has the pending stages, which wait for a batch.
    """

    @property
    def kind(self) -> str: ...

    @property
    def name(self) -> str: ...

    async def read_ledger_id(self) -> str:
        """An id that is created with the ledger and never changes."""

    async def bind_to_lake(self, lake_id: str) -> str:
        """Bind the ledger to this lake if it is not bound yet, and return the id of the lake it is bound to.

        Where one durable ledger serves many lakes, this binds the opened instance.
        """

    async def find_lake_at(self, uri: str) -> str | None:
        """The id of a lake that the ledger has recorded at this URI; None: it has recorded none. Needs no `bind_to_lake`.

        A ledger that serves one lake returns that lake, wherever it was.
        """

    async def read_enrollment(self) -> Enrollment | None:
        """The recorded lake, None before the first `enroll_lake`. Call after `bind_to_lake`."""

    async def enroll_lake(self, lake: Enrollment, *, moved: bool = False) -> Enrollment:
        """Record the lake, and return what is recorded now: never a lower generation, and another URI only when it has
        `moved`.

        Call after `bind_to_lake`. It also tells the ledger the number of shards.
        """

    async def get_capture_items(self, generation: int, capture_ids: Collection[str]) -> dict[str, CaptureItem]:
        """The items of these captures, of those that exist."""

    async def put_stage_if_absent(self, stage: Stage) -> dict[str, str]:
        """Create the items of the stage and its captures and its place on the work list, if all of them are absent.

        Returns {} when the stage is staged, also by an earlier request. Else nothing was written, and the answer is
        capture_id -> id of the stage that has it; "" when the stage was returned meanwhile, so its repeat is too late.
        """

    async def list_pending_stages(self, generation: int, limit: int) -> list[str]:
        """The oldest stages on the work list, oldest first; approximately so when the list has shards."""

    async def get_stage_items(self, generation: int, stage_ids: Collection[str]) -> dict[str, StageItem]:
        """The items of these stages, of those that exist."""

    async def remove_pending_stages(self, generation: int, stage_ids: Collection[str]) -> None:
        """Take stages off the work list."""

    async def hold_stage(self, generation: int, stage_id: str, reason: str) -> bool:
        """Move a stage from the work list to the held stages. False: it is in a batch, and nothing happened."""

    async def list_held_stages(self, generation: int) -> dict[str, str]:
        """The held stages: stage_id -> reason."""

    async def release_held_stages(self, generation: int) -> None:
        """Put all held stages back on the work list."""

    async def mark_batch_stages(self, manifest: Manifest, *, rebuild: bool = False) -> None:
        """Mark each stage of a manifest, also returned ones, with its batch, and raise the watermark to that batch.

        A missing stage is created when rebuilding, ignored when the batch is not above head (it has expired), else it
        raises LedgerLost. Above head, or when rebuilding, the manifest's stages also get their captures: a missing one is
        created; one that another stage has is taken from it, and that stage is displaced.
        """

    async def read_watermark(self) -> int:
        """The watermark: all manifests up to this batch are marked; -1 at first."""

    async def unstage_returned_captures(self, manifest: Manifest) -> list[Capture]:
        """Delete the captures of returned stages, where they still belong to them, and return those that no stage has
        now.
        """

    async def flag_batch_committed(self, manifest: Manifest) -> None:
        """Set captures of the manifest's stages to COMMITTED, where still theirs, and take the stages off the work list."""

    async def read_head(self) -> int:
        """The last batch that every table has and that is flagged; -1 at first."""

    async def advance_head(self, batch: int) -> bool:
        """Set head to `batch` if it is `batch` - 1, and return whether it was."""

    async def read_lease(self) -> Lease:
        """The lease now."""

    async def take_lease(self, seen: Lease, owner: str) -> bool:
        """Give the lease to `owner`, with the next beat, if it is still as seen, and return whether it was."""

    async def read_last_swap(self) -> int:
        """The number of the last swap of rows (`lake.commit.swaps`) that this ledger has; 0: none."""

    async def forget_captures(self, generation: int, captures: Mapping[str, str], *, last_swap: int) -> None:
        """Delete captures that a swap has removed from every table, so that they can be ingested again; then record the swap.

        `captures`: capture_id -> the stage that had it: a capture that came back is in another one. Does nothing if the ledger
        has this swap or a later one.
        """

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A removal of captures that has begun: `until`: the batch up to which their rows go."""

    removal_id: str
    generation: int
    captures: Mapping[str, str]  # capture_id -> the stage that had it
    until: int


@runtime_checkable
class Removals(Protocol):
    """A ledger of a fleet, whose workers may see a content again while it is removed (`lake.commit.removals`).

    A lake has one removal at a time. While a capture leaves, its item stays, so that nobody stages it, and whoever asks for
    it is told (`CaptureItem.leaving`). `put_stage_if_absent` raises CaptureLeaves for a sighting of a content that leaves or
    is gone, and else notes in the item of the content when it was seen.
    """

    async def begin_removal(self, generation: int, items: Collection[CaptureItem], until: int) -> Removal | None:
        """Mark committed captures as leaving, in one transaction.

        Captures whose items have changed are left out, as are those above the most of one transaction. None: no capture is
        left, or another removal has begun.
        """

    async def read_removal(self) -> Removal | None:
        """The removal that has begun and not ended."""

    async def restore_removal(self, removal: Removal) -> None:
        """Begin a removal again whose record the lake has, in a rebuilt ledger."""

    async def end_removal(self, removal_id: str) -> None:
        """Another one can begin; does nothing if that has happened."""

    async def read_followed(self) -> int | None:
        """The batch up to which older contents were removed; None: not known."""

    async def write_followed(self, batch: int) -> None:
        """Record that batch."""


def seen_at(modified: int | None, sequencer: str | None) -> str:
    """The time of an event in the order of `current_captures`, as a text that sorts by it; "" if it is not known."""
    return "" if modified is None else f"{modified:020d} {sequencer or ''}"


def captures_of_other_stages(stage: Stage, holders: Mapping[str, str], *, known: bool) -> dict[str, str]:
    """The answer of `Ledger.put_stage_if_absent`, from the stages that hold its captures and whether its own item exists."""
    return {
        capture.capture_id: holders.get(capture.capture_id, "")
        for capture in stage.captures
        if holders.get(capture.capture_id) != stage.stage_id and (known or capture.capture_id in holders)
    }
