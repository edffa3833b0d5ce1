"""The age of a lake's oldest pending stage: VACUUM must keep files for longer than that.

worker/admin/pending_stages.py finds the stages. Writes one empty object, to learn the store's time. Needs no Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pcaplake.common.errors import Retryable
from pcaplake.lake.store.store import Store
from pcaplake.worker.admin.case import Case
from pcaplake.worker.admin.open_case import Subject, open_case
from pcaplake.worker.admin.pending_stages import find_tables_to_leave_alone, find_uncommitted_stages

CLOCK = "_spark/clock"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingStages:
    """Stages whose rows are not in every table. Times are the store's clock, epoch ms; `oldest` None: none waits.

    `behind`: tables that must be skipped -> why (see pcaplake.worker.admin.pending_stages.find_tables_to_leave_alone).
    """

    stages: int
    oldest: int | None
    now: int
    behind: Mapping[str, str] = field(default_factory=dict)

    @property
    def oldest_age_ms(self) -> int:
        """Age of the oldest stage, ms; 0 where none waits."""
        return 0 if self.oldest is None else max(0, self.now - self.oldest)


async def find_pending_stages(subject: Subject, lake: str) -> PendingStages:
    """Read them from a lake. Raises Fatal if they are unknown: no lake, a foreign ledger, or one that has lost stages."""
    async with open_case(subject, lake) as case:
        return await measure_pending_stages(case)


async def measure_pending_stages(case: Case) -> PendingStages:
    """Pending and held stages, and those of manifests above head, which a blocked table may not have yet."""
    uncommitted = await find_uncommitted_stages(case)
    oldest = min((stage.written_at for stage in uncommitted.values()), default=None)
    return PendingStages(
        stages=len(uncommitted),
        oldest=oldest,
        now=await read_store_clock(case.store),
        behind=await find_tables_to_leave_alone(case),
    )


async def read_store_clock(store: Store) -> int:
    """The store's clock, epoch ms."""
    await store.put(CLOCK, b"")
    meta = await store.head(CLOCK)
    if meta is None:
        raise Retryable(f"{CLOCK} was deleted just after it was written; run this again")
    return round(meta.last_modified.timestamp() * 1000)
