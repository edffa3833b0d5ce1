"""What a lake waits for: files that are staged and in no table yet, which no VACUUM may take.

Knows ledger and manifests, of either kind of ledger. Must not know Spark. It changes nothing but one empty object of
Spark's that tells the store's time.
"""

from __future__ import annotations

from dataclasses import dataclass

from worker.errors import Fatal, Retryable
from worker.fleet.checks_common import Case, Finding, batches_from, manifests
from worker.fleet.checks_lake import lake_json, ledger
from worker.fleet.doctor import Subject, opened
from worker.lake.manifest import Stage
from worker.lake.store import Store

CLOCK = "_spark/clock"
_EVERYTHING = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Stages whose rows are not in every table. Times are the store's clock, epoch ms; `oldest` None: none waits."""

    stages: int
    oldest: int | None
    now: int

    @property
    def age(self) -> int:
        """Of the oldest, ms; 0 where none waits."""
        return 0 if self.oldest is None else max(0, self.now - self.oldest)


async def look(subject: Subject, lake: str) -> Waiting:
    """Fatal when that cannot be known: no lake, another ledger than the lake's, or one that has lost stages."""
    async with opened(subject, lake) as case:
        return await waiting(case)


async def waiting(case: Case) -> Waiting:
    """Pending and held stages, and those of manifests above head, which a blocked table may not have yet."""
    problems = [one for one in [*await lake_json(case), *await _ledger(case)] if one.level != "ok"]
    if case.identity is None or case.ledger is None:
        raise Fatal(f"{case.store.uri}: {'; '.join(one.what for one in problems)}; `pcaplake doctor` says what to do")
    lake, book = case.identity, case.ledger
    head = await book.head()
    pending, held = await book.pending(lake.generation, _EVERYTHING), await book.held(lake.generation)
    named = {*pending, *held}
    items = await book.stages(lake.generation, named)
    if lost := named - items.keys():
        raise Fatal(
            f"{case.store.uri}: {len(lost)} stages are on the work list and not in the ledger, so nobody knows which "
            "files they need: see `pcaplake doctor`"
        )
    found: dict[str, Stage] = {
        one: item.stage
        for one, item in items.items()
        if item.stage is not None and (item.batch is None or item.batch > head)
    }
    async for _, manifest in manifests(case.store, await batches_from(case.store, head + 1)):
        found |= {stage.stage_id: stage for stage in (() if manifest is None else manifest.stages)}
    oldest = min((stage.written_at for stage in found.values()), default=None)
    return Waiting(stages=len(found), oldest=oldest, now=await store_now(case.store))


async def _ledger(case: Case) -> list[Finding]:
    return [] if case.identity is None else await ledger(case)


async def store_now(store: Store) -> int:
    """The store's clock, epoch ms."""
    await store.put(CLOCK, b"")
    meta = await store.head(CLOCK)
    if meta is None:
        raise Retryable(f"{CLOCK} was deleted under us")
    return round(meta.last_modified.timestamp() * 1000)
