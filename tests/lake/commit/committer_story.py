"""One random schedule of the committer from its beginning to its end, and what must hold then.

Every row is there once, head is the last manifest, old rows went only with all the new ones, and the next commit succeeds.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter

from pcaplake.common.errors import Fatal
from pcaplake.lake.lake import Lake
from pcaplake.lake.records import manifest_path
from tests.lake.commit.committer_model import CAPTURES, KNOBS, ODD, ROWS, SCHEMAS, World
from tests.worker.model.tables import SCHEMA


class Story:
    def __init__(self, world: World) -> None:
        self.world = world

    async def told(self) -> None:
        world = self.world
        lake = await world.lake(0)
        for table in SCHEMAS:
            await lake.log.create(table, SCHEMA, partition_columns=("date",))
        for _ in range(world.rng.randint(1, 3)):
            world.start(world.ingesting())
        for _ in range(world.rng.randint(1, 12)):
            await asyncio.sleep(world.rng.random() * 3)
            world.queue.append(world.rng.choice(CAPTURES))
            if world.rng.random() < 0.3 or not world.alive:
                world.start(world.ingesting())
        await self.heal()
        await self.settle(lake, redeliver=False)
        acked = {name for name, g in world.acked.items() if g == world.generation and name in CAPTURES}
        self.check((acked | {*world.begun[world.generation]}) - {*world.queue})
        world.queue += CAPTURES
        await self.settle(lake, redeliver=True)
        self.check(set(CAPTURES))
        world.queue.append("next")
        await self.settle(lake, redeliver=True)
        self.check({*CAPTURES, "next"})

    async def heal(self) -> None:
        world = self.world
        world.schedule.calm = True
        world.loop.thaw(*list(world.loop.frozen))
        world.put_back()
        world.tables.give_rows_back()
        world.tables.mend()
        await asyncio.sleep(1.0)
        for process in list(world.alive):
            world.schedule.kill(process)
        world.schedule.land()

    async def settle(self, lake: Lake, *, redeliver: bool) -> None:
        """Until nothing is left to do; an overwrite whose rows are lost is repeated."""
        while True:
            running = lake._task = asyncio.create_task(lake.committer.run())
            refusal = ""
            try:
                while redeliver and (todo := sorted({*self.world.queue} - {ODD})):
                    await self.world.deliver(lake, todo)
                await asyncio.sleep(2 * KNOBS.max_batch_age)  # it takes over, and may say that something is amiss
                await lake.drain()
                lake.raise_if_stopped()
            except Fatal as error:
                refusal = str(error)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
            if (found := re.match(r"overwrite (\d+) has begun, and ", refusal)) and self.world.is_lost(int(found[1])):
                await self.world.overwriting(self.world.begun[self.world.generation])
                continue
            assert self.held() == ([ODD] if "is held: captures: column packet_no" in refusal else []), refusal
            if not (redeliver and {*self.world.queue} - {ODD}):
                return

    def held(self) -> list[str]:
        keys = [key for key in self.world.ledger.shared.held if key[0] == self.world.generation]
        stages = [self.world.ledger.shared.stages[key].stage for key in keys]
        return [capture.capture_id for stage in stages if stage for capture in stage.captures]

    def kept(self) -> set[str]:
        """What the tables must have by the manifests: old rows stay until new ones come, all of them at once."""
        manifests = self.world.manifests()
        used = {one.generation for one in manifests}
        assert used <= self.world.begun.keys(), f"{used - self.world.begun.keys()}: of an overwrite that was cut off"
        for one in manifests:
            brought = {stage.stage_id for stage in one.stages}
            assert brought or not one.opens, f"batch {one.batch} removes the old rows and brings none"
            lacking = {stage.stage_id for stage in self.world.recorded(one.generation)} - brought
            assert not (one.opens and lacking), f"batch {one.batch} opens its generation without {lacking}"
        shown = next((one.generation for one in reversed(manifests) if one.stages), 0)
        stages = (stage for one in manifests if one.generation == shown for stage in one.stages)
        return {capture.capture_id for stage in stages for capture in stage.captures}

    def check(self, exactly: set[str]) -> None:
        exactly = exactly | self.kept()
        for table, numbers in ROWS.items():
            rows = self.world.tables.rows(table)
            assert max(rows.values(), default=0) <= 1, f"{table}: twice {[key for key, n in rows.items() if n > 1]}"
            whole = {name for name, _ in rows}
            assert all((name, number) in rows for name in whole for number in numbers), f"{table}: part of a capture"
            assert exactly <= whole, f"{table}: lost {exactly - whole}"
            assert ODD not in whole
        head = self.world.ledger.shared.head
        assert manifest_path(head + 1) not in self.world.store.objects, "head is not the last manifest"
        assert head < 0 or manifest_path(head) in self.world.store.objects


def survive(seed: int) -> Counter[str]:
    """One schedule -> what happened in it, and how often. AssertionError with the seed, and what led to it."""
    world = World(seed)
    try:
        world.schedule.run(Story(world).told())
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}\n" + "\n".join(world.schedule.history)) from error
    return world.counts + Counter(batches=world.ledger.shared.head + 1, picks=world.schedule.picks)
